"""Pictures of an explained image: heat maps, roles, the overview of every step (Figure 1)."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor

from redi.records.explained import Explained, Fate
from redi.report.saving import new_figure, save_figure
from redi.rows import DENSE, Score

#: Colours of the roles, as in the report: kept patches stay clear.
MERGED, COMPRESSED, LEADER = "#2f6fde", "#101014", "#ffffff"
ARROW = {"arrowstyle": "-|>", "color": "#ff9f1c", "lw": 0.5, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 4}
HEAT = "inferno"


def draw_overview(image: Explained, row: str, paths: Sequence[Path] = ()) -> Any:
    """Draw the paper's Figure 1 for one image: views, alignment, TF-IDF times attention, roles, answer.

    It is as wide as the text of a page with two columns.
    """
    product = Score.parse(row)
    attention = Score(local=product.local)
    figure = new_figure(figsize=(7.2, 4.25))
    halves = figure.add_gridspec(
        2, 1, height_ratios=(1, 0.87), left=0.005, right=0.995, bottom=0.005, top=0.93, hspace=0.14
    )
    above = halves[0].subgridspec(2, 6, width_ratios=(2.15, 1, 1, 1, 1, 1.75), wspace=0.07, hspace=0.2)
    _picture(figure.add_subplot(above[:, 0]), image.crops[0], _caption(image))
    for view in range(len(image.views)):
        title = ("centre crop", "mirrored", "random crop 1", "random crop 2")[view]
        axes = figure.add_subplot(above[0, 1 + view])
        _heat(axes, image.crops[view], image.lookups[view], image, title)
        axes = figure.add_subplot(above[1, 1 + view])
        _heat(axes, image.crops[0], image.aligned[view], image, "aligned", image.valid[view])
    _answers(figure.add_subplot(above[:, 5]), image, row)
    below = halves[1].subgridspec(1, 4, wspace=0.05)
    for place, (name, title) in enumerate(
        (("tfidf", "TF-IDF, aggregated"), (attention.name, f"× {attention.title.lower()}"), (row, f"= {product.title}"))
    ):
        _heat(figure.add_subplot(below[place]), image.crops[0], image.scores[name], image, title)
    _roles(figure.add_subplot(below[3]), image, image.fates[row])
    _save(figure, paths)
    return figure


def draw_attention(image: Explained, paths: Sequence[Path] = ()) -> Any:
    """Draw the attention scores and the roles that each of them assigns, for an image without a corpus."""
    names = list(image.scores)
    figure = new_figure(figsize=(2.3 * (len(names) + 1), 4.9))
    panels = figure.subplots(
        2, len(names) + 1, gridspec_kw={"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 0.93, "wspace": 0.06}
    )
    _picture(panels[0][0], image.crops[0], _caption(image))
    if image.guesses:
        _answers(panels[1][0], image, names[0])
    else:
        panels[1][0].set_axis_off()
    for column, name in enumerate(names, start=1):
        _heat(panels[0][column], image.crops[0], image.scores[name], image, Score.parse(name).title)
        _roles(panels[1][column], image, image.fates[name])
    _save(figure, paths)
    return figure


def _caption(image: Explained) -> str:
    if not image.looked_up:
        return _short(image.name, 28)
    whose = {"gt": "true class", "given": "class given", "predicted": "class predicted"}
    return f"{_short(image.looked_up, 26)}\n({whose[image.label_source]})"


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _picture(axes: Any, crop: Tensor, title: str) -> None:
    axes.imshow(crop.permute(1, 2, 0).numpy())
    axes.set_title(title, fontsize=7.5, parse_math=False, pad=3)
    axes.set_axis_off()


def _heat(axes: Any, crop: Tensor, values: Tensor, image: Explained, title: str, valid: Tensor | None = None) -> None:
    """Draw a patch map over the grey crop, coloured by the root of its values.

    Patches that a view does not cover are hatched.
    """
    from matplotlib.patches import Rectangle

    size = crop.shape[-1]
    axes.imshow(crop.float().mean(dim=0).numpy(), cmap="gray", vmin=0, vmax=255)
    level = values.view(image.grid).sqrt().numpy()  # the root shows differences among low values
    extent = (0, size, size, 0)
    axes.imshow(level, cmap=HEAT, vmin=0, vmax=1, alpha=0.7, extent=extent, interpolation="nearest")
    if valid is not None:
        for patch in (~valid).nonzero().flatten().tolist():
            left, top, width, height = _box(patch, image, size)
            outside = Rectangle((left, top), width, height, lw=0, fc="white", ec="0.6", hatch="///")
            axes.add_patch(outside)
    axes.set(xlim=(0, size), ylim=(size, 0))
    axes.set_title(title, fontsize=7, pad=3)
    axes.set_axis_off()


def _roles(axes: Any, image: Explained, fate: Fate) -> None:
    """Draw roles: kept patches clear, merged ones blue with an arrow to their destination, compressed ones dark.

    A ring marks the patch whose position the token of its summary cell takes.
    """
    from matplotlib.patches import Rectangle

    crop = image.crops[0]
    size = crop.shape[-1]
    axes.imshow(crop.permute(1, 2, 0).numpy())
    roles = fate.roles
    for patch, role in enumerate(roles):
        if role:
            left, top, width, height = _box(patch, image, size)
            colour, alpha = ((MERGED, 0.6), (COMPRESSED, 0.84))[role - 1]
            axes.add_patch(Rectangle((left, top), width, height, color=colour, alpha=alpha, lw=0))
    for patch, kept in fate.destinations.items():
        begin, end = _centre(patch, image, size), _centre(kept, image, size)
        axes.annotate("", xy=end, xytext=begin, arrowprops=ARROW)
    cells = image.budget.cells
    for line in range(1, cells):
        for count, draw in zip(image.grid, (axes.axhline, axes.axvline), strict=True):
            draw(size * ceil(line * count / cells) / count, color="white", lw=0.7, ls="--")
    for leader in set(fate.leaders):
        axes.plot(*_centre(leader, image, size), "o", mfc="none", mec=LEADER, ms=4.5, mew=1)
    counts = [roles.count(role) for role in range(3)]
    axes.set_title("keep {} · merge {} · compress {}".format(*counts), fontsize=7, pad=3)
    axes.set(xlim=(0, size), ylim=(size, 0))
    axes.set_axis_off()


def _answers(axes: Any, image: Explained, row: str) -> None:
    """Write the Top-5 of the dense and of the reduced path."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    tokens = len(image.fates[row].positions)
    top = 0.99
    for name, title in ((DENSE, f"Dense: {image.grid[0] * image.grid[1]} patches"), (row, f"Reduced: {tokens}")):
        axes.text(0, top, title, fontsize=7, fontweight="bold", va="top")
        for number, guess in enumerate(image.guesses.get(name, [])):
            height = top - 0.078 * (number + 1)
            name = _short(guess.name.split(",")[0], 19)
            axes.text(0, height, name, fontsize=6.5, va="top", parse_math=False)
            axes.text(1, height, f"{guess.logit:.1f}", fontsize=6.5, va="top", ha="right")
        top -= 0.52


def _box(patch: int, image: Explained, size: int) -> tuple[float, float, float, float]:
    rows, columns = image.grid
    width, height = size / columns, size / rows
    return patch % columns * width, patch // columns * height, width, height


def _centre(patch: int, image: Explained, size: int) -> tuple[float, float]:
    left, top, width, height = _box(patch, image, size)
    return left + width / 2, top + height / 2


def _save(figure: Any, paths: Sequence[Path]) -> None:
    for path in paths:
        save_figure(figure, path, dpi=300 if path.suffix == ".png" else 200)
