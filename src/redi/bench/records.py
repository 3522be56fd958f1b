"""What a bench writes and tables read."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redi import artifacts
from redi.errors import ArtifactError

#: The row that the others are compared with.
DENSE = "dense"

#: What the numbers mean; kept with them and printed under the tables.
DEFINITIONS = {
    "timed": "from normalised pixels to the final hidden states: embedding, reducer and blocks.",
    "spread": "quartiles over interleaved repeats; a speed-up is the median of the ratios within "
    "repeats to dense of the same batch, precision and mode.",
    "scoring": "adds the dense pass that gives the incoming mass of the reference view; the paper's "
    "three other views and its corpus lookup are not in it.",
    "analytic": "matrix products of blocks, reducer and scoring pass; no embedding.",
    "memory": "peak on top of weights and input, in MB of 1e6 bytes; on a CPU that of live tensors, "
    "without what a kernel uses inside, and eager only.",
    "compile": "torch.compile(fullgraph=True) with inductor's defaults, one function a row, precision "
    "and batch, so that all shapes are fixed; compile seconds are the first call minus the second, "
    "fewer where inductor's cache on disk knows the graph.",
}


@dataclass(frozen=True)
class Timing:
    """One configuration. None where something was not measured; ``note`` says why nothing was."""

    row: str  # dense or a reducer
    batch: int
    dtype: str  # fp32, bf16
    mode: str  # eager (SDPA), compile
    scoring: bool  # with the dense pass that makes the scores
    median_ms: float | None  # of one batch
    low_ms: float | None  # lower quartile
    high_ms: float | None  # upper quartile
    speedup: float | None  # dense over this
    speedup_low: float | None
    speedup_high: float | None
    predicted: float | None  # the same ratio, analytic
    memory_mb: float | None
    compile_seconds: float | None
    tokens: int | None  # that leave the last block, prefix included
    note: str = ""


@dataclass(frozen=True)
class Overhead:
    """The paper's operator over Top-K pruning at equal tokens, in percent of the pruned path."""

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

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> "BenchResult":
        content = json.loads(text)
        return BenchResult(
            [Timing(**row) for row in content["rows"]],
            content["environment"],
            [Overhead(**row) for row in content["overheads"]],
        )


def write_bench(path: Path, result: BenchResult) -> None:
    artifacts.write_text(path, result.to_json())


def read_bench(path: Path) -> BenchResult:
    try:
        return BenchResult.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is no result of `redi bench` to read: {error}.") from None
