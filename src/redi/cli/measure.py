"""Commands that measure beyond the protocol: comparisons, speed, several backbones."""

from pathlib import Path
from typing import Annotated

from redi.cli import options
from redi.cli.app import app, echo, given, interruptible
from redi.cli.options import option

Studies = Annotated[
    list[str] | None,
    option(
        "scorers, reducers (equal tokens), costs (equal cost), deployable, sweep or ablations; the default is all. "
        "Repeat this option and those below for more than one value."
    ),
]
Scorers = Annotated[list[str] | None, option("A score for your own grid: mass, redi_cls_mean, mass@4, my.py:name.")]
Labels = Annotated[list[str] | None, option("gt (an oracle), predicted, posterior, shuffled, other or none.")]
Reducers = Annotated[list[str] | None, option("keep-merge-compress, prune, fuse, pool, tome, pitome, my.py:name, ...")]
Keeps = Annotated[
    list[float] | None, option("Keep rate, 0 to 1; a progressive reducer gets the operator's cost at that rate.")
]
TokenCounts = Annotated[list[int] | None, option("Or the number of patch tokens after the last block.")]
Costs = Annotated[list[float] | None, option("Or a cost relative to dense, 0 to 1.")]


@app.command()
def compare(
    run: options.Folder,
    study: Studies = None,
    scorer: Scorers = None,
    labels: Labels = None,
    reducer: Reducers = None,
    keep: Keeps = None,
    tokens: TokenCounts = None,
    cost: Costs = None,
    after: Annotated[list[int] | None, option("Number of blocks before a one-shot reducer (0).")] = None,
    against: Annotated[str, option("Name of the row to compare with.")] = "",
    device: options.Device = None,
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    dry_run: options.DryRun = False,
) -> None:
    """Compare scores and reducers on one run, with paired statistics.

    Examples: `redi compare runs/demo` for all studies, `redi compare runs/demo --study scorers`,
    `redi compare runs/demo --scorer redi_mass --labels predicted --reducer prune --reducer tome --cost 0.55
    --cost 0.65`, `redi compare runs/demo --scorer my.py:contrast`.

    It writes compare.json, compare.md and curves.png into the run folder and adds its rows to results.json. If it is
    stopped, the same command continues where it was.
    """
    from redi.comparison.compare import compare as measure
    from redi.comparison.grid import Request
    from redi.comparison.studies import STUDIES
    from redi.errors import ConfigError
    from redi.report.compare import publish
    from redi.runs.config import overlay, saved_config

    runtime = {"device": device, "batch_size": batch_size, "workers": workers, "threads": threads}
    config = overlay(saved_config(run), given({"runtime": runtime}), "options").checked()
    sizes = {"keeps": keep, "tokens": tokens, "costs": cost, "after": after}
    grid_options = given({"scorers": scorer, "labels": labels, "reducers": reducer, **sizes})
    if not (scorer or reducer) and grid_options:
        raise ConfigError("--labels, --keep, --tokens, --cost and --after need --scorer or --reducer.")
    request = Request(**grid_options) if scorer or reducer else None
    studies = study or ([] if request else list(STUDIES))
    with interruptible():
        bundle = measure(config, studies, request, against, dry_run)
    if bundle is not None:
        for path in publish(run, bundle):
            echo(f"written: {path}")


Batches = Annotated[list[int] | None, option("Images per call (1, 8 and 32; on a GPU also 64 and 128).")]
ProgressiveCost = Annotated[
    float, option("Cost of progressive reducers relative to dense; 0 means that of the paper's operator.")
]
Scoring = Annotated[bool, option("Also time one-shot reducers with the pass that makes the scores.")]
Limit = Annotated[float, option("Seconds of timing per configuration; at least 3 repeats are made.")]


