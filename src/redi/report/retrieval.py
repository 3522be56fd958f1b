"""Retrieval as tables and as a curve: the measures of every row, and those of a patch index by its size."""

from typing import Any

from redi.records.paired import Paired
from redi.records.retrieval import (
    CLASSIFIER_LABELS,
    GALLERY_LABELS,
    MAP,
    NO_LABELS,
    RECALL_1,
    RECALL_10,
    IndexLine,
    Retrieval,
)
from redi.report.lines import LETTERS, Line, draw_lines, panels_for
from redi.report.numbers import interval, p_text, signed
from redi.report.sheets import Sheet
from redi.rows import DENSE

MEASURES = ("kNN", RECALL_1, RECALL_10, MAP)
#: How whose labels a row uses is written in its column.
LABELS = {NO_LABELS: "no", CLASSIFIER_LABELS: "fitted", GALLERY_LABELS: "own"}
QUERIES_UNKNOWN = (
    ("Labels",),
    "of the gallery, if a row uses them. fitted: through the run's classifier (a probe is trained on them, a native "
    "head on labels of its own); own: also the class of each gallery image itself. No row uses the label of a query.",
)


def retrieval_sheets(record: Retrieval) -> dict[str, Sheet]:
    """The tables by the names of their files: one per feature, and two of the patch index."""
    features = list(dict.fromkeys(line.feature for line in record.lines))
    tables = {f"retrieval-{feature.lower().replace(' ', '-')}": _sheet(record, feature) for feature in features}
    return tables | {"retrieval-index": _index_overview(record), "retrieval-index-tests": _index_sheet(record)}


def _size(record: Retrieval) -> str:
    return f"{record.queries} queries, {record.gallery} gallery images of {record.classes} classes"


def _sheet(record: Retrieval, feature: str) -> Sheet:
    lines = [line for line in record.lines if line.feature == feature]
    reduced = [line for line in lines if line.row != DENSE]
    best = max((f"{line.measures[MAP]:.1f}" for line in reduced), key=float)
    place = 3 + MEASURES.index(MAP)
    return Sheet(
        f"Retrieval with {feature}, {_size(record)}",
        ("Row", "Labels", "Cost", *MEASURES, "p kNN", "Δ mAP", "95 %", "p mAP", "Δ mAP ref", "p mAP ref"),
        [
            [
                line.title,
                LABELS[line.labels],
                f"{line.cost:.3f}",
                *(f"{line.measures[name]:.1f}" for name in MEASURES),
                _p(line.to_dense.get("kNN")),
                *_tested(line.to_dense.get(MAP)),
                *_tested(line.to_reference.get(MAP))[::2],
            ]
            for line in lines
        ],
        [f"{' and '.join(record.absent)} cannot reach this cost on this backbone."] * bool(record.absent)
        + _left_out(record),
        strong=frozenset(
            (row, k)
            for row, line in enumerate(lines)
            if line in reduced and f"{line.measures[MAP]:.1f}" == best
            for k in (0, place)
        ),
        footnotes=(
            QUERIES_UNKNOWN,
            (
                ("Cost",),
                "matrix products relative to dense on each side, without making the scores. Those take a dense pass of "
                "the image; grid pooling, redi.accelerate and ToMe need none.",
            ),
            (
                ("kNN",),
                f"percent of queries whose class wins the vote of the {record.neighbours} nearest gallery images (20, "
                f"or as many as the largest class has), weighted by exp(cosine / {record.temperature:g}).",
            ),
            ((RECALL_1, RECALL_10), "percent of queries with an image of their class among the first 1 or 10."),
            ((MAP,), "mean average precision over the whole ranking, percent; bold is the best reduced row."),
            (("p kNN",), "exact McNemar test against dense, corrected by Holm's method over the rows of this table."),
            (("Δ mAP", "95 %", "p mAP"), "against dense: interval and paired t-test, with Holm's correction."),
            (("Δ mAP ref", "p mAP ref"), f"the same against {record.reference}."),
        ),
    )


