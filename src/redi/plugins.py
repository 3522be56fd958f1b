"""A user's own scorer or reducer, from a file named on the command line: ``my.py:name``.

This is the only place where code from outside the package is run, and only for a name that was typed:
a saved run or a configuration file cannot name one.
"""

import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from redi.errors import ConfigError
from redi.reduction import OneShot, Progressive


class Plugin(NamedTuple):
    name: str
    value: Any
    digest: str  # of the file, so that a changed file is computed anew


def is_plugin(text: str) -> bool:
    return ":" in text


def load_plugin(text: str) -> Plugin:
    """``path/to/file.py:name``; every mistake is one line."""
    path_text, _, name = text.rpartition(":")
    path = Path(path_text).expanduser()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or path.suffix != ".py":
        raise ConfigError(f"{text!r} does not name a function as file.py:name.")
    if not path.is_file():
        raise ConfigError(f"There is no file {path} to take {name!r} from.")
    source = path.read_bytes()
    module = ModuleType(f"redi_user_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a class's module up there
    try:
        # The bytes that are hashed are those that run, and nothing is written beside the user's file.
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ConfigError(f"{path} cannot be imported: {one_line(error)}") from error
    value = getattr(module, name, None)
    if not (callable(value) or isinstance(value, OneShot | Progressive)):
        raise ConfigError(f"{path} has no function, OneShot or Progressive called {name!r}.")
    return Plugin(name, value, hashlib.sha256(source).hexdigest()[:16])


def one_line(error: BaseException) -> str:
    """What a user's code raised, as one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
