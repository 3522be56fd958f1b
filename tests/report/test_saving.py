"""Figures as files: complete, in their format, or one line and the old file."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from redi.errors import ArtifactError
from redi.records.outputs import require_file
from redi.report.saving import new_figure, save_figure


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_a_figure_has_the_format_of_its_suffix(tmp_path: Path, name: str, begin: bytes) -> None:
    save_figure(Figure(), tmp_path / name, dpi=50)
    assert (tmp_path / name).read_bytes().startswith(begin)
    require_file(tmp_path / name, (Path(name).suffix,))  # it may be drawn again
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.png").write_text("before")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArtifactError, match=r"^There is no space left to write .*a\.png\."):
        save_figure(Figure(), tmp_path / "a.png", dpi=50)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.png", "before")]


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_letters_that_the_font_lacks_warn_of_nothing(tmp_path: Path, suffix: str) -> None:
    """A warning is an error in all tests."""
    figure = new_figure(layout="constrained")
    figure.subplots().set_title("\u732b \u0915\u0941", parse_math=False)
    save_figure(figure, tmp_path / f"a.{suffix}", dpi=50)


@pytest.mark.parametrize(("variable", "reason"), [("MPLBACKEND", "backend"), ("MATPLOTLIBRC", "UnicodeDecodeError")])
def test_settings_that_break_matplotlib_are_one_line(tmp_path: Path, variable: str, reason: str) -> None:
    (tmp_path / "broken").write_bytes(b"\xff")
    value = "junk" if variable == "MPLBACKEND" else str(tmp_path / "broken")
    code = (
        "from redi.errors import ConfigError\n"
        "from redi.report.saving import new_figure\n"
        "try:\n    new_figure()\nexcept ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, variable: value}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("No figure can be drawn, because matplotlib cannot be imported: ")
    assert reason in done.stdout
    assert done.stdout.endswith("Check the variables MPLBACKEND and MATPLOTLIBRC and the file matplotlibrc.\n")
    assert done.stdout.count("\n") == 1
