"""Silhouettes: polygons of unit area, centred on their centroid and drawn anti-aliased.

With unit area, an object of size `s` covers `s * s` pixels whatever its shape. So "the largest object" is a
statement about pixels, and no class is easier to see than another by construction.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from redi.demo.draw import Field

Points = NDArray[np.float64]
SUPERSAMPLING = 4  # silhouettes are drawn this many times larger, then averaged down


@dataclass(frozen=True)
class Outline:
    """One closed polygon and the holes cut out of it, [points, 2] as (x, y) with y downwards."""

    body: Points
    holes: tuple[Points, ...] = ()


def _polar(radius: Callable[[float], float], n: int = 72) -> Points:
    angles = [2 * math.pi * k / n for k in range(n)]
    return np.array([(radius(a) * math.sin(a), -radius(a) * math.cos(a)) for a in angles])


def _arc(x: float, y: float, radius: float, start: float, stop: float, n: int = 24) -> Points:
    """Points on the arc of a circle from `start` to `stop` degrees, clockwise from the top."""
    angles = np.radians(np.linspace(start, stop, n))
    return np.stack((x + radius * np.sin(angles), y - radius * np.cos(angles)), axis=1)


def _mirrored(right: list[tuple[float, float]]) -> Points:
    """A shape that is symmetric about the vertical axis, from the points of its right half."""
    return np.array(right + [(-x, y) for x, y in reversed(right)])


def _star() -> Outline:
    return Outline(_polar(lambda a: 1.0 if round(a / (math.pi / 5)) % 2 == 0 else 0.48, n=10))


def _heart() -> Outline:
    t = np.linspace(0, 2 * math.pi, 72, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return Outline(np.stack((16 * np.sin(t) ** 3, -y), axis=1))


def _cross() -> Outline:
    a, b = 0.36, 1.0
    return Outline(_mirrored([(a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b)]))


def _ring() -> Outline:
    return Outline(_arc(0, 0, 1.0, 0, 355, 72), (_arc(0, 0, 0.52, 0, 355, 48),))


def _crescent() -> Outline:
    outer, inner = _arc(0, 0, 1.0, 35, 325, 60), _arc(0.0, -0.42, 0.72, 300, 60, 48)
    return Outline(np.concatenate((outer, inner)))


def _hexagon() -> Outline:
    return Outline(_polar(lambda a: 1.0, n=6))


def _arrow() -> Outline:
    return Outline(_mirrored([(0.0, -1.0), (0.85, -0.1), (0.36, -0.1), (0.36, 1.0)]))


def _drop() -> Outline:
    return Outline(np.concatenate((np.array([(0.0, -1.35)]), _arc(0, 0.25, 0.75, 62, 298, 48))))


def _leaf() -> Outline:
    blade = np.concatenate((_arc(-0.75, 0, 1.25, 38, 142), _arc(0.75, 0, 1.25, 218, 322)))
    return Outline(blade)


def _gear() -> Outline:
    teeth = _polar(lambda a: 1.0 if math.sin(8 * a) > 0 else 0.76, n=96)
    return Outline(teeth, (_arc(0, 0, 0.3, 0, 350, 36),))


def _bolt() -> Outline:
    zigzag = [(0.25, -1.1), (-0.6, 0.15), (-0.08, 0.15), (-0.3, 1.1), (0.62, -0.25), (0.08, -0.25)]
    return Outline(np.array([*zigzag, (0.55, -1.1)]))


def _clover() -> Outline:
    return Outline(_polar(lambda a: 0.62 + 0.38 * math.cos(4 * a), n=96))


def _fish() -> Outline:
    body = np.stack((_arc(0, 0, 0.95, 110, 430, 60)[:, 0], _arc(0, 0, 0.6, 110, 430, 60)[:, 1]), 1)
    tail = np.array([(1.45, -0.5), (1.28, 0.0), (1.45, 0.5)])
    return Outline(np.concatenate((body, tail)))


def _bottle() -> Outline:
    half = [(0.2, -1.2), (0.2, -0.6), (0.28, -0.42), (0.46, -0.22), (0.5, 0.0), (0.5, 1.0)]
    return Outline(_mirrored([*half, (0.42, 1.12)]))


def _mushroom() -> Outline:
    cap = _arc(0, 0, 1.0, -95, 95, 48)
    stem = np.array([(0.34, 0.1), (0.3, 0.5), (0.42, 0.95), (-0.42, 0.95), (-0.3, 0.5)])
    return Outline(np.concatenate((cap, stem, np.array([(-0.34, 0.1)]))))


def _house() -> Outline:
    wall = [(0.0, -1.0), (0.95, -0.1), (0.7, -0.1), (0.7, 0.9), (0.2, 0.9), (0.2, 0.3)]
    return Outline(_mirrored(wall))


SHAPES: dict[str, Callable[[], Outline]] = {
    "star": _star,
    "heart": _heart,
    "gear": _gear,
    "fish": _fish,
    "bottle": _bottle,
    "mushroom": _mushroom,
    "cross": _cross,
    "ring": _ring,
    "crescent": _crescent,
    "hexagon": _hexagon,
    "arrow": _arrow,
    "drop": _drop,
    "leaf": _leaf,
    "bolt": _bolt,
    "clover": _clover,
    "house": _house,
}


def _area_and_centroid(points: Points) -> tuple[float, Points]:
    """Area and centroid of a polygon by the shoelace formula."""
    x, y = points.T
    x2, y2 = np.roll(points, -1, axis=0).T
    cross = x * y2 - x2 * y
    area = cross.sum() / 2
    centroid = np.array([((x + x2) * cross).sum(), ((y + y2) * cross).sum()]) / (6 * area)
    return abs(float(area)), centroid


@cache
def outline(shape: str) -> Outline:
    """The silhouette of `shape`, scaled to unit area (without holes), with its centroid at the origin."""
    raw = SHAPES[shape]()
    area, centroid = _area_and_centroid(raw.body)
    scale = 1 / math.sqrt(area - sum(_area_and_centroid(hole)[0] for hole in raw.holes))
    holes = tuple((hole - centroid) * scale for hole in raw.holes)
    return Outline((raw.body - centroid) * scale, holes)


@cache
def reach(shape: str) -> float:
    """The largest distance of the unit-area silhouette from its centre."""
    return float(np.linalg.norm(outline(shape).body, axis=1).max())


def silhouette(shape: str, size: float, degrees: float, side: int) -> Field:
    """Coverage [side, side] in [0, 1] of the centred shape, which covers `size * size` pixels."""
    turn = math.radians(degrees)
    rotation = np.array(((math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))))
    canvas = Image.new("L", (side * SUPERSAMPLING, side * SUPERSAMPLING), 0)
    pen = ImageDraw.Draw(canvas)
    polygons = outline(shape)
    for points, value in [(polygons.body, 255), *((hole, 0) for hole in polygons.holes)]:
        placed = (points @ rotation * size + side / 2) * SUPERSAMPLING
        pen.polygon([(float(x), float(y)) for x, y in placed], fill=value)
    return np.asarray(canvas.reduce(SUPERSAMPLING), np.float32) / np.float32(255)
