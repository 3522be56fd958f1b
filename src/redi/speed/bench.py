"""The whole benchmark: every batch size, precision and mode, or the reason why it cannot be measured here."""

import json
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import product
from time import perf_counter
from typing import Annotated, Any

import torch
from torch import Tensor

from redi import bounds
from redi.backbone import Backbone, load_backbone
from redi.budget import Budget
from redi.errors import ConfigError
from redi.learning.files import SUFFIX
from redi.records.timing import DEFINITIONS, BenchResult
from redi.reduction import OPERATOR, PROGRESSIVE, REDUCERS
from redi.runs.distributed import choose_device
from redi.runs.environment import environment, threads
from redi.runs.progress import say
from redi.speed.measure import FEWEST_REPEATS, PRUNE, Clock, Group, measure, timing
from redi.speed.paths import ACCELERATE, ACCELERATE_DENSE, SIZES, TimedPath, random_backbone, timed_paths

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODES = ("eager", "compile")
BATCHES = (1, 8, 32)
MORE_BATCHES = (64, 128)  # on a GPU
REPEATS = 20


@dataclass(frozen=True)
class BenchConfig:
    """What to measure. Empty or 0 means the default; ``quick`` makes the defaults small."""

    backbone: str = ""  # Hub name or folder; empty means random weights of a size
    model_size: str = ""  # tiny, small or base
    head: bool = False  # whether random weights have a classification head
    size: Annotated[int, bounds.SIZE] = 0  # pixels of the input
    reducers: tuple[str, ...] = ()  # names in REDUCERS, accelerate(-dense), files of redi learn; dense is always there
    batch_sizes: Annotated[tuple[int, ...], bounds.BATCH] = ()
    dtypes: tuple[str, ...] = ()  # fp32, bf16
    modes: tuple[str, ...] = ()  # eager, compile
    scoring: bool = True  # whether one-shot rows are also timed with the pass that scores
    repeats: Annotated[int, bounds.REPEATS_OR_DEFAULT] = 0
    # The time per configuration; long calls are repeated less often.
    seconds: Annotated[float, bounds.SECONDS] = 60.0
    threads: Annotated[int, bounds.THREADS] = 0  # CPU threads of torch
    device: str = "auto"
    quick: bool = False  # a smoke test
    budget: Budget = Budget()  # of one-shot reducers
    # The cost of progressive reducers, relative to dense; 0 means the operator's.
    cost: Annotated[float, bounds.COST_OR_DEFAULT] = 0.0

    def resolved(self, device: torch.device) -> "BenchConfig":
        """The same configuration with all defaults filled in. An impossible choice raises :class:`ConfigError`."""
        bounds.require_bounds(self)
        if self.backbone and self.model_size:
            raise ConfigError("Give --backbone or --model-size, not both.")
        if self.backbone and self.head:
            raise ConfigError("--head is for random weights; a backbone has its own head or none.")
        accelerated = (ACCELERATE, ACCELERATE_DENSE)
        few_reducers = (*accelerated, OPERATOR, PRUNE, *PROGRESSIVE)
        batches = (*BATCHES, *MORE_BATCHES) if device.type == "cuda" else BATCHES
        size = "tiny" if self.quick else "base"
        plan = replace(
            self,
            model_size=self.model_size or ("" if self.backbone else size),
            reducers=_once_each(self.reducers) or (few_reducers if self.quick else (*accelerated, *REDUCERS)),
            batch_sizes=_once_each(self.batch_sizes) or ((1,) if self.quick else batches),
            dtypes=_once_each(self.dtypes) or (("fp32",) if self.quick else tuple(DTYPES)),
            modes=_once_each(self.modes) or (("eager",) if self.quick else MODES),
            repeats=self.repeats or (FEWEST_REPEATS if self.quick else REPEATS),
        )
        if plan.model_size:
            _require_known("model size", (plan.model_size,), SIZES)
        named = [name for name in plan.reducers if not name.endswith(SUFFIX)]
        _require_known("reducer", named, (*REDUCERS, *accelerated))
        _require_known("dtype", plan.dtypes, DTYPES)
        _require_known("mode", plan.modes, MODES)
        return plan


