"""Timing: configurations take turns, so that a drift of the machine affects all of them.

No progress bar runs during timing, because its thread would be measured too.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from redi.errors import one_line
from redi.records.timing import Overhead, Spread, Timing
from redi.reduction import OPERATOR
from redi.rows import DENSE
from redi.runs.progress import say
from redi.speed.memory import peak_memory
from redi.speed.paths import Pixels, Scores, TimedPath, compiled

#: The reducer that the overhead of the paper's operator is measured against.
PRUNE = "prune"
FEWEST_REPEATS = 3  # however long a call takes
UNROLLED = "not compiled: its loop of one step per merged pair would be unrolled"

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


def spread(values: Sequence[float]) -> Spread:
    return Spread(*np.quantile(values, (0.25, 0.5, 0.75)).tolist())


def once(call: Call, clock: Clock = perf_counter, synchronise: Call = lambda: None) -> float:
    """Seconds of one call, without earlier work of the device."""
    synchronise()
    begin = clock()
    call()
    synchronise()
    return clock() - begin


def interleave(
    calls: Mapping[Key, Call], repeats: int, clock: Clock = perf_counter, synchronise: Call = lambda: None
) -> dict[Key, list[float]]:
    """Seconds of each call in each repeat. Every second repeat goes through the calls in reverse order."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for repeat in range(repeats):
        for key in reversed(list(calls)) if repeat % 2 else calls:
            seconds[key].append(once(calls[key], clock, synchronise))
    return seconds


def wait_for(device: torch.device) -> Call:
    """A call that returns when the device has finished its work; on a CPU it returns at once."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def affordable(repeats: int, limit: float, seconds: Sequence[float]) -> int:
    """The number of repeats that fit if each call may take ``limit`` seconds in total, on average.

    ``seconds`` is the time of each call. The result is at most ``repeats``, and at least three if ``repeats`` is.
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
    """Warm up the paths, time them in turn, then measure memory. A path that fails gets a note."""
    device = pixels.device
    synchronise = wait_for(device)
    ready: dict[TimedPath, Prepared] = {}
    notes = {path: path.note for path in paths}
    for path in paths:
        if path.forward is None:
            continue
        call = partial(path.forward, pixels, scores)
        try:
            ready[path] = _prepare(path, call, group, backend, clock, synchronise)
        except _NotMeasured as reason:
            notes[path] = str(reason)
    count = affordable(repeats, limit, [prepared.warm for prepared in ready.values()])
    say(f"  timing {len(ready)} configurations, {count} repeats")
    seconds = interleave({path: prepared.call for path, prepared in ready.items()}, count, clock, synchronise)
    memory = {
        path: peak_memory(prepared.call, device) / 1e6
        for path, prepared in ready.items()
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


class _NotMeasured(Exception):
    """Why a path cannot be timed here."""


def _prepare(path: TimedPath, call: Call, group: Group, backend: Any, clock: Clock, synchronise: Call) -> Prepared:
    """Compile the call in compile mode, then call it twice."""
    # In eager mode only errors of torch itself are expected, such as out of memory or a missing kernel.
    expected: type[Exception] = RuntimeError
    compiles = group.mode == "compile"
    if compiles:
        if path.loops:
            raise _NotMeasured(UNROLLED)
        say(f"  compiling {path}")
        expected = Exception
        assert isinstance(call, partial)
        call = partial(compiled(call.func, backend), *call.args)
    try:
        first, second = once(call, clock, synchronise), once(call, clock, synchronise)
    except expected as error:
        note = f"failed ({one_line(error)})"
        say(f"  {path} {note}")
        raise _NotMeasured(note) from error
    return Prepared(call, second, max(first - second, 0.0) if compiles else None)


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
    """The record of one configuration; ``dense`` holds the seconds of the dense path in each repeat."""
    time = ratio = None
    if seconds is not None:
        time = spread([1e3 * value for value in seconds])
    if seconds is not None and dense is not None:
        ratio = spread([reference / own for reference, own in zip(dense, seconds, strict=True)])
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
    """(operator - prune) / prune within each repeat, without scoring, if both were timed."""
    plain = {path.row: values for path, values in seconds.items() if not path.scoring}
    if OPERATOR not in plain or PRUNE not in plain:
        return []
    pairs = zip(plain[OPERATOR], plain[PRUNE], strict=True)
    low, median, high = spread([100 * (ours - pruned) / pruned for ours, pruned in pairs])
    return [Overhead(*group, percent=median, low=low, high=high)]
