"""Commands that make a model faster: tune and export."""

from pathlib import Path
from typing import Annotated

from redi import bounds
from redi.cli import options
from redi.cli.app import app, echo, interruptible
from redi.cli.options import DATA, METHOD, OUTPUT, RESOURCES, option

Images = Annotated[str, option(DATA, "Images: class folders, a flat folder, shards or hf:owner/name:split.")]
Calibration = Annotated[int | None, option(DATA, "Images to calibrate on.", default=192, within=bounds.SAMPLE)]
Check = Annotated[int | None, option(DATA, "Images to check on, at most.", default=1000, within=bounds.SAMPLE)]
OwnSize = Annotated[
    int | None,
    option(DATA, "Side of the crop in pixels.", default="the checkpoint's own processor's", within=bounds.SIZE),
]
Task = Annotated[str | None, option(METHOD, "classify; or dense, if every patch is read.", default="classify")]
MaxDrop = Annotated[
    float | None,
    option(METHOD, "Points of accuracy that may be lost, if labels fit.", default=1, within=bounds.PERCENT),
]
MinAgreement = Annotated[
    float | None,
    option(METHOD, "Percent of dense's decisions to keep, if not.", default="95, dense 65", within=bounds.PERCENT),
]
Costs = Annotated[
    list[float] | None, option(METHOD, "A cost to try; repeat for more.", default="0.5 to 0.95", within=bounds.COST)
]
BatchSize = Annotated[int | None, option(RESOURCES, "Images per call, timed or not.", default=8, within=bounds.BATCH)]
Repeats = Annotated[
    int | None, option(RESOURCES, "Repeats of the timing, interleaved.", default=15, within=bounds.REPEATS)
]
TunedFolder = Annotated[Path, option(OUTPUT, "Folder for setting.json, tune.json and curve.png.", default="tuned")]


@app.command()
def tune(
    backbone: options.Checkpoint,
    *,
    images: Images,
    class_map: options.ClassMap = None,
    size: OwnSize = None,
    resize: options.Resize = None,
    calibration: Calibration = None,
    check: Check = None,
    task: Task = None,
    max_drop: MaxDrop = None,
    min_agreement: MinAgreement = None,
    cost: Costs = None,
    batch_size: BatchSize = None,
    repeats: Repeats = None,
    device: options.Device = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    out: TunedFolder = Path("tuned"),
) -> None:
    """Find the cheapest setting of `redi.accelerate` that loses no more than you allow, with 95 % confidence.

    The loss is measured in accuracy if the class folders fit the model's head, or if the model has no head and nearest
    neighbours can use the labels. Otherwise it is the loss of agreement with the dense model; with `--task dense`
    it is measured on patches, for a model without a head. A setting is always written; it is marked if it is outside
    the tolerance. Examples:
    `redi tune google/vit-base-patch16-224 --images imagenet/val --max-drop 1`, then in Python
    `redi.accelerate("google/vit-base-patch16-224", setting="tuned/setting.json")`.
    """
    from redi.api import tune as find

    with interruptible("stopped; nothing was written."):
        result = find(
            backbone,
            images,
            out=out,
            class_map=class_map,
            size=size,
            resize=resize,
            calibration=calibration,
            check=check,
            task=task,
            max_drop=max_drop,
            min_agreement=min_agreement,
            cost=cost,
            batch_size=batch_size,
            repeats=repeats,
            device=device,
            workers=workers,
            threads=threads,
        )
    result.print()
    for path in result.written:
        echo(f"written: {path}")


@app.command()
def export(
    backbone: options.Checkpoint,
    image: Annotated[
        Path | None, option(DATA, "A picture to compare PyTorch and the engines on.", default="generated scenes")
    ] = None,
    size: OwnSize = None,
    setting: Annotated[Path | None, option(METHOD, "A setting.json of `redi tune`.")] = None,
    reducer: Annotated[Path | None, option(METHOD, "A file of `redi learn`.", default="our own reducer")] = None,
    cost: Annotated[
        float | None,
        option(
            METHOD, "Cost relative to dense, 0 to 1.", default="the setting's, else 0.65", within=bounds.COST_OR_DENSE
        ),
    ] = None,
    measure: Annotated[
        bool, option(METHOD, "Also time the file in onnxruntime, in turn with an export of the original.", "--measure")
    ] = False,
    batch_size: Annotated[
        int, option(RESOURCES, "Images per call; fixed in the file.", default=1, within=bounds.BATCH)
    ] = 1,
    repeats: Annotated[
        int, option(RESOURCES, "Repeats of the timing, interleaved.", default=20, within=bounds.REPEATS)
    ] = 20,
    threads: Annotated[
        int, option(RESOURCES, "CPU threads of the timing.", default="onnxruntime's own choice", within=bounds.THREADS)
    ] = 0,
    out: Annotated[
        Path, option(OUTPUT, "The ONNX file; --measure writes its record beside it.", default="model.onnx")
    ] = Path("model.onnx"),
) -> None:
    """Write the accelerated model as ONNX with fixed shapes, and compare every installed engine with PyTorch.

    Examples: `redi export google/vit-base-patch16-224 --setting tuned/setting.json --batch-size 8`, `redi export
    google/vit-base-patch16-224 --cost 0.65 --batch-size 8 --measure --threads 1`
    """
    from redi.api import export as write
    from redi.api.deploy import require_timing

    if measure:
        require_timing(repeats, threads, out.with_suffix(".json"))
    result = write(
        backbone, out, cost=cost, setting=setting, reducer=reducer, size=size, batch_size=batch_size, image=image
    )
    exported, shape = result.exported, "x".join(map(str, result.exported.inputs))
    echo(
        f"written: {exported.file} ({exported.bytes / 1e6:.1f} MB), pixel_values {shape} -> "
        f"{', '.join(exported.outputs)}, cost {result.model.cost():.3f}"
    )
    for name, share in exported.differences.items():
        echo(f"{name} differs from PyTorch by {share:.1g} of the largest output")
    if measure:
        with interruptible(f"stopped; {out} is written, its speed was not measured."):
            speed = result.measure(out.with_suffix(".json"), repeats=repeats, threads=threads)
        speed.print()
        echo(f"records: {out.with_suffix('.json')}")
