"""Value and shape checks of the public functions.

They read tensor values, so they synchronise with the device and cannot be traced. They belong in the public
wrappers, never in the tensor cores that are compiled or exported. So a model's ``forward`` does not check its outputs.
Weights that are not finite are refused when a model is loaded or accelerated, and every command checks the outputs that
it records, where they reach the CPU.
"""

import json
import reprlib
from dataclasses import fields
from math import isfinite
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from redi.errors import BackboneError, ConfigError, InvalidInput, RediError


def parse_json(text: str) -> Any:
    """The content of a JSON file that anybody may have changed.

    A ValueError if it is no JSON, has a number that is not finite, or is nested deeper than Python can follow.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def require_type(value: Any, kind: Any, name: str, error: type[RediError] = ConfigError) -> Any:
    """Require a value of a class, or of one of several (``float | None``), and return it.

    True is no number, and 1 is a float too. A number of NumPy is returned as Python's own.
    """
    kinds = get_args(kind) or (kind,)
    if not isinstance(value, bool | int | float):
        if isinstance(value, Integral) and {int, float} & set(kinds):
            return int(value)
        if isinstance(value, Real) and float in kinds:
            return float(value)
    allowed = (*kinds, int) if float in kinds else kinds
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):  # True is an int in Python
        names = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
        raise error(f"{name} must be of type {names}, not {' '.join(reprlib.repr(value).split())}.")
    return value


def require_types(record: Any, error: type[RediError] = ConfigError) -> None:
    """Require that every field of a dataclass holds what it declares, as :func:`require_type` returns it."""
    kinds = get_type_hints(type(record))
    for entry in fields(record):
        value = require_type(getattr(record, entry.name), kinds[entry.name], entry.name, error)
        object.__setattr__(record, entry.name, value)  # the record may be frozen


def require_finite(values: Tensor, name: str) -> None:
    if not bool(values.isfinite().all()):
        count = int((~values.isfinite()).sum())
        raise InvalidInput(f"{name} must be finite, but {count} of {values.numel()} values are not.")


def require_finite_weights(model: nn.Module) -> None:
    for name, values in model.state_dict().items():
        if not (values.is_meta or values.isfinite().all()):
            raise BackboneError(
                f"The weights {name} are not all finite: the checkpoint is damaged, or training diverged."
            )


def require_float(values: Tensor, name: str) -> None:
    if not values.is_floating_point():
        raise InvalidInput(f"{name} must be floating point, not {values.dtype}.")


def require_integers(values: Tensor, name: str) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise InvalidInput(f"{name} must be integers, but are {values.dtype}.")


def require_axes(values: Tensor, axes: str, name: str) -> None:
    """Require the axes that ``axes`` names, e.g. ``"batch patches dim"``; a leading ``...`` allows more."""
    names = axes.split()
    allows_more = names[0] == "..."
    expected = len(names) - allows_more
    if values.ndim < expected or (values.ndim > expected and not allows_more):
        raise InvalidInput(f"{name} must be [{axes}], but the shape is {list(values.shape)}.")
    if 0 in values.shape:
        raise InvalidInput(f"{name} must not be empty, but the shape is {list(values.shape)}.")


def require_same_shape(left: Tensor, right: Tensor, names: str) -> None:
    if left.shape != right.shape:
        raise InvalidInput(f"{names} must have the same shape, but have {list(left.shape)} and {list(right.shape)}.")


def require_range(values: Tensor, upper: int, name: str) -> None:
    """Require integers in ``0 .. upper - 1``."""
    require_integers(values, name)
    low, high = int(values.long().min()), int(values.long().max())
    if low < 0 or high >= upper:
        raise InvalidInput(f"{name} must lie in 0..{upper - 1}, but range from {low} to {high}.")
