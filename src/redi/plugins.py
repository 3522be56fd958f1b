"""A user's own scorer or reducer, from a file named on the command line: ``my.py:name``.

This is the only place where code from outside the package is run, and only for a name that was typed:
a saved run or a configuration file cannot name one.
"""

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from redi.errors import ConfigError


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
    spec = importlib.util.spec_from_file_location(f"redi_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{path} has no {name!r}.")
    return Plugin(name, getattr(module, name), hashlib.sha256(path.read_bytes()).hexdigest()[:16])
