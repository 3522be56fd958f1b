"""Scores and reducers from the user's own files, named on the command line as ``my.py:name``.

This is the only place where code from outside the package runs, and only for a name on the command line: a saved run
or a configuration file cannot name a file.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from redi.attention import ATTENTION_SCORES
from redi.comparison.grid import Request
from redi.comparison.guards import guarded_reducer, guarded_scorer, unchanged_torch
from redi.corpus import LABEL_SOURCES, TERMS
from redi.errors import ConfigError, one_line, printable
from redi.reduction import REDUCERS, OneShot, Progressive
from redi.rows import DENSE, Catalogue
from redi.scorers import SCORERS


class Plugin(NamedTuple):
    """A function or reducer from a user's file."""

    name: str
    value: Any
    digest: str  # of the file; rows of a changed file are computed again


def is_plugin(text: str) -> bool:
    return ":" in text


def load_plugin(text: str) -> Plugin:
    """Load ``path/to/file.py:name``. Every error becomes a message of one line."""
    path_text, _, name = text.rpartition(":")
    path = Path(path_text).expanduser()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or path.suffix != ".py":
        raise ConfigError(f"{text!r} does not name a function in the form file.py:name.")
    if not path.is_file():
        raise ConfigError(f"There is no file {path} to take {name!r} from.")
    source = path.read_bytes()
    module = ModuleType(f"redi_user_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look up a class's module there
    try:
        # The bytes that are hashed are the bytes that run; nothing is written beside the user's file.
        with unchanged_torch():
            exec(compile(source, path, "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's file raises
        raise ConfigError(f"{path} cannot be imported: {printable(one_line(error))}") from error
    value = getattr(module, name, None)
    if not (callable(value) or isinstance(value, OneShot | Progressive)):
        raise ConfigError(f"{path} has no function, OneShot or Progressive called {name!r}.")
    return Plugin(name, value, hashlib.sha256(source).hexdigest()[:16])


def with_plugins(request: Request | None) -> tuple[Catalogue, Request | None]:
    """Load the user's functions. Return the catalogue with them, and the request with names instead of files."""
    if request is None:
        return Catalogue(), None
    scorers: dict[str, Any] = {}
    reducers: dict[str, Any] = {}
    digests: dict[str, str] = {}
    names: dict[str, str] = {}
    for text in (*request.scorers, *request.reducers):
        if not is_plugin(text):
            continue
        prefix, file = _split_product(text)
        path, _, name = file.rpartition(":")
        name, at, block = name.partition("@")
        plugin = load_plugin(f"{path}:{name}")
        if digests.get(plugin.name, plugin.digest) != plugin.digest:
            raise ConfigError(f"Two files define {plugin.name!r}: rename one of the two.")
        (scorers if text in request.scorers else reducers)[plugin.name] = plugin.value
        digests[plugin.name] = plugin.digest
        names[text] = prefix + plugin.name + at + block
    renamed = replace(
        request,
        scorers=[names.get(text, text) for text in request.scorers],
        reducers=[names.get(text, text) for text in request.reducers],
    )
    return extended_catalogue(scorers, reducers, digests), renamed


def _split_product(text: str) -> tuple[str, str]:
    """``redi_my.py:name`` is the product of a corpus term with the user's own score."""
    for prefix in (f"{term.prefix}_" for term in TERMS.values()):
        if text.startswith(prefix) and not Path(text.rpartition(":")[0]).exists():
            return prefix, text.removeprefix(prefix)
    return "", text


def extended_catalogue(
    scorers: Mapping[str, Any], reducers: Mapping[str, Any], digests: Mapping[str, str]
) -> Catalogue:
    """The package's tables with the user's additions. A name that the package uses raises ConfigError."""
    taken = {*SCORERS, *ATTENTION_SCORES, *TERMS, *REDUCERS, *LABEL_SOURCES, DENSE}
    prefixes = {term.prefix for term in TERMS.values()}
    for name in (*scorers, *reducers):
        if name in taken or name.partition("_")[0] in prefixes:
            raise ConfigError(f"{name!r} is a name of the package's own: rename your function.")
    if both := set(scorers) & set(reducers):
        raise ConfigError(f"{min(both)!r} is both a scorer and a reducer: rename one of the two.")
    wrapped_scorers = {name: guarded_scorer(name, function) for name, function in scorers.items()}
    wrapped_reducers = {name: guarded_reducer(name, value) for name, value in reducers.items()}
    return Catalogue({**SCORERS, **wrapped_scorers}, {**REDUCERS, **wrapped_reducers}, digests)
