"""Commands of the protocol: the whole of it, its stages, the demo, the analytic cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redi import __version__
from redi.cli.app import Cache, DryRun, Out, Seed, Size, app, given

STAGES = {
    "vocabulary": "Fit the visual words, and keep the classifier's features.",
    "tfidf": "Count the words of the corpus and build the TF-IDF table.",
    "probe": "Train the linear classifier on the dense features.",
    "score": "Score every patch of the validation images.",
    "evaluate": "Predict every validation image, dense and reduced.",
    "analysis": "Record what figures and report need.",
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redi {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def _run_command(until: str) -> Callable[..., None]:
    """A command that runs the protocol up to a stage; all of them take the same options."""

    def command(
        config: Annotated[
            Path | None, typer.Option(help="TOML file with settings; options override it.")
        ] = None,
        backbone: Annotated[
            str | None, typer.Option(help="Hub name or folder of a checkpoint.")
        ] = None,
        train: Annotated[
            str | None,
            typer.Option(
                help="Training images: a folder with one folder a class, .tar shards, or "
                "hf:owner/name:split."
            ),
        ] = None,
        val: Annotated[str | None, typer.Option(help="Validation images, likewise.")] = None,
        out: Out = None,
        classifier: Annotated[
            str | None,
            typer.Option(help="probe (the paper's), native (the checkpoint's own), both."),
        ] = None,
        class_map: Annotated[
            str | None, typer.Option(help="File that maps folders to classes of the native head.")
        ] = None,
        revision: Annotated[str | None, typer.Option(help="Revision of a Hub name.")] = None,
        size: Size = None,
        seed: Seed = None,
        words: Annotated[int | None, typer.Option(help="Visual words (512).")] = None,
        passes: Annotated[int | None, typer.Option(help="k-means passes (3).")] = None,
        features: Annotated[
            str | None, typer.Option(help="Classifier features: postnorm or prenorm.")
        ] = None,
        device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
        batch_size: Annotated[int | None, typer.Option(help="Images a forward (32).")] = None,
        workers: Annotated[
            int | None, typer.Option(help="Processes that decode images ahead (2).")
        ] = None,
        threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
        cache: Cache = None,
        strict: Annotated[
            bool | None, typer.Option("--strict", help="Stop at an image that cannot be decoded.")
        ] = None,
        dry_run: DryRun = False,
    ) -> None:
        from redi.config import RunConfig, overlay, read_config

        base = read_config(config) if config else RunConfig()
        changes = {
            "backbone": backbone,
            "train": train,
            "val": val,
            "out": out,
            "classifier": classifier,
            "class_map": class_map,
            "revision": revision,
            "size": size,
            "seed": seed,
            "vocabulary": {"n_words": words, "n_passes": passes},
            "probe": {"features": features},
            "runtime": {
                "device": device,
                "batch_size": batch_size,
                "workers": workers,
                "threads": threads,
                "cache": cache,
                "strict": strict,
            },
        }
        _execute(overlay(base, given(changes), "options").checked(), until, dry_run)

    return command


def _execute(config: Any, until: str, dry_run: bool) -> None:
    from redi.pipeline import execute

    try:
        results = execute(config, until, dry_run)
    except KeyboardInterrupt:
        typer.echo("redi: stopped; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    if results is not None:
        from redi.report.tables import print_tables

        print_tables(results)
        typer.echo(f"results: {Path(config.out) / 'results.json'}")
        typer.echo(f"Next: redi report {config.out}, redi compare {config.out}")


app.command(
    "run",
    help="The whole protocol: vocabulary, TF-IDF, probe, scores, evaluation, tables.\n\n"
    "Example: `redi run --backbone facebook/dinov3-vitb16-pretrain-lvd1689m --train "
    "imagenet/train --val imagenet/val --out runs/vitb16`\n\n"
    "Killed or stopped, the same command goes on where it was. Under torchrun "
    "(`torchrun --nproc-per-node 8 -m redi run ...`) the processes share the work.",
)(_run_command("analysis"))
for _stage, _help in STAGES.items():
    app.command(
        _stage,
        help=f"{_help} Runs what it needs before. Example: `redi {_stage} --config run.toml`",
        rich_help_panel="Single stages",
    )(_run_command(_stage))


@app.command()
def demo(
    out: Annotated[str, typer.Option("--out", help="The run folder.")] = "runs/demo",
    threads: Annotated[int, typer.Option(help="CPU threads of torch; 0: its own choice.")] = 0,
) -> None:
    """The whole protocol on an embedded default: generated images, a small trained backbone.

    No network, about three minutes on two cores. Example: `redi demo --out runs/demo`
    """
    from redi.demo.run import run_demo

    run_demo(Path(out), threads)


@app.command()
def cost(
    patches: Annotated[int, typer.Option(help="Patches of one image.")] = 196,
    prefix: Annotated[int, typer.Option(help="CLS, register and distillation tokens.")] = 5,
    width: Annotated[int, typer.Option(help="Hidden width D of the backbone.")] = 768,
    keep: Annotated[float, typer.Option(help="Fraction of patches kept.")] = 0.50,
    merge: Annotated[float, typer.Option(help="Fraction of patches merged into kept ones.")] = 0.25,
    cells: Annotated[int, typer.Option(help="Summary tokens per grid axis.")] = 2,
) -> None:
    """Analytic cost of a token budget: the paper's Table 3 for any backbone.

    Examples: `redi cost` for the paper's own numbers, `redi cost --width 192 --prefix 1` for ViT-Ti,
    `redi cost --keep 0.25 --merge 0.5` for a smaller budget.
    """
    from rich.console import Console

    from redi.cost import cost_table
    from redi.reduction import Budget
    from redi.report.sheets import print_sheet
    from redi.report.tables import table3

    costs = cost_table(patches, prefix, width, Budget(keep, merge, cells))
    print_sheet(table3(costs), Console())
