"""A results.json or compare.json that somebody has edited: the commands work, or say one line."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redi.cli import main
from redi.errors import RediError
from redi.records.comparison import read_bundle
from redi.records.results import read_results
from redi.report.build import build_report
from redi.report.compare import sheets
from redi.report.figures import write_figures

#: A text that is no Unicode, as a file name may be.
ODD = "\ud800 <b>"
#: What replaces a value.
SPOILS: tuple[Any, ...] = (None, True, -1, 10**400, float("nan"), ODD, [], {})
GONE = object()
STEPS = tuple[str | int, ...]


@pytest.fixture(scope="module")
def run(seen_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(seen_run, folder)
    return folder


def places(content: Any, so_far: STEPS = ()) -> Iterator[STEPS]:
    """Every field of a record; of a list the first entry and, among the rows, one of each kind. Inner ones first."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from places(value, (*so_far, name))
            yield (*so_far, name)
    elif isinstance(content, list) and content:
        for number in (0, len(content) - 1) if so_far == ("rows",) else (0,):
            yield from places(content[number], (*so_far, number))
            yield (*so_far, number)


def changed(content: Any, place: STEPS, value: Any, delete: bool = False) -> Any:
    content = json.loads(json.dumps(content))
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    if delete:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return content


def variants(content: Any) -> Iterator[tuple[STEPS, Any, Any]]:
    """(place, its new value, the record with it); the value of a field that is taken away is ``GONE``."""
    for place in places(content):
        yield place, GONE, changed(content, place, None, delete=True)
        for value in SPOILS:
            yield place, value, changed(content, place, value)


def refusal(what: str, call: Callable[[], object]) -> str:
    """The one line with which a call refuses; empty if it works."""
    try:
        call()
    except RediError as error:
        return str(error)
    except Exception as error:
        error.add_note(what)
        raise
    return ""


def test_edited_results_are_used_or_refused_in_one_line(run: Path) -> None:
    """The reader refuses nearly all of them. What it lets through, the report and the figures can show."""
    file = run / "results.json"
    original = file.read_text()
    passing: dict[str, Any] = {}  # by value: the record with this value wherever the reader takes it
    refused = 0
    try:
        for place, value, content in variants(json.loads(original)):
            file.write_text(json.dumps(content))
            said = refusal(f"{place} {value}", partial(read_results, run))
            assert "\n" not in said, (place, value)
            refused += bool(said)
            if not said and value is not GONE and not isinstance(value, dict | list):
                so_far = passing.setdefault(str(value), json.loads(original))
                passing[str(value)] = changed(so_far, place, value)
        assert refused > 500
        assert {"-1", ODD} <= set(passing)
        for value, content in passing.items():
            file.write_text(json.dumps(content))
            assert "\n" not in refusal(value, partial(build_report, run)), value
            if value == ODD:  # drawing takes a while
                assert "\n" not in refusal(value, partial(write_figures, run)), value
    finally:
        file.write_text(original)


def test_edited_comparisons_are_used_or_refused_in_one_line(run: Path) -> None:
    file = run / "compare.json"
    original = file.read_text()
    results = read_results(run)
    try:
        for place, value, content in variants(json.loads(original)):
            file.write_text(json.dumps(content))
            said = refusal(f"{place} {value}", lambda: sheets(read_bundle(run), results))
            assert "\n" not in said, (place, value)
    finally:
        file.write_text(original)


@pytest.mark.parametrize("field", ["rows", "costs", "notes", "environment", "digests"])
@pytest.mark.parametrize("command", ["report", "figures"])
def test_results_that_lack_a_part_end_the_command_with_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, field: str
) -> None:
    file = run / "results.json"
    original = file.read_text()
    content = json.loads(original)
    del content[field]
    file.write_text(json.dumps(content))
    monkeypatch.setattr("sys.argv", ["redi", command, str(run)])
    try:
        with pytest.raises(SystemExit) as stopped:
            main()
    finally:
        file.write_text(original)
    assert stopped.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"redi: {file} cannot be read as a result of `redi run`")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("top1", 1e308), ("top1", -5), ("top5", 100.1), ("agreement", -1), ("top1_interval", [0, 1e308])],
)
def test_a_percentage_outside_0_to_100_is_refused(run: Path, field: str, value: Any) -> None:
    file = run / "results.json"
    original = file.read_text()
    content = json.loads(original)
    content["rows"][0][field] = value
    file.write_text(json.dumps(content))
    try:
        for command in (build_report, write_figures):
            with pytest.raises(RediError, match=r"results\.json cannot be read .*The row 'dense' has a percentage of "):
                command(run)
    finally:
        file.write_text(original)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("rows", [], "It has no rows"),
        ("classifier", "svm", "no classifier 'svm'"),
        ("label_source", "oracle", "no label source 'oracle'"),
        ("scorer", "mass@x", "names no block"),
        ("name", "other", "There is no row 'dense'"),
        ("reducer", "prune", "reducer of another row"),
    ],
)
def test_results_that_cannot_be_those_of_a_run_are_refused(run: Path, field: str, value: Any, reason: str) -> None:
    file = run / "results.json"
    original = file.read_text()
    content = json.loads(original)
    (content if field == "rows" else content["rows"][0])[field] = value
    file.write_text(json.dumps(content))
    try:
        with pytest.raises(RediError, match=rf"results\.json is damaged: .*{reason}.*Use `redi run` to write it again"):
            write_figures(run)
    finally:
        file.write_text(original)
