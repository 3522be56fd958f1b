"""The application that the commands register with, and the options that several of them share."""

from pathlib import Path
from typing import Annotated, Any

import typer

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

Names = Annotated[
    Path | None,
    typer.Option(
        help="File with readable names of the classes: a line each, or `folder<TAB>name` lines."
    ),
]


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """Only the options that were given."""
    nested = {k: given(v) if isinstance(v, dict) else v for k, v in changes.items()}
    return {key: value for key, value in nested.items() if value is not None}
