"""Labelled images from folders, Hugging Face datasets and webdataset shards."""

import io
import os
import re
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from redi.errors import CorpusError, ImageError
from redi.images import FolderImages, open_images, open_pictures, relabel
from redi.images.decode import MAX_BYTES
from redi.images.labelled import SUFFIXES, describe_left_out


def picture(colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(file, "PNG")
    return file.getvalue()


def make_folder(root: Path, **classes: list[str]) -> Path:
    for name, files in classes.items():
        (root / name).mkdir(parents=True)
        for file in files:
            target = root / name / file
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(picture())
    return root


def test_folder_order_is_by_code_point_and_odd_files_are_passed_over(tmp_path: Path) -> None:
    root = make_folder(tmp_path, b=["2.png", "10.png", "deep/1.png"], a=["x.PNG", "notes.txt", ".hidden.png"], Z=[])
    (root / "recipe.json").write_text("{}")
    (root / ".cache").mkdir()
    images = FolderImages(root)
    assert images.class_names == ["Z", "a", "b"]
    assert images.files == ["a/x.PNG", "b/10.png", "b/2.png", "b/deep/1.png"]
    assert images.labels == [1, 2, 2, 2]
    assert images.load(0).size == (20, 10)


def test_fingerprint_changes_with_names_classes_and_sizes(tmp_path: Path) -> None:
    root = make_folder(tmp_path, a=["1.png"], b=["1.png"])
    before = FolderImages(root).fingerprint()
    assert FolderImages(root).fingerprint() == before
    (root / "a" / "1.png").write_bytes(picture() + b"more")
    changed = FolderImages(root).fingerprint()
    (root / "c").mkdir()
    assert len({before, changed, FolderImages(root).fingerprint()}) == 3


@pytest.mark.parametrize(
    ("files", "address", "labelled", "unlabelled"),
    [
        (
            ["1.png"],
            "root",
            "^The images in .*root lie in no folder of a class: the class of an image is the name of its folder, as in "
            ".*root/<class>/<image>.$",
            "",
        ),
        ([], "root", "in .*root: pass a folder with one folder per class", "root: pass a folder of images, a folder"),
        (["a/picture"], "root", "the name of no file in it ends as that of an image", "of no file in it ends as that"),
        (["picture"], "root", "the name of no file in it ends as that of an image", "of no file in it ends as that"),
        (["1.parquet"], "root", "parquet files are read by `datasets`", "parquet files are read by `datasets`"),
        (["1.parquet"], "root/1.parquet", "parquet files are read by `datasets`", "parquet files are read by"),
        (["1.png"], "root/1.png", "1.png is a file; pass a folder with", "1.png is a file; pass a folder of images"),
        ([], "nowhere", "There is no folder .*nowhere; pass a folder with", "nowhere; pass a folder of images, a"),
        (["1.png", "notes.json"], "root", "lie in no folder of a class", ""),
    ],
)
def test_what_is_no_data_set_is_one_line_that_says_what_to_pass(
    files: list[str], address: str, labelled: str, unlabelled: str, tmp_path: Path
) -> None:
    """Where classes are needed and, in ``unlabelled``, where they are not; empty where it is read."""
    (tmp_path / "root").mkdir()
    for file in files:
        (tmp_path / "root" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "root" / file).write_bytes(picture())
    for open_them, message in ((open_images, labelled), (open_pictures, unlabelled)):
        if message:
            with pytest.raises(CorpusError, match=message) as caught:
                open_them(str(tmp_path / address))
            assert "\n" not in str(caught.value)
        else:
            assert len(open_them(str(tmp_path / address)).labels) == 1


def test_the_document_names_the_suffixes_that_are_read() -> None:
    document = (Path(__file__).parents[2] / "docs" / "DATA.md").read_text("utf-8")
    suffixes = document.partition("a file is a picture if its name ends in")[2].partition(";")[0]
    assert set(re.findall(r"`(\.\w+)`", suffixes)) == SUFFIXES


def test_pictures_beside_class_folders_and_without_a_suffix_are_not_read(tmp_path: Path) -> None:
    root = make_folder(tmp_path, a=["1.png", "picture"])
    (root / "loose.png").write_bytes(picture())
    assert [open_them(str(root)).image_name(0) for open_them in (open_images, open_pictures)] == ["a/1.png"] * 2
    assert len(open_pictures(str(root)).labels) == 1


def test_a_limit_takes_the_first_images_of_each_class_and_is_a_data_set_of_its_own(tmp_path: Path) -> None:
    """The fingerprint is that of a folder with these images alone, and does not read the others."""
    root = make_folder(tmp_path / "all", a=["1.png", "2.png", "3.png"], b=["1.png"], c=[])
    limited = open_images(str(root), limit=2)
    assert [limited.image_name(k) for k in range(len(limited.labels))] == ["a/1.png", "a/2.png", "b/1.png"]
    assert list(limited.labels) == [0, 0, 1]
    (root / "b" / "1.png").write_bytes(picture("blue"))
    assert limited.load(2).getpixel((0, 0)) == (0, 0, 255)
    smaller = make_folder(tmp_path / "some", a=["1.png", "2.png"], b=["1.png"], c=[])
    (smaller / "b" / "1.png").write_bytes(picture("blue"))
    before = limited.fingerprint()
    assert before == FolderImages(smaller).fingerprint() != FolderImages(root).fingerprint()
    (root / "a" / "3.png").write_bytes(b"another")
    assert limited.fingerprint() == before
    assert open_images(str(root), limit=3).fingerprint() == FolderImages(root).fingerprint()


def test_validation_labels_count_the_training_classes(tmp_path: Path) -> None:
    training = FolderImages(make_folder(tmp_path / "t", a=["1.png"], b=["1.png"], c=["1.png"]))
    validation = FolderImages(make_folder(tmp_path / "v", a=["1.png"], c=["1.png", "2.png"], d=[]))
    relabelled = relabel(validation, training)
    assert relabelled.labels == [0, 2, 2], "an empty folder that training lacks does no harm"
    assert list(relabelled.class_names) == ["a", "b", "c"]
    assert relabelled.load(1).size == (20, 10)
    with pytest.raises(CorpusError, match="1 validation classes are absent from training: b"):
        relabel(training, validation)


def test_an_empty_address_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path, a=["1.png"])
    monkeypatch.chdir(tmp_path)
    for read in (open_images, open_pictures):
        with pytest.raises(CorpusError, match=r"^The address of the images is empty: pass a folder"):
            read("")


