"""A bad input: a command with its mistake, and a part of the line that a user must see."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.commands import PLAIN, Conditions
from chaos.ground import Ground

Make = Callable[[Ground, Path], list[str]]


@dataclass(frozen=True)
class Case:
    """It must end by itself with exit code 1 (2 for options that the parser refuses), say one line that holds the
    expected words, print no traceback, and change nothing that belongs to the user."""

    name: str
    make: Make  # prepares the place of the case and returns the arguments
    expected: str  # a part of the line on stderr, in any letter case
    conditions: Conditions = PLAIN


def fixed(*arguments: str) -> Make:
    """A command without preparation. ``{run}`` makes a copy of the finished run."""

    def make(ground: Ground, place: Path) -> list[str]:
        run = ground.run_folder(place) if any("{run}" in text for text in arguments) else place
        return [text.format(user=ground.user, place=place, run=run) for text in arguments]

    return make
