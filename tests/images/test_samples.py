"""Fingerprints: what is another data set, and what is the same one in another place."""

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from redi.errors import CorpusError
from redi.images import LabelledImages, open_images
from redi.images.samples import PIECE, sample, sample_files

#: 90 x 70 pixels take 18,900 bytes uncompressed: more than what is read of a compressed file.
SIZE = (90, 70)


def encoded(colour: str, kind: str, dot: bool = False) -> bytes:
    """A picture of one colour, with one pixel of another colour if there is a ``dot``."""
    image = Image.new("RGB", SIZE, colour)
    if dot:
        image.putpixel((45, 20), (1, 2, 3))
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def write_folder(root: Path, pictures: list[bytes]) -> LabelledImages:
    for number, content in enumerate(pictures):
        file = root / f"class{number % 2}" / f"{number}.bmp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return open_images(str(root))


def write_shard(root: Path, pictures: list[bytes]) -> LabelledImages:
    root.mkdir(exist_ok=True)
    with tarfile.open(root / "x.tar", "w") as file:
        for number, content in enumerate(pictures):
            for name, part in ((f"{number}.bmp", content), (f"{number}.cls", str(number % 2).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(part)
                file.addfile(info, io.BytesIO(part))
    return open_images(str(root))


def write_dataset(root: Path, pictures: list[bytes]) -> LabelledImages:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": p, "path": None} for p in pictures], "label": [n % 2 for n in range(len(pictures))]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(root)
    return open_images(str(root))


Writer = Callable[[Path, list[bytes]], LabelledImages]


@pytest.mark.parametrize("write", [write_folder, write_shard, write_dataset])
@pytest.mark.parametrize("kind", ["BMP", "PPM"])
def test_a_replacement_of_the_same_size_is_another_data_set(tmp_path: Path, write: Writer, kind: str) -> None:
    first = [encoded(colour, kind) for colour in ("red", "lime", "blue")]
    other = [*first[:2], encoded("navy", kind)]
    retouched = [*first[:2], encoded("blue", kind, dot=True)]
    assert {len(picture) for picture in (*first, *other, *retouched)} == {len(first[0])}
    prints = [write(tmp_path / str(k), p).fingerprint() for k, p in enumerate((first, other, retouched))]
    assert len(set(prints)) == 3
    assert write(tmp_path / "again", first).fingerprint() == prints[0]


def test_moved_copied_and_touched_data_are_the_same(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "here", [encoded("red", "BMP"), encoded("blue", "PNG")])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    for file in (tmp_path / "there").rglob("*.bmp"):
        os.utime(file, (1, 1))
    assert open_images(str(tmp_path / "there")).fingerprint() == images.fingerprint()


def test_a_dataset_of_many_rows_differs_by_any_one(tmp_path: Path) -> None:
    """More rows than are read at a time."""
    tiny = [bytes([65 + k % 2, k // 256, k % 256]) for k in range(2300)]
    first = write_dataset(tmp_path / "a", tiny).fingerprint()
    for place in (0, 999, 1000, 2299):
        changed = [*tiny[:place], b"new", *tiny[place + 1 :]]
        assert write_dataset(tmp_path / str(place), changed).fingerprint() != first


@pytest.mark.parametrize("place", [0, PIECE - 1, 5 * PIECE, 10 * PIECE - 1])
def test_every_piece_of_a_large_file_counts(place: int) -> None:
    content = bytearray(10 * PIECE)
    before = sample(lambda start, length: bytes(content[start : start + length]), len(content))
    content[place] = 1
    assert sample(lambda start, length: bytes(content[start : start + length]), len(content)) != before


def test_three_pieces_of_a_compressed_file_are_read() -> None:
    read: list[int] = []

    def piece(_start: int, length: int) -> bytes:
        read.append(length)
        return bytes(length)

    sample(piece, 10**12)
    assert read == [PIECE] * 3


def test_many_files_keep_their_order_and_a_missing_one_is_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jpg" for number in range(700)]
    for number, file in enumerate(files):
        file.write_bytes(b"%d" % number)
    digests = sample_files(files)
    assert len(set(digests)) == 700
    assert sample_files(files[::-1]) == digests[::-1]
    files[300].unlink()
    with pytest.raises(CorpusError, match=r"300\.jpg cannot be read: No such file"):
        sample_files(files)
