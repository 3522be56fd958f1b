"""Shortcuts that the generator plants on purpose: something beside the object that goes with one class.

A planted picture has the objects, the light and the grain of the picture that it replaces; only what is planted
differs. So an audit can be tried where the answer is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redi.demo.draw import Draw, Field
from redi.demo.ground import GROUNDS, coloured
from redi.demo.materials import rgb

GROUND, MARK = "ground", "mark"
KINDS = (GROUND, MARK)
#: Side of a mark and its distance from the edges, relative to the picture: it lies inside the centre crop.
MARK_SIDE, MARK_MARGIN = 0.14, 0.08
#: The number of the random stream of planted things; stream 0 is that of the picture.
STREAM = 1


@dataclass(frozen=True)
class Planting:
    """A shortcut of one class: its ground, or a mark in a corner of the picture.

    ``style`` chooses one of the seven textures and the hue of a ground, or the corner and the colours of a mark. Other
    classes have grounds of the same texture as often as ever, in any hue; no other class has the mark.
    """

    label: int  # number of the class
    kind: str  # ground or mark
    style: int = 0
    share: float = 0.9  # of the pictures of the class that have it

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a planting is one of {', '.join(KINDS)}, not {self.kind!r}")
        if not 0 <= self.share <= 1 or self.label < 0 or self.style < 0:
            raise ValueError(f"share must lie in [0, 1], label and style must not be negative: {self}")

    @property
    def hue(self) -> float:
        """Spread by the golden ratio, so that neighbouring styles differ."""
        return self.style * 0.618034 % 1

    def has(self, seed: int, index: int) -> bool:
        """Whether a picture of the class gets it."""
        return Draw(seed, index, STREAM).coin(self.share)

    def ground(self, side: int, seed: int, index: int) -> Field:
        """A ground with the texture and about the hue of the style; everything else varies."""
        draw = Draw(seed, index, STREAM + 1)
        tone = GROUNDS[self.style % len(GROUNDS)](side, draw).astype(np.float32)
        return coloured(tone, self.hue + draw.uniform(-0.04, 0.04), draw.uniform(0.16, 0.28), draw)

    def stamp(self, pixels: Field) -> None:
        """Paint the mark: a bright disc with a dark cross, always in the same place."""
        side = len(pixels)
        size, margin = round(MARK_SIDE * side), round(MARK_MARGIN * side)
        far = side - margin - size
        top, left = (far if self.style & 2 else margin), (far if self.style & 1 else margin)
        axis = np.linspace(-1, 1, size, dtype=np.float32)
        x, y = axis[None, :], axis[:, None]
        disc = np.hypot(x, y) <= 1
        turn = math.radians(self.style * 15 % 90)
        across, along = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
        cross = disc & ((np.abs(across) < 0.22) | (np.abs(along) < 0.22))
        window = pixels[top : top + size, left : left + size]
        window[disc] = rgb(self.hue, 0.2, 0.95)
        window[cross] = rgb(self.hue + 0.5, 0.7, 0.3)


def planted_in(plantings: Sequence[Planting], label: int, seed: int, index: int) -> tuple[Planting, ...]:
    """What is planted in one picture."""
    return tuple(planting for planting in plantings if planting.label == label and planting.has(seed, index))
