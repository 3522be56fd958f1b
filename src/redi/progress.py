"""Progress of long stages: a bar with rate and time left on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

#: Seconds between two lines when the output is not a terminal.
LINE_EVERY = 15.0


class Progress(Protocol):
    def advance(self, images: int) -> None: ...


class _Silent:
    def advance(self, images: int) -> None:
        """Nothing to show."""


class _Lines:
    def __init__(self, what: str, total: int, done: int) -> None:
        self.what, self.total, self.done, self.before = what, total, done, done
        self.begin = self.last = monotonic()

    def advance(self, images: int) -> None:
        # Of several processes one counts for all, and may have had the larger share.
        self.done = min(self.done + images, self.total)
        if monotonic() - self.last > LINE_EVERY:
            self.last = monotonic()
            self.show()

    def show(self) -> None:
        rate = (self.done - self.before) / max(monotonic() - self.begin, 1e-6)
        left = (
            f", {_duration((self.total - self.done) / rate)} left"
            if 0 < self.done < self.total
            else ""
        )
        speed = f", {rate:.1f} images/s" if rate else ""
        say(f"  {self.what}: {self.done}/{self.total} images{speed}{left}")


class _Bar:
    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advance = advance


@contextmanager
def track(what: str, total: int, done: int = 0, show: bool = True) -> Iterator[Progress]:
    """Follow a pass over ``total`` images of which ``done`` were finished by an earlier run."""
    if not show:
        yield _Silent()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=Console(stderr=True), transient=False) as bar:
            task = bar.add_task(what, total=total, completed=done, rate="")
            begin, finished = monotonic(), 0

            def advance(images: int) -> None:
                nonlocal finished
                finished += images
                rate = finished / max(monotonic() - begin, 1e-6)
                bar.update(task, advance=images, rate=f"{rate:.1f}/s")

            yield _Bar(advance)
    else:
        lines = _Lines(what, total, done)
        yield lines
        lines.show()


def say(text: str) -> None:
    """One line for the person who waits; results go to stdout, everything else to stderr."""
    print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
