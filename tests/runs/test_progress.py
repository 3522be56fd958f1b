"""The progress of a run: its stages, and the time that the whole of it still takes."""

from itertools import count

import pytest

from redi.runs import progress
from redi.runs.progress import Pace, track


def test_the_time_left_counts_the_forwards_of_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of 400 forwards took 10 s, so that the rest takes 30 s; what was done before is not in the rate."""
    now = 100.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    pace = Pace()
    pace.expect(500)
    pace.skip(100)
    assert str(pace) == "", "no speed is known yet"
    now = 110.0
    pace.advance(100)
    assert str(pace) == "run: 30 s left"
    pace.expect(60)
    now = 120.0
    assert str(pace) == "run: 12 s left", "the rate is that of the whole run"
    pace.advance(70)
    assert str(pace) == "", "nothing is left"


def test_lines_show_the_pass_and_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = count(0, 20)
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    pace = Pace()
    pace.expect(300)
    with track("tfidf", 100, pace=pace) as advance:
        pace.advance(50)
        advance(50)
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("  tfidf: 50/100 images")
    assert "left; run:" in line
