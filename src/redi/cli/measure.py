"""Commands that measure beyond the protocol: comparisons, speed, several backbones."""

from pathlib import Path
from typing import Annotated

import typer

from redi.cli.app import Cache, DryRun, Seed, Size, app, given


@app.command()
def compare(
    run: Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")],
    study: Annotated[
        list[str] | None,
        typer.Option(
            help="scorers, reducers (equal tokens), costs (equal cost), deployable, sweep, ablations; "
            "all without it. May be given more than once, as all options below."
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
    config = overlay(saved_config(run), given({"runtime": runtime}), "options").checked()
    asked = {
        "scorers": scorer,
        "labels": labels,
        "reducers": reducer,
        "keeps": keep,
        "tokens": tokens,
        "costs": cost,
        "after": after,
    }
    if not (scorer or reducer) and given(asked):
        raise ConfigError(
            "--labels, --keep, --tokens, --cost and --after need --scorer or --reducer."
        )
    request = Request(**given(asked)) if scorer or reducer else None
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
    cost: Annotated[
        float,
        typer.Option(
            help="Of block by block reducers, relative to dense; 0: the paper's operator's."
        ),
    ] = 0.0,
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
        cost=cost,
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
        diagnosis = measure(overlay(base, given(changes), "options"), backbone, dry_run)
    except KeyboardInterrupt:
        typer.echo("redi: stopped; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    if diagnosis is not None:
        from redi.report.diagnose import publish

        typer.echo(f"written: {publish(Path(out), diagnosis)}")
