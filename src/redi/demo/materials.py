"""Materials: a pattern that mixes two colours, and how strongly the surface shines.

A pattern is a field in [0, 1] on the object's own axes, so it turns with the object. Most materials share one free
palette: the colour of an object says little about its material, and a classifier has to look at the texture.
"""

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redi.demo.draw import Draw, Field, clipped

Colour = NDArray[np.float32]  # [3]; linear mixing in sRGB is good enough here
TAU = 2 * math.pi


@dataclass(frozen=True)
class Surface:
    """The surface of an object: its coordinates in periods, and the random source."""

    u: Field
    v: Field
    draw: Draw

    def noise(self, cell: float, stretch: float = 1.0) -> Field:
        """Noise along the image axes, which looks right without turning with the object."""
        rows, columns = self.u.shape
        return self.draw.noise(rows, columns, cell, stretch)


def _edge(wave: Field, sharpness: float = 2.5) -> Field:
    """Sharpen a wave in [-1, 1] to two flat tones with a soft border."""
    return clipped(0.5 + sharpness * wave)


def _sin(phase: Field) -> Field:
    wave: Field = np.sin(np.float32(TAU) * phase)
    return wave


def _fraction(field: Field) -> Field:
    return field - np.floor(field)


def _stripes(s: Surface) -> Field:
    return _edge(_sin(s.u))


def _checker(s: Surface) -> Field:
    return _edge(_sin(s.u / 2) * _sin(s.v / 2), 5.0)


def _dots(s: Surface) -> Field:
    return _edge(_sin(s.u) + _sin(s.v) - np.float32(0.75), 2.0)


def _zigzag(s: Surface) -> Field:
    return _edge(_sin(s.u + np.abs(_fraction(s.v / 2) - np.float32(0.5)) * 2))


def _waves(s: Surface) -> Field:
    return _edge(_sin(s.u + np.float32(0.3) * _sin(s.v / 2)))


def _plaid(s: Surface) -> Field:
    across, along = _edge(_sin(s.u / 2), 3.0), _edge(_sin(s.v / 2), 3.0)
    thin = _edge(_sin(s.u * 2) - np.float32(0.8), 4.0)
    return np.float32(0.45) * (across + along) + np.float32(0.1) * thin


def _brick(s: Surface) -> Field:
    course = np.floor(s.v)
    u = _fraction(s.u / 2 + np.float32(0.5) * (course % 2))
    to_joint = np.minimum(np.minimum(u, 1 - u) * 2, np.minimum(_fraction(s.v), 1 - _fraction(s.v)))
    return clipped((to_joint - np.float32(0.08)) * 10)


def _scales(s: Surface) -> Field:
    row = np.floor(s.v)
    u = _fraction(s.u + np.float32(0.5) * (row % 2)) - np.float32(0.5)
    distance = np.sqrt(u * u + _fraction(s.v) ** 2)
    return clipped(np.abs(distance - np.float32(0.55)) * 3.2)


def _wood(s: Surface) -> Field:
    rings = _sin(s.u * np.float32(0.55) + s.noise(36) * 2 + s.noise(14) * np.float32(0.3))
    fibre = s.noise(2, 5)
    return clipped(np.float32(0.5) + np.float32(0.42) * rings + (fibre - 0.5) * 0.45)


def _marble(s: Surface) -> Field:
    wander = s.noise(28) * 2 + s.noise(11) * np.float32(0.7)
    veins = np.abs(_sin(s.u * np.float32(0.14) + wander * np.float32(0.5)))
    return clipped(veins * np.float32(2.2) + (s.noise(20) - 0.5) * 0.5)


def _granite(s: Surface) -> Field:
    return clipped((s.noise(2.4) - 0.5) * 2.6 + (s.noise(6) - 0.5) + 0.5)


def _metal(s: Surface) -> Field:
    # Brushed along one axis: 1-D noise at each pixel's u, under a broad reflection.
    scratches = s.draw.white(256)
    index = (_fraction(s.u / 8) * 255).astype(np.intp)
    sheen = _sin(s.u / 7 + np.float32(s.draw.uniform()))
    return clipped(0.5 + 0.42 * sheen + (scratches[index] - 0.5) * np.float32(0.5))


def rgb(hue: float, saturation: float, value: float) -> Colour:
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value), np.float32)


def _paint(draw: Draw) -> tuple[Colour, Colour]:
    """A dark and a light tone of any hue, in either order."""
    dark = rgb(draw.uniform(), draw.uniform(0.35, 0.85), draw.uniform(0.2, 0.5))
    light = rgb(draw.uniform(), draw.uniform(0.08, 0.6), draw.uniform(0.72, 0.97))
    return (dark, light) if draw.coin(0.5) else (light, dark)


def _timber(draw: Draw) -> tuple[Colour, Colour]:
    hue, saturation, value = draw.uniform(0.02, 0.12), draw.uniform(0.3, 0.65), draw.uniform(0.5, 0.9)
    return rgb(hue, saturation, value * 0.55), rgb(hue + 0.015, saturation * 0.85, value)


def _stone(draw: Draw) -> tuple[Colour, Colour]:
    hue, value = draw.uniform(), draw.uniform(0.65, 0.95)
    return rgb(hue, draw.uniform(0.1, 0.5), value * 0.42), rgb(hue, draw.uniform(0.0, 0.2), value)


def _alloy(draw: Draw) -> tuple[Colour, Colour]:
    hue, saturation = draw.uniform(0.04, 0.16), draw.uniform(0.25, 0.6)
    if draw.coin(0.5):  # steel rather than brass or copper
        hue, saturation = draw.uniform(0.5, 0.65), draw.uniform(0.02, 0.15)
    return rgb(hue, saturation, 0.35), rgb(hue, saturation * 0.7, 0.95)


@dataclass(frozen=True)
class Material:
    """The material of an object."""

    pattern: Callable[[Surface], Field]
    palette: Callable[[Draw], tuple[Colour, Colour]]
    gloss: float  # weight of the highlight


MATERIALS: dict[str, Material] = {
    "wooden": Material(_wood, _timber, 0.15),
    "striped": Material(_stripes, _paint, 0.2),
    "dotted": Material(_dots, _paint, 0.2),
    "marble": Material(_marble, _stone, 0.45),
    "checkered": Material(_checker, _paint, 0.2),
    "scaly": Material(_scales, _paint, 0.35),
    "metal": Material(_metal, _alloy, 0.8),
    "granite": Material(_granite, _stone, 0.15),
    "zigzag": Material(_zigzag, _paint, 0.2),
    "wavy": Material(_waves, _paint, 0.2),
    "brick": Material(_brick, _paint, 0.05),
    "plaid": Material(_plaid, _paint, 0.1),
}


def albedo(material: str, side: int, degrees: float, period: float, draw: Draw) -> Field:
    """The unlit surface [side, side, 3] of an object turned by `degrees`."""
    turn = math.radians(degrees)
    axis = np.arange(side, dtype=np.float32) - np.float32(side / 2)
    cos, sin = np.float32(math.cos(turn) / period), np.float32(math.sin(turn) / period)
    u = axis[None, :] * cos + axis[:, None] * sin + np.float32(draw.uniform())
    v = axis[:, None] * cos - axis[None, :] * sin + np.float32(draw.uniform())
    kind = MATERIALS[material]
    first, second = kind.palette(draw)
    tone = kind.pattern(Surface(u, v, draw)).astype(np.float32)
    return first + tone[..., None] * (second - first)
