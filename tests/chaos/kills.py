"""Kill commands at random moments, start them again, and compare what they end with to an uninterrupted run."""

import hashlib
import json
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from chaos.commands import Command, Conditions, Outcome, run
from chaos.ground import Ground, content
from redi.deploy.engines import installed

#: Kills after which a command may finish, so that every command is compared many times.
MOST_KILLS = 10
#: Share of the commands that start in a fresh process, and may be killed while they import.
FRESH = 0.1


#: Starts a command in a place, to be hit by a signal of this number.
Start = Callable[[Ground, Path, random.Random, int], Command]


@dataclass
class Tally:
    """What a part of the campaign counted."""

    tried: int = 0
    compared: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """A command under attack: how it starts in a folder, and what it must end with."""

    name: str
    start: Start
    result: Callable[[Path], Any]
    prepare: Callable[[Ground, Path], None] = lambda ground, place: None


def _command(*arguments: str) -> Start:
    def start(ground: Ground, place: Path, draw: random.Random, number: int) -> Command:
        texts = [text.format(user=ground.user, place=place) for text in arguments]
        # Before Python has started our code, Ctrl-C shows Python's own traceback.
        return Command(texts, Conditions(fresh=number == signal.SIGKILL and draw.random() < FRESH))

    return start


def _run(config: str) -> Target:
    arguments = ("run", "--config", f"{{user}}/{config}.toml", "--out", "{place}/run")
    return Target(f"run {config}", _command(*arguments), lambda place: content(place / "run"))


def _torchrun(config: str) -> Target:
    """The number of processes changes from start to start."""

    def start(ground: Ground, place: Path, draw: random.Random, _number: int) -> Command:
        arguments = ["run", "--config", str(ground.config(config)), "--out", str(place / "run")]
        return Command(arguments, torchrun=draw.choice([1, 2, 3]))

    return Target(f"torchrun {config}", start, lambda place: content(place / "run"))


def _copy_run(ground: Ground, place: Path) -> None:
    ground.run_folder(place)


def _compared(place: Path) -> Any:
    return [content(place / "run"), json.loads((place / "run" / "compare.json").read_text())]


def _tuned(place: Path) -> Any:
    """Costs and accuracies. Which setting is chosen depends on the time it took."""
    points = json.loads((place / "tuned" / "tune.json").read_text())["points"]
    return [[point["cost"], point["accuracy"]] for point in points]


def _exported(place: Path) -> Any:
    """All files, the hidden ones too, by their bytes. The engines agree on what they say of a picture."""

    def agree() -> None:
        pixels = torch.randn(1, 3, 112, 112, generator=torch.Generator().manual_seed(0))
        outputs = {name: load(place / "model.onnx")(pixels) for name, load in installed().items()}
        torch.testing.assert_close(outputs["openvino"], outputs["onnxruntime"], rtol=1e-3, atol=1e-3)

    agreed = run(agree)
    assert agreed.code == 0, agreed.stderr
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}


def _report(place: Path) -> Any:
    return re.sub(r"[0-9.]+ seconds", "", (place / "run" / "report" / "index.html").read_text())


COMPARE = "compare {place}/run --scorer redi_mass --scorer mass --reducer prune --reducer evit --cost 0.6 --workers 0"
TUNE = "tune {user}/head --images {user}/large/val --out {place}/tuned --cost 0.7 --cost 0.8 --repeats 1 --threads 1"
TUNE_MORE = "--calibration 16 --check 64 --workers 1"
EXPORT = "export {user}/head --out {place}/model.onnx --cost 0.7"

TARGETS = {
    target.name: target
    for target in (
        _run("small"),
        _run("workers"),
        _run("cached"),
        _run("stock"),
        _torchrun("small"),
        _torchrun("stock"),
        Target("compare", _command(*COMPARE.split()), _compared, _copy_run),
        Target("tune", _command(*TUNE.split(), *TUNE_MORE.split()), _tuned),
        Target("export", _command(*EXPORT.split()), _exported),
        Target("report", _command("report", "{place}/run"), _report, _copy_run),
    )
}


def kill_often(ground: Ground, target: Target, kills: int, seed: int, number: int = signal.SIGKILL) -> Tally:
    """Kill a command ``kills`` times, or interrupt it with Ctrl-C. Every so often let it finish and compare."""
    draw = random.Random(f"{seed} {target.name} {number}")
    reference = _begin(ground, target, "whole")
    outcome = target.start(ground, reference, draw, number).finish(600)
    tally = Tally()
    if outcome.code != 0:
        tally.faults.append(f"{target.name}: the uninterrupted command failed: {_end(outcome)}")
        return tally
    expected = target.result(reference)
    while tally.tried < kills and not tally.faults:
        place = _begin(ground, target, "killed")
        for _ in range(draw.randint(3, MOST_KILLS)):
            command = target.start(ground, place, draw, number)
            command.wait(draw.uniform(0, 0.6 * outcome.seconds))
            # A whole job dies in a power cut; the main process alone when memory runs out.
            if command.kill(draw.random() < 0.5, number):
                tally.tried += 1
            ended = command.finish()
            if not gone(place):
                tally.faults.append(f"{target.name}: processes outlive their killed parent")
            if not _as_expected(ended, number):
                tally.faults.append(f"{target.name}: {ended.fault or _end(ended)}")
        last = target.start(ground, place, draw, number).finish(600)
        tally.compared += 1
        if last.code != 0:
            tally.faults.append(f"{target.name}: did not continue: {_end(last)}")
        elif target.result(place) != expected:
            tally.faults.append(f"{target.name}: ended with another result; see {place}")
    return tally


def _as_expected(ended: Outcome, number: int) -> bool:
    """A command that was hit ends by the signal. Ctrl-C is one line and 130, unless the work was done already."""
    if ended.code in (0, -number):
        return True
    return number == signal.SIGINT and ended.code == 130 and not ended.fault and len(ended.errors) == 1


def gone(place: Path, patience: float = 60.0) -> bool:
    """Whether all processes that work in a folder end within a minute. torchrun's are in sessions of their own."""
    end = monotonic() + patience
    while any(str(place) in text for text in _command_lines()):
        if monotonic() > end:
            return False
        sleep(0.1)
    return True


def _command_lines() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended in the meantime
            yield (process / "cmdline").read_text(errors="replace")


def _begin(ground: Ground, target: Target, name: str) -> Path:
    place = ground.fresh(f"{target.name.replace(' ', '-')}-{name}")
    target.prepare(ground, place)
    return place


def _end(outcome: Outcome) -> str:
    text = outcome.stderr.strip().splitlines()
    return f"exit {outcome.code}, {text[-1] if text else 'silent'}"


def clear(ground: Ground) -> None:
    shutil.rmtree(ground.root / "cases", ignore_errors=True)
