"""Hugging Face datasets that somebody else made: empty rows, absurd labels, paths to files of this machine."""

import io
import os
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from huggingface_hub import constants
from PIL import Image

from redi.errors import CorpusError, ImageError
from redi.images import LabelledImages, open_images


def picture(colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(file, "PNG")
    return file.getvalue()


def save(folder: Path, images: list[Any], labels: list[Any], kind: Any = None) -> LabelledImages:
    """Save rows as they are: ``save_to_disk`` would read the files that paths name, and store their bytes."""
    features = datasets.Features({"image": datasets.Image(), "label": kind or datasets.Value("int64")})
    datasets.Dataset.from_dict({"image": [None], "label": [0]}, features=features).save_to_disk(folder)
    (file,) = folder.glob("*.arrow")
    with pa.memory_map(str(file)) as source:
        schema = pa.ipc.open_stream(source).schema
    table = pa.table({"image": images, "label": labels}, schema=schema)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    return open_images(str(folder))


def of_path(path: object) -> dict[str, object]:
    return {"bytes": None, "path": str(path)}


def test_a_path_is_opened_only_in_the_folder_of_the_dataset(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret.png", tmp_path / "dataset"
    secret.write_bytes(picture())
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "own.png").write_bytes(picture("blue"))
    (folder / "images" / "out.png").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    outside = [secret, "../secret.png", "images/out.png", "up/secret.png", "/etc/passwd"]
    inside = ["images/own.png", folder / "images" / "own.png", folder / "up" / "dataset" / "images" / "own.png"]
    images = save(folder, [of_path(path) for path in (*outside, *inside)], [0] * 8)
    for index in range(len(outside)):
        with pytest.raises(ImageError, match=rf"#{index} names the file .* outside its dataset"):
            images.load(index)
    for index in range(len(outside), 8):
        assert images.load(index).getpixel((0, 0)) == (0, 0, 255)


@pytest.mark.parametrize("path", ["loop.png", "zero\0byte.png", "x" * 5000])
def test_a_path_that_leads_nowhere_is_an_image_that_cannot_be_decoded(tmp_path: Path, path: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "loop.png").symlink_to("loop.png")
    images = save(tmp_path / "d", [of_path(path)], [0])
    with pytest.raises(ImageError, match="d#0"):
        images.load(0)
    assert images.fingerprint()


def test_a_dataset_of_the_hub_opens_files_of_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (tmp_path / "hub" / f"datasets--{name}" / "snapshots" / "1.png" for name in ("me--mine", "me--other"))
    unpacked = tmp_path / "extracted" / "archive" / "1.png"
    for file in (own, other, unpacked):
        file.parent.mkdir(parents=True)
        file.write_bytes(picture())
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [of_path(file) for file in (own, unpacked, other)], "label": [0, 0, 1]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: dataset)
    monkeypatch.setattr(datasets.config, "EXTRACTED_DATASETS_PATH", str(tmp_path / "extracted"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    images = open_images("hf:me/mine:train")
    assert [images.load(index).size for index in (0, 1)] == [(20, 10)] * 2
    with pytest.raises(ImageError, match=r"hf:me/mine:train#2 names the file .* outside its dataset"):
        images.load(2)


def test_the_fingerprint_sees_files_of_the_dataset_and_no_others(tmp_path: Path) -> None:
    secret, own = tmp_path / "secret.png", tmp_path / "dataset" / "own.png"
    own.parent.mkdir()
    own.write_bytes(picture())
    secret.write_bytes(picture())
    images = save(own.parent, [of_path(own), of_path(secret), of_path("gone.png"), None], [0, 1, 0, 1])
    before, some = images.fingerprint(), images.fingerprint([1, 2, 3])
    assert before == images.fingerprint([0, 1, 2, 3]) != some
    secret.write_bytes(picture("blue"))
    assert images.fingerprint() == before
    own.write_bytes(picture("blue"))
    assert images.fingerprint() != before
    assert images.fingerprint([1, 2, 3]) == some


def test_a_row_without_an_image_is_an_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    images = save(tmp_path / "d", [{"bytes": picture(), "path": None}, None, {"bytes": None, "path": None}], [0, 1, 1])
    assert images.load(0).size == (20, 10)
    for index in (1, 2):
        with pytest.raises(ImageError, match=rf"d#{index} has no image"):
            images.load(index)


def test_a_pipe_in_a_dataset_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "pipe.jpg")
    images = save(tmp_path / "d", [of_path("pipe.jpg")], [0])
    with pytest.raises(ImageError, match="not a regular file"):
        images.load(0)
    assert images.fingerprint()


@pytest.mark.parametrize(
    ("label", "kind", "message"),
    [
        (10**12, datasets.Value("int64"), "a label of 1,000,000,000,000 among 1 images"),
        (2**63 - 1, datasets.Value("int64"), "labels are class numbers"),
        (float("inf"), datasets.Value("float64"), "labels in 'label' that are not numbers"),
        (None, datasets.Value("int64"), "labels in 'label' that are not numbers"),
        (5, datasets.ClassLabel(names=["cat", "dog"]), "a label of 5, but 2 class names"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused(tmp_path: Path, label: Any, kind: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        save(tmp_path / "d", [{"bytes": picture(), "path": None}], [label], kind)
