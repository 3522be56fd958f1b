"""Commands that measure beyond the protocol: comparisons, speed, several backbones."""

from pathlib import Path
from typing import Annotated

from redi import bounds
from redi.cli import options
from redi.cli.app import app, echo, given, interruptible
from redi.cli.options import DATA, METHOD, MODEL, OUTPUT, RESOURCES, option

Studies = Annotated[
    list[str] | None,
    option(
        METHOD,
        "scorers, reducers (equal tokens), costs (equal cost), accelerate (with measured speed), deployable, early, "
        "sweep, ablations, retrieval or localisation. Repeat this option and those below for more than one value.",
        default="all of them, if no grid of your own is given; localisation only if there are masks",
    ),
]
Scorers = Annotated[
    list[str] | None, option(METHOD, "A score for your own grid: mass, redi_cls_mean, mass@4, my.py:name.")
]
Labels = Annotated[
    list[str] | None,
    option(METHOD, "gt (an oracle), predicted, posterior, text (zero-shot), shuffled, other or none.", default="gt"),
]
Text = Annotated[
    Path | None,
    option(
        DATA,
        "A file of `redi text`, for the labels text.",
        default="what the run has kept, else made with the text tower of its backbone",
    ),
]
Masks = Annotated[
    Path | None,
    option(
        DATA,
        "Folder with masks of the objects, for the study localisation: paths as those of the validation images, .png, "
        "every value but 0 is the object.",
        default="those that `redi demo` draws",
    ),
]
GallerySize = Annotated[
    int | None,
    option(
        DATA, "Most gallery images of the study retrieval; as many of each class.", default=5000, within=bounds.SEARCHED
    ),
]
QueryCount = Annotated[
    int | None,
    option(DATA, "Most queries of the study retrieval; as many of each class.", default=2000, within=bounds.SEARCHED),
]
Reducers = Annotated[
    list[str] | None,
    option(
        METHOD,
        "keep-merge-compress, prune, fuse, pool, tome, pitome, my.py:name, a file of `redi learn`, ...",
        default="keep-merge-compress",
    ),
]
Keeps = Annotated[
    list[float] | None,
    option(
        METHOD,
        "Keep rate, 0 to 1; a progressive reducer gets the operator's cost at that rate.",
        default="the budget of the run",
        within=bounds.FRACTION,
    ),
]
TokenCounts = Annotated[
    list[int] | None, option(METHOD, "Or the number of patch tokens after the last block.", within=bounds.TOKENS)
]
Costs = Annotated[list[float] | None, option(METHOD, "Or a cost relative to dense, 0 to 1.", within=bounds.COST)]
After = Annotated[
    list[int] | None, option(METHOD, "Number of blocks before a one-shot reducer.", default=0, within=bounds.BLOCKS)
]
Against = Annotated[
    str, option(METHOD, "Name or title of the row to compare with, at each cost.", default="each study's own reference")
]
Name = Annotated[str | None, option(OUTPUT, "Title of your own grid.", default="its scores and reducers")]
RunDevice = Annotated[str | None, option(RESOURCES, options.DEVICE, default=options.OWN)]
RunBatchSize = Annotated[int | None, option(RESOURCES, options.BATCH_SIZE, default=options.OWN, within=bounds.BATCH)]
RunWorkers = Annotated[int | None, option(RESOURCES, options.WORKERS, default=options.OWN, within=bounds.WORKERS)]
RunThreads = Annotated[int | None, option(RESOURCES, options.THREADS, default=options.OWN, within=bounds.THREADS)]


@app.command()
def compare(
    run: options.Folder,
    train: options.MovedTrain = None,
    val: options.MovedVal = None,
    text: Text = None,
    masks: Masks = None,
    gallery: GallerySize = None,
    queries: QueryCount = None,
    study: Studies = None,
    scorer: Scorers = None,
    labels: Labels = None,
    reducer: Reducers = None,
    keep: Keeps = None,
    tokens: TokenCounts = None,
    cost: Costs = None,
    after: After = None,
    against: Against = "",
    device: RunDevice = None,
    batch_size: RunBatchSize = None,
    workers: RunWorkers = None,
    threads: RunThreads = None,
    name: Name = None,
    dry_run: options.DryRun = False,
) -> None:
    """Compare scores and reducers on one run, with paired statistics.

    Examples: `redi compare runs/demo` for all studies, `redi compare runs/demo --study scorers`,
    `redi compare runs/demo --scorer redi_mass --labels predicted --reducer prune --reducer tome --cost 0.55
    --cost 0.65 --name "Pruning or merging"`, `redi compare runs/demo --scorer my.py:contrast`, `redi compare
    runs/clip --scorer redi_mass --labels text --text text.safetensors`, `redi compare runs/demo --study retrieval
    --study localisation`.

    It writes compare.json, compare.md and curves.png into the run folder and adds its rows to results.json. The studies
    retrieval and localisation write a record and a curve of their own. If it is stopped, the same command continues
    where it was.
    """
    from redi.api.protocol import measure_comparison

    rows = {"scorer": scorer, "labels": labels, "reducer": reducer, "after": after, "name": name}
    sizes = {"keep": keep, "tokens": tokens, "cost": cost}
    runtime = {"device": device, "batch_size": batch_size, "workers": workers, "threads": threads}
    settings = {**rows, **sizes, "train": train, "val": val, **runtime}
    tasks = {"masks": masks, "gallery": gallery, "queries": queries}
    with interruptible():
        result = measure_comparison(run, study, against, settings | tasks, dry_run, text)
    if result is not None:
        result.print()
        for path in result.written:
            echo(f"written: {path}")


