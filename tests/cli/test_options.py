"""The manners of the options: help, panels, defaults that are true, one name for one thing, completion."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from redi.cli import app
from redi.comparison.grid import Request
from redi.deploy.onnx_speed import REPEATS as EXPORT_REPEATS
from redi.errors import ConfigError
from redi.records.dense import COSTS as DENSE_COSTS, DenseConfig
from redi.records.setting import Setting
from redi.records.tuning import COSTS, MAX_DROP, MIN_AGREEMENT, MIN_PATCH_AGREEMENT, TuneConfig
from redi.runs.config import RunConfig
from redi.speed.bench import BATCHES, MORE_BATCHES, REPEATS, BenchConfig

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = [
    (name, option) for name, command in COMMANDS.items() for option in command.params if option.opts[0][0] == "-"
]
PANELS = ["Data", "Model", "Method", "Resources", "Output"]
#: Options of the command as a whole.
GENERAL = {"--config", "--dry-run"}


def stated(command: str, name: str) -> str:
    """The default that the help of an option states; empty if it states none."""
    (help_text,) = (option.help for owner, option in OPTIONS if owner == command and name in option.opts)
    match = re.search(r"Default: (.*)\.$", help_text)
    return match[1] if match else ""


def kind_of(option: Any) -> Any:
    """The type of an option, or of each of its values if there may be several."""
    kind = option.type_descriptor.annotation
    kind = next(iter(get_args(kind)), kind)
    return str if kind is Path else kind


def test_options_are_grouped_in_the_same_order_everywhere() -> None:
    for name, command in COMMANDS.items():
        options = [option for owner, option in OPTIONS if owner == name]
        assert {option.opts[0] for option in options if option.rich_help_panel is None} <= GENERAL
        panels = list(dict.fromkeys(option.rich_help_panel for option in options if option.rich_help_panel))
        assert panels == [panel for panel in PANELS if panel in panels], command


def test_a_default_is_stated_in_the_text_and_only_there() -> None:
    for command, option in OPTIONS:
        assert option.show_default is False
        if not option.required and option.default not in (None, False, "", 0):
            assert stated(command, option.opts[0]), (command, option.opts)


def test_stated_defaults_are_true() -> None:
    run, tuned, bench, grid = RunConfig(), TuneConfig("", ""), BenchConfig(), Request()
    dense = DenseConfig("", "", "", "")
    settings = asdict(run) | asdict(run.vocabulary) | asdict(run.probe) | asdict(run.runtime)
    expected: dict[str, dict[str, object]] = {
        "run": {
            "--words": settings["n_words"],
            "--passes": settings["n_passes"],
            **{
                f"--{name}": settings[name] for name in ("classifier", "features", "seed", "device", "workers", "cache")
            },
            "--batch-size": run.runtime.batch_size,
        },
        "tune": {
            **{f"--{name}": getattr(tuned, name) for name in ("calibration", "check", "repeats", "workers")},
            "--max-drop": f"{MAX_DROP:g}",
            "--min-agreement": f"{MIN_AGREEMENT:g}, dense {MIN_PATCH_AGREEMENT:g}",
            "--task": tuned.task,
            "--batch-size": tuned.batch,
            "--cost": f"{min(COSTS)} to {max(COSTS)}",
        },
        "export": {"--cost": f"the setting's, else {Setting().cost}", "--repeats": EXPORT_REPEATS},
        "bench": {
            "--repeats": REPEATS,
            "--seconds": f"{bench.seconds:g}",
            "--batch-size": "{}, {} and {}; on a GPU also {} and {}".format(*BATCHES, *MORE_BATCHES),
        },
        "dense": {
            **{f"--{name}": getattr(dense, name) for name in ("steps", "seed", "repeats", "workers", "device")},
            "--cost": "{}, {} and {}".format(*DENSE_COSTS),
        },
        "compare": {"--labels": grid.labels[0], "--reducer": grid.reducers[0], "--after": grid.after[0]},
    }
    for command, defaults in expected.items():
        assert {name: stated(command, name) for name in defaults} == {k: str(v) for k, v in defaults.items()}
    for command, option in OPTIONS:
        if option.default not in (None, "", 0, False, True):
            assert type(option.default)(stated(command, option.opts[0])) == option.default, (command, option.name)


def test_one_name_means_one_thing_in_every_command() -> None:
    kinds: dict[str, set[Any]] = {}
    for _, option in OPTIONS:
        kinds.setdefault(option.opts[0], set()).add(kind_of(option))
    assert {name: types for name, types in kinds.items() if len(types) > 1} == {}
    assert kinds["--size"] == {int}
    assert not {"--batch", "--score", "--model"} & set(kinds)


NUMBERS = [(owner, option) for owner, option in OPTIONS if kind_of(option) in (int, float)]


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=lambda value: getattr(value, "name", value))
def test_every_number_has_a_smallest_and_a_largest_value(
    command: str, option: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused while the options are read, in one line: no command begins, whatever else is missing."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the command has begun")

    monkeypatch.setattr(COMMANDS[command], "invoke", refuse)
    values = ["-1", str(-(10**30)), str(2**64), str(10**30), "9" * 4000]
    values = values if kind_of(option) is int else ["-1e-9", "-1e30", "1e30", "nan", "inf", "-inf"]
    for value in values:
        result = CliRunner().invoke(app, [command, f"{option.opts[0]}={value}"])
        assert result.exit_code == 2, result.output
        refused = rf"redi: {option.opts[0]} must (lie .*, not at|be a finite number, not) .*\.\n"
        assert re.fullmatch(refused, result.output)


def test_the_ends_of_an_interval_are_taken_or_not_as_it_says() -> None:
    def code(command: str, *arguments: str) -> int:
        return CliRunner().invoke(app, [command, *arguments]).exit_code

    assert [code("cost", "--keep", keep, "--merge", "0") for keep in ("0", "1", "1.01")] == [0, 0, 2]
    assert [code("cost", "--width", width) for width in ("0", "1", "1000000", "1000001")] == [2, 0, 0, 2]
    refused = "redi: --cost must lie between 0 and 1, not at 1.0.\n"
    assert CliRunner().invoke(app, ["tune", "m", "--images", "i", "--cost", "0.5", "--cost", "1"]).output == refused


def test_an_empty_value_is_refused_by_every_option_and_argument_of_every_command() -> None:
    """pathlib takes it for the current folder."""
    called = [([name, option.opts[0], ""], option.opts[0]) for name, option in OPTIONS]
    called += [([name, f"{option.opts[0]}="], option.opts[0]) for name, option in OPTIONS]
    called += [([name, ""], "An argument") for name in COMMANDS]
    for value in ("--template=a = {} =", "--against=a="):  # which only ends as an empty one does
        assert "is empty" not in str(CliRunner().invoke(app, ["compare", "nowhere", value]).exception)
    for arguments, named in called:
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, ConfigError), arguments
        assert str(error) == f"{named} is empty: give a value, or leave it out."


@pytest.mark.parametrize("arguments", [[], ["tune"]])
def test_h_is_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, "-h"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_bash_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_REDI_COMPLETE": "complete_bash"}
        code = "import sys; sys.argv = ['redi']; from redi.__main__ import main; main()"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**os.environ, **words}, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.split()

    assert completed("redi co") == ["cost", "compare"]
    assert completed("redi bench --mo") == ["--model-size", "--mode"]


def test_report_opens_the_page_or_says_that_there_is_no_browser(
    seen_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(seen_run, run)
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(address)
        return len(opened) == 1

    monkeypatch.setattr("webbrowser.open", browse)
    results = [CliRunner().invoke(app, ["report", str(run), "--open"]) for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0]
    assert opened == [(run / "report" / "index.html").as_uri()] * 2
    assert ["No browser was found here" in result.output for result in results] == [False, True]
