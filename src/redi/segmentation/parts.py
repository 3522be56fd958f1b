"""One part of the data, training or validation: its scenes, their input sizes and the batches they come in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redi.grid import Grid
from redi.images.scenes import Scenes, Size, Survey, buckets, fitted

#: Scenes per forward, and per file of tokens.
BATCH = 8
#: Scenes in the report, spread evenly over the validation set.
SHOWN = 6


@dataclass(frozen=True)
class Part:
    """One data set with the input size of every scene."""

    scenes: Scenes
    survey: Survey
    sizes: list[Size]
    patch: int

    @classmethod
    def open(cls, root: Path, limit: int, patch: int, asked: Sequence[int]) -> "Part":
        """Look at all files of a folder; ``asked`` is the size of the configuration."""
        scenes = Scenes(root, limit)
        survey = scenes.survey()
        return cls(scenes, survey, [fitted(size, patch, asked) for size in survey.sizes], patch)

    @property
    def plan(self) -> list[list[int]]:
        return buckets(self.sizes, BATCH)

    @property
    def grids(self) -> list[Grid]:
        return [(height // self.patch, width // self.patch) for height, width in self.sizes]

    @property
    def shown(self) -> list[int]:
        """Indices of the scenes in the report."""
        count = min(SHOWN, len(self.scenes))
        return [(2 * k + 1) * len(self.scenes) // (2 * count) for k in range(count)]
