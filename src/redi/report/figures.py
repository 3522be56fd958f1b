"""``redi figures``: the paper's two figures and three tables for a run, for print. No model is run."""

from pathlib import Path

import torch
from torch import Tensor

from redi import artifacts
from redi.errors import ArtifactError, ConfigError
from redi.records import read_results
from redi.report.explorer import Explorer, load, telling_image
from redi.report.pictures import draw_overview
from redi.report.sheets import draw_sheet, to_latex, to_markdown
from redi.report.tables import MAIN_ROW, paper_tables
from redi.run import PRODUCTS

FORMATS = ("pdf", "png")


def write_figures(
    folder: Path, image: int | None = None, row: str = MAIN_ROW, names: Path | None = None
) -> list[Path]:
    """Into RUN/figures. ``image`` is the index of an image of the explorer sample; without it the one
    that Figure 1 shows best is taken (:func:`telling_image`)."""
    results = read_results(folder)
    explorer = Explorer(folder, names)
    if row not in PRODUCTS:
        raise ConfigError(f"Figure 1 shows a product, {', '.join(PRODUCTS)}, not {row!r}.")
    classifier = results.classifiers[0]
    if image is None:
        number = telling_image(explorer, classifier, row, range(len(explorer)))
    else:
        number = _place(explorer, image)
    out = folder / "figures"
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"{out} cannot be made: {error.strerror}.") from None

    def paths(name: str) -> list[Path]:
        return [out / f"{name}.{suffix}" for suffix in FORMATS]

    written = [*paths("figure1"), *paths("figure2")]
    draw_overview(explorer.explain(number, classifier), row, paths("figure1"))
    draw_words(load(folder, "analysis/figure2")[0], paths("figure2"))
    for name, sheet in paper_tables(results).items():
        artifacts.write_text(out / f"{name}.tex", to_latex(sheet))
        artifacts.write_text(out / f"{name}.md", to_markdown(sheet))
        draw_sheet(sheet, paths(name))
        written += [out / f"{name}.tex", out / f"{name}.md", *paths(name)]
    return written


def _place(explorer: Explorer, index: int) -> int:
    if index not in explorer.indices:
        shown = ", ".join(map(str, explorer.indices[:8]))
        raise ConfigError(f"Image {index} is not in the explorer sample; {shown}, ... are.")
    return explorer.indices.index(index)


def draw_words(stored: dict[str, Tensor], paths: list[Path]) -> None:
    """Figure 2. Left: word frequency by rank, a codebook a block. Right: the last block's words on the
    validation images, by frequency, and the REDI score mass of the same words."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    blocks = sorted(
        (int(name.removeprefix("frequency/block")), counts)
        for name, counts in stored.items()
        if name.startswith("frequency/")
    )
    for number, (block, counts) in enumerate(blocks):
        values = counts.sort(descending=True).values
        values = values[values > 0]
        shade = 0.15 + 0.7 * number / max(len(blocks) - 1, 1)
        left.loglog(
            range(1, len(values) + 1), values, label=f"block {block}", lw=1.5, color=_viridis(shade)
        )
    left.set(xlabel="rank of the word", ylabel="patches assigned, training images")
    left.legend(frameon=False, fontsize=8)
    frequency, mass = stored["validation/frequency"].double(), stored["validation/score_mass"]
    order = frequency.argsort(descending=True, stable=True)
    share = 100 * frequency[order] / frequency.sum()
    weight = 100 * mass[order] / mass.sum().clamp(min=1e-12)
    ranks = torch.arange(1, len(order) + 1)
    right.plot(ranks, weight, ".", ms=3, color="#d95f02", label="REDI score mass", alpha=0.8)
    right.plot(ranks, share, lw=1.6, color="#1b3a6b", label="assignments")
    right.set(
        xscale="log",
        xlabel="word, by validation frequency",
        ylabel="share of the validation set, %",
    )
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25, which="both", lw=0.4)
        axes.spines[["top", "right"]].set_visible(False)
    for path in paths:
        figure.savefig(path, dpi=300)


def _viridis(level: float) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    colour: tuple[float, float, float, float] = colormaps["viridis"](level)
    return colour