def _once_each(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _require_known(kind: str, names: Collection[str], known: Collection[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"There is no {kind} {unknown[0]!r}; choose one of {', '.join(known)}.")


def run_bench(
    config: BenchConfig,
    *,
    backbone: Backbone | None = None,
    backend: Any = "inductor",
    clock: Clock = perf_counter,
    obstacle: Callable[[torch.device, str, str], str] | None = None,
    save: Callable[[BenchResult], object] = lambda result: None,
) -> BenchResult:
    """Measure every configuration. ``save`` is called with the results so far after each group of configurations.

    ``backbone`` replaces the one in the configuration; it is copied and not changed. ``obstacle`` returns the reason
    why a (device, precision, mode) cannot be measured here, or an empty string.
    """
    device = choose_device(config.device)
    plan = config.resolved(device)
    unable = obstacle or (obstacle_here if backend == "inductor" else _precision_obstacle)
    model = backbone or (load_backbone(plan.backbone) if plan.backbone else random_backbone(plan.model_size, plan.head))
    model = model.at_size(plan.size) if plan.size else model
    with threads(plan.threads):
        result = BenchResult([], _environment(plan, model, device), [])
        for dtype in plan.dtypes:
            reasons = {mode: unable(device, dtype, mode) for mode in plan.modes}
            possible = not all(reasons.values())
            copy = deepcopy(model).to(device, DTYPES[dtype]) if possible else model
            paths = timed_paths(copy, plan.reducers, plan.scoring, plan.budget, plan.cost)
            for batch, mode in product(plan.batch_sizes, plan.modes):
                group = Group(batch, dtype, mode)
                say(str(group))
                if reason := reasons[mode]:
                    say(f"  skipped: {reason}")
                    result.rows.extend(timing(path, group, note=reason) for path in paths)
                    continue
                timings, overheads = measure(
                    paths,
                    *_inputs(model, batch, device),
                    group,
                    repeats=plan.repeats,
                    limit=plan.seconds,
                    backend=backend,
                    clock=clock,
                )
                if mode == "compile":
                    torch._dynamo.reset()  # free the compiled functions of this group
                result.rows.extend(timings)
                result.overheads.extend(overheads)
                save(result)
    save(result)
    return result


def obstacle_here(device: torch.device, dtype: str, mode: str) -> str:
    """Why this precision and mode cannot be measured on this machine; empty if they can."""
    reason = _precision_obstacle(device, dtype, mode)
    return reason or (compile_obstacle(device) if mode == "compile" else "")


def _precision_obstacle(device: torch.device, dtype: str, _mode: str) -> str:
    return bf16_obstacle(device) if dtype == "bf16" else ""


def compile_obstacle(device: torch.device) -> str:
    """Why inductor cannot work here; empty if it can."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch.utils._triton import has_triton

    if device.type == "cuda" and not has_triton():
        return "torch.compile needs Triton, which is not installed or does not know this GPU"
    try:
        get_cpp_compiler()
    except Exception:  # its own error, or any other from the search
        return "torch.compile needs a C++ compiler, and none works here (set CXX to one)"
    return ""


def bf16_obstacle(device: torch.device) -> str:
    """Why this device cannot compute in BF16 itself; empty if it can."""
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if supported else "this GPU has no BF16"
    supported = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "" if supported else "torch has no BF16 matrix products for this processor"


def _inputs(backbone: Backbone, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = backbone.preprocessing.size
    pixels = torch.randn(batch, 3, size, size, generator=generator)
    scores = torch.rand(batch, backbone.geometry.patches, generator=generator)
    return pixels.to(device), scores.to(device)


def _environment(plan: BenchConfig, backbone: Backbone, device: torch.device) -> dict[str, Any]:
    gpu = device.type == "cuda"
    processor = torch.cpu.get_capabilities()
    native = any(value for name, value in processor.items() if "bf16" in name)
    paths: Sequence[TimedPath] = timed_paths(backbone, plan.reducers, False, plan.budget, plan.cost)
    return {
        **asdict(environment(device)),
        "processor": torch.cuda.get_device_name(device) if gpu else processor.get("cpu_name", ""),
        "bf16_instructions": gpu or native,
        "backbone": plan.backbone or f"ViT {plan.model_size}, random weights",
        "width": backbone.width,
        "depth": backbone.depth,
        "prefix": backbone.prefix,
        "input": backbone.preprocessing.size,
        "schedules": {path.row: list(path.schedule) for path in paths if path.schedule},
        "config": json.loads(json.dumps(asdict(plan))),
        "definitions": DEFINITIONS,
    }
