"""The interface of a labelled data set, whatever its source.

An image is identified by its index. Each source documents its order, which depends only on its content, so that
chunks, seeds and skipped images mean the same in every run.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from PIL import Image

from redi.errors import CorpusError

SUFFIXES = frozenset(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm .pgm .jp2 .avif".split())


@runtime_checkable
class LabelledImages(Protocol):
    """A data set. Loading must work in worker processes."""

    @property
    def name(self) -> str: ...

    @property
    def class_names(self) -> Sequence[str]: ...

    @property
    def labels(self) -> Sequence[int]: ...

    def load(self, index: int) -> Image.Image:
        """Return upright RGB; raise a :class:`redi.errors.ImageError` if the image cannot be decoded."""
        ...

    def image_name(self, index: int) -> str: ...

    def fingerprint(self) -> str:
        """A digest that changes when images are added, removed, renamed or replaced by files of another size."""
        ...


class Relabelled:
    """The same images, with labels that refer to the classes of the training set."""

    def __init__(self, images: LabelledImages, class_names: Sequence[str]) -> None:
        label_of = {name: label for label, name in enumerate(class_names)}
        self.images = images
        self.name = images.name
        self.class_names = class_names
        self.labels = [label_of[images.class_names[label]] for label in images.labels]
        self.load = images.load
        self.image_name = images.image_name
        self.fingerprint = images.fingerprint


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


def digest_lines(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]