@app.command()
def bench(
    backbone: Annotated[str, option("Hub name or folder of a checkpoint.")] = "",
    size: Annotated[str, option("Or a ViT of random weights: tiny, small or base (default).")] = "",
    reducer: Annotated[list[str] | None, option("A reducer; repeat for more. The default is all.")] = None,
    batch: Batches = None,
    dtype: Annotated[list[str] | None, option("fp32 or bf16; the default is both.")] = None,
    mode: Annotated[list[str] | None, option("eager (SDPA) or compile; the default is both.")] = None,
    cost: ProgressiveCost = 0.0,
    scoring: Scoring = True,
    repeats: Annotated[int, option("Repeats of the timing, interleaved (20).")] = 0,
    limit: Limit = 60.0,
    threads: Annotated[int, option("Number of CPU threads that torch uses; 0 means its own choice.")] = 0,
    device: Annotated[str, option("auto, cpu, cuda or cuda:N.")] = "auto",
    quick: Annotated[bool, option("A smoke test that takes a minute.", "--quick")] = False,
    out: Annotated[Path, option("File for the records.")] = Path("bench.json"),
) -> None:
    """Measure the speed of the dense path and of every reducer on this machine.

    Examples: `redi bench --quick`, `redi bench --size base --batch 8 --dtype fp32 --mode eager`,
    `redi bench --backbone facebook/dinov2-small --reducer tome --reducer prune`.
    """
    from redi.records.outputs import require_file
    from redi.records.timing import write_bench
    from redi.report.bench import print_bench
    from redi.speed.bench import BenchConfig, run_bench

    several = {"reducers": reducer, "batches": batch, "dtypes": dtype, "modes": mode}
    config = BenchConfig(
        backbone,
        size,
        **{name: tuple(values or ()) for name, values in several.items()},  # type: ignore[arg-type]
        scoring=scoring,
        repeats=repeats,
        limit=limit,
        threads=threads,
        device=device,
        quick=quick,
        cost=cost,
    )
    require_file(out, (".json",), replaces=("rows", "environment", "overheads"))
    with interruptible(f"stopped; the finished groups are in {out}."):
        result = run_bench(config, save=lambda so_far: write_bench(out, so_far))
    print_bench(result)
    echo(f"records: {out}")


@app.command()
def diagnose(
    backbone: Annotated[list[str], option("Hub name, timm:name or folder; repeat for each backbone.")],
    train: Annotated[str, option("Training images, as for `redi run`.")],
    val: Annotated[str, option("Validation images, as for `redi run`.")],
    out: Annotated[str, option("Folder for one run folder per backbone.")],
    config: options.ConfigFile = None,
    classifier: Annotated[str, option("both (the probe, and the native head if there is one) or probe.")] = "both",
    class_map: options.ClassMap = None,
    size: options.Size = None,
    resize: options.Resize = None,
    seed: options.Seed = None,
    words: options.Words = None,
    device: options.Device = None,
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    cache: options.Cache = None,
    dry_run: options.DryRun = False,
) -> None:
    """Compare dense, attention alone and the hybrid on several backbones: the paper's diagnostics.

    Example: `redi diagnose --backbone timm:deit3_base_patch16_224.fb_in1k --backbone timm:vit_base_patch16_224.mae
    --train imagenet/train --val imagenet/val --out runs/diagnose`

    It writes diagnose.json and diagnose.md. If it is stopped, the same command continues where it was.
    """
    from redi.comparison.diagnose import diagnose as measure
    from redi.report.diagnose import publish
    from redi.runs.config import RunConfig, overlay, read_config

    runtime = {"device": device, "batch_size": batch_size, "workers": workers, "threads": threads}
    changes = {
        "train": train,
        "val": val,
        "out": out,
        "size": size,
        "resize": resize,
        "seed": seed,
        "classifier": classifier,
        "class_map": class_map,
        "vocabulary": {"n_words": words},
        "runtime": {**runtime, "cache": cache},
    }
    base = read_config(config) if config else RunConfig()
    with interruptible():
        diagnosis = measure(overlay(base, given(changes), "options"), backbone, dry_run)
    if diagnosis is not None:
        echo(f"written: {publish(Path(out).expanduser(), diagnosis)}")
