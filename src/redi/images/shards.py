"""Webdataset shards: ``.tar`` files whose members share a key, e.g. ``000123.jpg`` and ``000123.cls``.

Shards are sorted by name, and images keep the order of their members. The headers are read once to locate each
image; after that, loading an image takes one seek and one read. Nothing is extracted.
"""

import os
import tarfile
from collections.abc import Sequence
from glob import glob
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from PIL import Image

from redi.errors import CorpusError, ImageError
from redi.images.decode import MAX_BYTES, load_image
from redi.images.labelled import SUFFIXES, digest_lines, numbered_classes
from redi.images.samples import sample

#: Number of the shard, name of the member, and its offset and size in bytes.
Place = tuple[int, str, int, int]
LINKS, FURTHER = "links inside a tar file", "further images of one key"
#: Digits of the longest class number. Longer ones are no class numbers either.
MAX_DIGITS = 18


class ShardImages:
    """Images whose labels are in ``.cls`` members: class indices, or class names sorted by code point."""

    def __init__(self, shards: list[Path], name: str) -> None:
        self.name = name
        self.shards = shards
        self.places: list[Place] = []
        texts: list[str] = []  # labels as they are written
        self.left_out: dict[str, list[str]] = {LINKS: [], FURTHER: []}
        for number, shard in enumerate(shards):
            pairs, left_out = _pairs(shard)
            for reason, names in left_out.items():
                self.left_out[reason] += names
            for image, label in pairs:
                self.places.append((number, image.name, image.offset_data, image.size))
                texts.append(label)
        self._texts = texts
        if all(label.isdecimal() for label in texts):
            if (longest := max(map(len, texts), default=0)) > MAX_DIGITS:
                raise CorpusError(f"{name} has a label with {longest} digits: labels are class numbers.")
            self.labels: list[int] = [int(label) for label in texts]
            self.class_names: list[str] = numbered_classes(self.labels, name)
        else:
            self.class_names = sorted(set(texts))
            number_of = {label: k for k, label in enumerate(self.class_names)}
            self.labels = [number_of[label] for label in texts]

    @classmethod
    def from_pattern(cls, pattern: Path) -> "ShardImages":
        shards = sorted(Path(match) for match in glob(str(pattern)))
        if not shards:
            raise CorpusError(f"No shard matches {pattern}.")
        if other := [shard for shard in shards if not shard.is_file()]:
            raise CorpusError(f"{other[0]} is not a tar file, but a folder, a pipe or a broken link.")
        return cls(shards, str(pattern))

    def load(self, index: int) -> Image.Image:
        number, _, offset, size = self.places[index]
        name = self.image_name(index)
        if size > MAX_BYTES:
            raise ImageError(f"{name} has {size:,} bytes, more than the {MAX_BYTES:,} that are allowed.")
        with self.shards[number].open("rb") as file:
            file.seek(offset)
            return load_image(file.read(size), name)

    def image_name(self, index: int) -> str:
        number, member, _, _ = self.places[index]
        return f"{self.shards[number].name}/{member}"

    def fingerprint(self, indices: Sequence[int] | None = None) -> str:
        lines = [shard.name for shard in self.shards]
        chosen = range(len(self.places)) if indices is None else indices
        images = [(self.places[index], self._texts[index]) for index in chosen]
        for number, members in groupby(images, key=lambda image: image[0][0]):
            try:
                with self.shards[number].open("rb") as file:
                    lines += [f"{place[1]} {_digest(file, place)} {label}" for place, label in members]
            except OSError as error:
                raise CorpusError(f"{self.shards[number]} cannot be read: {error.strerror}.") from None
        return digest_lines(lines)


def _digest(shard: BinaryIO, place: Place) -> str:
    _, _, offset, size = place
    return sample(lambda start, length: os.pread(shard.fileno(), length, offset + start), size)


def _pairs(shard: Path) -> tuple[list[tuple[tarfile.TarInfo, str]], dict[str, list[str]]]:
    """The image member and the label of every key of a shard, in the order of the images; and images to leave out.

    The first image of a key counts: ``a.png`` beside ``a.jpg`` may well be its mask, and a second ``a.jpg`` would share
    its name and its label.
    """
    images: dict[str, tarfile.TarInfo] = {}
    left_out: dict[str, list[str]] = {LINKS: [], FURTHER: []}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as file:
            for member in file:
                path = PurePosixPath(member.name)
                key = str(path.with_suffix(""))
                if not member.isfile():
                    if (member.issym() or member.islnk()) and path.suffix.lower() in SUFFIXES:
                        left_out[LINKS].append(f"{shard.name}/{member.name}")
                    continue
                if path.suffix.lower() in SUFFIXES:
                    if images.setdefault(key, member) is not member:
                        left_out[FURTHER].append(f"{shard.name}/{member.name}")
                elif path.suffix == ".cls" and member.size < 1024:
                    content = file.extractfile(member)
                    assert content is not None
                    text = content.read().decode("utf-8-sig", errors="replace").strip()
                    if labels.setdefault(key, text) != text:
                        raise CorpusError(f"{shard} has two labels (.cls) for {key}: give each image a key of its own.")
            end = file.offset
        with shard.open("rb") as content_file:
            content_file.seek(end)
            if content_file.read(512).strip(b"\0") or shard.stat().st_size < end:
                raise tarfile.ReadError("it is damaged or cut off")
    except (tarfile.TarError, OSError) as error:
        raise CorpusError(f"{shard} is not a readable tar file: {error}.") from error
    if unlabelled := [key for key in images if key not in labels]:
        raise CorpusError(f"{shard} has no label (.cls) for {unlabelled[0]}.")
    return [(member, labels[key]) for key, member in images.items()], left_out
