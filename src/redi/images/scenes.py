"""Scenes for dense prediction: pictures in ``images/`` and a label map for each, of the same stem, in ``labels/``.

A label map is a PNG whose values are class numbers. It is never resized. A picture is resized to a multiple of the
backbone's patch, so scenes of one input size can share a batch.
"""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from redi.errors import ConfigError, CorpusError, ImageError, InvalidInput, RediError
from redi.images.decode import MAX_PIXELS, read_file
from redi.images.folders import FlatImages
from redi.images.labelled import digest_lines, spread_evenly
from redi.images.loader import load_batches
from redi.images.preprocessing import Preprocessing, to_bytes

#: The value of pixels without a class in loaded label maps, whatever their files use.
VOID = 255
#: The file with one class name per line, in the folder of the scenes or in the folder around it.
CLASS_FILE = "classes.txt"
#: Largest factor between the proportions of a picture and of its label map.
STRETCH = 1.05
THREADS = 8

Size = tuple[int, int]  # (height, width) in pixels


@dataclass(frozen=True)
class Survey:
    """What a look at all files of a data set gives: sizes, and how many label maps have each value."""

    sizes: list[Size]  # of the pictures
    label_sizes: list[Size]
    values: dict[int, str]  # each value of the label maps, with the name of one that has it


class Scenes:
    """Pictures and label maps of one folder, sorted by stem. ``limit`` of them, spread evenly, if it is not 0."""

    def __init__(self, root: Path, limit: int = 0) -> None:
        self.name = str(root)
        for folder in ("images", "labels"):
            if not (root / folder).is_dir():
                raise CorpusError(f"{root} has no folder {folder}: it must hold images/ and labels/.")
        self._images, self._labels = FlatImages(root / "images"), FlatImages(root / "labels")
        images, labels = _by_stem(self._images), _by_stem(self._labels)
        if not images:
            raise CorpusError(f"{root / 'images'} holds no images.")
        for here, there, kind in ((images, labels, "label map"), (labels, images, "image")):
            if alone := sorted(set(here) - set(there)):
                more = f", and {len(alone) - 1} more have none" if len(alone) > 1 else ""
                raise CorpusError(f"{root}: {alone[0]} has no {kind} of the same stem{more}.")
        stems = sorted(images)
        if 0 < limit < len(stems):
            stems = spread_evenly(stems, limit)
        self.stems = stems
        self._pairs = [(images[stem], labels[stem]) for stem in stems]

    def __len__(self) -> int:
        return len(self.stems)

    def picture(self, index: int) -> Image.Image:
        return self._images.load(self._pairs[index][0])

    def label_file(self, index: int) -> Path:
        return self._labels.root / self._labels.files[self._pairs[index][1]]

    def label_map(self, index: int) -> UInt8[Tensor, "height width"]:
        """The values of a label map as they are in the file."""
        return read_label_map(self.label_file(index))

    def fingerprint(self) -> str:
        """A digest that changes when a picture or a label map is added, removed, renamed or replaced."""
        images, labels = ([pair[k] for pair in self._pairs] for k in (0, 1))
        return digest_lines([self._images.fingerprint(images), self._labels.fingerprint(labels)])

    def survey(self) -> Survey:
        """Read the header of every picture and every label map whole."""
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(self._look, range(len(self))))
        values: dict[int, str] = {}
        for index, (_, _, seen) in enumerate(found):
            for value in seen:
                values.setdefault(value, self.label_file(index).name)
        return Survey([size for size, _, _ in found], [size for _, size, _ in found], values)

    def _look(self, index: int) -> tuple[Size, Size, list[int]]:
        file = self._images.root / self._images.files[self._pairs[index][0]]
        size, labels = picture_size(file), self.label_map(index)
        height, width = labels.shape
        stretch = (size[1] / size[0]) / (width / height)
        if not 1 / STRETCH <= stretch <= STRETCH:
            raise CorpusError(
                f"{file} has {size[1]}x{size[0]} pixels, but its label map {width}x{height}: they have other "
                "proportions, so they do not show the same scene."
            )
        return size, (height, width), labels.unique().tolist()


def _by_stem(files: FlatImages) -> dict[str, int]:
    stems: dict[str, int] = {}
    for index, file in enumerate(files.files):
        stem = str(PurePosixPath(file).with_suffix(""))
        if stem in stems:
            raise CorpusError(f"{files.root} has several files with the stem {stem}.")
        stems[stem] = index
    return stems


def read_label_map(file: Path) -> UInt8[Tensor, "height width"]:
    """The values of an index map: greyscale, palette or 1-bit PNG."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(read_file(file, str(file))), formats=("PNG",)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ImageError(f"{file} has more than {MAX_PIXELS:,} pixels.")
                mode, values = image.mode, np.array(image)
    except ImageError:
        raise
    except Exception as error:  # decoders raise many types of errors on broken files
        raise ImageError(f"{file} cannot be read as a PNG label map: {error or type(error).__name__}.") from None
    if values.ndim != 2 or mode == "F":
        raise ImageError(f"{file} is not an index map, but a picture of mode {mode}: a label map has one class number.")
    if values.size and int(values.max()) > VOID:
        raise ImageError(f"{file} has a value of {int(values.max())}: class numbers must be at most {VOID}.")
    return torch.from_numpy(values.astype(np.uint8))


def picture_size(file: Path) -> Size:
    """Height and width of an upright picture, from its header."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file) as image:
                width, height = image.size
                turned = image.getexif().get(0x0112, 1) >= 5
    except Exception as error:
        raise ImageError(f"{file} cannot be read as an image: {error or type(error).__name__}.") from None
    return (width, height) if turned else (height, width)


