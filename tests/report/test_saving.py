"""Figures as files: complete, in their format, or one line and the old file."""

import errno
import os
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from redi.errors import ArtifactError
from redi.report.saving import save_figure


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_a_figure_has_the_format_of_its_suffix(tmp_path: Path, name: str, begin: bytes) -> None:
    save_figure(Figure(), tmp_path / name, dpi=50)
    assert (tmp_path / name).read_bytes().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.png").write_text("before")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArtifactError, match=r"^There is no space left to write .*a\.png\."):
        save_figure(Figure(), tmp_path / "a.png", dpi=50)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.png", "before")]
