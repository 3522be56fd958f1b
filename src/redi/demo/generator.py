"""The demo's labelled pictures: which objects exist, which are classes, and a picture by number.

A class is a pair (shape, material). Twelve materials and sixteen shapes give 192 pairs, in two
parts that share no pair:

* the held-out block, six shapes by six materials. Half of its pairs are the demo's `CLASSES`,
  three of each shape and three of each material; the other half are its distractors. So every
  shape and every material of a class also appears, smaller, in pictures of other classes, and
  neither colour nor texture nor silhouette alone gives the label away;
* the rest, where the backbone is trained. It meets the demo's shapes and the demo's materials,
  never together: three quarters are `PRETRAINING_CLASSES`, one quarter their distractors.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from redi.demo.draw import Draw
from redi.demo.materials import MATERIALS
from redi.demo.scene import ObjectClass, Scene, SceneConfig, render
from redi.demo.shapes import SHAPES

__all__ = [
    "CLASSES",
    "PRETRAINING_CLASSES",
    "ObjectClass",
    "Sample",
    "Scene",
    "SceneConfig",
    "distractors_of",
    "sample",
    "scene",
    "write_folder",
]

BLOCK = 6  # the held-out block: this many first shapes by this many first materials
DEMO_OFFSETS = (0, 1, 3)  # shape k is a demo class with materials k + offset, modulo the block
JPEG_QUALITY = 92
RECIPE = "recipe.json"  # what a written folder was drawn from


def _held_out(kind: ObjectClass) -> bool:
    shapes, materials = list(SHAPES)[:BLOCK], list(MATERIALS)[:BLOCK]
    return kind.shape in shapes and kind.material in materials


_ALL = tuple(ObjectClass(shape, material) for shape in SHAPES for material in MATERIALS)
CLASSES: tuple[ObjectClass, ...] = tuple(
    ObjectClass(shape, list(MATERIALS)[(k + offset) % BLOCK])
    for k, shape in enumerate(list(SHAPES)[:BLOCK])
    for offset in DEMO_OFFSETS
)
PRETRAINING_CLASSES: tuple[ObjectClass, ...] = tuple(
    kind
    for k, kind in enumerate(_ALL)
    if not _held_out(kind) and (k // len(MATERIALS) + k) % 4 != 0
)


@dataclass(frozen=True)
class Sample:
    """One labelled picture."""

    image: Image.Image
    label: int
    mask: NDArray[np.bool_]  # [height, width], the visible pixels of the class object


@cache
def distractors_of(classes: tuple[ObjectClass, ...]) -> tuple[ObjectClass, ...]:
    """Every pair that is no class but lies in the same part (held out or not) as some class."""
    parts = {_held_out(kind) for kind in classes}
    pool = tuple(kind for kind in _ALL if _held_out(kind) in parts and kind not in classes)
    if not pool:
        raise ValueError(f"{len(classes)} classes leave no pair to draw distractors from")
    return pool


def scene(
    seed: int,
    index: int,
    classes: Sequence[ObjectClass] = CLASSES,
    config: SceneConfig = SceneConfig(),
) -> Scene:
    """Picture `index` of the endless collection `seed`, with the owner of every pixel."""
    if seed < 0 or index < 0:
        raise ValueError(f"seed and index must not be negative, got {seed} and {index}")
    chosen = tuple(classes)
    return render(chosen[index % len(chosen)], distractors_of(chosen), Draw(seed, index), config)


def sample(
    seed: int,
    index: int,
    classes: Sequence[ObjectClass] = CLASSES,
    config: SceneConfig = SceneConfig(),
) -> Sample:
    """Picture `index` of collection `seed`; labels cycle with the index, so classes balance."""
    drawn = scene(seed, index, classes, config)
    return Sample(drawn.image, index % len(classes), drawn.owner == 1)


def write_folder(
    root: Path | str,
    seed: int,
    n: int,
    classes: Sequence[ObjectClass] = CLASSES,
    first_index: int = 0,
    masks: Path | str | None = None,
) -> int:
    """Write pictures `first_index` to `first_index + n - 1` as `root/<class>/<index>.jpg`.

    With `masks`, another folder, also the class object of each as a 1-bit PNG of the same stem.
    Returns how many pictures had to be drawn. Files appear under their final name only when whole,
    so an interrupted call is continued by the next, and a complete folder costs a look at its
    names. A folder drawn from anything else, even by another version of the generator, is an error
    rather than a mixture: this function deletes nothing.
    """
    root, masks = Path(root), None if masks is None else Path(masks)
    recipe = {
        "seed": seed,
        "n": n,
        "first_index": first_index,
        "classes": [kind.name for kind in classes],
        "first_picture": _digest(sample(seed, first_index, classes)),
    }
    for folder in (root, *(() if masks is None else (masks,))):
        _claim(folder, recipe)
    drawn = 0
    for index in range(first_index, first_index + n):
        stem = f"{classes[index % len(classes)].name}/{index:06d}"
        picture = root / f"{stem}.jpg"
        outline = None if masks is None else masks / f"{stem}.png"
        if picture.exists() and (outline is None or outline.exists()):
            continue
        one = sample(seed, index, classes)
        _save(one.image, picture, "JPEG", quality=JPEG_QUALITY)
        if outline is not None:
            _save(Image.fromarray(one.mask), outline, "PNG")
        drawn += 1
    return drawn


def _digest(one: Sample) -> str:
    """Changes with the generator itself, which no version number would be sure to."""
    return hashlib.sha256(one.image.tobytes()).hexdigest()


def _claim(folder: Path, recipe: dict[str, object]) -> None:
    """Note in `folder` what it is drawn from, or check that it was drawn from the same."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / RECIPE
    if note.exists():
        if json.loads(note.read_text()) != recipe:
            raise FileExistsError(f"{folder} holds pictures drawn from another recipe ({note})")
    elif any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and was not written by the generator")
    else:
        partial = folder / f".{RECIPE}.{os.getpid()}"
        partial.write_text(json.dumps(recipe, indent=2) + "\n")
        partial.replace(note)


def _save(image: Image.Image, path: Path, form: str, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    image.save(partial, form, **options)
    partial.replace(path)
