"""Webdataset shards: ``.tar`` files whose members share a key, e.g. ``000123.jpg`` and ``000123.cls``.

Shards are sorted by name, and images keep the order of their members. The headers are read once to locate each
image; after that, loading an image takes one seek and one read. Nothing is extracted.
"""

import tarfile
from glob import glob
from pathlib import Path, PurePosixPath

from PIL import Image

from redi.errors import CorpusError, ImageError
from redi.images.decode import load_image
from redi.images.labelled import SUFFIXES, digest_lines

#: Size of the largest member that is read, in bytes. A header may claim any size.
MAX_MEMBER = 256 * 2**20


class ShardImages:
    """Images whose labels are in ``.cls`` members: class indices, or class names sorted by code point."""

    def __init__(self, shards: list[Path], name: str) -> None:
        self.name = name
        self.shards = shards
        self.places: list[tuple[int, str, int, int]] = []  # shard, member, offset, size
        texts: list[str] = []  # labels as they are written
        for number, shard in enumerate(shards):
            for image, label in _pairs(shard):
                self.places.append((number, image.name, image.offset_data, image.size))
                texts.append(label)
        self._texts = texts
        if any(label.isdecimal() and len(label) > 6 for label in texts):
            raise CorpusError(f"{name} has class numbers with more than six digits.")
        if all(label.isdecimal() for label in texts):
            self.labels: list[int] = [int(label) for label in texts]
            self.class_names: list[str] = [str(k) for k in range(max(self.labels, default=-1) + 1)]
        else:
            self.class_names = sorted(set(texts))
            number_of = {label: k for k, label in enumerate(self.class_names)}
            self.labels = [number_of[label] for label in texts]

    @classmethod
    def from_pattern(cls, pattern: Path) -> "ShardImages":
        shards = sorted(Path(match) for match in glob(str(pattern)))
        if not shards:
            raise CorpusError(f"No shard matches {pattern}.")
        return cls(shards, str(pattern))

    def load(self, index: int) -> Image.Image:
        number, _, offset, size = self.places[index]
        name = self.image_name(index)
        if size > MAX_MEMBER:
            raise ImageError(f"{name} has {size:,} bytes, more than the {MAX_MEMBER:,} that are allowed.")
        with self.shards[number].open("rb") as file:
            file.seek(offset)
            return load_image(file.read(size), name)

    def image_name(self, index: int) -> str:
        number, member, _, _ = self.places[index]
        return f"{self.shards[number].name}/{member}"

    def fingerprint(self) -> str:
        shards = [f"{shard.name} {shard.stat().st_size}" for shard in self.shards]
        images = zip(self.places, self._texts, strict=True)
        return digest_lines([*shards, "", *(f"{p[1]} {p[3]} {label}" for p, label in images)])


def _pairs(shard: Path) -> list[tuple[tarfile.TarInfo, str]]:
    """The image member and the label of every key of a shard, in the order of the images."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as file:
            for member in file:
                path = PurePosixPath(member.name)
                key = str(path.with_suffix(""))
                if not member.isfile():
                    continue
                if path.suffix.lower() in SUFFIXES:
                    images[key] = member
                elif path.suffix == ".cls" and member.size < 1024:
                    content = file.extractfile(member)
                    assert content is not None
                    labels[key] = content.read().decode(errors="replace").strip()
            end = file.offset
        with shard.open("rb") as content_file:
            content_file.seek(end)
            if content_file.read(512).strip(b"\0") or shard.stat().st_size < end:
                raise tarfile.ReadError("it is damaged or cut off")
    except (tarfile.TarError, OSError) as error:
        raise CorpusError(f"{shard} is not a readable tar file: {error}.") from error
    if unlabelled := [key for key in images if key not in labels]:
        raise CorpusError(f"{shard} has no label (.cls) for {unlabelled[0]}.")
    return [(member, labels[key]) for key, member in images.items()]
