"""The results of a run: the paper's rows."""

import shutil
from dataclasses import asdict
from pathlib import Path

from redi.backbone import load_backbone
from redi.cost import block_cost
from redi.pipeline import execute
from redi.records import artifacts
from redi.records.results import read_results
from redi.reduction import OPERATOR, REDUCERS, Extent
from redi.rows import MAIN_SCORE, SCORES, Codebook, CorpusSettings, Variant
from redi.runs.config import saved_config
from small_run import COLOURS, VAL


def test_results_have_the_papers_rows(finished: Path) -> None:
    results = read_results(finished)
    assert [row.name for row in results.rows] == ["dense", *SCORES]
    assert {row.classifier for row in results.rows} == {"probe"}
    assert [row.tokens for row in results.rows] == [201, *[107] * 10]
    assert {row.name for row in results.rows if row.label_source == "gt"} == {
        "tfidf",
        "redi_mass",
        "redi_rollout",
        "redi_cls_max",
        "redi_cls_mean",
    }
    assert all(row.images == VAL * len(COLOURS) for row in results.rows)
    assert results.row("dense", "probe").top1 > 50, "the probe has learnt something"
    assert results.row("dense", "probe").p_value == 1
    assert results.notes.probe.steps == 50
    assert len(results.notes.vocabulary.objective) == 3


def test_costs_count_the_blocks_of_the_runs_own_backbone(small_data: Path, finished: Path) -> None:
    """The small backbone has a width of 32 and an MLP of 64."""
    results = read_results(finished)
    dense, reduced = (8 * t * 32**2 + 2 * t**2 * 32 for t in (201, 107))
    assert results.costs[-1].reduced == reduced / dense
    assert results.costs[-1].formula == block_cost(107, 32) / block_cost(201, 32)
    on = load_backbone(small_data / "backbone").geometry
    assert {row.cost for row in results.rows[1:]} == {REDUCERS[OPERATOR].cost(Extent(), on)}
    own = REDUCERS[OPERATOR].products(Extent().budget, on.grid, 32)  # type: ignore[attr-defined]
    assert results.rows[1].cost == (3 * reduced + own) / (3 * dense)


def test_predictions_with_a_codebook_that_is_not_known_are_no_row(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    own = tmp_path / "run" / "predictions" / "probe" / "redi_mass.safetensors"
    tensors, manifest = artifacts.load(own)
    variant = asdict(Variant(MAIN_SCORE, "gt", corpus=CorpusSettings(Codebook())))
    variant["corpus"]["codebook"]["start"] = "farthest"
    notes = {**manifest["notes"], "variant": variant}
    artifacts.save(own.with_name("redi_mass~farthest.safetensors"), tensors, manifest["key"], **notes)
    results = execute(saved_config(tmp_path / "run"))
    assert results is not None
    assert [row.name for row in results.rows] == ["dense", *SCORES]
