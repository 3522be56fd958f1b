"""Small scenes with label maps, drawn by the demo's generator: ground 0, subject 1, other objects 2, a void strip."""

from pathlib import Path

import numpy as np
from PIL import Image

from redi.demo.generator import scene
from redi.demo.scene import SceneConfig

CLASSES = ("ground", "subject", "other")
#: The value of the void strip, the first that is no class.
VOID_VALUE = 3
SIZES = ((48, 64), (48, 48))  # (height, width), in turn


def write_part(root: Path, seed: int, count: int, sizes: tuple[tuple[int, int], ...] = SIZES) -> Path:
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for index in range(count):
        drawn = scene(seed, index, config=SceneConfig(side=96))
        height, width = sizes[index % len(sizes)]
        labels = np.minimum(drawn.owner, 2).astype(np.uint8)
        labels[:4] = VOID_VALUE
        drawn.image.resize((width, height)).save(root / "images" / f"{index:03d}.jpg", quality=95)
        Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST).save(
            root / "labels" / f"{index:03d}.png"
        )
    return root


def write_scenes(root: Path, train: int = 6, val: int = 5) -> Path:
    """Folders train and val, and classes.txt beside them."""
    write_part(root / "train", 1, train)
    write_part(root / "val", 2, val)
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return root
