"""The command line: parse, build the configuration, call one library function, print.

Heavy imports happen inside the commands, so that help appears at once.
"""

import sys

import typer

from redi.cli.app import app
from redi.errors import RediError, printable

# Help lists the commands in the order in which they are imported.
from redi.cli import protocol  # isort: skip
from redi.cli import measure  # isort: skip
from redi.cli import look  # isort: skip
from redi.cli import deploy  # isort: skip

__all__ = ["app", "deploy", "look", "main", "measure", "protocol"]


def main() -> None:
    """Entry point. A user's error is one line on stderr and exit code 1, never a traceback."""
    try:
        app()
    except RediError as error:
        typer.echo(f"redi: {printable(error)}", err=True)
        sys.exit(1)