Reducer = Annotated[
    list[str] | None,
    option(
        METHOD, "A reducer, a file of `redi learn`, accelerate or accelerate-dense; repeat for more.", default="all"
    ),
]
ProgressiveCost = Annotated[
    float,
    option(
        METHOD,
        "Cost of progressive reducers relative to dense.",
        default="that of the paper's operator",
        within=bounds.COST_OR_DEFAULT,
    ),
]
Scoring = Annotated[
    bool, option(METHOD, "Also time one-shot reducers with the pass that makes the scores.", default="yes")
]
BatchSizes = Annotated[
    list[int] | None,
    option(
        RESOURCES,
        "Images per call; repeat for more.",
        default="1, 8 and 32; on a GPU also 64 and 128",
        within=bounds.BATCH,
    ),
]
Seconds = Annotated[
    float,
    option(
        RESOURCES,
        "Seconds of timing per configuration; at least 3 repeats are made.",
        default=60,
        within=bounds.SECONDS,
    ),
]


@app.command()
def bench(
    size: options.Size = None,
    backbone: options.Backbone = None,
    model_size: Annotated[str, option(MODEL, "Or a ViT of random weights: tiny, small or base.", default="base")] = "",
    head: Annotated[bool, option(MODEL, "Random weights with a head that reads CLS.", "--head", default="no")] = False,
    reducer: Reducer = None,
    cost: ProgressiveCost = 0.0,
    scoring: Scoring = True,
    batch_size: BatchSizes = None,
    dtype: Annotated[list[str] | None, option(RESOURCES, "fp32 or bf16.", default="both")] = None,
    mode: Annotated[list[str] | None, option(RESOURCES, "eager (SDPA) or compile.", default="both")] = None,
    repeats: Annotated[
        int, option(RESOURCES, "Repeats of the timing, interleaved.", default=20, within=bounds.REPEATS_OR_DEFAULT)
    ] = 0,
    seconds: Seconds = 60.0,
    device: options.Device = None,
    threads: options.Threads = None,
    quick: Annotated[
        bool, option(RESOURCES, "A smoke test that takes a minute, with small defaults.", "--quick")
    ] = False,
    out: Annotated[Path, option(OUTPUT, "File for the records.", default="bench.json")] = Path("bench.json"),
) -> None:
    """Measure the speed of the dense path and of every reducer on this machine.

    Examples: `redi bench --quick`, `redi bench --model-size base --batch-size 8 --dtype fp32 --mode eager`,
    `redi bench --backbone facebook/dinov2-small --reducer tome --reducer prune`.
    """
    from redi.api import bench as measure

    with interruptible(f"stopped; the finished groups are in {out}."):
        result = measure(
            backbone,
            out=out,
            model_size=model_size,
            head=head,
            size=size or 0,
            reducer=reducer,
            cost=cost,
            scoring=scoring,
            batch_size=batch_size,
            dtype=dtype,
            mode=mode,
            repeats=repeats,
            seconds=seconds,
            device=device,
            threads=threads,
            quick=quick,
        )
    result.print()
    echo(f"records: {out}")


@app.command()
def diagnose(
    *,
    config: options.ConfigFile = None,
    train: Annotated[str, option(DATA, "Training images, as for `redi run`.")],
    val: Annotated[str, option(DATA, "Validation images, as for `redi run`.")],
    class_map: options.ClassMap = None,
    size: options.Size = None,
    resize: options.Resize = None,
    backbone: Annotated[list[str], option(MODEL, "Hub name, timm:name or folder; repeat for each backbone.")],
    classifier: Annotated[
        str, option(METHOD, "both (the probe, and the native head if there is one) or probe.", default="both")
    ] = "both",
    words: options.Words = None,
    seed: options.Seed = None,
    device: options.Device = None,
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    cache: options.Cache = None,
    out: Annotated[str, option(OUTPUT, "Folder for one run folder per backbone.")],
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
