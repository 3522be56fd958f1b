"""The interface of a labelled data set, whatever its source.

An image is identified by its index. Each source documents its order, which depends only on its content, so that
chunks, seeds and skipped images mean the same in every run.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from PIL import Image

from redi.errors import CorpusError

Item = TypeVar("Item")

SUFFIXES = frozenset(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .pgm .jp2 .avif".split())
#: Share of a data set's images beyond which damage is no accident, and the work stops.
MOST_DAMAGED = 0.1
#: Class numbers may reach this many, or the number of images if there are more. A table has a row for every class.
MOST_CLASSES = 30_000


@runtime_checkable
class LabelledImages(Protocol):
    """A data set. Loading must work in worker processes."""

    @property
    def name(self) -> str: ...

    @property
    def class_names(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Sequence[int]: ...

    @property
    def left_out(self) -> Mapping[str, Sequence[str]]:
        """Names of entries that look like images or folders of images but cannot be read, by the reason."""
        ...

    def load(self, index: int) -> Image.Image:
        """Return upright RGB; raise a :class:`redi.errors.ImageError` if the image cannot be decoded."""
        ...

    def image_name(self, index: int) -> str: ...

    def fingerprint(self, indices: Sequence[int] | None = None) -> str:
        """A digest of all images, or of some, that changes when one is added, removed, renamed, relabelled or replaced.

        It compares three pieces of every image, and whole images of uncompressed formats (see
        :mod:`redi.images.samples`). It does not depend on where the images lie or on their modification times.
        """
        ...


class Relabelled:
    """The same images, with labels that refer to the classes of the training set."""

    def __init__(self, images: LabelledImages, class_names: Sequence[str]) -> None:
        label_of = {name: label for label, name in enumerate(class_names)}
        self.images = images
        self.name = images.name
        self.class_names = class_names
        self.labels = [label_of[images.class_names[label]] for label in images.labels]
        self.left_out = images.left_out
        self.load = images.load
        self.image_name = images.image_name
        self.fingerprint = images.fingerprint


class Unlabelled:
    """The same images as one class, for work that may not read their labels."""

    def __init__(self, images: LabelledImages) -> None:
        self.name = images.name
        self.class_names = [images.name]
        self.labels = [0] * len(images.labels)
        self.left_out = images.left_out
        self.load = images.load
        self.image_name = images.image_name
        self.fingerprint = images.fingerprint


class Subset:
    """Some images of a data set, with its classes."""

    def __init__(self, images: LabelledImages, indices: Sequence[int]) -> None:
        self.images, self.indices = images, indices
        self.name = images.name
        self.class_names = images.class_names
        self.left_out = images.left_out
        self.labels = [images.labels[index] for index in indices]

    def load(self, index: int) -> Image.Image:
        return self.images.load(self.indices[index])

    def image_name(self, index: int) -> str:
        return self.images.image_name(self.indices[index])

    def fingerprint(self, indices: Sequence[int] | None = None) -> str:
        chosen = self.indices if indices is None else [self.indices[index] for index in indices]
        return self.images.fingerprint(chosen)


def first_of_each(images: LabelledImages, limit: int) -> LabelledImages:
    """The first images of each class, in the order of the data set."""
    counts, indices = [0] * len(images.class_names), []
    for index, label in enumerate(images.labels):
        counts[label] += 1
        if counts[label] <= limit:
            indices.append(index)
    return Subset(images, indices)


def spread_evenly(items: Sequence[Item], limit: int) -> list[Item]:
    """``limit`` of the items, spread evenly over them, or all if there are no more."""
    count = min(limit, len(items))
    return [items[position * len(items) // count] for position in range(count)]


def relabel(validation: LabelledImages, training: LabelledImages) -> LabelledImages:
    """Label validation images by the training classes; a class that training lacks is an error."""
    used = {validation.class_names[label] for label in set(validation.labels)}
    if unknown := sorted(used - set(training.class_names)):
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise CorpusError(
            f"{len(unknown)} validation classes are absent from training: {shown}. "
            f"The classes of {validation.name} must be among those of {training.name}."
        )
    return Relabelled(validation, training.class_names)


def numbered_classes(labels: Sequence[int], name: str) -> list[str]:
    """The names of classes that have only numbers: "0", "1" and so on, up to the highest label."""
    highest = max(labels, default=-1)
    limit = max(MOST_CLASSES, len(labels))
    if highest >= limit:
        raise CorpusError(
            f"{name} has a label of {highest:,} among {len(labels):,} images: labels are class numbers that count "
            f"from 0, here below {limit:,}."
        )
    return [str(number) for number in range(highest + 1)]


def describe_left_out(images: LabelledImages) -> str:
    """One line that counts and names what was left out; empty if there is nothing."""
    reasons = {reason: names for reason, names in images.left_out.items() if names}
    if not reasons:
        return ""
    parts = [
        f"{reason}, {len(names)} ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"
        for reason, names in reasons.items()
    ]
    return f"{sum(map(len, reasons.values()))} entries of {images.name} are left out: {'; '.join(parts)}"


def refuse_damage(damaged: int, total: int, example: str) -> None:
    """Stop if more than a tenth of the images cannot be decoded; ``example`` says why one of them cannot."""
    if damaged > MOST_DAMAGED * total:
        raise CorpusError(
            f"At least {damaged} of {total} images cannot be decoded, more than {MOST_DAMAGED:.0%}, e.g.: {example}"
        )


def digest_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]
