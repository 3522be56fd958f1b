"""Commands that make a model faster: tune and export."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from redi.cli import options
from redi.cli.app import app, echo, given, interruptible
from redi.cli.options import option

Model = Annotated[str, typer.Argument(help="Hub name, timm:name or folder of a checkpoint.", metavar="MODEL")]
Images = Annotated[str, option("Images: class folders, a flat folder, shards or hf:owner/name:split.")]
MaxDrop = Annotated[float | None, option("Points of accuracy that may be lost, where labels can be used (1).")]
MinAgreement = Annotated[float | None, option("Percent of images decided as by dense, where they cannot (95).")]
OwnSize = Annotated[int | None, option("Side of the crop in pixels (that of the checkpoint's processor).")]
TunedFolder = Annotated[Path, option("Folder for setting.json, tune.json and curve.png.")]
Costs = Annotated[list[float] | None, option("A cost to try; repeat the option for more (0.5 to 0.95).")]


@app.command()
def tune(
    model: Model,
    images: Images,
    max_drop: MaxDrop = None,
    min_agreement: MinAgreement = None,
    out: TunedFolder = Path("tuned"),
    cost: Costs = None,
    calibration: Annotated[int | None, option("Images to calibrate on (192).")] = None,
    check: Annotated[int | None, option("Images to check on, at most (1000).")] = None,
    class_map: options.ClassMap = None,
    size: OwnSize = None,
    resize: options.Resize = None,
    batch: Annotated[int | None, option("Images per call, timed or not (8).")] = None,
    repeats: Annotated[int | None, option("Repeats of the timing, interleaved (15).")] = None,
    device: options.Device = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
) -> None:
    """Find the cheapest setting of `redi.accelerate` that loses no more than you allow, with 95 % confidence.

    The loss is measured in accuracy if the class folders fit the model's head, or if the model has no head and nearest
    neighbours can use the labels. Otherwise it is the loss of agreement with the dense model. A setting is always
    written; it is marked if it is outside the tolerance. Examples:
    `redi tune google/vit-base-patch16-224 --images photos --max-drop 1`, then in Python
    `redi.accelerate("google/vit-base-patch16-224", setting="tuned/setting.json")`.
    """
    from redi.deploy.tune import tune as find
    from redi.records.outputs import TUNED, require_apart, require_own
    from redi.records.tuning import TuneConfig
    from redi.report.tune import draw_curve, print_tuned
    from redi.runs.places import data_places

    changes = {
        "max_drop": max_drop,
        "min_agreement": min_agreement,
        "costs": tuple(cost) if cost else None,
        "calibration": calibration,
        "check": check,
        "class_map": class_map,
        "size": size,
        "resize": resize,
        "batch": batch,
        "repeats": repeats,
        "device": device,
        "workers": workers,
        "threads": threads,
    }
    config = TuneConfig(model, images, **given(changes)).checked()
    places = [("the images", place) for place in data_places(images)]
    places += [("the model", place) for place in data_places(model.removeprefix("timm:"))]
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
    model: Model,
    out: Annotated[Path, option("The ONNX file.")] = Path("model.onnx"),
    cost: Annotated[float | None, option("Cost relative to dense, 0 to 1 (0.65, or the setting's).")] = None,
    setting: Annotated[Path | None, option("A setting.json of `redi tune`.")] = None,
    batch: Annotated[int, option("Images per call; fixed in the file.")] = 1,
    size: OwnSize = None,
    image: Annotated[Path | None, option("A picture to compare on; the default is generated scenes.")] = None,
) -> None:
    """Write the accelerated model as ONNX with fixed shapes, and compare onnxruntime with PyTorch.

    Example: `redi export google/vit-base-patch16-224 --setting tuned/setting.json --batch 8`
    """
    from redi.backbone.own_input import load_with_own_input
    from redi.demo.examples import example_pixels
    from redi.deploy import accelerate
    from redi.deploy.export import export as write
    from redi.errors import ConfigError
    from redi.records.outputs import require_file

    require_file(out, (".onnx",), Path(model.removeprefix("timm:")).glob("*.onnx"))
    if batch < 1:
        raise ConfigError(f"--batch must be at least 1, not {batch}.")
    backbone = load_with_own_input(model)
    backbone = backbone.at_size(size) if size else backbone
    faster = accelerate(backbone, cost, setting)
    exported = write(faster, out, example_pixels(backbone.preprocessing, batch, image))
    shape = "x".join(map(str, exported.inputs))
    echo(
        f"written: {exported.file} ({exported.bytes / 1e6:.1f} MB), pixel_values {shape} -> "
        f"{', '.join(exported.outputs)}, cost {faster.cost():.3f}"
    )
    echo(f"onnxruntime differs from PyTorch by {exported.difference:.1g} of the largest output")
