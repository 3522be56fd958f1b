"""What every checkpoint's input has in common: the project's geometry, and constants that make sense."""

from math import isfinite, nan
from pathlib import Path
from typing import Any

from redi.errors import BackboneError

#: The default input gives a 14x14 grid whatever the patch size: 224 px for patch 16, 196 for 14.
GRID_SIDE = 14
#: ImageNet's constants, for checkpoints that state none.
DEFAULT_MEAN = (0.485, 0.456, 0.406)
DEFAULT_STD = (0.229, 0.224, 0.225)

Three = tuple[float, float, float]


def geometry(patch_size: int) -> tuple[int, int]:
    """(shorter side of the resized image, side of the crop), in the paper's ratio of 8 : 7."""
    size = GRID_SIDE * patch_size
    return shorter_side(size), size


def shorter_side(size: int) -> int:
    """Of the resized image that a crop of so many pixels is cut from."""
    return size * 8 // 7


def constants(file: Path, mean: Any, std: Any) -> tuple[Three, Three]:
    """Mean and deviation as ``file`` gives them; ImageNet's where it gives None."""
    centre = _three(file, DEFAULT_MEAN if mean is None else mean)
    spread = _three(file, DEFAULT_STD if std is None else std)
    if min(spread) <= 0:
        raise BackboneError(f"{file} must give positive deviations (std), not {spread}.")
    return centre, spread


def _three(file: Path, values: Any) -> Three:
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError):
        red = green = blue = nan
    if not all(map(isfinite, (red, green, blue))):
        raise BackboneError(f"{file} must give three finite numbers, not {values!r}.")
    return red, green, blue
