"""Settings that the user names, as a configuration."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from redi.checks import require_type
from redi.errors import ConfigError
from redi.runs.config import RunConfig, overlay, read_config

T = TypeVar("T")

#: Settings of a run that belong to a table of its configuration; all others are fields of the configuration itself.
TABLES = {
    "words": ("vocabulary", "n_words"),
    "passes": ("vocabulary", "n_passes"),
    "features": ("probe", "features"),
    **{name: ("runtime", name) for name in ("device", "batch_size", "workers", "threads", "cache", "strict")},
}


def run_config(settings: Mapping[str, Any], file: str | Path | None = None, base: RunConfig | None = None) -> RunConfig:
    """The configuration of a run: the settings that are not None, over those of a file or of a base."""
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        value = str(value) if isinstance(value, Path) else value
        if name in TABLES:
            table, field = TABLES[name]
            changes.setdefault(table, {})[field] = value
        else:
            changes[name] = value
    base = base or (read_config(Path(file)) if file else RunConfig())
    return overlay(base, changes, "options").checked()


def configured(kind: type[T], settings: Mapping[str, Any], names: Mapping[str, str], **fixed: Any) -> T:
    """A configuration from the settings that are not None. ``names`` are those that differ from the field's name.

    A setting with several values is given as one value or as a list.
    """
    own = {name: field for field, name in names.items()}
    entries = {own.get(entry.name, entry.name): entry for entry in fields(kind) if entry.name not in fixed}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    values = {}
    for name, value in settings.items():
        if name not in entries:
            raise ConfigError(f"There is no setting {name!r}; known are {', '.join(sorted(entries))}.")
        if value is None:
            continue
        entry = entries[name]
        value = str(value) if isinstance(value, Path) else value
        several = isinstance(entry.default, tuple)
        # The type of one value: int in ``int``, ``int | None`` and ``tuple[int, ...]``.
        expected = (*get_args(types[entry.name]), types[entry.name])[0]
        given = tuple(value) if several and isinstance(value, list | tuple) else (value,)
        given = tuple(require_type(one, expected, name) for one in given)
        values[entry.name] = given if several else given[0]
    return kind(**fixed, **values)
