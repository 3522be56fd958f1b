"""Localisation as a table and as a curve of the IoU against the threshold."""

from typing import Any

from redi.corpus import LABEL_SOURCES, TRUE_CLASS
from redi.localisation import ON_OBJECT
from redi.records.localisation import Localisation, LocalisationLine
from redi.records.paired import Paired
from redi.report.lines import COLOURS, LETTERS, OWN_COLOUR
from redi.report.numbers import interval, p_text, signed
from redi.report.saving import new_figure
from redi.report.sheets import Sheet
from redi.rows import MAIN_ROW

#: Dashed lines look up the class that the protocol gives, dotted ones another class or the classifier's.
STYLES = {TRUE_CLASS: "--", "": "-", "none": "-"}
OTHER_STYLE = ":"


def localisation_sheets(record: Localisation) -> dict[str, Sheet]:
    """The table by the name of its file."""
    return {"localisation": _sheet(record)}


def _sheet(record: Localisation) -> Sheet:
    lines = record.lines
    best = {
        column: max((f"{value(line):.1f}" for line in lines), key=float)
        for column, value in ((1, lambda line: line.pointing), (4, lambda line: line.iou))
    }
    rows = [
        [
            line.title,
            f"{line.pointing:.1f}",
            *_tested(line.pointing_to_reference)[::2],
            f"{line.iou:.1f}",
            *_tested(line.iou_to_reference),
            f"{line.ranked_iou:.1f}",
            f"{line.best_iou:.1f}",
            f"{line.threshold:.2f}",
        ]
        for line in lines
    ]
    used = dict.fromkeys(line.label_source for line in lines if line.label_source)
    sources = "; ".join(f"{name}: {LABEL_SOURCES[name].meaning}" for name in used)
    return Sheet(
        f"Localisation, true class known to the protocol, {record.images} images",
        ("Score", "Pointing", "Δ point", "p point", "IoU", "Δ IoU", "95 %", "p IoU", "IoU ranks", "Best IoU", "at"),
        rows,
        [
            f"In brackets the class that the corpus term looks up ({record.classifier} classifier). {sources}.",
            f"The whole image has an IoU of {record.whole:.1f} %. No choice of patches has more than "
            f"{record.ceiling:.1f} % on average.",
            *[f"{record.left_out} images are left out: their crop shows nothing of the object."]
            * bool(record.left_out),
        ],
        strong=frozenset((row, k) for row, cells in enumerate(rows) for k, text in best.items() if cells[k] == text),
        footnotes=(
            (
                ("Pointing",),
                f"percent of images whose best patch is object to {100 * ON_OBJECT:.0f} % or more, or the patch with "
                "most of it, if the object fills none by that much.",
            ),
            (
                ("IoU",),
                "mean over images, percent: pixels of the object and of the patches with a min-max score of at least a "
                "threshold. The threshold of each half of the images is the best one of the other half.",
            ),
            (("IoU ranks",), "the same with the best number of patches, equal in all images, instead of a threshold."),
            (("Best IoU", "at"), "the same at the one threshold that is best on these images themselves."),
            (
                ("Δ point", "p point", "Δ IoU", "95 %", "p IoU"),
                f"against {record.reference}: exact McNemar test, paired t-test with its interval; p-values are "
                "corrected by Holm's method over the rows of this table.",
            ),
        ),
    )


def _tested(paired: Paired | None) -> list[str]:
    return ["", "", ""] if paired is None else [signed(paired.delta), interval(paired.interval), p_text(paired.p_value)]


def draw_localisation(record: Localisation) -> Any:
    """Mean IoU against the threshold: scores without the corpus on the left, corpus terms and products on the right."""
    figure = new_figure(figsize=(13, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    parts = {
        "Attention and controls": [line for line in record.lines if not line.label_source],
        "TF-IDF and REDI, by label source": [line for line in record.lines if _with_main(line)],
    }
    for axes, (title, lines) in zip(panels, parts.items(), strict=True):
        axes.axhline(record.ceiling, color="0.6", linewidth=0.8, linestyle=(0, (1, 3)))
        for number, line in enumerate(sorted(lines, key=lambda line: -line.best_iou)):
            own = line.row == MAIN_ROW
            axes.plot(
                record.thresholds,
                line.curve,
                color=OWN_COLOUR if own else COLOURS[number % len(COLOURS)],
                linestyle=STYLES.get(line.label_source, OTHER_STYLE),
                linewidth=2.4 if own else 1.2,
                label=f"{line.title}, {line.best_iou:.1f}",
            )
        axes.set(xlabel="threshold of the min-max map", title=title)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=LETTERS, loc="center left", bbox_to_anchor=(1, 0.5))
    panels[0].set_ylabel("mean IoU with the object, %")
    figure.supxlabel(localisation_caption(record), fontsize=LETTERS)
    return figure


def _with_main(line: LocalisationLine) -> bool:
    """Whether a line is TF-IDF alone or its product with incoming mass."""
    return bool(line.label_source) and line.row.partition("~")[0] in ("tfidf", MAIN_ROW)


def localisation_caption(record: Localisation) -> str:
    return (
        f"Mean IoU over {record.images} images, with its highest value after the name. Dashed: the true class, which "
        "the protocol gives; dotted: another or a predicted class. Grey: the most that whole patches allow."
    )
