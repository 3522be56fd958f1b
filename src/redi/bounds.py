"""The smallest and the largest value of every number that a user gives: of options and of settings alike.

A largest value is far beyond use, and still small enough that a slip of the finger ends in one sentence and not in a
computer without memory. What a model or a data set can do is checked where it is known.
"""

from dataclasses import dataclass, is_dataclass
from math import isfinite
from typing import Any, get_type_hints

from redi.errors import ConfigError


@dataclass(frozen=True)
class Bounds:
    """An interval of numbers. The field of a configuration is annotated with it, and so is the option."""

    low: float
    high: float
    above: bool = False  # the low end itself is outside
    below: bool = False  # the high end itself is outside

    def __str__(self) -> str:
        low, high = f"{self.low:,}", f"{self.high:,}"
        if self.above:
            return f"between {low} and {high}" if self.below else f"above {low}, up to {high}"
        return f"in {low} to {high}" + f", without {high}" * self.below

    def holds(self, value: float) -> bool:
        inside = self.low <= value <= self.high  # False for a number that is none
        return inside and not (self.above and value == self.low) and not (self.below and value == self.high)

    def refusal(self, name: str, value: Any) -> str:
        """Why a number cannot be taken; empty if it can."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{name} must be a number, not {value!r}."
        if isinstance(value, float) and not isfinite(value):
            return f"{name} must be a finite number, not {value}."
        if self.holds(value):
            return ""
        shown = f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"  # whose text may be endless
        return f"{name} must lie {self}, not at {shown}."

    def require(self, name: str, value: Any) -> None:
        if refusal := self.refusal(name, value):
            raise ConfigError(refusal)


def require_bounds(settings: Any, prefix: str = "") -> None:
    """Require each number of a configuration, and each one in a tuple, to lie within the bounds of its field."""
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if is_dataclass(value):
            require_bounds(value, f"{prefix}{name}.")
        for bounds in getattr(kind, "__metadata__", ()):
            for one in value if isinstance(value, list | tuple) else (value,):
                if one is not None:
                    bounds.require(f"{prefix}{name}", one)


#: Words and the places of patches are stored in 16 bits.
MOST_WORDS = 32767

# Data. A side of 4,096 pixels has 65,536 patches of 16 pixels, and their distances alone take 17 GB. 0 is the default.
SIZE = Bounds(0, 4096)
SIDE = Bounds(1, 4096)
LIMIT = Bounds(0, 10**9)  # images; 0 means all
LEARNED_FROM = Bounds(16, 10**7)  # images that are kept in memory
SAMPLE = Bounds(8, 10**7)  # images of each part of a tuning
SEARCHED = Bounds(2, 10**9)  # images of a gallery, and queries
INDEX = Bounds(0, 10**9)  # of an image
VOID = Bounds(0, 255)  # the value of a pixel in a label map of 8 bits

# Method. Seeds are those that NumPy takes too.
SEED = Bounds(0, 2**32 - 1)
WORDS = Bounds(1, MOST_WORDS)
PASSES = Bounds(1, 1000)
COST = Bounds(0, 1, above=True, below=True)  # relative to dense, which is no choice here
COST_OR_DENSE = Bounds(0, 1, above=True)
COST_OR_DEFAULT = Bounds(0, 1, below=True)  # 0 means the operator's
FRACTION = Bounds(0, 1)
CELLS = Bounds(1, 1024)  # summary tokens per grid axis
SPATIAL = Bounds(-1000, 1000)
TOKENS = Bounds(1, MOST_WORDS)
LEFT_TOKENS = Bounds(0, MOST_WORDS)  # 0 means the full grid
BLOCK = Bounds(1, 1024)
BLOCKS = Bounds(0, 1024)  # before a reducer, or those that remove tokens
PROTECTION = Bounds(0, 10**6)
STEPS = Bounds(1, 10**6)
CHECKS = Bounds(1, 1000)
RATE = Bounds(0, 1, below=True)  # of learning; 0 means the method's own
PERCENT = Bounds(0, 100)

# The linear probe and the analysis of a run.
EPOCHS = Bounds(0, 10**6)
PROBE_STEPS = Bounds(0, 10**9)
PROBE_BATCH = Bounds(1, 10**9)  # features, of which no more are taken than there are
PROBE_RATE = Bounds(0, 1000, above=True)
DECAY = Bounds(0, 1000)
SHOWN_IMAGES = Bounds(1, 10_000)
SHOWN_PATCHES = Bounds(1, 100)
SHOWN_CLASSES = Bounds(1, 10**6)

# The backbone of an analytic cost: sizes that can be multiplied without thought.
PATCHES = Bounds(1, 10**6)
PREFIX = Bounds(0, 10**6)
WIDTH = Bounds(1, 10**6)
MLP = Bounds(0, 10**6)  # 0 means four times the width

# Resources. 4,096 images of 224 pixels are 2.5 GB; the system refuses to start many more threads than 1,024.
BATCH = Bounds(1, 4096)
WORKERS = Bounds(0, 1024)
THREADS = Bounds(0, 1024)  # 0 leaves the choice to torch
CHUNK = Bounds(1, 10**9)  # images
REPEATS = Bounds(1, 10_000)
REPEATS_OR_DEFAULT = Bounds(0, 10_000)
SECONDS = Bounds(0, 10**6, above=True)
PAUSE = Bounds(0, 10**6)  # seconds
