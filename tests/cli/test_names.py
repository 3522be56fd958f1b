"""Names of files and classes that a terminal would obey, or that are not UTF-8, on their way through the commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from redi.images import FolderImages
from redi.pipeline import execute
from redi.report.build import build_report
from redi.report.figures import write_figures
from redi.report.inspection import print_inspection, write_picture
from redi.report.tables import print_tables
from redi.rows import MAIN_ROW
from redi.stages.inspect import inspect_in_run
from small_run import copy_images

ODD = b"caf\xe9\x1b[2J\n"
SHOWN = r"caf\xe9\x1b[2J\x0a"


def clean(text: str) -> bool:
    return "\x1b" not in text and bool(text.encode())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"report", ODD), f"redi: {SHOWN} is not a run folder: it has no run.json of ours. Use `redi run` first."),
        (
            (b"run", b"--backbone", b"b", b"--train", ODD, b"--val", b"v", b"--out", b"o"),
            r"redi: train is 'caf\udce9\x1b[2J\n', which is not UTF-8: rename it, or make a link to it.",
        ),
    ],
)
def test_an_error_shows_such_a_name_in_one_line(tmp_path: Path, arguments: tuple[bytes, ...], message: str) -> None:
    command = [sys.executable.encode(), b"-m", b"redi", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{message}\n")
    assert not list(tmp_path.iterdir())


def test_such_names_go_through_every_command(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = os.fsdecode(ODD)
    config = copy_images(small_data, tmp_path)
    for split in ("train", "val"):
        folder = (tmp_path / split / "amber").rename(tmp_path / split / odd)
        (folder / "000.jpg").rename(folder / f"{odd}.jpg")
    (tmp_path / "val" / odd / "001.jpg").write_text("not an image")
    run = tmp_path / "run"
    results = execute(config)
    assert results is not None
    print_tables(results)
    explained = inspect_in_run(tmp_path / "val" / odd / f"{odd}.jpg", run, odd, "cpu")
    print_inspection(explained, MAIN_ROW)
    write_picture(explained, MAIN_ROW, tmp_path / "picture.png")
    shown = capsys.readouterr()
    assert clean(shown.out)
    assert f"Scores of {SHOWN}.jpg" in shown.out
    assert clean(shown.err)
    assert f"e.g. {SHOWN}/001.jpg; results.json lists them" in shown.err
    assert odd in FolderImages(tmp_path / "val").class_names
    stored = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert stored["notes"]["skipped_val"][0][0] == f"{odd}/001.jpg"
    page = build_report(run).read_text(encoding="utf-8")
    assert clean(page)
    assert json.dumps(SHOWN)[1:-1] in page
    assert all(path.exists() for path in write_figures(run))
