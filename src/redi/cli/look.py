"""Commands that show results: the report, the figures, a single image."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from redi import bounds
from redi.cli import options
from redi.cli.app import app, echo
from redi.cli.options import DATA, METHOD, MODEL, OUTPUT, option

SHOWN = "The product to show."


@app.command()
def report(
    run: options.Folder,
    train: options.MovedTrain = None,
    val: options.MovedVal = None,
    names: options.Names = None,
    open_page: Annotated[bool, option(OUTPUT, "Open the page in the browser.", "--open")] = False,
) -> None:
    """Build one page with the result, its tables and curves, the images and the visual words.

    It is written to RUN/report/index.html from the records of the run, in seconds, without a model. The page opens
    from disk and needs no network. Example: `redi report runs/demo`
    """
    from redi.report.build import build_report

    if train is not None or val is not None:
        from redi.runs.folder import repair

        repair(run, train, val)
    page = build_report(run, names)
    echo(f"report: {page}")
    if open_page and not webbrowser.open(page.absolute().as_uri()):
        echo("No browser was found here: open that file yourself.")


@app.command()
def figures(
    run: options.Folder,
    index: Annotated[
        int | None,
        option(
            DATA, "Index of Figure 1's image, as in the report's links.", default="a telling one", within=bounds.INDEX
        ),
    ] = None,
    names: options.Names = None,
    scorer: Annotated[str, option(METHOD, SHOWN, default="redi_mass")] = "redi_mass",
) -> None:
    """Write the paper's figures and tables for this run, and its comparisons: PDF, PNG, LaTeX, Markdown.

    They go to RUN/figures; all.tex shows them in one document. Example: `redi figures runs/demo`
    """
    from redi.report.figures import write_figures

    for path in write_figures(run, index, scorer, names):
        echo(f"written: {path}")


@app.command()
def inspect(
    image: Annotated[Path, typer.Argument(help="An image file.", metavar="IMAGE")],
    train: options.MovedTrain = None,
    val: options.MovedVal = None,
    names: options.Names = None,
    run: Annotated[Path | None, option(MODEL, "A run folder, whose corpus, backbone and classifier are used.")] = None,
    backbone: Annotated[str, option(MODEL, "Or a checkpoint alone, for attention scores without a corpus.")] = "",
    class_: Annotated[str, option(METHOD, "Class to look up.", "--class", default="the predicted one")] = "",
    scorer: Annotated[str, option(METHOD, SHOWN, default="redi_mass")] = "",
    device: options.Device = None,
    out: Annotated[
        Path | None, option(OUTPUT, "File for the picture.", default="IMAGE-redi.png in the current folder")
    ] = None,
) -> None:
    """Show which patches of one image matter, as a picture and a short table.

    Examples: `redi inspect cat.jpg --run runs/vitb16`, `redi inspect cat.jpg --run runs/vitb16 --class "tabby cat"`,
    `redi inspect cat.jpg --backbone facebook/dinov2-small`.
    """
    from redi.api import inspect as explain

    out = out or Path(f"{image.stem}-redi.png")
    result = explain(
        image,
        run,
        backbone=backbone or "",
        class_name=class_,
        scorer=scorer,
        names=names,
        train=train,
        val=val,
        device=device or "auto",
        out=out,
    )
    result.print()
    echo(f"picture: {out}")
