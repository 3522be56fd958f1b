"""Reducers whose length follows the image, on a finished run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.pipeline import open_run
from redi.records import artifacts
from redi.reduction import ADAPTIVE, Extent
from redi.reduction.reducer import TOLERANCE
from redi.rows import Catalogue, Variant
from redi.runs.config import saved_config
from redi.runs.passes import PassRunner
from redi.stages.evaluate import image_costs

ATM = Request(reducers=["atm"], costs=[0.7])


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@torch.no_grad()
def test_a_row_has_the_mean_cost_of_the_evaluated_images_and_their_own_predictions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image is checked alone, where there is no padding."""
    passes: list[str] = []
    run_pass = PassRunner.run

    def spy(self: PassRunner, work: Any, key: Any) -> Any:
        passes.append(work.name)
        return run_pass(self, work, key)

    monkeypatch.setattr(PassRunner, "run", spy)
    config = saved_config(folder)
    assert compare(config, [], ATM, dry_run=True) is None
    assert not passes, "a plan measures nothing"
    bundle = compare(config, [], ATM)
    assert bundle is not None
    (row,) = (line.row for line in bundle.comparisons[0].lines if line.row.reducer == "atm")
    stored, manifest = artifacts.load(folder / f"predictions/probe/{row.name}.safetensors")
    lengths, strength = stored["lengths"], manifest["notes"]["variant"]["extent"]["strength"]
    with open_run(config) as run:
        on = run.backbone.geometry
        variant = Variant(reducer="atm", extent=Extent(strength=strength))
        costs = image_costs(on, Catalogue(), variant, lengths)
        assert row.cost == pytest.approx(costs.mean().item())
        assert row.cost == pytest.approx(0.7, abs=2 * TOLERANCE), "the strength was found on other images"
        assert row.schedule == [round(mean) for mean in lengths.double().mean(dim=0).tolist()]
        assert row.tokens == on.prefix + row.schedule[-1]
        assert row.budget is None
        assert len(set(lengths[:, -1].tolist())) > 1
        for place in (0, 5, 11):
            index = int(stored["indices"][place])
            batch = next(iter(run.dataset(run.validation).batches([[index]], workers=0)))
            tokens = run.backbone.embed(run.backbone.preprocessing.normalise(batch.pixels[:, 0]))
            alone = run.backbone.encode_adaptively(tokens, ADAPTIVE["atm"], strength)
            assert torch.equal(alone.lengths[0], lengths[place])
    assert sum("costs of atm" in name for name in passes) == 1
    compare(config, [], ATM)
    assert sum("costs of atm" in name for name in passes) == 1, "it is stored"
