"""The command line: parse, call one library function, print. Heavy imports happen inside commands."""

import sys
from typing import Annotated

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
)


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
    from rich.table import Table

    from redi.cost import cost_table
    from redi.reduction import Budget

    table = Table("Quantity", "Dense", "Reduced", "Reduction", title="Analytic cost")
    for row in cost_table(patches, prefix, width, Budget(keep, merge, cells)):
        table.add_row(
            row.quantity, f"{row.dense:g}", f"{row.reduced:.4g}", f"{row.reduction:.1f} %"
        )
    table.caption = "Excludes score construction, reduction overhead and hardware effects."
    Console().print(table)


def main() -> None:
    """Entry point: a user's mistake is one line on stderr and exit code 1, never a traceback."""
    try:
        app()
    except RediError as error:
        typer.echo(f"redi: {error}", err=True)
        sys.exit(1)
