"""``redi figures``: the paper's figures and tables for a run, and its comparisons, for print. No model is run."""

from dataclasses import dataclass
from pathlib import Path

from redi.errors import ArtifactError, ConfigError
from redi.records import artifacts
from redi.records.comparison import earlier_bundle
from redi.records.deployed import earlier_deployed
from redi.records.outputs import require_no_link, require_run
from redi.records.reading import build
from redi.records.results import read_results
from redi.records.words import MASS_ROWS, WordNotes
from redi.report.compare import named_sheets
from redi.report.curves import curves_caption, draw_curves
from redi.report.deployed import deployed_sheets
from redi.report.explorer import Explorer, telling_image
from redi.report.latex import document, figure_latex, to_latex
from redi.report.pictures import draw_overview, overview_caption
from redi.report.saving import new_figure, save_figure
from redi.report.sheets import to_markdown
from redi.report.tables import paper_tables
from redi.report.tasks import task_figures, task_sheets
from redi.rows import MAIN_ROW, PRODUCTS

FORMATS = ("pdf", "png")
#: The document that shows all files of the folder.
DOCUMENT = "all.tex"


def write_figures(folder: Path, image: int | None = None, row: str = MAIN_ROW, names: Path | None = None) -> list[Path]:
    """Write the figures and tables into RUN/figures and return the files.

    ``image`` is the index of an image of the explorer sample; without it, :func:`telling_image` chooses one.
    """
    require_run(folder)
    out = folder / "figures"
    require_no_link(out)
    results = read_results(folder)
    explorer = Explorer(folder, names)
    products = [name for name in PRODUCTS if name in explorer.rows]
    if row not in products:
        raise ConfigError(f"Figure 1 shows a product, one of {', '.join(products)}, not {row!r}.")
    classifier = results.classifiers[0]
    if image is None:
        number = telling_image(explorer, classifier, row, range(len(explorer)))
    else:
        number = _place(explorer, image)

    def paths(name: str) -> list[Path]:
        return [out / f"{name}.{suffix}" for suffix in FORMATS]

    shown, figure2 = explorer.explain(number, classifier), figure2_shares(folder)
    draw_overview(shown, row, paths("figure1"))
    draw_words(figure2, paths("figure2"))
    captions = {"figure1": overview_caption(shown, row), "figure2": figure2.caption}
    if draw_curves(results, paths("curves")):
        captions["curves"] = curves_caption(results)
    for name, (figure, caption) in task_figures(folder, results).items():
        captions[name] = caption
        for path in paths(name):
            save_figure(figure, path, dpi=200)
    texts = {f"{name}.tex": figure_latex(name, caption) for name, caption in captions.items()}
    deployed = deployed_sheets(results, earlier_deployed(folder))
    tables = paper_tables(results) | deployed | named_sheets(earlier_bundle(folder), results)
    for sheets in task_sheets(folder, results).values():
        tables |= sheets
    for name, sheet in tables.items():
        texts |= {f"{name}.tex": to_latex(sheet, name), f"{name}.md": to_markdown(sheet)}
    texts[DOCUMENT] = document([*captions, *tables])
    for name, text in texts.items():
        artifacts.write_bytes(out / name, text.encode("utf-8", errors="replace"))
    return [*(path for name in captions for path in paths(name)), *(out / name for name in texts)]


def _place(explorer: Explorer, index: int) -> int:
    if index not in explorer.indices:
        examples = ", ".join(map(str, explorer.indices[:8]))
        raise ConfigError(f"Image {index} is not in the explorer sample; choose one of {examples}, ...")
    return explorer.indices.index(index)


