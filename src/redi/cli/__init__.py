"""The command line: parse, build the configuration, call one library function, print.

Heavy imports happen inside the commands, so that help appears at once.
"""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper

import typer

from redi.cli.app import app
from redi.errors import RediError, printable

# Help lists the commands in the order in which they are imported.
from redi.cli import protocol  # isort: skip
from redi.cli import measure  # isort: skip
from redi.cli import audit  # isort: skip
from redi.cli import text  # isort: skip
from redi.cli import dense  # isort: skip
from redi.cli import look  # isort: skip
from redi.cli import deploy  # isort: skip
from redi.cli import learn  # isort: skip

__all__ = ["app", "audit", "dense", "deploy", "learn", "look", "main", "measure", "protocol", "text"]


def main() -> None:
    """Entry point. A user's error is one line on stderr and exit code 1, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # not if it is closed; letters that it cannot show are escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # so that a full disk under it is noticed here
    except RediError as error:
        typer.echo(f"redi: {printable(error)}", err=True)
        sys.exit(1)
    except OSError as error:
        with suppress(
            OSError, ValueError, AttributeError
        ):  # what is left in the buffer must not fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader of a pipe has seen enough
            typer.echo(f"redi: {error.filename or 'The output'}: {error.strerror or error}.", err=True)
        sys.exit(1)
