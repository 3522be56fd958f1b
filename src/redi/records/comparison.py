"""The content of compare.json: comparisons of rows and the agreement of rankings."""

from dataclasses import dataclass
from pathlib import Path

from redi.records.reading import read_record, write_record
from redi.records.results import Results, Row

FILE = "compare.json"
SCORERS_STUDY = "scorers"


@dataclass(frozen=True)
class Line:
    """A row of a study and its comparisons.

    p-values of Top-1 come from exact McNemar tests. All p-values are corrected by Holm's method over the rows of
    the study. Intervals are paired bootstraps.
    """

    row: Row
    p_dense: float
    dense_interval: tuple[float, float]
    delta_reference: float  # points of Top-1 against the reference row
    reference_interval: tuple[float, float]
    p_reference: float
    spearman: float | None  # with the reference row's score, mean over images
    overlap: float | None  # percent of the kept patches that the reference row also keeps
    p_divergence: float  # paired t-test of the mean KL divergence against the reference row's


@dataclass(frozen=True)
class Comparison:
    """A study measured with one classifier."""

    study: str
    title: str
    classifier: str
    reference: Row
    lines: list[Line]


@dataclass(frozen=True)
class Rankings:
    """How much the scores of a study agree: Spearman's rho and the overlap of the kept patches."""

    names: list[str]
    classifier: str
    spearman: list[list[float]]
    overlap: list[list[float]]  # percent


@dataclass(frozen=True)
class Bundle:
    comparisons: list[Comparison]
    rankings: list[Rankings]


def write_bundle(folder: Path, bundle: Bundle) -> Path:
    return write_record(folder / FILE, bundle)


def read_bundle(folder: Path) -> Bundle:
    return read_record(folder / FILE, Bundle, "redi compare")


def earlier_bundle(folder: Path) -> Bundle:
    """The comparisons of earlier calls; empty if there were none."""
    return read_bundle(folder) if (folder / FILE).exists() else Bundle([], [])


def merged(old: Bundle, new: Bundle, results: Results) -> Bundle:
    """Keep the comparisons of earlier calls, except those that were made again or whose rows have changed."""
    renewed = {(entry.study, entry.classifier) for entry in new.comparisons}
    rows = {(row.name, row.classifier): row for row in results.rows}

    def is_valid(entry: Comparison) -> bool:
        used = [entry.reference, *(line.row for line in entry.lines)]
        return all(rows.get((row.name, row.classifier)) == row for row in used)

    kept = [entry for entry in old.comparisons if (entry.study, entry.classifier) not in renewed and is_valid(entry)]
    ranked = {entry.classifier for entry in kept if entry.study == SCORERS_STUDY}
    return Bundle(
        [*kept, *new.comparisons],
        [*(ranking for ranking in old.rankings if ranking.classifier in ranked), *new.rankings],
    )
