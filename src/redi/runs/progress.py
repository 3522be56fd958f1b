"""Progress of long stages: a bar with rate and time left on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from redi.errors import printable

#: Seconds between two lines when the output is not a terminal.
LINE_EVERY = 15.0


@dataclass
class Pace:
    """The time that a whole run still needs, from the speed of its forward passes so far."""

    left: float = 0.0  # forwards until the run is done; 0 if it is not known
    done: float = 0.0  # forwards since the run began
    begin: float = 0.0

    def expect(self, forwards: float) -> None:
        """Start a stage: so many forwards are left, its own and those of the later stages."""
        self.left, self.begin = forwards, self.begin or monotonic()

    def skip(self, forwards: float) -> None:
        """Count forwards of an earlier run, which say nothing about the speed of this one."""
        self.left = max(self.left - forwards, 0.0)

    def advance(self, forwards: float) -> None:
        self.skip(forwards)
        self.done += forwards

    def __str__(self) -> str:
        if not (self.left and self.done):
            return ""
        return f"run: {_duration(self.left * (monotonic() - self.begin) / self.done)} left"


class _Lines:
    def __init__(self, title: str, total: int, done: int, pace: Pace) -> None:
        self.title, self.total, self.done, self.before, self.pace = title, total, done, done, pace
        self.begin = self.last = monotonic()

    def advance(self, images: int) -> None:
        # One process counts for all, and its share may be larger than the others'.
        self.done = min(self.done + images, self.total)
        if monotonic() - self.last > LINE_EVERY:
            self.last = monotonic()
            self.show()

    def show(self) -> None:
        rate = (self.done - self.before) / max(monotonic() - self.begin, 1e-6)
        left = f", {_duration((self.total - self.done) / rate)} left" if 0 < self.done < self.total else ""
        speed = f", {rate:.1f} images/s" if rate else ""
        whole = f"; {self.pace}" if str(self.pace) else ""
        say(f"  {self.title}: {self.done}/{self.total} images{speed}{left}{whole}")


@contextmanager
def track(
    title: str, total: int, done: int = 0, show: bool = True, pace: Pace | None = None
) -> Iterator[Callable[[int], None]]:
    """Show the progress of a pass over ``total`` images, of which an earlier run finished ``done``.

    The context gives a function that takes the number of images that were just finished. ``pace`` says how long the
    whole run takes; the caller advances it.
    """
    pace = pace or Pace()
    if not show:
        yield lambda images: None
    elif sys.stderr.isatty():
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("  {task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[pace]}"),
        )
        with progress.Progress(*columns, console=Console(stderr=True), transient=False) as bar:
            task = bar.add_task(title, total=total, completed=done, rate="", pace="")
            begin, finished = monotonic(), 0

            def advance(images: int) -> None:
                nonlocal finished
                finished += images
                rate = finished / max(monotonic() - begin, 1e-6)
                bar.update(task, advance=images, rate=f"{rate:.1f}/s", pace=str(pace))

            yield advance
    else:
        lines = _Lines(title, total, done, pace)
        yield lines.advance
        lines.show()


def say(text: str) -> None:
    """Print one line for the user; results go to stdout, everything else to stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
