"""Measured speed: the dense path and every reducer on this machine, next to the analytic prediction.

Timed is what a user waits for: from normalised pixels to the final hidden states, so embedding,
reducer and blocks, in both paths. One-shot reducers work at the paper's budget on random scores (time
does not depend on them), progressive ones at the schedule whose analytic cost is that of the paper's
operator. Their matching is always inside the measured time; for one-shot reducers the pass that makes
the scores is, in rows of its own.
"""

from redi.bench.records import BenchResult, Overhead, Timing, read_bench, write_bench
from redi.bench.run import BenchConfig, run_bench

__all__ = [
    "BenchConfig",
    "BenchResult",
    "Overhead",
    "Timing",
    "read_bench",
    "run_bench",
    "write_bench",
]