@dataclass(frozen=True)
class Figure2:
    """The numbers that Figure 2 shows."""

    blocks: list[tuple[int, list[int]]]  # (block, patches assigned to each word, most first)
    frequency: list[float]  # percent of the validation patches per word of the last block, most first
    mass: list[float]  # percent of the REDI score on the same words
    notes: WordNotes

    def block_title(self, block: int) -> str:
        fit = self.notes.zipf[f"block{block}"]
        return f"block {block}: slope {fit.slope:.2f}, R² {fit.r2:.2f}".replace("-", "\N{MINUS SIGN}")

    @property
    def fits(self) -> str:
        """What the left panel says about Zipf's law."""
        titles = "; ".join(self.block_title(block) for block, _ in self.blocks)
        return f"Least squares of log frequency on log rank, over all words that occur: {titles}."

    @property
    def caption(self) -> str:
        return (
            f"Left: word frequency by rank, one vocabulary per block. {self.fits} Right: the words of the last block "
            "by their frequency on the validation images, and the REDI score mass (incoming mass) of the same words. "
            f"{self.correlations}."
        )

    @property
    def correlations(self) -> str:
        """What the right panel says about frequency and mass."""
        redi, tfidf = (f"{self.notes.spearman[row]:.2f}".replace("-", "\N{MINUS SIGN}") for row in MASS_ROWS)
        return f"Spearman's ρ of mass and assignments: REDI {redi}, TF-IDF {tfidf}"


def figure2_shares(folder: Path) -> Figure2:
    stored, manifest = artifacts.load_named(folder, "analysis/figure2")
    try:
        notes: WordNotes = build(WordNotes, manifest["notes"])
    except (KeyError, TypeError):
        raise ArtifactError(f"{folder} was made by another version of redi: run `redi run` again.") from None
    blocks = {
        int(name.removeprefix("frequency/block")): counts.sort(descending=True).values
        for name, counts in stored.items()
        if name.startswith("frequency/")
    }
    frequency, mass = stored["validation/frequency"].double(), stored[f"validation/mass/{MAIN_ROW}"]
    order = frequency.argsort(descending=True, stable=True)
    return Figure2(
        [(block, counts[counts > 0].tolist()) for block, counts in sorted(blocks.items())],
        (100 * frequency[order] / frequency.sum().clamp(min=1)).tolist(),
        (100 * mass[order] / mass.sum().clamp(min=1e-12)).tolist(),
        notes,
    )


def draw_words(figure2: Figure2, paths: list[Path]) -> None:
    """Draw Figure 2.

    Left: word frequency by rank, with one codebook per block, and how well Zipf's law fits. Right: the last block's
    words on the validation images by frequency, the REDI score mass of the same words, and their correlation.
    """
    figure = new_figure(figsize=(7.2, 2.8), layout="constrained")
    from matplotlib import colormaps  # after the figure, which says in one line if matplotlib cannot be imported

    left, right = figure.subplots(1, 2)
    for number, (block, counts) in enumerate(figure2.blocks):
        colour = colormaps["viridis"](0.15 + 0.7 * number / max(len(figure2.blocks) - 1, 1))
        ranks = range(1, len(counts) + 1)
        left.loglog(ranks, counts, label=figure2.block_title(block), lw=1.5, color=colour)
    left.set(xlabel="rank of the word", ylabel="training patches assigned")
    ranks = range(1, len(figure2.frequency) + 1)
    right.plot(ranks, figure2.mass, ".", ms=3, color="#d95f02", label="REDI score mass", alpha=0.8)
    right.plot(ranks, figure2.frequency, lw=1.6, color="#1b3a6b", label="assignments")
    right.set(xscale="log", xlabel="word, by validation frequency", ylabel="share, %")
    left.set_title("Slope of log frequency on log rank, over all words that occur", fontsize=6.5)
    right.set_title(figure2.correlations, fontsize=6.5)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=6.5)
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_size(8)
        axes.yaxis.label.set_size(8)
        axes.grid(alpha=0.25, which="both", lw=0.4)
        axes.spines[["top", "right"]].set_visible(False)
    for path in paths:
        save_figure(figure, path, dpi=300)
