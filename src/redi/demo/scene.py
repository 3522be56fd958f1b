"""One picture: a textured ground, small objects, one large object, one light.

The large object is the subject. Every other object is much smaller (`SceneConfig.distractor_size`), so the label of
a picture is well defined.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from redi.demo.draw import Draw, Field
from redi.demo.ground import ground
from redi.demo.materials import MATERIALS, albedo
from redi.demo.shapes import reach, silhouette


@dataclass(frozen=True)
class SceneConfig:
    """The variation between pictures. The size of an object is the square root of its area."""

    side: int = 256  # height and width of the picture in pixels
    subject_size: tuple[float, float] = (0.23, 0.36)  # relative to the side
    distractor_size: tuple[float, float] = (0.35, 0.58)  # relative to the subject's size
    distractors: tuple[int, int] = (5, 9)  # smallest and largest number
    turn: float = 50.0  # largest rotation of an object in degrees, either way
    overlap: float = 0.12  # largest share of the subject that a distractor may hide
    contrast: tuple[float, float] = (0.65, 1.0)  # of the whole picture
    grain: float = 0.05  # amplitude of the sensor noise


@dataclass(frozen=True)
class ObjectClass:
    """A kind of object: its shape and its material."""

    shape: str
    material: str

    @property
    def name(self) -> str:
        return f"{self.material}-{self.shape}"


@dataclass(frozen=True)
class Scene:
    """A picture and the object that each pixel shows: 0 ground, 1 subject, then distractors."""

    image: Image.Image
    owner: NDArray[np.uint8]  # [side, side]
    objects: tuple[ObjectClass, ...]  # objects[k] is the object of owner k + 1


@dataclass(frozen=True)
class _Light:
    angle: float  # where the light comes from, radians in the picture's plane
    strength: float

    def along(self, horizontal: Field, vertical: Field) -> Field:
        x, y = np.float32(math.cos(self.angle)), np.float32(math.sin(self.angle))
        return horizontal * x + vertical * y


def _blurred(coverage: Field, radius: float) -> Field:
    image = Image.fromarray((coverage * np.float32(255)).astype(np.uint8))
    blurred = image.filter(ImageFilter.GaussianBlur(radius))
    return np.asarray(blurred, np.float32) / np.float32(255)


class _Canvas:
    """The picture while it is painted, with the owner of every pixel."""

    def __init__(self, config: SceneConfig, draw: Draw, planted_ground: Field | None = None) -> None:
        self.config, self.draw = config, draw
        self.light = _Light(draw.uniform(0, math.tau), draw.uniform(0.35, 0.6))
        own = ground(config.side, draw)  # drawn in any case, so that the objects do not depend on what is planted
        self.pixels = own if planted_ground is None else planted_ground
        self.owner = np.zeros((config.side, config.side), np.uint8)

    def paint(self, kind: ObjectClass, x: float, y: float, size: float, owner: int) -> None:
        """Paint the shadow and then the lit object, in the part of the picture that they touch."""
        draw, light = self.draw, self.light
        degrees = draw.uniform(-self.config.turn, self.config.turn)
        radius = reach(kind.shape) * size
        shadow_blur, shadow_length = 2 + size * 0.05, size * 0.1
        side = 2 * math.ceil(radius + shadow_length + 2 * shadow_blur)
        coverage = silhouette(kind.shape, size, degrees, side)
        surface = albedo(kind.material, side, degrees, 6 + 0.07 * size * draw.uniform(0.8, 1.3), draw)
        lit = self._lit(surface, coverage, size, MATERIALS[kind.material].gloss)

        left, top = round(x - side / 2), round(y - side / 2)
        shift_x = round(-math.cos(light.angle) * shadow_length)
        shift_y = round(-math.sin(light.angle) * shadow_length)
        shadow = np.roll(_blurred(coverage, shadow_blur), (shift_y, shift_x), axis=(0, 1))

        limit = self.config.side
        inside = (slice(max(top, 0), min(top + side, limit)), slice(max(left, 0), min(left + side, limit)))
        local = (
            slice(inside[0].start - top, inside[0].stop - top),
            slice(inside[1].start - left, inside[1].stop - left),
        )
        window = self.pixels[inside]
        window *= 1 - np.float32(light.strength) * shadow[local][..., None]
        window += coverage[local][..., None] * (lit[local] - window)
        self.owner[inside][coverage[local] > 0.5] = owner

    def _lit(self, surface: Field, coverage: Field, size: float, gloss: float) -> Field:
        """Shade an object like a cushion: the blurred silhouette is its height, the slope its normal."""
        height = _blurred(coverage, 1 + size * 0.07)
        down, right = np.gradient(height * np.float32(size * 0.16))
        facing = -self.light.along(right, down)
        length = np.sqrt(1 + right * right + down * down)
        diffuse = (np.float32(0.8) + facing * np.float32(0.75)) / length + np.float32(0.12)
        glint = np.clip((np.float32(0.5) + facing * np.float32(0.95)) / length, 0.0, 1.0)
        for _ in range(3):  # the eighth power, as the exponent of Phong's highlight
            glint *= glint
        lit: Field = surface * diffuse[..., None] + (glint * np.float32(gloss))[..., None]
        return lit

    def finished(self) -> Image.Image:
        """Apply the light's fall-off and tint, the contrast and the sensor's grain."""
        draw, side = self.draw, self.config.side
        axis = np.linspace(-1, 1, side, dtype=np.float32)
        slope = self.light.along(axis[None, :], axis[:, None]) * np.float32(draw.uniform(0.05, 0.3))
        tint = 0.92 + 0.16 * draw.white(3)
        contrast, level = draw.uniform(*self.config.contrast), draw.uniform(0.42, 0.58)
        gain = (np.float32(draw.uniform(0.85, 1.2)) + slope)[..., None] * tint
        grain = (draw.white(side, side, 1) - np.float32(0.5)) * np.float32(2 * self.config.grain)
        # 255 * (level + contrast * (pixels * gain - level) + grain), rounded; in place for speed.
        pixels = self.pixels
        pixels *= gain * np.float32(255 * contrast)
        pixels += grain * np.float32(255) + np.float32(255 * level * (1 - contrast) + 0.5)
        np.clip(pixels, 0.0, 255.0, out=pixels)
        return Image.fromarray(pixels.astype(np.uint8))


def render(
    subject: ObjectClass,
    others: tuple[ObjectClass, ...],
    draw: Draw,
    config: SceneConfig,
    planted_ground: Field | None = None,
    stamp: Callable[[Field], None] | None = None,
) -> Scene:
    """A picture of `subject` among distractors drawn from `others`.

    `planted_ground` replaces the ground, and `stamp` paints on the finished objects.
    """
    canvas = _Canvas(config, draw, planted_ground)
    side = config.side
    size = draw.uniform(*config.subject_size) * side
    margin = min(reach(subject.shape) * size * 0.95, side / 2)
    x, y = draw.uniform(margin, side - margin), draw.uniform(margin, side - margin)

    placed: list[tuple[float, float, float, ObjectClass]] = []
    fewest, most = config.distractors
    for _ in range(fewest + draw.below(most - fewest + 1)):
        kind = others[draw.below(len(others))]
        small = draw.uniform(*config.distractor_size) * size
        for _ in range(8):  # a few tries to find room; a crowded picture gets fewer distractors
            at_x, at_y = draw.uniform(0, side), draw.uniform(0, side)
            clear = math.hypot(at_x - x, at_y - y) > 0.55 * (reach(subject.shape) * size + small)
            apart = all(math.hypot(at_x - px, at_y - py) > 0.8 * (small + ps) for px, py, ps, _ in placed)
            if clear and apart:
                placed.append((at_x, at_y, small, kind))
                break
    # Some distractors lie under the subject and some on it, where they may hide only a small part.
    in_front = draw.below(len(placed) + 1) if placed else 0
    under, over = placed[in_front:], placed[:in_front]
    objects = [subject]
    for at_x, at_y, small, kind in under:
        objects.append(kind)
        canvas.paint(kind, at_x, at_y, small, len(objects))
    canvas.paint(subject, x, y, size, 1)
    subject_area = int((canvas.owner == 1).sum())
    for at_x, at_y, small, kind in over:
        window = canvas.owner[
            max(0, int(at_y - small)) : int(at_y + small), max(0, int(at_x - small)) : int(at_x + small)
        ]
        if (window == 1).sum() > config.overlap * subject_area:
            continue
        objects.append(kind)
        canvas.paint(kind, at_x, at_y, small, len(objects))
    if stamp is not None:
        stamp(canvas.pixels)
    return Scene(canvas.finished(), canvas.owner, tuple(objects))
