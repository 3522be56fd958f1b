"""The application that all commands register with."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from redi.errors import ConfigError, printable

AGAIN = "stopped; run the same command again."
CONTINUES = "stopped; run the same command again to continue."


def echo(text: str) -> None:
    """Print a line that may hold names of files."""
    typer.echo(printable(text))


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, without those that are None."""
    nested = {k: given(v) if isinstance(v, dict) else v for k, v in changes.items()}
    return {key: value for key, value in nested.items() if value is not None}


@contextmanager
def interruptible(message: str = CONTINUES) -> Iterator[None]:
    """Ctrl-C ends the command with one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"redi: {printable(message)}", err=True)
        raise typer.Exit(130) from None


class Commands(TyperGroup):
    """All commands. Ctrl-C ends each of them with one line, also while it imports what it needs."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with interruptible(AGAIN):
            return super().make_context(*arguments, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the arguments. An empty one, as of a variable that is not set, would mean this folder."""
        for before, text in zip(["", *args], args, strict=False):
            if not text or re.fullmatch(r"--[\w-]+=", text):
                name = text.removesuffix("=") or (before if before.startswith("-") else "An argument")
                raise ConfigError(f"{name} is empty: give a value, or leave it out.")
        if args[0] == "accelerate":
            raise ConfigError(
                "accelerate is a function of Python, redi.accelerate(MODEL, cost=0.65), not a command: `redi tune` "
                "finds a setting for it, and `redi export` writes the faster model as ONNX."
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with interruptible(AGAIN):
            return super().invoke(ctx)


app = typer.Typer(
    name="redi",
    cls=Commands,
    help="Which patches of a frozen Vision Transformer matter, and how much faster it runs without the rest.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
