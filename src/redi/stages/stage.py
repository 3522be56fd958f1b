"""A stage of a run: what it writes, what that depends on, and the work it does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redi.records.artifacts import Key
from redi.runs.folder import Run


@dataclass(frozen=True)
class Stage:
    """A stage. Stages run in order, so the artefacts that a stage reads exist when its keys are made."""

    name: str
    artefacts: Callable[[Run], Mapping[str, Key]]  # names that it writes, with their keys
    work: Callable[[Run], None]
    passes: Callable[[Run], str]  # in words: which passes over which images
    forwards: Callable[[Run], float] = lambda run: 0.0  # dense forwards that it takes, for the time that is left

    def done(self, run: Run) -> bool:
        """Whether everything that the stage writes exists and is current."""
        return all(run.current(name, key) for name, key in self.artefacts(run).items())
