"""Damage the files of a run folder, or fill the disk, and see that no command gives a wrong result.

A command on a damaged folder either says in one line what is damaged or ends with the results of the whole folder.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from chaos.commands import Conditions, run
from chaos.ground import Ground
from chaos.kills import Tally


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _empty(file: Path) -> None:
    os.truncate(file, 0)


def _zero_half(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    file.write_bytes(data)


def _flip(file: Path, share: float = 2 / 3) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * share)] ^= 0x10
    file.write_bytes(data)


def _append(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"x" * 100)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": _truncate,
    "empty": _empty,
    "half zeroed": _zero_half,
    "one bit flipped": _flip,
    "one bit of its head flipped": partial(_flip, share=0.02),
    "longer": _append,
    "a folder": _folder,
    "missing": Path.unlink,
}
#: What may be done to a damaged folder.
COMMANDS = {
    "run": ["run", "--config", "{user}/workers.toml", "--workers", "0", "--out", "{run}"],
    "compare": ["compare", "{run}", "--scorer", "mass", "--reducer", "prune", "--cost", "0.7", "--workers", "0"],
    "report": ["report", "{run}"],
    "figures": ["figures", "{run}"],
}


def damaged_folders(ground: Ground, count: int, seed: int) -> Tally:
    """Damage one file after the other, in a random order of (file, damage, command)."""
    files = sorted(
        str(path.relative_to(ground.finished))
        for path in ground.finished.rglob("*")
        if path.is_file() and path.stat().st_size
    )
    draws = [(file, damage, command) for file in files for damage in DAMAGES for command in COMMANDS]
    random.Random(seed).shuffle(draws)
    expected, tally = _rows(ground.finished), Tally()
    for file, damage, command in draws[:count]:
        place = ground.fresh("damaged")
        folder = ground.run_folder(place)
        DAMAGES[damage](folder / file)
        arguments = [text.format(user=ground.user, run=folder) for text in COMMANDS[command]]
        outcome = run(arguments)
        tally.tried += 1
        fault = outcome.fault
        if outcome.code == 0 and command in ("run", "compare"):
            tally.compared += 1
            if not _agree(_rows(folder), expected):
                fault = "other results and exit 0"
        if fault:
            tally.faults.append(f"{command} after {file} was {damage}: {fault}")
    return tally


def full_disks(ground: Ground, count: int, seed: int) -> Tally:
    """No file may grow beyond a limit. Every command says so in one line; with space it then finishes the work."""
    draw = random.Random(seed)
    tally = Tally()
    commands = {
        **COMMANDS,
        "run anew": ["run", "--config", "{user}/workers.toml", "--workers", "0", "--out", "{run}"],
        "export": ["export", "{user}/head", "--out", "{run}/../model.onnx", "--cost", "0.7"],
        "tune": [
            *("tune", "{user}/head", "--images", "{user}/large/val", "--out", "{run}/../t", "--check", "16"),
            *("--calibration", "8", "--cost", "0.8", "--repeats", "1", "--workers", "0"),
        ],
    }
    for number in range(count):
        name = list(commands)[number % len(commands)]
        place = ground.fresh("full")
        folder = ground.run_folder(place)
        if name == "run anew":
            shutil.rmtree(folder)
        arguments = [text.format(user=ground.user, run=folder) for text in commands[name]]
        limited = Conditions(file_size=int(2 ** draw.uniform(5, 18)))
        if number % 5 == 4:
            limited = Conditions(full_stdout=True)
        outcome = run(arguments, limited)
        tally.tried += 1
        fault = outcome.fault
        if not fault and name in ("run", "compare", "run anew"):
            again = run(arguments)
            tally.compared += 1
            if again.code != 0:
                fault = f"does not continue: {again.stderr[-200:]}"
            elif _rows(folder) != _rows(ground.finished, paper_only=name == "run anew"):
                fault = "other results after it"
        if fault:
            tally.faults.append(f"{name} with {limited}: {fault}")
    return tally


def _agree(rows: list[dict[str, object]], expected: list[dict[str, object]]) -> bool:
    """Whether all rows are as expected. A row of a comparison may be missing: its file was, and nobody asked for it."""
    paper = [row for row in expected if _of_the_paper(row)]
    return all(row in expected for row in rows) and all(row in rows for row in paper)


def _rows(run: Path, paper_only: bool = False) -> list[dict[str, object]]:
    """The results of a run, without those of comparisons if it made none."""
    rows: list[dict[str, object]] = json.loads((run / "results.json").read_text())["rows"]
    return [row for row in rows if not paper_only or _of_the_paper(row)]


def _of_the_paper(row: dict[str, object]) -> bool:
    """Whether a run makes the row by itself; the names of comparisons also hold a reducer or a budget."""
    return "~" not in str(row["name"])
