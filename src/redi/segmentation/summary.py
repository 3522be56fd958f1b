"""From per-image measures to the rows of dense.json: means, paired differences, intervals and p-values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from torch import Tensor

from redi.grid import Grid
from redi.images.scenes import Size
from redi.records.dense import (
    ACCELERATE,
    DEFINITIONS,
    DenseConfig,
    DenseRecord,
    DenseRow,
    Difference,
    HeadNotes,
    InputNotes,
    interval_warning,
    row_name,
)
from redi.records.results import Environment
from redi.rows import DENSE
from redi.segmentation.head import Recipe
from redi.segmentation.measures import Bootstrap, class_iou, mean_iou, paired_resamples, pixel_accuracy
from redi.segmentation.rows import setting_at
from redi.segmentation.speed import Times
from redi.statistics import holm, paired_mean_test


@dataclass(frozen=True)
class Measured:
    """A row as its artefact has it, and what it costs."""

    row: str
    restore: str
    cost: float
    stored: Mapping[str, Tensor]
    analytic: float
    tokens: float
    schedule: tuple[int, ...]

    @property
    def name(self) -> str:
        return row_name(self.row, self.restore, self.cost)


def reference_rows(rows: Sequence[Measured]) -> dict[float, int]:
    """The position of the row that the others are compared with at each cost.

    It is ``accelerate`` as it ships, or the first row of the cost if that was not measured.
    """
    chosen: dict[float, int] = {}
    for number, row in enumerate(rows):
        if row.row == DENSE:
            continue
        shipped = row.row == ACCELERATE and row.restore == setting_at(row.cost).restore
        if shipped or row.cost not in chosen:
            chosen[row.cost] = number
    return chosen


def p_values(rows: Sequence[Measured], references: Mapping[float, int], measure: str) -> dict[int, float]:
    """Paired tests of every row against the reference of its cost, corrected over the rows of the cost."""
    corrected: dict[int, float] = {}
    for cost, reference in references.items():
        others = [k for k, row in enumerate(rows) if row.row != DENSE and row.cost == cost and k != reference]
        tests = [paired_mean_test(rows[k].stored[measure], rows[reference].stored[measure]) for k in others]
        corrected |= dict(zip(others, holm(tests), strict=True))
    return corrected


def summarise(
    rows: Sequence[Measured],
    times: Times,
    *,
    stems: Sequence[str],
    shown: Sequence[int],
    inputs: Sequence[tuple[Size, Size, Grid]],
    classes: list[str],
    void: int,
    head: tuple[Recipe, int, Mapping[str, Any]],
    left_out: list[str],
    config: DenseConfig,
    environment: Environment,
) -> DenseRecord:
    """The results; ``rows`` begin with dense."""
    bootstrap = paired_resamples([row.stored["counts"] for row in rows], seed=config.seed)
    references = reference_rows(rows)
    p_agreement, p_cosine = (p_values(rows, references, name) for name in ("agreement", "cosine"))
    lines = []
    for number, row in enumerate(rows):
        counts = row.stored["counts"].sum(dim=0)
        reference = references.get(row.cost, number)
        lines.append(
            DenseRow(
                row=row.row,
                restore=row.restore,
                cost=row.cost,
                analytic=row.analytic,
                tokens=row.tokens,
                schedule=row.schedule,
                miou=mean_iou(counts).item(),
                accuracy=pixel_accuracy(counts).item(),
                agreement=row.stored["agreement"].mean().item(),
                cosine=row.stored["cosine"].mean().item(),
                class_iou=[None if isnan(value) else value for value in class_iou(counts).tolist()],
                to_dense=None if number == 0 else difference(bootstrap, rows, number, 0),
                to_reference=None
                if number in (0, reference)
                else difference(bootstrap, rows, number, reference, p_agreement[number], p_cosine[number]),
                timing=times.timing(number, row.name, round(row.tokens), row.analytic),
            )
        )
    recipe, cells, notes = head
    return DenseRecord(
        rows=lines,
        references={f"{cost:g}": rows[number].name for cost, number in references.items()},
        classes=classes,
        void=void,
        images=len(stems),
        shown=[stems[index] for index in shown],
        inputs=input_notes(inputs),
        head=HeadNotes(
            steps=recipe.steps,
            batch=recipe.batch,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            seed=recipe.seed,
            cells=cells,
            loss=notes["loss"],
            images=notes["images"],
        ),
        left_out=left_out,
        definitions=DEFINITIONS | {"interval": f"{DEFINITIONS['interval']} {interval_warning(len(stems))}".strip()},
        config=config,
        environment=environment,
    )


def difference(
    bootstrap: Bootstrap,
    rows: Sequence[Measured],
    first: int,
    second: int,
    p_agreement: float | None = None,
    p_cosine: float | None = None,
) -> Difference:
    """One row minus another, with intervals."""
    miou, accuracy = bootstrap.miou_difference(first, second), bootstrap.accuracy_difference(first, second)
    ours, theirs = rows[first].stored, rows[second].stored
    return Difference(
        miou=miou.difference,
        miou_interval=miou.interval,
        accuracy=accuracy.difference,
        accuracy_interval=accuracy.interval,
        agreement=(ours["agreement"] - theirs["agreement"]).mean().item(),
        cosine=(ours["cosine"] - theirs["cosine"]).mean().item(),
        p_agreement=p_agreement,
        p_cosine=p_cosine,
    )


def input_notes(inputs: Sequence[tuple[Size, Size, Grid]]) -> list[InputNotes]:
    """One entry per input size, the most frequent first."""
    counts = Counter(used for _, used, _ in inputs)
    first = {used: (picture, used, grid) for picture, used, grid in reversed(inputs)}
    return [InputNotes(count, *first[used]) for used, count in counts.most_common()]
