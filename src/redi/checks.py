"""Value and shape checks of the public functions.

They look at the numbers, so they synchronise with the device and cannot be traced: they belong in
the public wrappers and never in the tensor cores that are compiled or exported.
"""

from torch import Tensor

from redi.errors import InvalidInput


def require_finite(values: Tensor, name: str) -> None:
    if not bool(values.isfinite().all()):
        count = int((~values.isfinite()).sum())
        raise InvalidInput(
            f"{name} must be finite, but {count} of {values.numel()} values are not."
        )


def require_axes(values: Tensor, axes: str, name: str) -> None:
    """``axes`` names the expected axes, e.g. ``"batch patches dim"``."""
    expected = len(axes.split())
    if values.ndim != expected:
        raise InvalidInput(f"{name} must be [{axes}], but has shape {list(values.shape)}.")
    if 0 in values.shape:
        raise InvalidInput(f"{name} is empty: its shape is {list(values.shape)}.")


def require_same_shape(left: Tensor, right: Tensor, names: str) -> None:
    if left.shape != right.shape:
        raise InvalidInput(
            f"{names} must have the same shape, but have {list(left.shape)} and {list(right.shape)}."
        )


def require_range(values: Tensor, upper: int, name: str) -> None:
    """Integer codes must lie in ``0 .. upper - 1``."""
    if values.is_floating_point() or values.dtype.is_complex:
        raise InvalidInput(f"{name} must be integers, but are {values.dtype}.")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= upper:
        raise InvalidInput(f"{name} must lie in 0..{upper - 1}, but reach from {low} to {high}.")
