"""What compare.json holds: comparisons of rows and agreement of rankings, as typed records."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redi import artifacts
from redi.errors import ArtifactError
from redi.records import Results, Row

FILE = "compare.json"


@dataclass(frozen=True)
class Line:
    """A row of a study and its comparisons. p-values of Top-1 are exact McNemar tests; all are
    corrected by Holm's method over the rows of the study; intervals are paired bootstraps."""

    row: Row
    p_dense: float
    dense_interval: tuple[float, float]
    delta_reference: float  # points of Top-1 against the reference row
    reference_interval: tuple[float, float]
    p_reference: float
    spearman: float | None  # of the score with the reference row's, mean over images
    overlap: float | None  # percent of the kept patches that the reference row keeps too
    p_divergence: float  # paired z-test of the mean KL divergence against the reference row's


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


def write_bundle(folder: Path, bundle: Bundle) -> None:
    artifacts.write_text(folder / FILE, json.dumps(asdict(bundle), indent=1) + "\n")


def read_bundle(folder: Path) -> Bundle:
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Bundle(
            [_comparison(entry) for entry in content["comparisons"]],
            [Rankings(**entry) for entry in content["rankings"]],
        )
    except FileNotFoundError:
        raise ArtifactError(f"There is no {FILE} in {folder}: run `redi compare` first.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error}. Delete it and compare again."
        ) from None


def earlier_bundle(folder: Path) -> Bundle:
    """What earlier calls compared; empty where there were none."""
    return read_bundle(folder) if (folder / FILE).exists() else Bundle([], [])


def merged(old: Bundle, new: Bundle, results: Results) -> Bundle:
    """What earlier calls compared stays, unless it was compared anew or its rows have changed."""
    done = {(entry.study, entry.classifier) for entry in new.comparisons}
    rows = {(row.name, row.classifier): row for row in results.rows}

    def stands(entry: Comparison) -> bool:
        used = [entry.reference, *(line.row for line in entry.lines)]
        return all(rows.get((row.name, row.classifier)) == row for row in used)

    kept = [
        entry
        for entry in old.comparisons
        if (entry.study, entry.classifier) not in done and stands(entry)
    ]
    still = {entry.classifier for entry in kept if entry.study == "scorers"}
    return Bundle(
        [*kept, *new.comparisons],
        [*(ranking for ranking in old.rankings if ranking.classifier in still), *new.rankings],
    )


def _comparison(entry: Mapping[str, Any]) -> Comparison:
    lines = [
        Line(
            **{
                **line,
                "row": Row.read(line["row"]),
                "dense_interval": tuple(line["dense_interval"]),
                "reference_interval": tuple(line["reference_interval"]),
            }
        )
        for line in entry["lines"]
    ]
    return Comparison(**{**entry, "reference": Row.read(entry["reference"]), "lines": lines})
