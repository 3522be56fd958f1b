"""One scene of ``redi dense`` at every cost, as a picture: what the head decides, where that changes, what merged."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from redi.records.dense import load_row, load_scenes, read_dense
from redi.report.dense_page import class_colours
from redi.report.saving import save_figure

#: The share of a class's colour over the picture.
TINT = 0.55
GREY, RED = 0.35, (0.84, 0.15, 0.16)

Picture = NDArray[np.float64]


def draw_scene(folder: Path, number: int = 0, path: Path | None = None) -> Any:
    """Scene ``number`` of those that a finished ``redi dense`` stored: dense, then its first row at each cost."""
    record = read_dense(folder)
    scenes = load_scenes(folder)
    picture: Picture = scenes[f"picture.{number}"].permute(1, 2, 0).numpy() / 255
    rows, columns = next(entry.grid for entry in record.inputs if entry.input == picture.shape[:2])
    colours = np.array([to_rgb(colour) for colour in class_colours(len(record.classes))])
    dense = load_row(folder, record.dense.name)[f"map.{number}"]
    first = next(row for row in record.rows if not row.is_dense)
    own = [row for row in record.rows if (row.row, row.restore) == (first.row, first.restore)]
    figure = Figure(figsize=(3.2 * (len(own) + 1), 6.6), layout="constrained")
    panels: Any = figure.subplots(3, len(own) + 1)
    for axes, title, shown in zip(
        panels[:2, 0], ("dense", "picture"), (tinted(picture, dense, colours), picture), strict=True
    ):
        axes.set_title(title)
        axes.imshow(shown)
    for k, row in enumerate(own, 1):
        tensors = load_row(folder, row.name)
        decided, groups = tensors[f"map.{number}"], tensors[f"groups.{number}"]
        changed = decided != dense
        panels[0, k].set_title(f"cost {row.cost:g}: {100 * (1 - changed.float().mean().item()):.1f} % as dense")
        panels[0, k].imshow(tinted(picture, decided, colours))
        panels[1, k].set_title("where it differs")
        panels[1, k].imshow(marked(picture, changed))
        panels[2, k].set_title(f"{rows * columns} patches, {len(groups.unique())} tokens")
        panels[2, k].imshow(merged(picture, groups.view(rows, columns)))
    for axes in panels.flat:
        axes.set_axis_off()
    if path is not None:
        save_figure(figure, path, dpi=110)
    return figure


def tinted(picture: Picture, classes: Tensor, colours: Picture) -> Picture:
    """The picture in the colours of its classes."""
    return (1 - TINT) * picture + TINT * colours[_fitted(classes, picture)]


def marked(picture: Picture, changed: Tensor) -> Picture:
    """The picture in grey, with the changed pixels in red."""
    grey = GREY + (1 - GREY) * picture.mean(axis=2, keepdims=True).repeat(3, axis=2)
    return np.where(_fitted(changed.to(torch.uint8), picture)[..., None] > 0, RED, grey)


def merged(picture: Picture, groups: Tensor) -> Picture:
    """Every token in the mean colour of its patches, with white borders between tokens."""
    rows, columns = groups.shape
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    patches = picture.reshape(rows, height, columns, width, 3).mean(axis=(1, 3)).reshape(-1, 3)
    flat = groups.flatten().numpy()
    members = np.bincount(flat, minlength=flat.max() + 1)
    means = np.stack([np.bincount(flat, patches[:, channel], len(members)) for channel in range(3)], axis=1)
    shown = (means / np.maximum(members, 1)[:, None])[flat].reshape(rows, columns, 3)
    large = shown.repeat(height, axis=0).repeat(width, axis=1)
    names = groups.numpy().repeat(height, axis=0).repeat(width, axis=1)
    large[1:][names[1:] != names[:-1]] = 1
    large[:, 1:][names[:, 1:] != names[:, :-1]] = 1
    return np.asarray(large)


def _fitted(values: Tensor, picture: Picture) -> NDArray[np.int64]:
    """A label map in the size of the picture, by the nearest pixel."""
    height, width = picture.shape[:2]
    down = torch.arange(height) * values.shape[0] // height
    across = torch.arange(width) * values.shape[1] // width
    return values[down][:, across].long().numpy()
