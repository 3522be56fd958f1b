"""Measured speed of what can be deployed, and the history of its merges."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from redi.backbone import Backbone
from redi.comparison import deployed
from redi.comparison.compare import compare
from redi.comparison.deployed import merge_history
from redi.comparison.ground import Ground
from redi.comparison.studies import accelerate
from redi.errors import ArtifactError
from redi.evaluate import top5
from redi.pipeline import execute, open_run
from redi.records.deployed import FILE, OWN, PEER, earlier_deployed
from redi.records.results import read_results
from redi.records.timing import Overhead, Timing
from redi.reduction import REDUCERS, Extent, Progressive
from redi.report.build import build_report
from redi.report.explorer import Explorer
from redi.report.headline import cards, heading
from redi.rows import DENSE, Catalogue
from redi.runs.config import saved_config
from redi.speed.paths import TimedPath


@pytest.fixture(scope="module")
def measured(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "run"
    shutil.copytree(finished, folder)
    compare(saved_config(folder), ["accelerate"])
    return folder


@pytest.mark.parametrize("name", [OWN, PEER])
def test_a_history_of_merges_gives_the_tokens_after_every_block(dinov3: Backbone, name: str) -> None:
    """Where the later blocks merge nothing, the final source of a patch is that after the block."""
    reducer = REDUCERS[name]
    assert isinstance(reducer, Progressive)
    tokens = dinov3.embed(torch.randn(3, 3, 48, 48))
    schedule = reducer.schedule(36, dinov3.depth, 0.8)
    block, into = merge_history(dinov3, tokens, reducer, schedule)
    assert int(block.max()) > 1, "it merges in more than one block"
    for last in range(dinov3.depth + 1):
        stopped = (*schedule[:last], *[(36, *schedule)[last]] * (dinov3.depth - last))
        source = dinov3.encode_progressively(tokens, reducer, stopped).source
        for image in range(3):
            names = [first_patch(block[image].tolist(), into[image].tolist(), patch, last) for patch in range(36)]
            first = {token: patch for patch, token in reversed(list(enumerate(source[image].tolist())))}
            assert names == [first[token] for token in source[image].tolist()]


def first_patch(block: list[int], into: list[int], patch: int, last: int) -> int:
    while 0 < block[patch] <= last:
        patch = into[patch]
    return patch


def test_dense_and_every_row_are_timed_and_are_rows_of_the_results(measured: Path) -> None:
    times, results = earlier_deployed(measured), read_results(measured)
    assert times is not None
    assert times.timings[0].row == DENSE
    rows = [results.row(timing.row, "probe") for timing in times.timings]
    assert {row.reducer for row in rows} == {"", OWN, PEER}
    for row, timing in zip(rows, times.timings, strict=True):
        assert timing.predicted == pytest.approx(1 / row.cost)
        assert timing.tokens == row.tokens
        assert timing.speedup is not None
        assert timing.speedup_low is not None
        assert timing.speedup_high is not None
        assert 0 < timing.speedup_low <= timing.speedup <= timing.speedup_high


@pytest.mark.parametrize(
    ("quartiles", "said"),
    [
        ((1.2, 1.25, 1.3), " runs 1.25 times as fast as dense (1.20 to 1.30) at "),
        ((0.9, 1.05, 1.3), " runs about as fast as dense (1.05 times, 0.90 to 1.30) at "),
        ((0.8, 0.9, 0.95), " runs slower than dense (0.90 times as fast, 0.80 to 0.95) at "),
    ],
)
def test_the_headline_has_the_quartiles_of_the_speed_and_claims_no_more_than_they_show(
    quartiles: tuple[float, float, float], said: str, measured: Path
) -> None:
    deployed, results = earlier_deployed(measured), read_results(measured)
    assert deployed is not None
    low, median, high = quartiles
    timings = [replace(one, speedup=median, speedup_low=low, speedup_high=high) for one in deployed.timings]
    deployed = replace(deployed, timings=timings)
    assert said in heading(results, deployed)
    assert said.removeprefix(" runs ").removesuffix(" at ") in cards(results, deployed)


def test_what_is_timed_is_what_the_accuracy_is_read_from(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timed calls give the stored logits of the validation images, dense included."""
    timed: list[TimedPath] = []

    def measure(paths: list[TimedPath], *_: object, **__: object) -> tuple[list[Timing], list[Overhead]]:
        timed.extend(paths)
        return [], []

    monkeypatch.setattr(deployed, "measure", measure)
    results = read_results(measured)
    with open_run(saved_config(measured)) as run, torch.inference_mode():
        own = [row for row in results.rows if row.reducer in (OWN, PEER)]
        names = [row.name for row in own]
        on, words = run.backbone.geometry, run.config.vocabulary
        studies = accelerate(Ground(on, Extent(run.config.budget), Catalogue(), words, training_images=1))
        variants = [variant for study in studies for variant in study.variants]
        deployed.time_rows(run, variants)
        assert {DENSE, *names} == {path.row for path in timed}
        stored = {path.row: run.load(f"predictions/probe/{path.row}") for path in timed}
        (batch,) = run.dataset(run.validation).batches([stored[DENSE]["indices"].tolist()], workers=0)
        pixels = run.backbone.preprocessing.normalise(batch.pixels[:, 0])
        for path in timed:
            assert path.forward is not None
            _, values = top5(path.forward(pixels, torch.zeros(len(pixels), 1)))
            torch.testing.assert_close(values, stored[path.row]["logits"], atol=1e-4, rtol=1e-4)


def test_the_merges_belong_to_one_sample_of_images(measured: Path, tmp_path: Path) -> None:
    explorer = Explorer(measured)
    assert explorer.merges is not None
    assert len(explorer.merges.block) == len(explorer)
    for number in range(len(explorer)):
        left = int((explorer.merges.block[number] == 0).sum())
        assert left == explorer.merges.notes["schedule"][-1]
    shutil.copytree(measured, tmp_path / "run")
    config = saved_config(tmp_path / "run")
    execute(replace(config, analysis=replace(config.analysis, sample=5)))
    assert Explorer(tmp_path / "run").merges is None, "they are those of other images"
    assert "not measured yet" not in build_report(tmp_path / "run").read_text(), "the speed is that of any image"


def test_damaged_times_are_one_line(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path / "run")
    (tmp_path / "run" / FILE).write_text('{"timings": 3}')
    with pytest.raises(ArtifactError, match=r"deployed\.json cannot be read as a result of `redi compare RUN --study"):
        build_report(tmp_path / "run")
