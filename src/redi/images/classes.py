"""What the class folders stand for: classes of a checkpoint's own head, titles, and names in prompts."""

import re
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from redi.checks import parse_json
from redi.errors import ConfigError, printable

#: A number of WordNet, which ImageNet's folders are called by.
_SYNSET = re.compile(r"n\d{8}")


def head_classes(folders: Sequence[str], head: Sequence[str], class_map: Path | None = None) -> tuple[list[int], str]:
    """Match each folder to a class of the head; return the classes and how they were matched.

    A class map decides if there is one. Otherwise a folder matches the head's class of the same name, if there is
    exactly one and no other folder matches it. In a name such as "tench, Tinca tinca", any part may match. If a
    folder matches no name, the sorted order decides, if the counts are equal and no name contradicts the order.
    """
    if class_map is not None:
        return _by_map(folders, head, class_map), f"by {class_map.name}"
    advice = "Pass --class-map FILE with lines `folder<TAB>class of the head`."
    names = _index_names(head)
    matches = [_by_name(folder, names) for folder in folders]
    for folder, numbers in zip(folders, matches, strict=True):
        if len(numbers) > 1:
            raise ConfigError(f"The head has {len(numbers)} classes called {folder!r}. {advice}")
    if all(matches):
        classes = [numbers[0] for numbers in matches]
        if len(set(classes)) < len(classes):
            repeated = next(k for k in classes if classes.count(k) > 1)
            raise ConfigError(f"Several folders match the head's class {head[repeated]!r}. {advice}")
        return classes, "by name"
    missing = folders[matches.index([])]
    if len(folders) != len(head):
        raise ConfigError(
            f"The checkpoint's head has {len(head)} classes and none is called {missing!r}. "
            f"There are {len(folders)} folders, so the sorted order cannot decide either. {advice}"
        )
    if any(numbers and numbers[0] != place for place, numbers in enumerate(matches)):
        raise ConfigError(
            f"Some folders have names of the head's classes and others, such as {missing!r}, do not, so "
            f"neither names nor order can be trusted. {advice}"
        )
    return list(range(len(head))), "by sorted order: the names differ and the counts agree"


def class_titles(folders: Sequence[str], head: Sequence[str], columns: Sequence[int], names: Path | None) -> list[str]:
    """Titles of the classes from a file of names, from the checkpoint's head, or from the folders; all can be shown."""
    return [printable(title) for title in _titles(folders, head, columns, names)]


def _titles(folders: Sequence[str], head: Sequence[str], columns: Sequence[int], names: Path | None) -> list[str]:
    if names is None:
        return [head[column] for column in columns] if columns else list(folders)
    pairs, lines = _read_names(names)
    if len(pairs) == len(lines):
        return [pairs.get(folder, folder) for folder in folders]
    if pairs or len(lines) != len(folders):
        raise ConfigError(
            f"{names} must have one line `folder<TAB>name` per class, or one name per line for each of the "
            f"{len(folders)} classes in the order of their folders; it has {len(lines)} lines."
        )
    return lines


def listed_classes(names: Path) -> dict[str, str]:
    """The titles of all classes of a file of names by their folders; a line without a folder is both."""
    pairs, lines = _read_names(names)
    titles = pairs or {line.strip(): line.strip() for line in lines}
    if not lines or len(titles) < len(lines):
        raise ConfigError(
            f"{names} must have one line `folder<TAB>name` per class, or one name per line, and no class twice; it has "
            f"{len(lines)} lines with {len(titles)} classes."
        )
    return titles


def prompt_names(titles: Sequence[str]) -> list[str]:
    """The classes as a prompt calls them: "n01440764, tench, Tinca tinca" is "tench", "polar_bear" is "polar bear".

    The first name that is not a number of WordNet counts. A class that has only such a number is refused, because no
    text tower knows these numbers.
    """
    names = []
    for title in titles:
        parts = (" ".join(printable(part).replace("_", " ").split()) for part in title.split(","))
        name = next((part for part in parts if part and not _SYNSET.fullmatch(part)), None)
        if name is None:
            raise ConfigError(
                f"The class {title!r} has no name that could stand in a text: use `redi text` with --names FILE, which "
                "has lines `folder<TAB>name`."
            )
        names.append(name)
    return names


def _read_names(file: Path) -> tuple[dict[str, str], list[str]]:
    """Return (the pairs of lines ``folder<TAB>name``, all lines that are not empty)."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from None
    return dict(line.split("\t", 1) for line in lines if "\t" in line), lines


def _index_names(head: Sequence[str]) -> list[dict[str, list[int]]]:
    """Index the classes by exact name, by plain name (see :func:`_plain`), and by the parts of the plain name."""
    exact, plain, parts = (defaultdict[str, list[int]](list) for _ in range(3))
    for number, name in enumerate(head):
        exact[name].append(number)
        plain[_plain(name)].append(number)
        for part in {_plain(part) for part in name.split(",")}:
            parts[part].append(number)
    return [exact, plain, parts]


def _by_name(folder: str, names: list[dict[str, list[int]]]) -> list[int]:
    """Classes with exactly this name; otherwise with this plain name; otherwise with this part of a name."""
    exact, plain, parts = names
    return exact.get(folder) or plain.get(_plain(folder)) or parts.get(_plain(folder)) or []


def _by_map(folders: Sequence[str], head: Sequence[str], file: Path) -> list[int]:
    """Read lines ``folder<TAB>class`` or a JSON object; a class is a name or a number of the head."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{"):
            pairs = {str(key): str(value) for key, value in parse_json(text).items()}
        else:
            rows = [line.split("\t") for line in text.splitlines() if line.strip()]
            pairs = {row[0]: row[1] for row in rows}
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(
            f"The class map {file} cannot be read ({error}): it needs lines `folder<TAB>class`."
        ) from None
    names = {_plain(name): number for number, name in enumerate(head)}
    classes = []
    for folder in folders:
        if folder not in pairs:
            raise ConfigError(f"The class map {file} does not name the folder {folder!r}.")
        target = pairs[folder].strip()
        number = int(target) if target.isdecimal() else names.get(_plain(target), -1)
        if not 0 <= number < len(head):
            raise ConfigError(f"The class map {file} gives {folder!r} the class {target!r}, which the head lacks.")
        classes.append(number)
    return classes


def _plain(name: str) -> str:
    """The name in lower case, with underscores and runs of spaces as single spaces."""
    return " ".join(name.replace("_", " ").lower().split())


def find_class(folders: Sequence[str], titles: Sequence[str], query: str) -> int:
    """The number of a class by its folder or its title; "tench" finds "tench, Tinca tinca"."""
    for names in (folders, titles, [title.split(",")[0] for title in titles]):
        matches = [k for k, name in enumerate(names) if name.casefold() == query.casefold()]
        if len(matches) == 1:
            return matches[0]
    close = get_close_matches(query, list(dict.fromkeys([*folders, *titles])), n=3, cutoff=0.5)
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    raise ConfigError(f"The run has no class {query!r}.{hint}")
