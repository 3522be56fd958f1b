"""The preprocessing of a checkpoint: its own constants with the project's geometry."""

from pathlib import Path
from typing import Any

from redi.errors import BackboneError, InvalidInput
from redi.images.preprocessing import (
    DEFAULT_MEAN,
    DEFAULT_STD,
    FILTERS,
    Preprocessing,
    default_size,
    resampling,
    shorter_side,
)

Three = tuple[float, float, float]


def checkpoint_input(file: Path | str, patch_size: int, mean: Any, std: Any, interpolation: str = "") -> Preprocessing:
    """The preprocessing with the ``mean`` and ``std`` that ``file`` gives; None means ImageNet's.

    The filter is bicubic, the default, if the checkpoint names none or one that is not in ``FILTERS``. timm names
    "random" for models that were trained with several filters.
    """
    centre = _three(file, DEFAULT_MEAN if mean is None else mean)
    spread = _three(file, DEFAULT_STD if std is None else std)
    size = default_size(patch_size)
    resample = resampling(interpolation if interpolation in FILTERS else "bicubic")
    try:
        return Preprocessing(shorter_side(size), size, centre, spread, resample)
    except InvalidInput as error:
        raise BackboneError(f"{file} cannot be used: {error}") from None


def processor_input(file: Path | str, settings: dict[str, Any], patch_size: int) -> Preprocessing:
    """The preprocessing with the constants of transformers' image processor; ``settings`` is the content of ``file``.

    The geometry is our own: DINOv3's stock processor squashes images without a crop.
    """
    mean, std = settings.get("image_mean"), settings.get("image_std")
    if not settings.get("do_normalize", True):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return checkpoint_input(file, patch_size, mean, std)


def _three(file: Path | str, values: Any) -> Three:
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise BackboneError(f"{file} must give three finite numbers, not {values!r}.") from None
    return red, green, blue
