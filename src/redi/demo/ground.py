"""The grounds that objects lie on. They are muted, so that no ground outshines an object."""

import math

import numpy as np

from redi.demo.draw import Draw, Field, clipped
from redi.demo.materials import rgb


def _plaster(side: int, draw: Draw) -> Field:
    return draw.fractal(side, side, 60, 5)


def _planks(side: int, draw: Draw) -> Field:
    width = draw.uniform(34, 60)
    y = np.arange(side, dtype=np.float32) / np.float32(width) + np.float32(draw.uniform())
    board = np.floor(y).astype(np.intp)
    seam = clipped((np.minimum(y - board, 1 - y + board) * np.float32(width) - 1) / 2)
    grain = draw.noise(side, side, 3, 12) * 0.5 + draw.noise(side, side, 9, 9) * 0.5
    tone = draw.white(16)[board % 16] * np.float32(0.5)
    field: Field = (grain * np.float32(0.6) + tone[:, None]) * (0.35 + 0.65 * seam[:, None])
    return field if draw.coin(0.5) else np.ascontiguousarray(field.T)


def _weave(side: int, draw: Draw) -> Field:
    step = np.float32(math.tau / draw.uniform(5, 9))
    axis = np.arange(side, dtype=np.float32) * step
    threads = np.sin(axis)[:, None] * np.sin(axis)[None, :]
    return clipped(0.5 + 0.3 * threads + (draw.noise(side, side, 24) - 0.5) * 0.6)


def _tiles(side: int, draw: Draw) -> Field:
    width = draw.uniform(40, 72)
    axis = np.arange(side, dtype=np.float32) / np.float32(width)
    x, y = axis + np.float32(draw.uniform()), axis + np.float32(draw.uniform())
    column, row = np.floor(x).astype(np.intp), np.floor(y).astype(np.intp)
    gap_x = np.minimum(x - column, 1 - x + column)
    gap_y = np.minimum(y - row, 1 - y + row)
    gap = np.minimum(gap_x[None, :], gap_y[:, None]) * np.float32(width)
    tone = draw.white(8, 8)[np.ix_(row % 8, column % 8)]
    body: Field = np.float32(0.35) + np.float32(0.35) * tone + draw.noise(side, side, 12) * 0.3
    joints: Field = np.clip((gap - 1) / 2, 0.25, 1.0)
    return body * joints


def _sand(side: int, draw: Draw) -> Field:
    ripples, grains = draw.fractal(side, side, 48, 3), draw.noise(side, side, 2.5)
    return clipped(ripples * np.float32(0.75) + (grains - 0.5) * 0.45 + 0.12)


def _terrazzo(side: int, draw: Draw) -> Field:
    light = clipped((draw.noise(side, side, 11) - 0.7) * 14)
    dark = clipped((draw.noise(side, side, 8) - 0.74) * 14)
    chips: Field = light * np.float32(0.4) - dark * np.float32(0.35)
    return 0.45 + chips + draw.white(side, 1) * 0.02


def _meadow(side: int, draw: Draw) -> Field:
    blades = draw.noise(side, side, 14, 0.2)
    return clipped(blades * 0.75 + draw.noise(side, side, 50) * 0.35 - 0.05)


GROUNDS = (_plaster, _planks, _weave, _tiles, _sand, _terrazzo, _meadow)


def ground(side: int, draw: Draw) -> Field:
    """The background [side, side, 3]: one texture between two related, muted colours."""
    tone = GROUNDS[draw.below(len(GROUNDS))](side, draw).astype(np.float32)
    # Half of the grounds are earthy; the others have any hue.
    hue = draw.uniform(0.04, 0.2) if draw.coin(0.5) else draw.uniform()
    return coloured(tone, hue, draw.uniform(0.04, 0.28), draw)


def coloured(tone: Field, hue: float, saturation: float, draw: Draw) -> Field:
    """A texture [side, side] between two colours of about one hue."""
    value, drop = draw.uniform(0.5, 0.95), draw.uniform(0.5, 0.8)
    dark = rgb(hue + draw.uniform(-0.06, 0.06), saturation * 1.2, value * drop)
    light = rgb(hue, saturation, value)
    return dark + tone[..., None] * (light - dark)