def test_addresses_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="There is no folder"):
        open_images(str(tmp_path / "missing"))
    with pytest.raises(CorpusError, match="There are no images in"):
        open_images(str(tmp_path))
    with pytest.raises(CorpusError, match="No shard matches"):
        open_images(str(tmp_path / "*.tar"))
    with pytest.raises(CorpusError, match="must name a split"):
        open_images("hf:owner/name")


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def claim_size(path: Path, size: int) -> None:
    """A shard with a picture of that many bytes, all zero: a hole in a sparse file."""
    label, image = tarfile.TarInfo("1.cls"), tarfile.TarInfo("1.png")
    label.size, image.size = 1, size
    with path.open("wb") as file:
        file.write(label.tobuf() + b"0".ljust(512, b"\0") + image.tobuf())
        file.truncate(file.tell() + -(-size // 512) * 512 + 1024)


def test_shards_are_read_in_order_and_never_extracted(tmp_path: Path) -> None:
    write_shard(tmp_path / "b.tar", [("k2.cls", b"0"), ("k2.png", picture("blue")), ("k2.json", b"{}")])
    write_shard(
        tmp_path / "a.tar", [("d/k9.png", picture("lime")), ("d/k9.cls", b"2\n"), ("k1.jpg", b"bad"), ("k1.cls", b"1")]
    )
    for address in (str(tmp_path), str(tmp_path / "*.tar")):
        images = open_images(address)
        assert list(images.labels) == [2, 1, 0]
        assert list(images.class_names) == ["0", "1", "2"]
        assert images.image_name(0) == "a.tar/d/k9.png"
        assert images.load(0).getpixel((0, 0)) == (0, 255, 0)
        assert images.load(2).getpixel((0, 0)) == (0, 0, 255)
        with pytest.raises(ImageError, match=r"a\.tar/k1\.jpg is not an image"):
            images.load(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]
    assert images.fingerprint([0, 1, 2]) == images.fingerprint() != images.fingerprint([0, 2])


def test_shards_with_class_names(tmp_path: Path) -> None:
    members = [("1.png", picture()), ("1.cls", b"tench"), ("2.png", picture()), ("2.cls", b"eel")]
    write_shard(tmp_path / "x.tar", members)
    images = open_images(str(tmp_path / "x.tar"))
    assert (list(images.class_names), list(images.labels)) == (["eel", "tench"], [1, 0])


@pytest.mark.parametrize("second", ["1.jpg", "1.png"])
def test_the_first_image_of_a_key_counts_and_the_others_are_named(tmp_path: Path, second: str) -> None:
    members = [("1.jpg", picture("lime")), ("1.cls", b"0"), (second, picture("blue")), ("2.jpg", picture())]
    write_shard(tmp_path / "x.tar", [*members, ("1.cls", b"0"), ("2.cls", b"1")])
    images = open_images(str(tmp_path / "x.tar"))
    assert [images.image_name(index) for index in range(2)] == ["x.tar/1.jpg", "x.tar/2.jpg"]
    red, green, blue = images.load(0).getpixel((0, 0))  # type: ignore[misc]
    assert green > 200 > max(red, blue)
    assert f"further images of one key, 1 (x.tar/{second})" in describe_left_out(images)


def test_a_key_with_two_labels_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.tar", [("1.png", picture()), ("1.cls", b"0"), ("1.png", picture()), ("1.cls", b"1")])
    with pytest.raises(CorpusError, match=r"x\.tar has two labels \(\.cls\) for 1: give each image a key of its own"):
        open_images(str(tmp_path / "x.tar"))


def test_a_byte_order_mark_is_no_part_of_a_label(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "x.tar", [("1.png", picture()), ("1.cls", "\ufeff0".encode()), ("2.png", picture()), ("2.cls", b"1")]
    )
    assert list(open_images(str(tmp_path / "x.tar")).labels) == [0, 1]


def test_bad_shards_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.tar", [("1.png", picture())])
    with pytest.raises(CorpusError, match=r"no label \(\.cls\) for 1"):
        open_images(str(tmp_path / "x.tar"))
    (tmp_path / "y.tar").write_bytes(b"not a tar" * 200)
    with pytest.raises(CorpusError, match="not a readable tar"):
        open_images(str(tmp_path / "y.tar"))
    write_shard(tmp_path / "w.tar", [("1.png", picture()), ("1.cls", b"0"), ("2.png", picture())])
    whole = (tmp_path / "w.tar").read_bytes()
    (tmp_path / "w.tar").write_bytes(whole[:1700])
    with pytest.raises(CorpusError, match="not a readable tar"):
        open_images(str(tmp_path / "w.tar"))
    claim_size(tmp_path / "z.tar", MAX_BYTES + 1)
    with pytest.raises(ImageError, match="has 268,435,457 bytes, more than the 268,435,456"):
        open_images(str(tmp_path / "z.tar")).load(0)


@pytest.mark.parametrize("label", [b"999999", b"1" * 17, b"9" * 900])
def test_a_class_number_far_beyond_the_images_is_refused(tmp_path: Path, label: bytes) -> None:
    write_shard(tmp_path / "x.tar", [("1.png", picture()), ("1.cls", label), ("2.png", picture()), ("2.cls", b"0")])
    with pytest.raises(CorpusError, match="labels are class numbers"):
        open_images(str(tmp_path))


def test_a_few_images_of_a_large_data_set_keep_their_class_numbers(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.tar", [("1.png", picture()), ("1.cls", b"21840")])
    assert len(open_images(str(tmp_path)).class_names) == 21841


def test_links_inside_a_shard_are_named_and_nothing_outside_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(picture())
    write_shard(tmp_path / "x.tar", [("../1.png", picture("blue")), ("../1.cls", b"0")])
    with tarfile.open(tmp_path / "x.tar", "a") as file:
        for name, kind in (("2.png", tarfile.SYMTYPE), ("3.jpg", tarfile.LNKTYPE), ("4.txt", tarfile.SYMTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, str(tmp_path / "secret.png")
            file.addfile(link)
    images = open_images(str(tmp_path / "x.tar"))
    assert len(images.labels) == 1
    assert images.load(0).getpixel((0, 0)) == (0, 0, 255)
    assert describe_left_out(images).endswith("links inside a tar file, 2 (x.tar/2.png, x.tar/3.jpg)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.png", "x.tar"]


def test_a_shard_that_is_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.tar").mkdir()
    for where in (tmp_path / "pipe.tar", tmp_path, tmp_path / "folder"):
        with pytest.raises(CorpusError, match="is not a tar file, but a folder, a pipe or a broken link"):
            open_images(str(where))


def test_an_address_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(CorpusError):
        open_images("data\0*")


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": picture(), "path": None}] * 3, "label": [1, 0, 1]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.save_to_disk(tmp_path / "one")
    images = open_images(str(tmp_path / "one"))
    assert (list(images.class_names), list(images.labels)) == (["cat", "dog"], [1, 0, 1])
    assert images.load(2).size == (20, 10)
    assert images.fingerprint() == open_images(str(tmp_path / "one")).fingerprint()
    datasets.DatasetDict({"train": dataset}).save_to_disk(tmp_path / "many")
    with pytest.raises(CorpusError, match=r"several splits: pass one of .*train"):
        open_images(str(tmp_path / "many"))
    text = datasets.Dataset.from_dict({"text": ["a"]})
    text.save_to_disk(tmp_path / "text")
    with pytest.raises(CorpusError, match="a column of images and a column of labels; it has text"):
        open_images(str(tmp_path / "text"))
