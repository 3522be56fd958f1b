"""Records as JSON: one writer and one reader for all of them.

A record is a frozen dataclass of numbers, texts, lists, tuples, dictionaries and other records. The
reader rebuilds it from the types of its fields, so tuples and nested records come back as they were.
"""

import json
import reprlib
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from redi.checks import parse_json
from redi.errors import ArtifactError, RediError, one_line
from redi.records import artifacts

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> Path:
    """Write a record; a number that is not finite is an error, and the file stays as it was."""
    content = asdict(record)
    if wrong := _not_finite(content):
        raise ArtifactError(f"{path} is not written: its {wrong} is not a finite number.")
    artifacts.write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def _not_finite(content: Any) -> str:
    """The place of the first number that is not finite, e.g. ``rows.3.top1``; empty if there is none."""
    if isinstance(content, float):
        return "" if isfinite(content) else str(content)
    entries = content.items() if isinstance(content, dict) else enumerate(content) if _is_list(content) else ()
    for name, entry in entries:
        if wrong := _not_finite(entry):
            return str(name) if isinstance(entry, float) else f"{name}.{wrong}"
    return ""


def _is_list(content: Any) -> bool:
    return isinstance(content, list | tuple)


def read_record(path: Path, kind: type[Record], command: str, complete: bool = False) -> Record:
    """Read the record that ``command`` wrote. With ``complete``, no field may be missing."""
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"))
        record: Record = build(kind, content)
        if complete and (missing := set(_types(kind)) - set(content)):  # type: ignore[arg-type]
            raise KeyError(f"{min(missing)} is missing")
        return record
    except FileNotFoundError:
        raise ArtifactError(f"There is no {path.name} in {path.parent}: run `{command}` first.") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error) if isinstance(error, RediError) else one_line(error)
        raise ArtifactError(f"{path} cannot be read as a result of `{command}`: {reason.rstrip('.')}.") from None


def build(kind: Any, content: Any) -> Any:
    """Rebuild a value of the given type from its JSON content."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if content is None and NoneType in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        return build(kind, content)
    if origin is list:
        return [build(arguments[0], entry) for entry in _checked(content, list, tuple)]
    if origin is dict:
        return {key: build(arguments[1], entry) for key, entry in _checked(content, dict).items()}
    if origin is tuple:
        entries = _checked(content, list, tuple)
        if arguments[-1] is Ellipsis:
            return tuple(build(arguments[0], entry) for entry in entries)
        return tuple(build(argument, entry) for argument, entry in zip(arguments, entries, strict=True))
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        if unknown := set(_checked(content, dict)) - set(types):
            raise KeyError(f"{min(unknown)} is not known")
        return kind(**{name: build(types[name], entry) for name, entry in content.items()})
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named tuple
        types = get_type_hints(kind)
        entries = zip(types.values(), _checked(content, list, tuple), strict=True)
        return kind(*(build(argument, entry) for argument, entry in entries))
    if kind is float and isinstance(content, int | float) and not isinstance(content, bool):
        if not isfinite(content):
            raise ValueError(f"{content} is not a finite number")
        return float(content)
    return content if kind is Any else _checked(content, kind)


def _checked(content: Any, *kinds: type) -> Any:
    """Return the content if it has one of the types; True is not a number, and a text is not a list."""
    if not isinstance(content, kinds) or (isinstance(content, bool) and bool not in kinds):
        raise TypeError(f"{reprlib.repr(content)} is not of type {kinds[0].__name__}")
    return content


@cache
def _types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind) if entry.init}
