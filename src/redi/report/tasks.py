"""The studies of other tasks in reports: their tables and curves, read from their records."""

from pathlib import Path
from typing import Any

from redi.records.localisation import STUDY as LOCALISATION, earlier_localisation
from redi.records.results import Results
from redi.records.retrieval import STUDY as RETRIEVAL, earlier_retrieval
from redi.report.localisation import draw_localisation, localisation_caption, localisation_sheets
from redi.report.retrieval import draw_retrieval, retrieval_caption, retrieval_sheets
from redi.report.sheets import Sheet

#: Study -> (its record, tables, figure, caption).
TASKS: dict[str, tuple[Any, Any, Any, Any]] = {
    RETRIEVAL: (earlier_retrieval, retrieval_sheets, draw_retrieval, retrieval_caption),
    LOCALISATION: (earlier_localisation, localisation_sheets, draw_localisation, localisation_caption),
}


def task_record(folder: Path, results: Results, study: str) -> Any:
    """The record of a task; None if there is none, or if the run has changed since."""
    record = TASKS[study][0](folder)
    return record if record is not None and record.digests == results.digests else None


def task_sheets(folder: Path, results: Results) -> dict[str, dict[str, Sheet]]:
    """The tables of each task that was measured, by the names of their files."""
    records = {study: task_record(folder, results, study) for study in TASKS}
    return {study: TASKS[study][1](record) for study, record in records.items() if record is not None}


def task_figures(folder: Path, results: Results) -> dict[str, tuple[Any, str]]:
    """The curve and the caption of each task that was measured."""
    records = {study: task_record(folder, results, study) for study in TASKS}
    return {
        study: (TASKS[study][2](record), TASKS[study][3](record))
        for study, record in records.items()
        if record is not None
    }
