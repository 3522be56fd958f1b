"""The analysis stage: figure 2, the explorer and typical patches."""

from pathlib import Path

import pytest

from redi.images import load_image
from redi.records import artifacts
from small_run import TRAIN, VAL


def test_analysis_holds_what_the_report_needs(finished: Path) -> None:
    explorer = artifacts.load(finished / "analysis" / "explorer.safetensors")[0]
    assert len(explorer["indices"]) == 8
    assert len(explorer["offsets"]) == 8 * 4 + 1
    jpeg = bytes(explorer["jpegs"][explorer["offsets"][4] : explorer["offsets"][5]].tolist())
    assert load_image(jpeg).size == (112, 112)
    assert explorer["source/redi_mass"].shape == (8, 196)
    figure = artifacts.load(finished / "analysis" / "figure2.safetensors")[0]
    assert {f"frequency/block{k}" for k in (1, 2, 3)} <= set(figure)
    assert int(figure["frequency/block3"].sum()) == 4 * TRAIN * 196
    assert int(figure["validation/frequency"].sum()) == 4 * VAL * 196
    scores = artifacts.load(finished / "scores" / "redi_mass.safetensors")[0]["scores"]
    mass = float(figure["validation/score_mass"].sum())
    assert mass == pytest.approx(float(scores.double().sum()), rel=1e-9)
    typical = artifacts.load(finished / "analysis" / "typical.safetensors")[0]
    assert len(typical["offsets"]) == 16 + 1
