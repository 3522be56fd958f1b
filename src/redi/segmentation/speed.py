"""Measured speed and memory of the rows: interleaved, batch 1, up to the final normed tokens on the full grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from redi.backbone import Backbone
from redi.records.setting import RESTORES
from redi.records.timing import Timing
from redi.runs.progress import say
from redi.segmentation.rows import Plan, encode_dense, encode_row
from redi.speed.measure import Call, interleave, once, spread, wait_for
from redi.speed.memory import peak_memory


@dataclass(frozen=True)
class Times:
    """Dense first, then every plan with every way to restore the grid."""

    seconds: Float[Tensor, "rows repeats"]
    memory: Float[Tensor, " rows"]  # bytes

    def tensors(self) -> dict[str, Tensor]:
        return {"seconds": self.seconds, "memory": self.memory}

    def timing(self, number: int, row: str, tokens: int, cost: float) -> Timing:
        dense, own = self.seconds[0].tolist(), self.seconds[number].tolist()
        time = spread([1e3 * value for value in own])
        ratio = spread([reference / value for reference, value in zip(dense, own, strict=True)])
        return Timing(
            row=row,
            batch=1,
            dtype="fp32",
            mode="eager",
            scoring=False,
            median_ms=time.median,
            low_ms=time.low,
            high_ms=time.high,
            speedup=ratio.median,
            speedup_low=ratio.low,
            speedup_high=ratio.high,
            predicted=1 / cost,
            memory_mb=self.memory[number].item() / 1e6,
            compile_seconds=None,
            tokens=tokens,
        )


def time_rows(
    backbone: Backbone, plans: Sequence[Plan], pixels: Float[Tensor, "batch channels height width"], repeats: int
) -> Times:
    """Time dense and all rows in turn, then measure the peak memory of one call each."""
    calls: dict[int, Call] = {0: partial(encode_dense, backbone, pixels)}
    for plan in plans:
        for restore in RESTORES:
            calls[len(calls)] = partial(encode_row, backbone, plan, pixels, (restore,))
    synchronise = wait_for(pixels.device)
    warm = sum(once(call, synchronise=synchronise) for call in calls.values())
    say(f"  timing {len(calls)} rows, batch 1: {repeats} repeats, some {repeats * warm:.0f} s")
    seconds = interleave(calls, repeats, synchronise=synchronise)
    memory = [float(peak_memory(call, pixels.device)) for call in calls.values()]
    return Times(torch.tensor([seconds[k] for k in calls]).double(), torch.tensor(memory).double())
