"""Where labelled images come from, in a stable order.

An image is known by its index. The order is documented for each source and depends on nothing but
its content, so that chunks, seeds and skipped images mean the same in every run.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image

from redi.errors import CorpusError
from redi.images.decode import load_image

SUFFIXES = frozenset(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .pgm .jp2 .avif".split())


class LabelledImages(Protocol):
    """What the rest of the package needs of a data set. Loading must work in worker processes."""

    @property
    def name(self) -> str: ...

    @property
    def class_names(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Sequence[int]: ...

    def load(self, index: int) -> Image.Image:
        """Upright RGB; an :class:`redi.errors.ImageError` where it cannot be decoded."""
        ...

    def image_name(self, index: int) -> str: ...

    def fingerprint(self) -> str:
        """Changes when images are added, removed, renamed or replaced by files of another size."""
        ...


class FolderImages:
    """``root/<class>/**/<image>``. Classes in the order of their folders' names, and within a class
    the files in the order of their paths, both by code point. Hidden files and files that do not
    end like an image are passed over. An empty class folder is a class without images."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        folders = sorted(
            (entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."),
            key=lambda folder: folder.name,
        )
        self.class_names: list[str] = [folder.name for folder in folders]
        self.files: list[str] = []
        self.labels: list[int] = []
        self._sizes: list[int] = []
        for label, folder in enumerate(folders):
            files, sizes = _pictures(folder, root)
            self.files += files
            self._sizes += sizes
            self.labels += [label] * len(files)

    def load(self, index: int) -> Image.Image:
        """A file that was there and cannot be read any more stops the run: skipping it, and perhaps a
        whole lost disk after it, would change the data silently."""
        file = self.root / self.files[index]
        try:
            content = file.read_bytes()
        except OSError as error:
            raise CorpusError(f"{file} can no longer be read: {error.strerror}.") from None
        return load_image(content, str(file))

    def image_name(self, index: int) -> str:
        return self.files[index]

    def fingerprint(self) -> str:
        lines = [f"{file} {size}" for file, size in zip(self.files, self._sizes, strict=True)]
        return digest_lines([*self.class_names, "", *lines])


class FlatImages(FolderImages):
    """All pictures under a folder, without classes, in the order of their paths."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self.class_names = []
        self.files, self._sizes = _pictures(root, root)
        self.labels = [0] * len(self.files)


class Relabelled:
    """The same images with labels that count the classes of the training set."""

    def __init__(self, images: LabelledImages, class_names: Sequence[str]) -> None:
        place = {name: label for label, name in enumerate(class_names)}
        self.images = images
        self.name = images.name
        self.class_names = class_names
        self.labels = [place[images.class_names[label]] for label in images.labels]
        self.load = images.load
        self.image_name = images.image_name
        self.fingerprint = images.fingerprint


def open_images(where: str) -> LabelledImages:
    """Open a data set by its address.

    A folder with one folder a class; a folder or a pattern of ``.tar`` shards (webdataset); a folder
    written by ``datasets``' ``save_to_disk``; or ``hf:owner/name:split`` for a dataset of the Hub.
    """
    if where.startswith("hf:"):
        from redi.images.hub import hub_images

        return _not_empty(hub_images(where.removeprefix("hf:")))
    try:
        return _open_path(where, Path(where).expanduser())
    except (OSError, RuntimeError) as error:  # no permission, no such user in ~user
        raise CorpusError(f"{where} cannot be read: {error}.") from None


def _open_path(where: str, path: Path) -> LabelledImages:
    if not path.is_dir() and (path.suffix == ".tar" or any(letter in where for letter in "*?[")):
        from redi.images.shards import ShardImages

        return _not_empty(ShardImages.from_pattern(path))
    if not path.is_dir():
        raise CorpusError(
            f"There is no folder {where}; pass a folder with one folder a class, .tar shards, or "
            "hf:owner/name:split for a dataset of the Hub."
        )
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        from redi.images.hub import disk_images

        return _not_empty(disk_images(path))
    if any(path.glob("*.tar")):
        from redi.images.shards import ShardImages

        return _not_empty(ShardImages.from_pattern(path / "*.tar"))
    return _not_empty(FolderImages(path))


def open_pictures(where: str) -> LabelledImages:
    """As :func:`open_images`, or a folder of pictures without class folders."""
    path = Path(where)
    try:
        flat = path.expanduser()
        if flat.is_dir() and _lie_flat(flat):
            return FlatImages(flat)
    except (OSError, RuntimeError) as error:  # no permission, no such user in ~user
        raise CorpusError(f"{where} cannot be read: {error}.") from None
    return open_images(where)


def _lie_flat(folder: Path) -> bool:
    """Pictures, and nothing that :func:`open_images` would read."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if any(entry.is_dir() or entry.suffix in (".tar", ".json") for entry in entries):
        return False
    return any(entry.suffix.lower() in SUFFIXES for entry in entries)


def _pictures(folder: Path, root: Path) -> tuple[list[str], list[int]]:
    """Paths of the pictures in ``folder``, relative to ``root``, and their sizes in bytes."""
    files: list[str] = []
    sizes: list[int] = []
    for file in sorted(folder.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.suffix.lower() in SUFFIXES and not hidden and file.is_file():
            files.append(file.relative_to(root).as_posix())
            sizes.append(file.stat().st_size)
    return files, sizes


def relabel(validation: LabelledImages, training: LabelledImages) -> LabelledImages:
    """Validation labels in terms of the training classes; a class that training lacks is an error."""
    known = set(training.class_names)
    present = {validation.class_names[label] for label in set(validation.labels)}
    if unknown := sorted(present - known):
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise CorpusError(
            f"{len(unknown)} validation classes are absent from training: {shown}. "
            f"The classes of {validation.name} must be among those of {training.name}."
        )
    return Relabelled(validation, training.class_names)


def digest_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]


def _not_empty(images: LabelledImages) -> LabelledImages:
    if not len(images.labels):
        raise CorpusError(
            f"There are no images in {images.name}: expected one folder a class, each with images."
        )
    return images
