"""The speed of an exported model in onnxruntime, next to the export of the original, with the calls in turn."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi import bounds
from redi.deploy.engines import in_onnxruntime, onnx_libraries
from redi.deploy.export import export
from redi.deploy.model import Accelerated
from redi.records.setting import Setting
from redi.records.timing import DEFINITIONS, BenchResult
from redi.rows import DENSE
from redi.runs.environment import environment
from redi.runs.progress import say
from redi.speed.measure import Clock, Group, affordable, interleave, once, timing
from redi.speed.paths import TimedPath

ACCELERATED = "accelerated"
REPEATS = 20
#: Seconds of timing per model; long calls are repeated less often.
LIMIT = 60.0
TIMED = "from normalised pixels to the outputs of the exported file, in onnxruntime on the CPU."


def measure_export(
    model: Accelerated,
    file: Path,
    pixels: Float[Tensor, "batch channels height width"],
    name: str,
    *,
    repeats: int = REPEATS,
    threads: int = 0,
    clock: Clock = perf_counter,
) -> BenchResult:
    """Time ``file``, the export of ``model``, against an export of the original, which is written for this alone.

    ``name`` is the backbone's, for the record. ``threads`` are onnxruntime's; 0 means its own choice.
    """
    bounds.REPEATS.require("repeats", repeats)
    bounds.THREADS.require("threads", threads)
    with TemporaryDirectory() as place:
        say("exporting the original model, to compare with")
        dense = export(original(model), Path(place) / "dense.onnx", pixels).file
        calls = {
            row: partial(in_onnxruntime(path, threads), pixels) for row, path in ((DENSE, dense), (ACCELERATED, file))
        }
    for call in calls.values():
        once(call, clock)
    count = affordable(repeats, LIMIT, [once(call, clock) for call in calls.values()])
    say(f"timing both in onnxruntime, batch {len(pixels)}, {count} repeats")
    seconds = interleave(calls, count, clock)
    group = Group(len(pixels), "fp32", "onnxruntime")
    grid = (pixels.shape[2] // model.backbone.patch_size, pixels.shape[3] // model.backbone.patch_size)
    left = {DENSE: grid[0] * grid[1], ACCELERATED: model.schedule(grid)[-1]}
    costs = {DENSE: 1.0, ACCELERATED: model.cost(grid)}
    rows = [
        timing(
            TimedPath(row, False, None, costs[row], model.backbone.prefix + left[row]),
            group,
            seconds=values,
            dense=seconds[DENSE],
        )
        for row, values in seconds.items()
    ]
    return BenchResult(rows, _environment(model, name, threads, pixels.shape[-1]), [])


def original(model: Accelerated) -> Accelerated:
    """The dense model with the same outputs, and without the shortcut of the last block, which saves work too."""
    dense = Accelerated(model.backbone, Setting(cost=1.0))
    dense.prefix_only = False
    return dense


def _environment(model: Accelerated, name: str, threads: int, size: int) -> dict[str, Any]:
    runtime, _ = onnx_libraries()
    return {
        **asdict(environment(torch.device("cpu"))),
        "threads": threads or "onnxruntime's choice of",
        "onnxruntime": runtime.__version__,
        "processor": torch.cpu.get_capabilities().get("cpu_name", ""),
        "backbone": name,
        "input": size,
        "setting": asdict(model.setting),
        "definitions": {"timed": TIMED, **{name: DEFINITIONS[name] for name in ("spread", "analytic")}},
    }
