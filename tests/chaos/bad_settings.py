"""Settings, output folders and variables that cannot be."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from chaos.case import Case, Make, fixed
from chaos.commands import Conditions
from chaos.ground import Ground
from redi.runs.config import RunConfig

#: Values that no setting of this type may have.
BAD_VALUES: dict[type, tuple[str, ...]] = {
    int: ("-1", '"many"', "1.5", "true", "[]", "999999999999999999"),
    float: ("-1.0", '"much"', "nan", "inf", "true"),
    str: ("3", '"no such value"', "true"),
    bool: ("3", '"yes"'),
}
#: Settings that name something; the message shows what they name.
PATHS = ("backbone", "train", "val", "class_map")
#: (setting, value) of BAD_VALUES that are no mistakes.
ALLOWED = {
    ("spatial", "-1.0"),
    ("revision", '"no such value"'),  # a folder has no revisions
    ("out", '"no such value"'),
}


def settings() -> Iterator[Case]:
    """Every setting with every bad value of its type, on a finished run, which must stay as it is."""

    def entries(config: Any, table: str) -> Iterator[tuple[str, str, type]]:
        for entry in fields(config):
            value = getattr(config, entry.name)
            if is_dataclass(value):
                yield from entries(value, entry.name)
            else:
                yield table, entry.name, type(value)

    for table, name, kind in entries(RunConfig(), ""):
        for value in BAD_VALUES[kind]:
            if (name, value) not in ALLOWED:
                said = "no such value" if name in PATHS and "such" in value else name
                yield Case(f"setting: [{table}] {name} = {value}", _with_setting(table, name, value), said)
    for text, expected in (
        ("nothing = 3", "unknown key"),
        ("[nothing]\nx = 3", "unknown key"),
        ("vocabulary = 3", "not valid toml"),
        ("[budget]\ncells = 99", "cells"),
        ("[budget]\nkeep = 0.9\nmerge = 0.5", "keep + merge"),
        ("[budget]\nkeep = 0.001\nmerge = 0.5", "keep"),
        ("[analysis]\ntypical = 100000", "typical"),
        ("seed = 0\nseed = 1", "not valid toml"),
        ("\x00", "not valid toml"),
    ):
        yield Case(f"settings: {text!r}", _with_text(text), expected)


def _with_setting(table: str, name: str, value: str) -> Make:
    return _with_text(f"[{table}]\n{name} = {value}" if table else f"{name} = {value}")


def _with_text(text: str) -> Make:
    """The configuration of the finished run with a setting changed."""

    def make(ground: Ground, place: Path) -> list[str]:
        run = ground.run_folder(place)
        lines, table = [], ""
        added = text.splitlines()
        wanted = added[0].strip("[]") if added[0].startswith("[") else ""
        new = added[1:] if wanted else added
        names = [line.split("=")[0].strip() for line in new]
        done = False
        if not wanted:
            lines, done = list(new), True
        for line in (run / "config.toml").read_text().splitlines():
            if line.startswith("["):
                table = line.strip("[]")
            if table == wanted and line.split("=")[0].strip() in names:
                continue
            lines.append(line)
            if table == wanted and line.startswith("[") and not done:
                lines += new
                done = True
        if not done:
            lines += added
        (place / "changed.toml").write_text("\n".join(lines))
        return ["run", "--config", str(place / "changed.toml"), *([] if "out" in names else ["--out", str(run)])]

    return make


def folders() -> Iterator[Case]:
    """Output folders that are not ours."""
    run = ("run", "--config", "{user}/small.toml", "--out")
    for where in ("precious", "small", "small/train", "small/val", "small/train/red", "photos", "backbone", ""):
        yield Case(f"folder: run --out user/{where}", fixed(*run, f"{{user}}/{where}"), "out")
    yield Case("folder: run --out inside the training set", fixed(*run, "{user}/small/train/new"), "out")
    yield Case("folder: run --out inside the backbone", fixed(*run, "{user}/backbone/new"), "out")
    yield Case("folder: demo --out precious", fixed("demo", "--out", "{user}/precious"), "out")
    for command in ("vocabulary", "tfidf", "probe", "score", "evaluate"):
        arguments = (command, "--config", "{user}/small.toml", "--out", "{user}/precious")
        yield Case(f"folder: {command} --out precious", fixed(*arguments), "out")

    def through_link(ground: Ground, place: Path) -> list[str]:
        (place / "link").symlink_to(ground.user / "small" / "train")
        return ["run", "--config", str(ground.config("small")), "--out", str(place / "link")]

    yield Case("folder: run --out a link to the training set", through_link, "out")

    def other_data(ground: Ground, place: Path) -> list[str]:
        run = ground.run_folder(place)
        return ["run", "--config", str(ground.config("stock")), "--out", str(run)]

    yield Case("folder: run of other data", other_data, "belongs to another")


def variables() -> Iterator[Case]:
    run = fixed("run", "--config", "{user}/small.toml", "--out", "{place}/o")
    for values, expected in (
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "x"}, "RANK"),
        ({"WORLD_SIZE": "2", "RANK": "5", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "RANK"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK"),
    ):
        text = " ".join(f"{name}={value}" for name, value in values.items())
        yield Case(f"variables: {text}", run, expected, Conditions(variables=values))
