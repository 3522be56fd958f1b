"""The command line: parse, build the configuration, call one library function, print.

Heavy imports happen inside the commands, so that help appears at once.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redi import __version__
from redi.errors import RediError

app = typer.Typer(
    name="redi",
    help="Which patches of a frozen Vision Transformer matter, and how much faster it runs "
    "without the rest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Out = Annotated[str | None, typer.Option("--out", help="The run folder.", metavar="RUN")]
Size = Annotated[
    int | None,
    typer.Option(help="Side of the crop in pixels; without it what gives a 14x14 grid."),
]
Seed = Annotated[int | None, typer.Option(help="Of views, random score and probe batches.")]
Cache = Annotated[
    str | None, typer.Option(help="fp16 keeps patch features on disk between passes.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]

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
        _execute(overlay(base, _given(changes), "options").checked(), until, dry_run)

    return command


def _given(changes: dict[str, Any]) -> dict[str, Any]:
    """Only the options that were given."""
    nested = {k: _given(v) if isinstance(v, dict) else v for k, v in changes.items()}
    return {key: value for key, value in nested.items() if value is not None}


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
def compare(
    run: Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")],
    study: Annotated[
        list[str] | None,
        typer.Option(
            help="scorers, reducers (equal tokens), costs (equal cost), sweep, ablations; all "
            "without it. May be given more than once, as all options below."
        ),
    ] = None,
    scorer: Annotated[
        list[str] | None,
        typer.Option(help="A score of your own grid: mass, redi_cls_mean, mass@4, my.py:name."),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(help="gt (an oracle), predicted, posterior, shuffled, other or none."),
    ] = None,
    reducer: Annotated[
        list[str] | None,
        typer.Option(help="keep-merge-compress, prune, fuse, pool, tome, pitome, my.py:name, ..."),
    ] = None,
    keep: Annotated[
        list[float] | None,
        typer.Option(
            help="Keep rate, 0 to 1; a progressive reducer gets the cost the paper's operator has there."
        ),
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(help="Or patch tokens left after the last block.")
    ] = None,
    cost: Annotated[
        list[float] | None, typer.Option(help="Or a cost relative to dense, 0 to 1.")
    ] = None,
    after: Annotated[
        list[int] | None, typer.Option(help="Blocks before a one-shot reducer (0).")
    ] = None,
    against: Annotated[str, typer.Option(help="Name of the row to compare with.")] = "",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a forward.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Every score and every reducer on one run, with paired statistics.

    Examples: `redi compare runs/demo` for all studies, `redi compare runs/demo --study scorers`,
    `redi compare runs/demo --scorer redi_mass --labels predicted --reducer prune --reducer tome
    --cost 0.55 --cost 0.65`, `redi compare runs/demo --scorer my.py:contrast`.

    Killed or stopped, the same command goes on where it was. Writes compare.json, compare.md and
    curves.png into the run folder and adds its rows to results.json.
    """
    from redi.compare.run import compare as measure
    from redi.compare.studies import STUDIES, Request
    from redi.config import overlay, saved_config
    from redi.errors import ConfigError

    runtime = {"device": device, "batch_size": batch_size, "workers": workers, "threads": threads}
    config = overlay(saved_config(run), _given({"runtime": runtime}), "options").checked()
    asked = {
        "scorers": scorer,
        "labels": labels,
        "reducers": reducer,
        "keeps": keep,
        "tokens": tokens,
        "costs": cost,
        "after": after,
    }
    if not (scorer or reducer) and _given(asked):
        raise ConfigError(
            "--labels, --keep, --tokens, --cost and --after need --scorer or --reducer."
        )
    request = Request(**_given(asked)) if scorer or reducer else None
    studies = study or ([] if request else list(STUDIES))
    try:
        bundle = measure(config, studies, request, against, dry_run)
    except KeyboardInterrupt:
        typer.echo("redi: stopped; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    if bundle is not None:
        from redi.report.compare import publish

        for path in publish(run, bundle):
            typer.echo(f"written: {path}")


@app.command()
def bench(
    backbone: Annotated[str, typer.Option(help="Hub name or folder of a checkpoint.")] = "",
    size: Annotated[
        str, typer.Option(help="Or a ViT of random weights: tiny, small or base (the default).")
    ] = "",
    reducer: Annotated[
        list[str] | None, typer.Option(help="All without it; may be given more than once.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Images a call: 1, 8 and 32; on a GPU 64 and 128 too.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="fp32, bf16; both without it.")] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="eager (SDPA), compile; both without it.")
    ] = None,
    scoring: Annotated[
        bool, typer.Option(help="Time one-shot reducers also with the pass that makes scores.")
    ] = True,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats (20).")] = 0,
    limit: Annotated[
        float, typer.Option(help="Seconds a configuration may be timed; at least 3 repeats.")
    ] = 60.0,
    threads: Annotated[int, typer.Option(help="CPU threads of torch; 0: its own choice.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test of a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("bench.json"),
) -> None:
    """Measured speed of the dense path and of every reducer on this machine.

    Examples: `redi bench --quick`, `redi bench --size base --batch 8 --dtype fp32 --mode eager`,
    `redi bench --backbone facebook/dinov2-small --reducer tome --reducer prune`.
    """
    from redi.bench import BenchConfig, run_bench, write_bench
    from redi.report.bench import print_bench

    config = BenchConfig(
        backbone=backbone,
        size=size,
        reducers=tuple(reducer or ()),
        batches=tuple(batch or ()),
        dtypes=tuple(dtype or ()),
        modes=tuple(mode or ()),
        scoring=scoring,
        repeats=repeats,
        limit=limit,
        threads=threads,
        device=device,
        quick=quick,
    )
    try:
        result = run_bench(config, save=lambda found: write_bench(out, found))
    except KeyboardInterrupt:
        typer.echo(f"redi: stopped; groups that were finished are in {out}.", err=True)
        raise typer.Exit(130) from None
    print_bench(result)
    typer.echo(f"records: {out}")


Names = Annotated[
    Path | None,
    typer.Option(
        help="File with readable names of the classes: a line each, or `folder<TAB>name` lines."
    ),
]


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")],
    names: Names = None,
) -> None:
    """One page with the result, its tables and curves, the images and the visual words.

    Written to RUN/report/index.html from the records of the run, in seconds, without a model. It
    opens from disk and asks the network for nothing. Example: `redi report runs/demo`
    """
    from redi.report.build import build_report

    typer.echo(f"report: {build_report(run, names)}")


@app.command()
def figures(
    run: Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")],
    image: Annotated[
        int | None, typer.Option(help="Index of Figure 1's image, as in the report's links.")
    ] = None,
    score: Annotated[str, typer.Option(help="The product that Figure 1 shows.")] = "redi_mass",
    names: Names = None,
) -> None:
    """The paper's two figures and three tables for this run: PDF, PNG, LaTeX, Markdown.

    Written to RUN/figures. Example: `redi figures runs/demo`
    """
    from redi.report.figures import write_figures

    for path in write_figures(run, image, score, names):
        typer.echo(f"written: {path}")


@app.command()
def inspect(
    image: Annotated[Path, typer.Argument(help="Any picture.", metavar="IMAGE")],
    run: Annotated[
        Path | None, typer.Option(help="A run folder: its corpus, backbone and classifier.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Or a checkpoint alone: attention scores without a corpus.")
    ] = "",
    class_: Annotated[
        str,
        typer.Option("--class", help="Whose TF-IDF to look up; the predicted class without it."),
    ] = "",
    score: Annotated[str, typer.Option(help="The product to show (redi_mass).")] = "",
    out: Annotated[Path | None, typer.Option(help="The picture (IMAGE-redi.png here).")] = None,
    names: Names = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Which patches of one image matter, as a picture and a short table.

    Examples: `redi inspect cat.jpg --run runs/vitb16`, `redi inspect cat.jpg --run runs/vitb16
    --class "tabby cat"`, `redi inspect cat.jpg --backbone facebook/dinov2-small`.
    """
    from redi.errors import ConfigError
    from redi.inspection import inspect_alone, inspect_in_run
    from redi.report.inspection import print_inspection, write_picture
    from redi.run import MAIN_ROW, PRODUCTS

    if (run is None) == (not backbone):
        raise ConfigError("Give either --run RUN or --backbone NAME.")
    if score and score not in PRODUCTS:
        raise ConfigError(f"--score is a product, {', '.join(PRODUCTS)}, not {score!r}.")
    if run is None:
        if class_ or names or score:
            raise ConfigError("--class, --names and --score need the corpus of a run: --run RUN.")
        found = inspect_alone(image, backbone, device)
    else:
        found = inspect_in_run(image, run, class_, device, names)
    print_inspection(found, score or MAIN_ROW)
    typer.echo(f"picture: {write_picture(found, score or MAIN_ROW, out)}")


@app.command()
def diagnose(
    backbone: Annotated[
        list[str], typer.Option(help="Hub name, timm:name or folder; given once for each backbone.")
    ],
    train: Annotated[str, typer.Option(help="Training images, as for `redi run`.")],
    val: Annotated[str, typer.Option(help="Validation images, likewise.")],
    out: Annotated[str, typer.Option(help="Folder that gets one run folder a backbone.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with further settings, as for `redi run`.")
    ] = None,
    classifier: Annotated[
        str, typer.Option(help="both (native wherever there is a head, and the probe) or probe.")
    ] = "both",
    class_map: Annotated[
        str | None, typer.Option(help="File that maps folders to classes of the native heads.")
    ] = None,
    size: Size = None,
    seed: Seed = None,
    words: Annotated[int | None, typer.Option(help="Visual words (512).")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a forward (32).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
    cache: Cache = None,
    dry_run: DryRun = False,
) -> None:
    """Dense, attention alone and the hybrid on several backbones: the paper's diagnostics, one table.

    Example: `redi diagnose --backbone timm:deit3_base_patch16_224.fb_in1k --backbone
    timm:vit_base_patch16_224.mae --train imagenet/train --val imagenet/val --out runs/diagnose`

    Killed or stopped, the same command goes on where it was. Writes diagnose.json and diagnose.md.
    """
    from redi.config import RunConfig, overlay, read_config
    from redi.diagnose import diagnose as measure

    base = read_config(config) if config else RunConfig()
    runtime = {
        "device": device,
        "batch_size": batch_size,
        "workers": workers,
        "threads": threads,
        "cache": cache,
    }
    changes = {
        "train": train,
        "val": val,
        "out": out,
        "size": size,
        "seed": seed,
        "classifier": classifier,
        "class_map": class_map,
        "vocabulary": {"n_words": words},
        "runtime": runtime,
    }
    try:
        diagnosis = measure(overlay(base, _given(changes), "options"), backbone, dry_run)
    except KeyboardInterrupt:
        typer.echo("redi: stopped; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    if diagnosis is not None:
        from redi.report.diagnose import publish

        typer.echo(f"written: {publish(Path(out), diagnosis)}")


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


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 1, never a traceback."""
    try:
        app()
    except RediError as error:
        typer.echo(f"redi: {error}", err=True)
        sys.exit(1)
