"""What a user can deploy: the content of deployed.json, the measured speed of rows that are in results.json."""

from dataclasses import dataclass
from pathlib import Path

from redi.records.reading import read_record, write_record
from redi.records.results import Environment
from redi.records.timing import Timing

FILE = "deployed.json"
#: The study whose rows are timed, and the command that measures them.
STUDY = "accelerate"
COMMAND = f"redi compare RUN --study {STUDY}"
#: The artefact with the merges of the explorer's images.
MERGES = "analysis/merges"
#: The reducer of ``redi.accelerate``, and the one that it is shown beside.
OWN, PEER = "protected", "tome"


@dataclass(frozen=True)
class Deployed:
    """The times of dense and of every row of the study, taken in turn."""

    timings: list[Timing]  # their ``row`` is the name of a row in results.json
    environment: Environment


def write_deployed(folder: Path, deployed: Deployed) -> Path:
    return write_record(folder / FILE, deployed)


def earlier_deployed(folder: Path) -> Deployed | None:
    """The times of an earlier call; None if there was none."""
    return read_record(folder / FILE, Deployed, COMMAND) if (folder / FILE).exists() else None
