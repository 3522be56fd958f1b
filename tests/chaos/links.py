"""Links that somebody has planted where redi writes. What they lead to stays as it is.

They have the names of outputs and of locks, and the names that drafts had when they could be known beforehand.
"""

from pathlib import Path
from typing import NamedTuple

from chaos.bad_learned import LEARN_LITTLE
from chaos.commands import run
from chaos.ground import Ground
from chaos.kills import Tally

#: Processes whose numbers a planted name guesses: so many from the newest one on.
NEXT = 300

EXPORT = "export {user}/head --cost 0.7 --out {place}/m.onnx"
LEARN = f"learn {{user}}/head --method protected-learned --images {{user}}/large/val {LEARN_LITTLE}"
LEARN_TO = LEARN + " --out {place}/t.safetensors"
COMPARE = "compare {run} --scorer mass --reducer prune --cost 0.8 --workers 0"
RUN = "run --config {user}/workers.toml --workers 0 --out {run}"
TUNE = (
    "tune {user}/head --images {user}/large/val --check 16 --calibration 8 --cost 0.8 --repeats 1 --workers 0 "
    "--out {place}/t"
)
INSPECT = "inspect {user}/photos/000.jpg --run {run} --out {place}/p.png"


class Planted(NamedTuple):
    """A command, the links that it meets, what they lead to below the user's folder, and what the command says."""

    command: str
    links: tuple[str, ...]
    target: str
    expected: str = ""  # a part of its line; empty if it does its work


#: A target that does not exist would be made by whoever writes through the link.
PLANTED = (
    Planted(EXPORT, (".m.onnx.draft", ".m.onnx.lock", ".m.onnx.{pid}"), "map.tsv"),
    Planted(LEARN_TO, (".t.safetensors.{pid}",), "new.safetensors"),
    Planted(COMPARE, ("run/.compare.json.{pid}", "run/.results.json.{pid}"), "map.tsv"),
    Planted(LEARN_TO, (".t.safetensors.lock",), "map.tsv", "cannot be locked"),
    Planted(COMPARE, ("run/.lock",), "new.lock", "cannot be written"),
    Planted("report {run}", ("run/report",), "photos", "is a link"),
    Planted(EXPORT, ("m.onnx",), "map.tsv", "was not written by redi"),
    Planted(EXPORT, ("m.onnx",), "new.onnx", "was not written by redi"),
    Planted(EXPORT, ("m.onnx",), "marked.onnx"),
    Planted(LEARN_TO, (".t.safetensors.lock",), "new.lock", "cannot be locked"),
    Planted(LEARN_TO, ("t.safetensors",), "head/model.safetensors", "was not written by redi"),
    Planted(LEARN_TO, ("t.safetensors",), "learned/whole.safetensors", "another training"),
    Planted(LEARN_TO, ("t.safetensors",), "new.safetensors", "was not written by redi"),
    Planted(LEARN_TO, (".t.partial.safetensors",), "new.safetensors"),
    Planted(LEARN_TO, (".t.partial.safetensors",), "learned/whole.safetensors"),
    Planted(LEARN_TO, (".t.partial.safetensors",), "head/model.safetensors", "was not written by redi"),
    Planted(RUN, ("run/.lock",), "map.tsv", "cannot be written"),
    Planted(RUN, ("run/.lock",), "new.lock", "cannot be written"),
    Planted(RUN, ("run/results.json",), "precious/results.json"),
    Planted(COMPARE, ("run/compare.json",), "new.json"),
    Planted("report {run}", ("run/report/index.html",), "map.tsv"),
    Planted("report {run}", ("run/report/.index.html.{pid}",), "new.html"),
    Planted("figures {run}", ("run/figures",), "photos", "is a link"),
    Planted(TUNE, ("t",), "photos", "was not made by redi"),
    Planted(TUNE, ("t/.tune.json.{pid}", "t/.setting.json.{pid}"), "new.json", "was not made by redi"),
    Planted(INSPECT, ("p.png",), "photos/000.jpg", "is also an input"),
    Planted(INSPECT, ("p.png",), "new.png", "was not written by redi"),
    Planted(INSPECT, (".p.png.{pid}", ".p.png.draft"), "map.tsv"),
)


def planted_links(ground: Ground, count: int) -> Tally:
    """Meet the first ``count`` of them."""
    tally = Tally()
    for planted in PLANTED[:count]:
        place = ground.fresh("links")
        folder = ground.run_folder(place)
        for link in planted.links:
            for name in _names(place / link):
                name.parent.mkdir(exist_ok=True)
                name.unlink(missing_ok=True)
                name.symlink_to(ground.user / planted.target)
        before = ground.watch().state()
        outcome = run([text.format(user=ground.user, place=place, run=folder) for text in planted.command.split()])
        tally.tried += 1
        fault = outcome.fault
        if not fault and (outcome.code != 0 if not planted.expected else planted.expected not in outcome.stderr):
            fault = f"exit {outcome.code}: {outcome.stderr[-300:]}"
        if ground.watch().state() != before:
            fault = "changed files of the user"
        if fault:
            tally.faults.append(f"{planted.command} with a link at {' and '.join(planted.links)}: {fault}")
    return tally


def _names(link: Path) -> list[Path]:
    """The link itself, or one for each process that may come next."""
    if "{pid}" not in link.name:
        return [link]
    newest = int(Path("/proc/loadavg").read_text().split()[-1])
    return [link.with_name(link.name.format(pid=newest + step)) for step in range(NEXT)]
