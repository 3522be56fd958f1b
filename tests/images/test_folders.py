"""Folders of images as people have them: with links, loops, pipes, and names of any bytes."""

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from redi.errors import CorpusError
from redi.images import FolderImages, open_images, open_pictures
from redi.images.folders import DANGLING, FORBIDDEN, NO_FILE, REPEATED
from redi.images.labelled import describe_left_out


def draw(file: Path, colour: str = "red") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10), colour).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of one image each."""
    draw(tmp_path / "data" / "cat" / "1.png")
    draw(tmp_path / "data" / "dog" / "1.png")
    return tmp_path / "data"


def left_out(images: Any) -> dict[str, list[str]]:
    return {reason: sorted(names) for reason, names in images.left_out.items() if names}


def test_nothing_is_left_out_of_plain_folders(root: Path) -> None:
    (root / "cat" / "notes.txt").touch()
    (root / "cat" / ".hidden.png").symlink_to("nowhere")
    images = FolderImages(root)
    assert left_out(images) == {}
    assert describe_left_out(images) == ""


def test_links_to_files_and_folders_are_followed(root: Path, tmp_path: Path) -> None:
    draw(tmp_path / "store" / "a.png")
    draw(tmp_path / "store" / "deep" / "b.png")
    (root / "cat" / "2.png").symlink_to(tmp_path / "store" / "a.png")
    (root / "cat" / "more").symlink_to(tmp_path / "store")
    (root / "eel").symlink_to(tmp_path / "store")
    images = FolderImages(root)
    assert images.class_names == ["cat", "dog", "eel"]
    assert images.files == [
        *("cat/1.png", "cat/2.png", "cat/more/a.png", "cat/more/deep/b.png"),
        *("dog/1.png", "eel/a.png", "eel/deep/b.png"),
    ]
    assert images.load(3).size == (20, 10)
    assert left_out(images) == {}


def test_loops_end_and_no_folder_is_read_twice_for_a_class(root: Path) -> None:
    (root / "cat" / "loop").symlink_to(root / "cat")
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "self").symlink_to("self")
    (root / "everything").symlink_to(root)
    (root / "above").symlink_to(root.parent.parent)
    for name in ("p", "q", "r"):  # three folders that all link to each other
        draw(root / "dog" / name / "1.png")
        for other in ("p", "q", "r"):
            (root / "dog" / name / f"to-{other}").symlink_to(root / "dog" / other)
    images = FolderImages(root)
    assert images.class_names == ["cat", "dog"], "a link to the whole data set is no class"
    assert images.files == ["cat/1.png", "dog/1.png", "dog/p/1.png", "dog/q/1.png", "dog/r/1.png"]
    repeated = [f"dog/{name}/to-{other}" for name in "pqr" for other in "pqr"]
    assert left_out(images) == {
        REPEATED: ["above", "cat/loop", "cat/up", *repeated, "everything"],
        DANGLING: ["cat/self"],
    }


def test_of_two_links_to_one_folder_the_first_by_name_is_followed(root: Path, tmp_path: Path) -> None:
    draw(tmp_path / "store" / "a.png")
    for name in ("z", "b", "k"):
        (root / "cat" / name).symlink_to(tmp_path / "store")
    images = FolderImages(root)
    assert images.files == ["cat/1.png", "cat/b/a.png", "dog/1.png"]
    assert left_out(images) == {REPEATED: ["cat/k", "cat/z"]}


def test_links_that_lead_nowhere_and_pipes_are_counted_and_named(root: Path) -> None:
    for number in range(5):
        (root / "cat" / f"unfetched{number}.jpg").symlink_to("../.git/annex/objects/missing")
    (root / "cat" / "readme.txt").symlink_to("nowhere")
    (root / "eel").symlink_to("nowhere")
    os.mkfifo(root / "dog" / "pipe.png")
    images = open_images(str(root))
    assert describe_left_out(images) == (
        f"7 entries of {root} are left out: links that lead nowhere, 6 (cat/unfetched0.jpg, cat/unfetched1.jpg, "
        "cat/unfetched2.jpg, ...); pipes and devices, 1 (dog/pipe.png)"
    )
    assert left_out(images)[NO_FILE] == ["dog/pipe.png"]


def test_where_nothing_is_left_the_reason_is_said(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "cat" / "2.jpg")
    for open_, where in ((open_images, tmp_path), (open_pictures, tmp_path), (open_pictures, tmp_path / "cat")):
        with pytest.raises(CorpusError, match=r"There are no images in .*: 2 entries of .* lead nowhere, 1 .*; pipes"):
            open_(str(where))


def test_a_folder_without_permission_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may read everything: the refusal comes from a stand-in."""
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name in forbidden:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    forbidden = ["dog"]
    images = FolderImages(root)
    assert (images.class_names, images.files) == (["cat", "dog"], ["cat/1.png"])
    assert left_out(images) == {FORBIDDEN: ["dog"]}
    forbidden = ["data"]
    with pytest.raises(CorpusError, match=r"data cannot be read: .*Permission denied"):
        open_images(str(root))


def test_a_lost_disk_is_no_missing_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "dog":
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CorpusError, match=r"cannot be read: .*Input/output error"):
        open_images(str(root))


def test_a_flat_folder_names_what_it_leaves_out(tmp_path: Path) -> None:
    draw(tmp_path / "1.png")
    (tmp_path / "2.png").symlink_to("nowhere")
    images = open_pictures(str(tmp_path))
    assert [images.image_name(0)] == ["1.png"]
    assert left_out(images) == {DANGLING: ["2.png"]}


def test_names_may_hold_any_bytes(root: Path) -> None:
    odd = os.fsdecode(b"caf\xe9\x1b[31m")
    draw(root / odd / f"{odd}.png")
    images = FolderImages(root)
    assert images.class_names == [odd, "cat", "dog"]
    index = images.files.index(f"{odd}/{odd}.png")
    assert images.load(index).size == (20, 10)
    assert images.fingerprint() == FolderImages(root).fingerprint()


def test_a_picture_that_becomes_a_pipe_does_not_hang(root: Path) -> None:
    images = FolderImages(root)
    (root / "cat" / "1.png").unlink()
    os.mkfifo(root / "cat" / "1.png")
    with pytest.raises(ValueError, match="is not a regular file"):
        images.load(0)
