"""Commands of the protocol: all stages, single stages, the demo, the analytic cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redi import bounds
from redi._version import __version__
from redi.cli import options
from redi.cli.app import app, echo, interruptible
from redi.cli.options import DATA, METHOD, MODEL, OUTPUT, option
from redi.stages import HELP

IMAGES = "images: a folder with one folder per class, .tar shards, or hf:owner/name:split."


def _version(value: bool) -> None:
    if value:
        typer.echo(f"redi {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def _run_command(until: str) -> Callable[..., None]:
    """A command that runs the protocol up to a stage; all of them take the same options."""

    def command(
        config: options.ConfigFile = None,
        train: Annotated[str | None, option(DATA, f"Training {IMAGES}")] = None,
        val: Annotated[str | None, option(DATA, f"Validation {IMAGES}")] = None,
        limit: Annotated[
            int | None,
            option(DATA, "Images per class, the first ones, for a quick trial.", default="all", within=bounds.LIMIT),
        ] = None,
        class_map: options.ClassMap = None,
        size: options.Size = None,
        resize: options.Resize = None,
        strict: Annotated[
            bool | None, option(DATA, "Stop at an image, link or folder that cannot be read.", "--strict")
        ] = None,
        backbone: options.Backbone = None,
        revision: Annotated[str | None, option(MODEL, "Revision of a Hub name.")] = None,
        classifier: Annotated[
            str | None, option(METHOD, "probe (the paper's), native (the checkpoint's own) or both.", default="probe")
        ] = None,
        features: Annotated[
            str | None, option(METHOD, "Classifier features: postnorm or prenorm.", default="postnorm")
        ] = None,
        words: options.Words = None,
        passes: Annotated[int | None, option(METHOD, "k-means passes.", default=3, within=bounds.PASSES)] = None,
        seed: options.Seed = None,
        device: options.Device = None,
        batch_size: options.BatchSize = None,
        workers: options.Workers = None,
        threads: options.Threads = None,
        cache: options.Cache = None,
        out: Annotated[str | None, option(OUTPUT, "The run folder.")] = None,
        dry_run: options.DryRun = False,
    ) -> None:
        _execute({name: value for name, value in locals().items() if name != "until"}, until)

    return command


def _execute(settings: dict[str, Any], until: str) -> None:
    from redi.api import RunResult
    from redi.api.settings import run_config
    from redi.pipeline import execute

    file, dry_run = settings.pop("config"), settings.pop("dry_run")
    config = run_config(settings, file)
    with interruptible():
        results = execute(config, until, dry_run)
    if results is not None:
        RunResult(Path(config.out)).print()
        echo(f"results: {Path(config.out) / 'results.json'}")
        echo(f"Next: redi report {config.out}, redi compare {config.out}")


app.command(
    "run",
    help="Run the whole protocol: vocabulary, TF-IDF, probe, scores, evaluation, tables.\n\n"
    "Example: `redi run --backbone facebook/dinov3-vitb16-pretrain-lvd1689m --train "
    "imagenet/train --val imagenet/val --out runs/vitb16`\n\n"
    "If it is stopped, the same command continues where it was. Under torchrun "
    "(`torchrun --nproc-per-node 8 -m redi run ...`) the processes share the work.",
)(_run_command(list(HELP)[-1]))
for _stage, _help in HELP.items():
    app.command(
        _stage,
        help=f"{_help} Earlier stages run first if needed. Example: `redi {_stage} --config run.toml`",
        rich_help_panel="Single stages",
    )(_run_command(_stage))


@app.command()
def demo(
    threads: options.Threads = None,
    out: Annotated[str, option(OUTPUT, "The run folder.", default="runs/demo")] = "runs/demo",
) -> None:
    """Run the whole protocol on generated images with a small embedded backbone.

    It needs no network and takes about three minutes on two cores. Example: `redi demo --out runs/demo`
    """
    from redi.demo.runner import run_demo

    run_demo(Path(out).expanduser(), threads or 0)


@app.command()
def cost(
    patches: Annotated[int, option(MODEL, "Patches per image.", default=196, within=bounds.PATCHES)] = 196,
    prefix: Annotated[
        int, option(MODEL, "CLS, register and distillation tokens.", default=5, within=bounds.PREFIX)
    ] = 5,
    width: Annotated[int, option(MODEL, "Hidden width D of the backbone.", default=768, within=bounds.WIDTH)] = 768,
    mlp: Annotated[int, option(MODEL, "Hidden width of the MLP.", default="4 D", within=bounds.MLP)] = 0,
    gated: Annotated[bool, option(MODEL, "The MLP is gated (SwiGLU): it has three matrices.", "--gated")] = False,
    keep: Annotated[float, option(METHOD, "Fraction of patches kept.", default=0.5, within=bounds.FRACTION)] = 0.5,
    merge: Annotated[
        float, option(METHOD, "Fraction of patches merged into kept ones.", default=0.25, within=bounds.FRACTION)
    ] = 0.25,
    cells: Annotated[int, option(METHOD, "Summary tokens per grid axis.", default=2, within=bounds.CELLS)] = 2,
) -> None:
    """Print the analytic cost of a token budget: the paper's Table 3 for any backbone.

    Examples: `redi cost` for the paper's own numbers, `redi cost --width 192 --prefix 1` for ViT-Ti,
    `redi cost --keep 0.25 --merge 0.5` for a smaller budget, `redi cost --width 384 --mlp 1536 --gated` for
    DINOv3 ViT-S+.
    """
    from rich.console import Console

    from redi.budget import Budget
    from redi.cost import cost_table, vit_block
    from redi.report.sheets import print_sheet
    from redi.report.tables import table3

    costs = cost_table(patches, prefix, width, Budget(keep, merge, cells), vit_block(width, mlp, gated))
    print_sheet(table3(costs), Console())
