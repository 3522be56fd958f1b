"""The demo's labelled pictures: which objects exist, which are classes, and the picture of an index.

A class is a pair (shape, material). Twelve materials and sixteen shapes give 192 pairs, in two disjoint parts:

* the held-out block, six shapes by six materials. Half of its pairs are the demo's `CLASSES`, three per shape and
  three per material; the other half are its distractors. So every shape and every material of a class also appears,
  smaller, in pictures of other classes, and neither colour nor texture nor silhouette alone reveals the label;
* the rest, on which the backbone is trained. It sees the demo's shapes and the demo's materials, but never together:
  three quarters are `PRETRAINING_CLASSES`, one quarter their distractors.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from redi.demo.draw import Draw
from redi.demo.materials import MATERIALS
from redi.demo.planting import GROUND, MARK, Planting, planted_in
from redi.demo.scene import ObjectClass, Scene, SceneConfig, render
from redi.demo.shapes import SHAPES
from redi.records.drafts import draft

__all__ = [
    "CLASSES",
    "PRETRAINING_CLASSES",
    "ObjectClass",
    "Planting",
    "Sample",
    "Scene",
    "SceneConfig",
    "distractors_of",
    "sample",
    "scene",
    "write_folder",
]

BLOCK = 6  # number of shapes and of materials in the held-out block, from the start of each list
DEMO_OFFSETS = (0, 1, 3)  # shape k is a demo class with materials k + offset, modulo the block
JPEG_QUALITY = 92
RECIPE = "recipe.json"  # the file that says what a folder was drawn from


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
    kind for k, kind in enumerate(_ALL) if not _held_out(kind) and (k // len(MATERIALS) + k) % 4 != 0
)


@dataclass(frozen=True)
class Sample:
    """One labelled picture."""

    image: Image.Image
    label: int
    mask: NDArray[np.bool_]  # [height, width], the visible pixels of the class object


@cache
def distractors_of(classes: tuple[ObjectClass, ...]) -> tuple[ObjectClass, ...]:
    """Every pair that is not a class but lies in the same part (held out or not) as some class."""
    parts = {_held_out(kind) for kind in classes}
    pool = tuple(kind for kind in _ALL if _held_out(kind) in parts and kind not in classes)
    if not pool:
        raise ValueError(f"{len(classes)} classes leave no pair for distractors; pass fewer classes")
    return pool


def scene(
    seed: int,
    index: int,
    classes: Sequence[ObjectClass] = CLASSES,
    config: SceneConfig = SceneConfig(),
    plantings: Sequence[Planting] = (),
) -> Scene:
    """Picture `index` of the endless collection `seed`, with the object that owns each pixel."""
    if seed < 0 or index < 0:
        raise ValueError(f"seed and index must not be negative, got {seed} and {index}")
    kinds = tuple(classes)
    label = index % len(kinds)
    planted = {planting.kind: planting for planting in planted_in(plantings, label, seed, index)}
    return render(
        kinds[label],
        distractors_of(kinds),
        Draw(seed, index),
        config,
        planted[GROUND].ground(config.side, seed, index) if GROUND in planted else None,
        planted[MARK].stamp if MARK in planted else None,
    )


def sample(
    seed: int,
    index: int,
    classes: Sequence[ObjectClass] = CLASSES,
    config: SceneConfig = SceneConfig(),
    plantings: Sequence[Planting] = (),
) -> Sample:
    """Picture `index` of collection `seed`; labels cycle with the index, so the classes are balanced."""
    picture = scene(seed, index, classes, config, plantings)
    return Sample(picture.image, index % len(classes), picture.owner == 1)


def write_folder(
    root: Path | str,
    seed: int,
    n: int,
    classes: Sequence[ObjectClass] = CLASSES,
    first_index: int = 0,
    masks: Path | str | None = None,
    plantings: Sequence[Planting] = (),
) -> int:
    """Write pictures `first_index` to `first_index + n - 1` as `root/<class>/<index>.jpg`.

    If `masks` is given, also write the mask of each class object into that folder, as a 1-bit PNG with the same
    stem. Return the number of pictures that were drawn. A file gets its final name only when it is complete, so the
    next call continues an interrupted one, and a complete folder is not drawn again. A folder with another recipe,
    or from another version of the generator, is an error: this function deletes nothing and mixes nothing. What
    `plantings` plant is part of the recipe.
    """
    root, masks = Path(root), None if masks is None else Path(masks)
    recipe: dict[str, object] = {
        "seed": seed,
        "n": n,
        "first_index": first_index,
        "classes": [kind.name for kind in classes],
        "first_picture": _digest(sample(seed, first_index, classes, plantings=plantings)),
    }
    if plantings:
        recipe["plantings"] = [asdict(planting) for planting in plantings]
    for folder in (root, *(() if masks is None else (masks,))):
        _claim(folder, recipe)
    drawn = 0
    for index in range(first_index, first_index + n):
        stem = f"{classes[index % len(classes)].name}/{index:06d}"
        image_file = root / f"{stem}.jpg"
        mask_file = None if masks is None else masks / f"{stem}.png"
        if image_file.exists() and (mask_file is None or mask_file.exists()):
            continue
        picture = sample(seed, index, classes, plantings=plantings)
        _save(picture.image, image_file, "JPEG", quality=JPEG_QUALITY)
        if mask_file is not None:
            _save(Image.fromarray(picture.mask), mask_file, "PNG")
        drawn += 1
    return drawn


def _digest(picture: Sample) -> str:
    """The digest of a picture. Unlike a version number, it is sure to change with the generator."""
    return hashlib.sha256(picture.image.tobytes()).hexdigest()


def _claim(folder: Path, recipe: dict[str, object]) -> None:
    """Write the recipe into `folder`, or check that the folder has the same recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / RECIPE
    if note.exists():
        if _recipe(note) != recipe:
            raise FileExistsError(f"{folder} holds pictures of another recipe ({note})")
    elif any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and was not written by the generator")
    else:
        with draft(note) as partial:
            partial.write_text(json.dumps(recipe, indent=2) + "\n")


def _recipe(note: Path) -> object:
    """The recipe in a file; None if it holds something else."""
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def _save(image: Image.Image, path: Path, form: str, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft(path) as partial:
        image.save(partial, form, **options)
