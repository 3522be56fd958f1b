"""Which class of a checkpoint's own head each folder is."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from redi.errors import ConfigError


def head_classes(
    folders: Sequence[str], head: Sequence[str], class_map: Path | None = None
) -> tuple[list[int], str]:
    """(head class of each folder, how it was found).

    A class map decides where there is one. Else a folder is the head's class of the same name (the
    Hub writes "tench, Tinca tinca", of which any part will do), if that is one class and no other
    folder's. Where no name agrees, the sorted order is taken, and only if the counts are equal.
    """
    if class_map is not None:
        return _by_map(folders, head, class_map), f"by {class_map.name}"
    advice = "Pass --class-map FILE with lines `folder<TAB>class of the head`, or take the probe."
    names = _names(head)
    found = [_by_name(folder, names) for folder in folders]
    for folder, numbers in zip(folders, found, strict=True):
        if len(numbers) > 1:
            raise ConfigError(f"The head has {len(numbers)} classes called {folder!r}. {advice}")
    if all(found):
        chosen = [numbers[0] for numbers in found]
        if len(set(chosen)) < len(chosen):
            twice = next(k for k in chosen if chosen.count(k) > 1)
            raise ConfigError(f"Several folders match the head's class {head[twice]!r}. {advice}")
        return chosen, "by name"
    missing = folders[found.index([])]
    if len(folders) != len(head):
        raise ConfigError(
            f"The checkpoint's head has {len(head)} classes and none is called {missing!r}; with "
            f"{len(folders)} folders the order cannot decide. {advice}"
        )
    if any(numbers and numbers[0] != place for place, numbers in enumerate(found)):
        raise ConfigError(
            f"Some folders bear names of the head's classes and others, like {missing!r}, do not, so "
            f"neither names nor order can be trusted. {advice}"
        )
    return list(range(len(head))), "by sorted order: the names differ and the counts agree"


def class_titles(
    folders: Sequence[str], head: Sequence[str], columns: Sequence[int], names: Path | None
) -> list[str]:
    """What to call the classes: by a file of names, by the names of the checkpoint's head, or by
    their folders."""
    if names is None:
        return [head[column] for column in columns] if columns else list(folders)
    try:
        lines = [line for line in names.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{names} cannot be read: {error}.") from None
    pairs = dict(line.split("\t", 1) for line in lines if "\t" in line)
    if len(pairs) == len(lines):
        return [pairs.get(folder, folder) for folder in folders]
    if pairs or len(lines) != len(folders):
        raise ConfigError(
            f"{names} must have a line `folder<TAB>name` for each class, or a name for each of the "
            f"{len(folders)} classes in the order of their folders; it has {len(lines)} lines."
        )
    return lines


def _names(head: Sequence[str]) -> list[dict[str, list[int]]]:
    """Classes by their exact name, by it but for case, and by its comma-separated parts."""
    exact, plain, parts = (defaultdict[str, list[int]](list) for _ in range(3))
    for number, name in enumerate(head):
        exact[name].append(number)
        plain[_plain(name)].append(number)
        for part in {_plain(part) for part in name.split(",")}:
            parts[part].append(number)
    return [exact, plain, parts]


def _by_name(folder: str, names: list[dict[str, list[int]]]) -> list[int]:
    """Classes called exactly so; else so but for case; else so in one of their parts."""
    exact, plain, parts = names
    return exact.get(folder) or plain.get(_plain(folder)) or parts.get(_plain(folder)) or []


def _by_map(folders: Sequence[str], head: Sequence[str], file: Path) -> list[int]:
    """Lines ``folder<TAB>class``, or a JSON object; a class is a name or a number of the head."""
    try:
        text = file.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            pairs = {str(key): str(value) for key, value in json.loads(text).items()}
        else:
            rows = [line.split("\t") for line in text.splitlines() if line.strip()]
            pairs = {row[0]: row[1] for row in rows}
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(
            f"The class map {file} cannot be read ({error}): it needs lines `folder<TAB>class`."
        ) from None
    names = {_plain(name): number for number, name in enumerate(head)}
    result = []
    for folder in folders:
        if folder not in pairs:
            raise ConfigError(f"The class map {file} does not name the folder {folder!r}.")
        wanted = pairs[folder].strip()
        number = int(wanted) if wanted.isdecimal() else names.get(_plain(wanted), -1)
        if not 0 <= number < len(head):
            raise ConfigError(
                f"The class map {file} gives {folder!r} the class {wanted!r}, which the head lacks."
            )
        result.append(number)
    return result


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())
