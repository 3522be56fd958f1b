"""Measured speed: the content of bench.json, and of the record of `redi export --measure`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from redi.records.reading import read_record, write_record

#: The meaning of the numbers, stored with them and printed under the tables.
DEFINITIONS = {
    "timed": "from normalised pixels to the final hidden states: embedding, reducer and blocks; a row that works block "
    "by block restores the full grid, unless the head reads only the prefix.",
    "spread": "quartiles over interleaved repeats; a speed-up is the median over repeats of the ratio to dense, at the "
    "same batch, precision and mode.",
    "scoring": "adds the dense pass that gives the incoming mass of the reference view; the paper's three other views "
    "and its corpus lookup are not included.",
    "analytic": "matrix products of blocks, reducer and scoring pass; no embedding.",
    "memory": "peak on top of weights and input, in MB of 1e6 bytes; on a CPU it counts live tensors, without the "
    "kernels' own buffers, and only in eager mode.",
    "compile": "torch.compile(fullgraph=True) with inductor's defaults, one function per row, precision and batch, so "
    "that all shapes are fixed; compile seconds are the first call minus the second, and fewer if inductor's cache on "
    "disk has the graph.",
}


class Spread(NamedTuple):
    """The quartiles of a measurement."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Timing:
    """The times of one configuration. A field is None if it was not measured; ``note`` gives the reason."""

    row: str  # dense, a reducer, or accelerated
    batch: int
    dtype: str  # fp32, bf16
    mode: str  # eager (SDPA), compile, onnxruntime
    scoring: bool  # with the dense pass that makes the scores
    median_ms: float | None  # per batch
    low_ms: float | None  # lower quartile
    high_ms: float | None  # upper quartile
    speedup: float | None  # time of dense divided by this time
    speedup_low: float | None
    speedup_high: float | None
    predicted: float | None  # the same ratio, analytic
    memory_mb: float | None
    compile_seconds: float | None
    tokens: int | None  # after the last block, prefix included
    note: str = ""


@dataclass(frozen=True)
class Overhead:
    """Extra time of the paper's operator over Top-K pruning at equal tokens, in percent of the pruned path."""

    batch: int
    dtype: str
    mode: str
    percent: float  # median of (operator - prune) / prune within repeats
    low: float
    high: float


@dataclass(frozen=True)
class BenchResult:
    rows: list[Timing]
    environment: dict[str, Any]
    overheads: list[Overhead]


#: What marks a file as such a record.
BENCH_KEYS = ("rows", "environment", "overheads")


def write_bench(path: Path, result: BenchResult) -> Path:
    return write_record(path, result)


def read_bench(path: Path) -> BenchResult:
    return read_record(path, BenchResult, "redi bench")
