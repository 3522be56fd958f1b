"""Signatures are checked while the tests run; this switches it off for a while."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import jaxtyping


@contextmanager
def without_checks() -> Iterator[None]:
    """For what the annotations forbid (bad input) and for compilers, which cannot trace the checks.

    Checked functions look at a switch. Methods and properties get their plain form back, because a compiler that
    meets them on an object cannot follow the switch.
    """
    checked = [
        (cls, name, value, plain)
        for cls in _classes()
        for name, value in list(vars(cls).items())
        if (plain := _plain(value)) is not None
    ]
    jaxtyping.config.update("jaxtyping_disable", True)
    for cls, name, _, plain in checked:
        setattr(cls, name, plain)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
        for cls, name, value, _ in checked:
            setattr(cls, name, value)


def _classes() -> set[type]:
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "redi"]
    values = [value for module in modules for value in list(vars(module).values())]
    return {value for value in values if isinstance(value, type) and value.__module__.partition(".")[0] == "redi"}


def _plain(value: Any) -> Any:
    """A method or property without its check; None if it has none."""
    if isinstance(value, property):
        getter = _plain(value.fget)
        return None if getter is None else property(getter)
    if isinstance(value, FunctionType) and value.__code__.co_filename.endswith("jaxtyping/_decorator.py"):
        return value.__wrapped__  # type: ignore[attr-defined]
    return None