def read_class_names(file: Path) -> list[str]:
    """Class names, one per line; class 0 is first."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from None
    names = [line for line in lines if line]
    if not 2 <= len(names) <= VOID:
        raise ConfigError(f"{file} must hold 2 to {VOID} class names, one per line, but holds {len(names)}.")
    return names


def find_class_file(root: Path) -> Path | None:
    """classes.txt in the folder of the scenes or in the one around it."""
    places = [root / CLASS_FILE, root.absolute().parent / CLASS_FILE]
    return next((place for place in places if place.is_file()), None)


def class_values(values: dict[int, str], names: Sequence[str], void: int | None) -> tuple[list[str], int]:
    """The class names and the value of void, for label maps with these ``values``.

    If ``void`` is None it is the largest value that is no class if there are names, else 255. Without names, the
    classes are the numbers up to the largest value that is not void.
    """
    if void is None:
        outside = [value for value in values if value >= len(names)] if names else []
        void = max(outside, default=VOID)
    if not 0 <= void <= VOID:
        raise ConfigError(f"--void must lie in 0 to {VOID}, not at {void}.")
    used = {value: file for value, file in values.items() if value != void}
    if VOID in used:  # of 8 bits, so no value is left that could stand for void in its place
        raise CorpusError(
            f"{used[VOID]} has the label {VOID}, which is always void: leave --void out if its pixels have no class, "
            f"else give the class a number below {VOID} in the label maps."
        )
    if not names:
        if max(used, default=0) < 1:
            raise CorpusError("The label maps have fewer than two classes.")
        return [f"class {value}" for value in range(max(used) + 1)], void
    if void < len(names):
        raise ConfigError(
            f"--void {void} is the number of a class, {names[void]}: the {len(names)} names are for 0 to "
            f"{len(names) - 1}."
        )
    if wrong := sorted(value for value in used if value >= len(names)):
        raise CorpusError(
            f"{used[wrong[0]]} has the label {wrong[0]}, but there are {len(names)} class names, for 0 to "
            f"{len(names) - 1}, and {void} is void: give the file with all names (--names) or the void value (--void)."
        )
    return list(names), void


def fitted(size: Size, patch: int, asked: Sequence[int] = ()) -> Size:
    """The input for a picture: the largest multiple of the patch within its own size or the one that is asked for.

    ``asked`` is empty, a shorter side in pixels, or height and width.
    """
    height, width = size
    if len(asked) == 2:
        height, width = asked
    elif asked:
        scale = asked[0] / min(size)
        height, width = round(scale * height), round(scale * width)
    return max(height // patch, 1) * patch, max(width // patch, 1) * patch


@dataclass(frozen=True)
class SceneBatch:
    """Scenes of one input size. In the label maps, void is :data:`VOID`."""

    indices: list[int]
    pixels: UInt8[Tensor, "batch channels height width"]
    labels: list[Tensor]  # [height width] each, in the size of its file


@dataclass(frozen=True)
class _Item:
    index: int
    pixels: Tensor
    labels: Tensor


class SceneDataset(Dataset[_Item | RediError]):
    """Decoded scenes in their input sizes."""

    def __init__(self, scenes: Scenes, sizes: Sequence[Size], preprocessing: Preprocessing, void: int) -> None:
        self.scenes, self.sizes, self.preprocessing, self.void = scenes, sizes, preprocessing, void

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> _Item | RediError:
        try:
            height, width = self.sizes[index]
            picture = self.scenes.picture(index)
            if picture.size != (width, height):
                picture = picture.resize((width, height), self.preprocessing.resample)
            labels = self.scenes.label_map(index)
            return _Item(index, to_bytes(picture), torch.where(labels == self.void, VOID, labels).to(torch.uint8))
        except RediError as error:
            return error

    def collate(self, items: list[_Item | RediError]) -> SceneBatch | RediError:
        decoded = []
        for item in items:
            if isinstance(item, RediError):
                return item
            decoded.append(item)
        return SceneBatch(
            [item.index for item in decoded],
            torch.stack([item.pixels for item in decoded]),
            [item.labels for item in decoded],
        )

    def batches(self, plan: Sequence[Sequence[int]], workers: int) -> Iterator[SceneBatch]:
        return load_batches(self, self.collate, plan, workers)


def buckets(sizes: Sequence[Size], batch: int) -> list[list[int]]:
    """Batches of indices in which all sizes are equal: sizes by first appearance, indices in order."""
    if batch < 1:
        raise InvalidInput(f"A batch must have at least one scene, not {batch}.")
    groups: dict[Size, list[int]] = {}
    for index, size in enumerate(sizes):
        groups.setdefault(size, []).append(index)
    return [group[at : at + batch] for group in groups.values() for at in range(0, len(group), batch)]


def to_png(values: UInt8[Tensor, "height width"]) -> bytes:
    """A map of class numbers as a greyscale PNG, which a browser gives back exactly."""
    file = BytesIO()
    Image.fromarray(values.contiguous().numpy()).save(file, "PNG", optimize=True)
    return file.getvalue()
