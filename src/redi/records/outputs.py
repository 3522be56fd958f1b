"""Where results may be written: never over the user's own files, and never over what they are made from.

A folder of results has a marker, a JSON file that only redi writes and that is the first file in it. A folder that
holds anything else but no marker belongs to the user and is refused before anything is written.
"""

import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from redi.errors import ArtifactError, ConfigError
from redi.records import artifacts
from redi.records.drafts import is_draft

#: The lock of a run folder, an empty file.
LOCK = ".lock"
#: The folder inside a run folder for pictures that the demo draws: the only data that may lie there.
PICTURES = "images"
#: The formats of a picture; not JPEG, in which photographs come.
PICTURE_SUFFIXES = (".png", ".pdf", ".svg")
#: What our pictures and exported models hold, so that they may be replaced.
MARK = "written by redi-vit"
#: Number of bytes at the begin and at the end of a file in which the mark is looked for.
_NEAR = 2**16


class Marker(NamedTuple):
    """The file that makes a folder ours, and the fields by which its content is known."""

    file: str
    fields: tuple[str, ...]

    def marks(self, folder: Path) -> bool:
        path = folder / self.file
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from None
        except (ValueError, RecursionError):
            return False
        return isinstance(content, dict) and all(name in content for name in self.fields)


RUN = Marker("run.json", ("identity",))
TUNED = Marker("tune.json", ("points", "setting", "calibration"))


def require_own(folder: Path, marker: Marker = RUN) -> None:
    """Refuse a folder that holds something but not our marker; a new or an empty folder is fine."""
    if not folder.is_dir() or marker.marks(folder):
        return
    if foreign := _foreign_entries(folder):
        raise ConfigError(
            f"{folder} is not empty and was not made by redi: it holds {foreign[0]} and no {marker.file} of ours. "
            "Nothing was written; choose another --out."
        )


def require_own_runs(folder: Path, files: Iterable[str]) -> None:
    """Refuse a folder for several runs that holds anything but run folders and the named files."""
    if not folder.is_dir():
        return
    for entry in _entries(folder):
        if entry.is_dir():
            require_own(entry)
        elif entry.name not in files:
            raise ConfigError(
                f"{folder} is not a folder of runs: it holds {entry.name}. Nothing was written; choose another --out."
            )


def require_run(folder: Path) -> None:
    """Refuse a folder that no run has made."""
    if not RUN.marks(folder):
        raise ConfigError(f"{folder} is not a run folder: it has no {RUN.file} of ours. Use `redi run` first.")


def require_no_link(folder: Path) -> None:
    """Refuse a folder inside a run that is a link: the files behind it are the user's."""
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link to another place. Nothing was written; remove the link.")


def require_apart(out: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Refuse a folder for results that is, contains or lies inside one of the inputs, which are (name, path).

    Links are followed. The pictures that the demo draws may lie in ``PICTURES``.
    """
    place = _real(out)
    for name, path in inputs:
        data = _real(path)
        if place == data:
            relation = "is"
        elif place.is_relative_to(data):
            relation = "lies inside"
        elif data.is_relative_to(place) and not data.is_relative_to(place / PICTURES):
            relation = "contains"
        else:
            continue
        raise ConfigError(f"--out {out} {relation} {name} {path}. Nothing was written; choose another --out.")


def require_file(
    out: Path,
    suffixes: tuple[str, ...],
    inputs: Iterable[Path] = (),
    replaces: tuple[str, ...] = (),
    ours: Callable[[Path], bool] | None = None,
) -> None:
    """Refuse a file for results that is a folder, has another suffix, is one of the inputs or is not ours to replace.

    ``replaces`` and ``ours`` are as for :func:`require_replaceable`.
    """
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file that ends in {' or '.join(suffixes)}.")
    if out.suffix.lower() not in suffixes:
        raise ConfigError(f"--out {out} must end in {' or '.join(suffixes)}.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} must be a file in a folder that exists.")
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise ConfigError(f"--out {out} is also an input. Nothing was written; choose another --out.")
    require_replaceable(out, replaces, ours)


def require_replaceable(out: Path, replaces: tuple[str, ...] = (), ours: Callable[[Path], bool] | None = None) -> None:
    """Refuse to replace a file that exists, unless an earlier call wrote it.

    It must be a record with the fields ``replaces``, or what ``ours`` knows; without either it must have our mark.
    """
    ours = partial(_is_record, fields=replaces) if replaces else ours or _is_marked
    empty = out.is_file() and not out.stat().st_size  # as of mktemp: it holds nothing that could be lost
    if os.path.lexists(out) and not empty and not ours(out):
        raise ConfigError(f"{out} exists and was not written by redi, or is damaged: choose another name.")


def _is_record(path: Path, fields: tuple[str, ...]) -> bool:
    return Marker(path.name, fields).marks(path.parent)


def _is_marked(path: Path) -> bool:
    """Whether a picture or a model begins or ends with our mark, which all formats store as plain letters."""
    try:
        with path.open("rb") as file:
            head = file.read(_NEAR)
            file.seek(max(path.stat().st_size - _NEAR, 0))
            return MARK.encode() in head + file.read(_NEAR)
    except OSError:
        return False


def mark_run(folder: Path, identity: dict[str, str]) -> None:
    """Write the marker of a run with what the run was made from; empty if that does not exist yet."""
    artifacts.write_text(folder / RUN.file, json.dumps({"identity": identity}, indent=2) + "\n")


def recorded_identity(folder: Path) -> dict[str, str]:
    """What the run in a folder was made from; empty for a new folder."""
    if not RUN.marks(folder):
        return {}
    identity = json.loads((folder / RUN.file).read_text(encoding="utf-8"))["identity"]
    if not isinstance(identity, dict):
        raise ArtifactError(f"{folder / RUN.file} is damaged: choose another --out.")
    return identity


def _foreign_entries(folder: Path) -> list[str]:
    """Names in a folder without a marker, except the lock, which a run leaves if it is killed before it writes one."""
    return [entry.name for entry in _entries(folder) if not (entry.name == LOCK and entry.lstat().st_size == 0)]


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, without the drafts of killed processes."""
    try:
        return sorted(path for path in folder.iterdir() if not is_draft(path))
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read: {error.strerror}. Choose another --out.") from None


def _real(path: Path) -> Path:
    """The path with all links followed; a loop of links is left as it is."""
    return Path(os.path.realpath(path.expanduser()))
