"""How many blocks remove tokens: timed before all else, and then kept in everything that is measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from families import save_model, scrambled
from redi.backbone import Backbone, load_backbone
from redi.demo.generator import sample
from redi.deploy import Accelerated, Setting, speed
from redi.deploy.speed import FEWER, removing_blocks, time_steps
from redi.deploy.tune import tune
from redi.records.timing import Spread
from redi.records.tuning import Steps, TuneConfig
from redi.report.tune import print_tuned

DEPTH = 10


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A classifier of ten blocks on a grid of 6x6, of which seven remove tokens."""
    folder = tmp_path_factory.mktemp("deep")
    return load_backbone(save_model(scrambled("vit_head", num_hidden_layers=DEPTH), folder)).at_size(48)


class Clock:
    """A clock on which every call takes the next of some durations."""

    def __init__(self, durations: list[float]) -> None:
        self.durations, self.now, self.runs = durations, 0.0, False

    def __call__(self) -> float:
        if self.runs:
            self.now += self.durations.pop(0)
        self.runs = not self.runs
        return self.now


def steps(low: float, median: float) -> Steps:
    return Steps(5, 9, 0.55, 1, Spread(low, median, 2.0))


def test_fewer_steps_are_used_if_they_are_clearly_faster() -> None:
    assert steps(1.01, 1.03).chosen == 5
    assert steps(1.01, 1.02).chosen == 0, "not fast enough in the median"
    assert steps(0.99, 1.20).chosen == 0, "slower in more than one of four repeats"
    assert "5 blocks that remove tokens are 1.20 (1.10 2.00) times as fast as all 9" in str(steps(1.1, 1.2))
    assert str(steps(1.1, 1.2)).endswith("used.")
    assert "not used" in str(steps(1.0, 1.2))


def test_the_two_schedules_take_turns(deep: Backbone) -> None:
    """All and fewer, twice to warm up; then in turn, every second repeat in reverse order."""
    clock = Clock([9.0, 9.0, 1.0, 1.0, *(1.0, 0.5), *(0.8, 1.0), *(1.0, 1.0)])
    pixels = torch.zeros(2, 3, 48, 48)
    timed = time_steps(deep, Setting(0.6, task="classify"), (0.6, 0.9), pixels, repeats=3, limit=10.0, clock=clock)
    assert timed is not None
    assert not clock.durations
    assert (timed.fewer, timed.all, timed.cost, timed.batch) == (FEWER, 7, 0.6, 2)
    assert timed.speedup == pytest.approx((1.125, 1.25, 1.625)), "quartiles of 1, 1.25 and 2"
    assert timed.chosen == FEWER


def test_nothing_is_timed_where_fewer_steps_do_not_exist_or_miss_a_cost(deep: Backbone, dinov3: Backbone) -> None:
    def clock() -> float:
        raise AssertionError("nothing should be timed")

    pixels = torch.zeros(1, 3, 48, 48)
    assert time_steps(dinov3, Setting(0.6, task="dense"), (0.6,), pixels, 3, 10.0, clock) is None
    assert time_steps(deep, Setting(0.6, task="classify"), (0.6, 0.05), pixels, 3, 10.0, clock) is None


@pytest.mark.parametrize(("seconds_of_all", "expected"), [(1.0, 0), (1.5, FEWER)])
def test_what_is_recommended_has_the_steps_that_were_checked(
    deep: Backbone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds_of_all: float,
    expected: int,
) -> None:
    def interleave(calls: dict[Any, Any], repeats: int, *_: object) -> dict[Any, list[float]]:
        return {key: [seconds_of_all if key in ("all", -1) else 1.0] * repeats for key in calls}

    monkeypatch.setattr(speed, "interleave", interleave)
    for index in range(24):
        sample(3, index).image.resize((48, 48)).save(tmp_path / f"{index:02}.png")
    config = TuneConfig("deep", str(tmp_path), calibration=8, costs=(0.6, 0.7), workers=0)
    tuned = tune(replace(config, repeats=2, batch=4), deep)
    assert tuned.setting.steps == expected
    assert tuned.steps is not None
    assert (tuned.steps.chosen, tuned.steps.cost) == (expected, 0.6)
    for point, cost in zip(tuned.points, (0.6, 0.7), strict=True):
        model = Accelerated(deep, replace(tuned.setting, cost=cost))
        assert point.schedule == model.schedule(model.grid)
        assert (removing_blocks(model) <= FEWER) == bool(expected)
    said = capsys.readouterr().err
    assert said.index("timing 5 steps against all") < said.index("Steps: 5 blocks") < said.index("calibrating")
    print_tuned(tuned)
    assert str(tuned.steps) in " ".join(capsys.readouterr().out.split())
