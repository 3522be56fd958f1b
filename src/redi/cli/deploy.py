"""Commands for use: tune a faster model, export it."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from redi.cli.app import Size, app, given

Model = Annotated[
    str, typer.Argument(help="Hub name, timm:name or folder of a checkpoint.", metavar="MODEL")
]


@app.command()
def tune(
    model: Model,
    images: Annotated[
        str, typer.Option(help="Images: class folders, a flat folder, shards, hf:owner/name:split.")
    ],
    max_drop: Annotated[
        float,
        typer.Option(help="Points of accuracy that may be lost; of agreement without labels."),
    ] = 0.5,
    out: Annotated[
        Path, typer.Option(help="Folder for setting.json, tune.json, curve.png.")
    ] = Path("tuned"),
    cost: Annotated[
        list[float] | None,
        typer.Option(help="Costs to try (0.5 to 0.95); may be given more often."),
    ] = None,
    calibration: Annotated[
        int | None, typer.Option(help="Images to calibrate the schedule on (192).")
    ] = None,
    check: Annotated[int | None, typer.Option(help="Most images to check on (1000).")] = None,
    class_map: Annotated[
        str | None, typer.Option(help="File that maps folders to classes of the head.")
    ] = None,
    size: Size = None,
    batch: Annotated[int | None, typer.Option(help="Images a call, timed or not (8).")] = None,
    repeats: Annotated[int | None, typer.Option(help="Interleaved repeats of timing (15).")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images (2).")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
) -> None:
    """The cheapest setting of `redi.accelerate` whose measured loss you allow, on this machine.

    Labels are used where class folders fit the model's head, or serve nearest neighbours without one;
    else the loss is that of agreement with the dense model. Examples: `redi tune
    google/vit-base-patch16-224 --images photos --max-drop 1`, then in Python
    `redi.accelerate("google/vit-base-patch16-224", setting="tuned/setting.json")`.
    """
    from redi.deploy.tune import TuneConfig
    from redi.deploy.tune import tune as find
    from redi.errors import ConfigError
    from redi.report.tune import draw_curve, print_tuned

    options = {
        "costs": tuple(cost) if cost else None,
        "calibration": calibration,
        "check": check,
        "class_map": class_map,
        "size": size,
        "batch": batch,
        "repeats": repeats,
        "device": device,
        "workers": workers,
        "threads": threads,
    }
    config = TuneConfig(model, images, max_drop, **given(options)).checked()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass  # a folder that cannot be written to is refused before the work
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written to: {error.strerror}.") from None
    try:
        tuned = find(config)
    except KeyboardInterrupt:
        typer.echo("redi: stopped, nothing was written.", err=True)
        raise typer.Exit(130) from None
    written = tuned.write(out)
    print_tuned(tuned)
    draw_curve(tuned, out / "curve.png")
    for path in (*written, out / "curve.png"):
        typer.echo(f"written: {path}")


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="The ONNX file.")] = Path("model.onnx"),
    cost: Annotated[
        float | None, typer.Option(help="Relative to dense, 0 to 1 (0.65, or the setting's).")
    ] = None,
    setting: Annotated[Path | None, typer.Option(help="A setting.json of `redi tune`.")] = None,
    batch: Annotated[int, typer.Option(help="Images a call; fixed in the file.")] = 1,
    size: Size = None,
    image: Annotated[
        Path | None, typer.Option(help="A picture to compare on; drawn scenes without it.")
    ] = None,
) -> None:
    """ONNX of the accelerated model, of fixed shapes, compared with PyTorch in onnxruntime.

    Example: `redi export google/vit-base-patch16-224 --setting tuned/setting.json --batch 8`
    """
    from redi.backbone import load_backbone
    from redi.deploy import accelerate
    from redi.deploy.export import example_pixels
    from redi.deploy.export import export as write
    from redi.errors import ConfigError

    if batch < 1:
        raise ConfigError(f"A batch has at least one image, not {batch}.")
    backbone = load_backbone(model)
    backbone = backbone.at_size(size) if size else backbone
    faster = accelerate(backbone, cost, setting)
    found = write(faster, out, example_pixels(backbone, batch, image))
    shape = "x".join(map(str, found.inputs))
    typer.echo(
        f"written: {found.file} ({found.bytes / 1e6:.1f} MB), pixel_values {shape} -> "
        f"{', '.join(found.outputs)}, cost {faster.cost():.3f}"
    )
    typer.echo(f"onnxruntime differs from PyTorch by {found.difference:.1g} of the largest output")
