"""Commands that make a model faster: tune and export."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from redi.cli import options
from redi.cli.app import app, echo, given, interruptible
from redi.cli.options import DATA, METHOD, OUTPUT, RESOURCES, option

Images = Annotated[str, option(DATA, "Images: class folders, a flat folder, shards or hf:owner/name:split.")]
Calibration = Annotated[int | None, option(DATA, "Images to calibrate on.", default=192)]
Check = Annotated[int | None, option(DATA, "Images to check on, at most.", default=1000)]
MaxDrop = Annotated[
    float, option(METHOD, "Points of accuracy, or of agreement without labels, that may be lost.", default=0.5)
]
Costs = Annotated[list[float] | None, option(METHOD, "A cost to try; repeat for more.", default="0.5 to 0.95")]
BatchSize = Annotated[int | None, option(RESOURCES, "Images per call, timed or not.", default=8)]
Repeats = Annotated[int | None, option(RESOURCES, "Repeats of the timing, interleaved.", default=15)]
TunedFolder = Annotated[Path, option(OUTPUT, "Folder for setting.json, tune.json and curve.png.", default="tuned")]


@app.command()
def tune(
    backbone: options.Checkpoint,
    *,
    images: Images,
    class_map: options.ClassMap = None,
    size: options.Size = None,
    resize: options.Resize = None,
    calibration: Calibration = None,
    check: Check = None,
    max_drop: MaxDrop = 0.5,
    cost: Costs = None,
    batch_size: BatchSize = None,
    repeats: Repeats = None,
    device: options.Device = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    out: TunedFolder = Path("tuned"),
) -> None:
    """Find the cheapest setting of `redi.accelerate` whose loss, measured on this machine, is within what you allow.

    The loss is measured in accuracy if the class folders fit the model's head, or if the model has no head and nearest
    neighbours can use the labels. Otherwise it is the loss of agreement with the dense model. Examples:
    `redi tune google/vit-base-patch16-224 --images photos --max-drop 1`, then in Python
    `redi.accelerate("google/vit-base-patch16-224", setting="tuned/setting.json")`.
    """
    from redi.deploy.tune import tune as find
    from redi.records.outputs import TUNED, require_apart, require_own
    from redi.records.tuning import TuneConfig
    from redi.report.tune import draw_curve, print_tuned
    from redi.runs.places import data_places

    changes = {
        "costs": tuple(cost) if cost else None,
        "calibration": calibration,
        "check": check,
        "class_map": class_map,
        "size": size,
        "resize": resize,
        "batch": batch_size,
        "repeats": repeats,
        "device": device,
        "workers": workers,
        "threads": threads,
    }
    config = TuneConfig(backbone, images, max_drop, **given(changes)).checked()
    places = [("the images", place) for place in data_places(images)]
    places += [("the model", place) for place in data_places(backbone.removeprefix("timm:"))]
    require_apart(out, places)
    require_own(out, TUNED)
    _make_writable(out)
    with interruptible("stopped; nothing was written."):
        tuned = find(config)
    print_tuned(tuned)  # first, so that the numbers are seen even if the disk is full
    written = tuned.write(out)
    draw_curve(tuned, out / "curve.png")
    for path in (*written, out / "curve.png"):
        echo(f"written: {path}")


def _make_writable(folder: Path) -> None:
    """Create a folder, and fail before the work if it cannot be written to."""
    from redi.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written to: {error.strerror}.") from None


@app.command()
def export(
    backbone: options.Checkpoint,
    image: Annotated[
        Path | None, option(DATA, "A picture to compare PyTorch and onnxruntime on.", default="generated scenes")
    ] = None,
    size: options.Size = None,
    setting: Annotated[Path | None, option(METHOD, "A setting.json of `redi tune`.")] = None,
    cost: Annotated[
        float | None, option(METHOD, "Cost relative to dense, 0 to 1.", default="the setting's, else 0.65")
    ] = None,
    measure: Annotated[
        bool, option(METHOD, "Also time the file in onnxruntime, in turn with an export of the original.", "--measure")
    ] = False,
    batch_size: Annotated[int, option(RESOURCES, "Images per call; fixed in the file.", default=1)] = 1,
    repeats: Annotated[int, option(RESOURCES, "Repeats of the timing, interleaved.", default=20)] = 20,
    threads: Annotated[int, option(RESOURCES, "CPU threads of the timing.", default="onnxruntime's own choice")] = 0,
    out: Annotated[
        Path, option(OUTPUT, "The ONNX file; --measure writes its record beside it.", default="model.onnx")
    ] = Path("model.onnx"),
) -> None:
    """Write the accelerated model as ONNX with fixed shapes, and compare onnxruntime with PyTorch.

    Examples: `redi export google/vit-base-patch16-224 --setting tuned/setting.json --batch-size 8`, `redi export
    google/vit-base-patch16-224 --cost 0.65 --batch-size 8 --measure --threads 1`
    """
    from redi.backbone import load_backbone
    from redi.checks import require_threads
    from redi.demo.examples import example_pixels
    from redi.deploy import accelerate
    from redi.deploy.export import export as write
    from redi.deploy.onnx_speed import measure_export
    from redi.errors import ConfigError
    from redi.records.outputs import require_file
    from redi.records.timing import write_bench
    from redi.report.bench import print_bench

    require_file(out, (".onnx",), Path(backbone.removeprefix("timm:")).glob("*.onnx"))
    record = out.with_suffix(".json")
    if measure:
        require_file(record, (".json",), replaces=("rows", "environment", "overheads"))
    if min(batch_size, repeats) < 1:
        raise ConfigError("--batch-size and --repeats must be at least 1.")
    require_threads(threads)
    model = load_backbone(backbone)
    model = model.at_size(size) if size else model
    faster = accelerate(model, cost, setting)
    pixels = example_pixels(model.preprocessing, batch_size, image)
    exported = write(faster, out, pixels)
    shape = "x".join(map(str, exported.inputs))
    echo(
        f"written: {exported.file} ({exported.bytes / 1e6:.1f} MB), pixel_values {shape} -> "
        f"{', '.join(exported.outputs)}, cost {faster.cost():.3f}"
    )
    echo(f"onnxruntime differs from PyTorch by {exported.difference:.1g} of the largest output")
    if measure:
        with interruptible(f"stopped; {out} is written, its speed was not measured."):
            result = measure_export(faster, out, pixels, backbone, repeats=repeats, threads=threads)
        print_bench(result)
        echo(f"records: {write_bench(record, result)}")
