"""The campaign against the program: kills, bad inputs, damaged folders, full disks and planted links.

    make chaos
    PYTHONPATH=tests python -m chaos.campaign --only "kills of torchrun"

It prints a table and exits with 1 if anything went wrong. docs/RELIABILITY.md has its last numbers.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from chaos import bad_data, bad_files, bad_learned, bad_options, bad_settings
from chaos.case import Case
from chaos.commands import Outcome, prepare, run
from chaos.damage import damaged_folders, full_disks
from chaos.ground import Ground
from chaos.kills import TARGETS, Tally, kill_often
from chaos.links import PLANTED, planted_links
from chaos.saves import killed_saves

#: Seconds after which a bad input counts as a hang.
HANG = 60.0


@dataclass(frozen=True)
class Plan:
    """How much of each part is tried."""

    kills: dict[str, int]  # by command
    interrupts: dict[str, int]  # Ctrl-C, by command
    every: int  # every n-th bad input of each part, so at least one
    damages: int
    disks: int
    saves: int  # kills of a save over a save
    links: int


LONG = Plan(
    kills={
        "run small": 60,
        "run workers": 60,
        "run cached": 60,
        "run stock": 40,
        "torchrun small": 20,
        "torchrun stock": 10,
        "compare": 50,
        "tune": 10,
        "export": 10,
        "report": 20,
    },
    interrupts={"run workers": 30, "compare": 30, "tune": 15, "export": 10, "report": 15},
    every=1,
    damages=300,
    disks=60,
    saves=60,
    links=len(PLANTED),
)
#: For the tests: two minutes.
SHORT = Plan(
    kills={"run workers": 8, "run cached": 8, "torchrun small": 3, "compare": 6, "report": 4, "export": 2},
    interrupts={"run workers": 3, "report": 3, "export": 1},
    every=11,
    damages=20,
    disks=7,
    saves=8,
    links=6,
)

PARTS: tuple[Callable[[], Iterator[Case]], ...] = (
    bad_options.options,
    bad_options.bounds,
    bad_settings.settings,
    bad_settings.folders,
    bad_settings.variables,
    bad_data.data,
    bad_data.pictures,
    bad_data.shards,
    bad_data.hub,
    bad_data.maps,
    bad_files.checkpoints,
    bad_files.processors,
    bad_files.plugins,
    bad_files.records,
    *(partial(bad_learned.learned, kind) for kind in bad_learned.FILES),
)


def cases(every: int) -> list[Case]:
    """Every n-th bad input of each part, in an order that does not change."""
    parts = [list(part()) for part in PARTS]
    names = [case.name for part in parts for case in part]
    assert len(set(names)) == len(names), "two cases share a name"
    return [case for part in parts for case in part[::every]]


def bad_inputs(ground: Ground, every: int, patience: float = HANG) -> Tally:
    """Try every ``every``-th bad input of each part."""
    tally = Tally()
    for case in cases(every):
        place = ground.fresh("input")
        arguments = case.make(ground, place)
        before, folder = ground.watch().state(), _records(place, arguments[0])
        outcome = run(arguments, case.conditions, patience)
        tally.tried += 1
        fault = _wrong(case, outcome)
        if not fault and ground.watch().state() != before:
            fault = "changed files of the user"
        if not fault and _records(place, arguments[0]) != folder:
            fault = "changed the finished run"
        if fault:
            tally.faults.append(f"{case.name}: {fault}")
    return tally


def _records(place: Path, command: str) -> dict[str, bytes]:
    """The files of the finished run that a refused command must leave as they are."""
    names = ["results.json", "run.json", "compare.json"] + ["config.toml"] * (command == "run")
    files = [place / "run" / name for name in names]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def _wrong(case: Case, outcome: Outcome) -> str:
    """What is wrong with how a bad input was received, if anything."""
    if outcome.fault:
        return outcome.fault
    if outcome.code not in (1, 2):
        return f"exit {outcome.code}"
    said = " ".join(outcome.errors) or " ".join(outcome.stderr.split())
    return "" if case.expected.lower() in said.lower() else f"does not say {case.expected!r}: {said[-300:]}"


def parts_of(plan: Plan, ground: Ground, seed: int) -> dict[str, Callable[[], Tally]]:
    def kills(name: str, count: int, number: int) -> Callable[[], Tally]:
        return partial(kill_often, ground, TARGETS[name], count, seed, number)

    return {
        **{f"kills of {name}": kills(name, count, signal.SIGKILL) for name, count in plan.kills.items()},
        **{f"Ctrl-C in {name}": kills(name, count, signal.SIGINT) for name, count in plan.interrupts.items()},
        "bad inputs": partial(bad_inputs, ground, plan.every),
        "damaged folders": partial(damaged_folders, ground, plan.damages, seed),
        "full disks": partial(full_disks, ground, plan.disks, seed),
        "saves over saves": partial(killed_saves, ground, plan.saves, seed),
        "planted links": partial(planted_links, ground, plan.links),
    }


def campaign(ground: Ground, parts: dict[str, Callable[[], Tally]]) -> dict[str, Tally]:
    """Run the parts, print a line for each, and see at the end that nothing of the user's has changed."""
    tallies = {}
    before = ground.watch().state()
    for name, part in parts.items():
        begun = monotonic()
        tallies[name] = tally = part()
        print(f"{name:<24} {tally.tried:5} {tally.compared:5} {len(tally.faults):5} {monotonic() - begun:7.0f} s")
        for fault in tally.faults:
            print(f"    {fault}")
        sys.stdout.flush()
    changed = {name for name, state in ground.watch().state().items() if before.get(name) != state}
    changed |= set(before) - set(ground.watch().state())
    tallies["the user's files"] = Tally(len(before), len(before), sorted(changed))
    print(f"{'the user_s files':<24} {len(before):5} {len(before):5} {len(changed):5}".replace("_", "'"))
    return tallies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; a temporary folder by default")
    parser.add_argument("--short", action="store_true", help="the part that runs with the tests")
    parser.add_argument("--only", default="", help="a part of the names of the parts to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="file for the numbers")
    options = parser.parse_args()
    prepare()
    # Not a TemporaryDirectory: every forked child would remove it when it ends.
    folder = options.folder or Path(tempfile.mkdtemp(prefix="redi-chaos-"))
    try:
        ground = Ground(folder / "ground")
        ground.build()
        parts = parts_of(SHORT if options.short else LONG, ground, options.seed)
        print(f"{'part':<24} {'tried':>5} {'equal':>5} {'wrong':>5} {'time':>9}")
        tallies = campaign(ground, {name: part for name, part in parts.items() if options.only in name})
    finally:
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)
    if options.out:
        options.out.write_text(json.dumps({name: asdict(tally) for name, tally in tallies.items()}, indent=1) + "\n")
    sys.exit(1 if any(tally.faults for tally in tallies.values()) else 0)


if __name__ == "__main__":
    main()