def _index_overview(record: Retrieval) -> Sheet:
    sizes = list(dict.fromkeys(line.vectors for line in record.index))
    cells = {(line.chooser, line.vectors): line for line in record.index}
    titles = {line.chooser: line for line in record.index}
    return Sheet(
        f"Patch index, mAP by vectors per image, {_size(record)}",
        ("Chosen by", "Labels", *map(str, sizes)),
        [
            [line.title, LABELS[line.labels], *(f"{cells[chooser, size].measures[MAP]:.1f}" for size in sizes)]
            for chooser, line in titles.items()
        ],
        [
            "An image is stored as that many unit patch vectors of the dense pass, and images are compared by MaxSim: "
            "for every vector of the query the largest cosine with one of the gallery image, summed.",
            "A query has as many vectors as a gallery image, by the same rule; if that rule needs the class, by TF-IDF "
            f"without it. {single_vector_note(record)}",
            *_left_out(record),
        ],
        footnotes=(QUERIES_UNKNOWN,),
    )


def _index_sheet(record: Retrieval) -> Sheet:
    names = (RECALL_1, RECALL_10, MAP)
    return Sheet(
        f"Patch index with tests, {_size(record)}",
        ("Chosen by", "Vectors", *names, "p R@1", "Δ mAP", "95 %", "p mAP"),
        [
            [
                line.title,
                str(line.vectors),
                *(f"{line.measures[name]:.1f}" for name in names),
                _p(line.to_reference.get(RECALL_1)),
                *_tested(line.to_reference.get(MAP)),
            ]
            for line in record.index
        ],
        [
            f"Tests are against {record.index_reference} with as many vectors: exact McNemar tests of R@1 and paired "
            "t-tests of mAP, corrected by Holm's method over the rows with as many vectors."
        ],
    )


def single_vector_note(record: Retrieval) -> str:
    """What single-vector search with dense features reaches, for comparison."""
    dense = [f"{line.feature} {line.measures[MAP]:.1f}" for line in record.lines if line.row == DENSE]
    return f"mAP of one dense vector per image: {', '.join(dense)}."


def _left_out(record: Retrieval) -> list[str]:
    return [f"{record.left_out} queries are left out: the gallery has no image of their class."] * bool(record.left_out)


def _tested(paired: Paired | None) -> list[str]:
    """Difference, interval and p-value; empty for the row that others are compared with."""
    return ["", "", ""] if paired is None else [signed(paired.delta), interval(paired.interval), p_text(paired.p_value)]


def _p(paired: Paired | None) -> str:
    return "" if paired is None else p_text(paired.p_value)


def draw_retrieval(record: Retrieval) -> Any:
    """Recall and mAP of the patch index against vectors per image, with single dense vectors as horizontal lines."""
    by_chooser: dict[str, list[IndexLine]] = {}
    for entry in record.index:
        by_chooser.setdefault(entry.title, []).append(entry)
    figure, panels = panels_for(list(by_chooser), 3)
    for axes, measure in zip(panels, (RECALL_1, RECALL_10, MAP), strict=True):
        axes.set_xscale("log", base=2)
        sizes = [entry.vectors for entry in next(iter(by_chooser.values()))]
        axes.set_xticks(sizes, list(map(str, sizes)))
        axes.set(xlabel="vectors per image", ylabel=f"{measure}, %", title=measure)
        axes.grid(alpha=0.25)
        dense = [line for line in record.lines if line.row == DENSE]
        for line, style in zip(dense, ("-", "--"), strict=False):
            axes.axhline(line.measures[measure], color="0.5", linewidth=0.8, linestyle=style)
        draw_lines(
            axes,
            [
                Line(
                    title,
                    [entry.vectors for entry in entries],
                    [entry.measures[measure] for entry in entries],
                    own=entries[0].chooser.startswith("redi"),
                    style="--" if entries[0].labels == GALLERY_LABELS else "-",
                )
                for title, entries in by_chooser.items()
            ],
        )
    figure.supxlabel(retrieval_caption(record), fontsize=LETTERS)
    return figure


def retrieval_caption(record: Retrieval) -> str:
    dense = [line.feature for line in record.lines if line.row == DENSE]
    styles = zip(dense, ("solid", "dashed"), strict=False)
    return (
        f"Patch index with MaxSim, {_size(record)}. Dashed line: labels of the gallery are used. "
        f"Grey: one dense vector per image, {', '.join(f'{name} ({style})' for name, style in styles)}."
    )
