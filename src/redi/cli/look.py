"""Commands that show: the report, the figures, any one image."""

from pathlib import Path
from typing import Annotated

import typer

from redi.cli.app import Names, app


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
