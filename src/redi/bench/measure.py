"""Timing: configurations take turns, so that a machine that drifts does so for all of them.

No progress bar runs meanwhile: its thread would be measured too.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from redi.bench.memory import peak_memory
from redi.bench.paths import LOOPING, UNROLLED, Pixels, Scores, TimedPath, compiled
from redi.bench.records import DENSE, Overhead, Timing
from redi.progress import say
from redi.reduction import OPERATOR

#: The reducer that the overhead of the paper's operator is measured against.
PRUNE = "prune"
FEWEST_REPEATS = 3  # however long a call takes

Call = Callable[[], object]
Clock = Callable[[], float]  # seconds
Key = TypeVar("Key")


class Group(NamedTuple):
    """Configurations that are timed in turn and compared with each other."""

    batch: int
    dtype: str
    mode: str  # eager or compile

    def __str__(self) -> str:
        return f"{self.dtype}, batch {self.batch}, {self.mode}"


class Spread(NamedTuple):
    """Quartiles."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(*np.quantile(values, (0.25, 0.5, 0.75)).tolist())


def once(call: Call, clock: Clock = perf_counter, synchronise: Call = lambda: None) -> float:
    """Seconds of one call; work that the device still had to do is not part of it."""
    synchronise()
    begin = clock()
    call()
    synchronise()
    return clock() - begin


def interleave(
    calls: Mapping[Key, Call],
    repeats: int,
    clock: Clock = perf_counter,
    synchronise: Call = lambda: None,
) -> dict[Key, list[float]]:
    """Seconds of each call in each repeat; one repeat goes forwards through them, the next back."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for repeat in range(repeats):
        for key in reversed(list(calls)) if repeat % 2 else calls:
            seconds[key].append(once(calls[key], clock, synchronise))
    return seconds


def wait_for(device: torch.device) -> Call:
    """What ends when the device has done its work; a CPU always has."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def affordable(repeats: int, limit: float, seconds: Sequence[float]) -> int:
    """Repeats for calls that take ``seconds`` each and ``limit`` seconds for each on average.

    Never more than asked for, and never fewer than three of those.
    """
    allowed = int(limit * len(seconds) / max(sum(seconds), 1e-9))
    return min(repeats, max(allowed, FEWEST_REPEATS))


class Prepared(NamedTuple):
    """A path after its warm-up."""

    call: Call
    warm: float  # seconds of the second call
    compile_seconds: float | None


@torch.inference_mode()
def measure(
    paths: Sequence[TimedPath],
    pixels: Pixels,
    scores: Scores,
    group: Group,
    *,
    repeats: int,
    limit: float,
    backend: Any = "inductor",
    clock: Clock = perf_counter,
) -> tuple[list[Timing], list[Overhead]]:
    """Warm up, time in turn, then look at memory. A path that fails carries a note."""
    device = pixels.device
    synchronise = wait_for(device)
    ready: dict[TimedPath, Prepared] = {}
    notes = {path: path.note for path in paths}
    for path in paths:
        if path.forward is None:
            continue
        forward = path.forward
        # In eager mode only what torch itself gives up on: out of memory, no such kernel.
        expected: type[Exception] = RuntimeError
        if group.mode == "compile":
            if path.row in LOOPING:
                notes[path] = UNROLLED
                continue
            say(f"  compiling {path}")
            forward, expected = compiled(forward, backend), Exception
        call = partial(forward, pixels, scores)
        try:
            first, second = once(call, clock, synchronise), once(call, clock, synchronise)
        except expected as error:
            notes[path] = f"failed ({type(error).__name__}): {_first_line(error)}"
            say(f"  {path} {notes[path]}")
            continue
        ready[path] = Prepared(
            call, second, max(first - second, 0.0) if group.mode == "compile" else None
        )
    count = affordable(repeats, limit, [one.warm for one in ready.values()])
    say(f"  timing {len(ready)} configurations, {count} repeats")
    seconds = interleave({p: one.call for p, one in ready.items()}, count, clock, synchronise)
    memory = {
        path: peak_memory(one.call, device) / 1e6
        for path, one in ready.items()
        if device.type == "cuda" or group.mode == "eager"
    }
    dense = next((seconds[path] for path in seconds if path.row == DENSE), None)
    timings = [
        timing(
            path,
            group,
            seconds=seconds.get(path),
            dense=dense,
            memory_mb=memory.get(path),
            compile_seconds=ready[path].compile_seconds if path in ready else None,
            note=notes[path],
        )
        for path in paths
    ]
    return timings, overheads(group, seconds)


def timing(
    path: TimedPath,
    group: Group,
    *,
    seconds: Sequence[float] | None = None,
    dense: Sequence[float] | None = None,
    memory_mb: float | None = None,
    compile_seconds: float | None = None,
    note: str = "",
) -> Timing:
    """The record of one configuration; ``dense`` are the seconds of the dense path, repeat by repeat."""
    time = ratio = None
    if seconds is not None:
        time = spread([1e3 * value for value in seconds])
    if seconds is not None and dense is not None:
        ratio = spread([there / here for there, here in zip(dense, seconds, strict=True)])
    return Timing(
        row=path.row,
        batch=group.batch,
        dtype=group.dtype,
        mode=group.mode,
        scoring=path.scoring,
        median_ms=time.median if time else None,
        low_ms=time.low if time else None,
        high_ms=time.high if time else None,
        speedup=ratio.median if ratio else None,
        speedup_low=ratio.low if ratio else None,
        speedup_high=ratio.high if ratio else None,
        predicted=1 / path.cost if path.cost else None,
        memory_mb=memory_mb,
        compile_seconds=compile_seconds,
        tokens=path.tokens,
        note=note,
    )


def overheads(group: Group, seconds: Mapping[TimedPath, Sequence[float]]) -> list[Overhead]:
    """(operator - prune) / prune within each repeat, without scoring, where both were timed."""
    plain = {path.row: values for path, values in seconds.items() if not path.scoring}
    if OPERATOR not in plain or PRUNE not in plain:
        return []
    pairs = zip(plain[OPERATOR], plain[PRUNE], strict=True)
    low, median, high = spread([100 * (ours - pruned) / pruned for ours, pruned in pairs])
    return [Overhead(*group, percent=median, low=low, high=high)]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
