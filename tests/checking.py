"""Signatures are checked while the tests run; this switches it off for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def without_checks() -> Iterator[None]:
    """For what the annotations forbid: bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
