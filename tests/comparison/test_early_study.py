"""The study ``early``: what its rows are, and that a live forward without labels gives their predictions."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from redi.backbone import load_backbone
from redi.centroids import nearest_words
from redi.comparison.compare import compare
from redi.comparison.early import COSTS, WHOLE_COST, early, extent_at_cost
from redi.comparison.ground import Ground
from redi.corpus import tfidf_term
from redi.cost import Geometry
from redi.early import GLANCE, block_of_place, enlarge, shrink
from redi.errors import ConfigError
from redi.evaluate import top5
from redi.pipeline import execute, open_run
from redi.probe import LinearProbe, image_feature
from redi.records import artifacts
from redi.records.results import read_results
from redi.reduction import OPERATOR, Extent, reduce
from redi.reduction.reducer import TOLERANCE
from redi.report.compare import comparison_sheet
from redi.rows import Catalogue, CorpusSettings, Score, Variant
from redi.runs.config import VocabularyConfig, saved_config
from redi.score import minmax
from redi.scorers import SCORERS, Dense
from redi.tfidf import weigh_words

ON = Geometry((14, 14), 5, 192, 64, 12)
GROUND = Ground(ON, Extent(), Catalogue(), VocabularyConfig(), 4000)
CORPUS = Score("tfidf", "cls_mean")


@pytest.fixture(scope="module")
def compared(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("early") / "run"
    shutil.copytree(finished, folder)
    compare(saved_config(folder), ["early"])
    return folder


def test_every_row_has_the_studys_total_cost() -> None:
    studies = early(GROUND)
    assert len(studies) == len(COSTS)
    for study, cost in zip(studies, COSTS, strict=True):
        assert study.reference.reducer == "protected"
        assert not study.reference.place
        for row in study.variants:
            assert abs(GROUND.catalogue.cost(row, ON) - cost) <= TOLERANCE, row.title
        places = {row.place for row in study.variants if row.place}
        assert places == {"block3", "block4", "block6", GLANCE}
        assert {row.reducer for row in study.variants if row.place} == (
            {OPERATOR, "prune", "protected"} if cost == WHOLE_COST else {"protected"}
        )


def test_nothing_is_removed_before_the_blocks_that_the_score_needs() -> None:
    for study in early(GROUND):
        for row in study.variants:
            blocks = block_of_place(row.place) if row.place else 0
            assert all(count == ON.patches for count in row.extent.schedule[:blocks])
            if row.place and row.extent.is_budget:
                assert row.extent.after == blocks


def test_a_cost_that_the_place_uses_up_is_an_error() -> None:
    row = Variant(CORPUS, "posterior", OPERATOR, Extent(after=6), place="block6")
    with pytest.raises(ConfigError, match="cannot be met"):
        extent_at_cost(GROUND, row, 0.45)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"place": "somewhere"}, "A place is glance or block"),
        ({"score": Score("tfidf", "rollout")}, "rollout is not available at block4"),
        ({"score": Score("tfidf", "mass", 2)}, "mass@2 is not available at block4"),
        ({"corpus": CorpusSettings(views=2)}, "so it has no ablation"),
        ({"extent": Extent(after=3)}, "so the reduction must follow it"),
        ({"extent": Extent(schedule=(196, 190, 180, 170, 100))}, "so the reduction must follow it"),
        ({"extent": Extent(strength=0.5)}, "no adaptive reducer"),
        ({"label_source": "text"}, "no label source text"),
    ],
)
def test_impossible_rows_are_refused(changes: dict[str, object], message: str) -> None:
    row = Variant(CORPUS, "posterior", extent=Extent(after=4), place="block4")
    GROUND.catalogue.check(row)
    with pytest.raises(ConfigError, match=message):
        GROUND.catalogue.check(replace(row, **changes))  # type: ignore[arg-type]


def test_names_and_titles_say_the_place() -> None:
    row = Variant(CORPUS, "posterior", extent=Extent(after=4), place="block4")
    assert row.name(Extent().budget) == "redi_cls_mean~posterior~block4~after4"
    assert row.title == "REDI, CLS mean of block 4 [posterior], after block 4"
    assert replace(row, place=GLANCE, extent=Extent()).title == "REDI, CLS mean of a glance [posterior]"


def test_the_table_says_how_good_the_class_is(compared: Path) -> None:
    results = read_results(compared)
    assert set(results.notes.early_top1 or {}) == {"block1", GLANCE}  # no cost is left after block 2 of 3
    bundle = compare(saved_config(compared), ["early"])  # nothing is left to measure
    assert bundle is not None
    placed = [entry for entry in bundle.comparisons if any(line.row.place for line in entry.lines)]
    assert placed
    for comparison in placed:
        sheet = comparison_sheet(comparison, results.notes)
        assert any("their cost counts all that their scores need" in note for note in sheet.notes)


def test_rows_of_another_vocabulary_are_not_kept(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "run")
    config = saved_config(tmp_path / "run")
    results = execute(replace(config, vocabulary=replace(config.vocabulary, n_words=8)))
    assert results is not None
    places = {row.place for row in results.rows}
    assert GLANCE in {row.place for row in read_results(compared).rows}
    assert GLANCE not in places


@pytest.mark.parametrize("place", ["block1", GLANCE])
@pytest.mark.parametrize("source", ["predicted", "posterior"])
def test_a_live_forward_without_labels_gives_the_same_predictions(compared: Path, place: str, source: str) -> None:
    """Embed, look, score, reduce, go on: only the stored codebook, table and probe are given, never a label."""
    rows = [row for row in read_results(compared).rows if (row.place, row.label_source) == (place, source)]
    row = next(row for row in rows if row.reducer == OPERATOR and row.score == CORPUS)
    stored = artifacts.load(compared / "predictions" / row.classifier / f"{row.name}.safetensors")[0]
    with open_run(saved_config(compared), writing=False) as run:
        backbone = load_backbone(run.config.backbone)
        (batch,) = run.dataset(run.validation).batches([[0, 3, 7]], workers=0)
    pixels = backbone.preprocessing.normalise(batch.pixels[:, 0])
    tokens, grid = backbone.embed(pixels), backbone.geometry.grid
    seen, stop = (backbone.embed(shrink(pixels, grid)), 3) if place == GLANCE else (tokens, 1)
    capture: dict[str, Any] = {}
    hidden = backbone.encode(seen, stop=stop, capture={stop - 1: capture})
    looked = seen.advanced(hidden)

    def load(name: str) -> dict[str, torch.Tensor]:
        return artifacts.load(compared / f"{name}.safetensors")[0]

    words = load("vocabulary")["centroids"] if place == GLANCE else load("analysis/codebooks")["block1/centroids"]
    probe = load(f"early/{place}/probe")
    read = backbone.final_norm(hidden) if place == GLANCE else hidden
    logits = LinearProbe.fitted(probe["weight"], probe["bias"]).logits(image_feature(read, backbone.prefix))
    table = tfidf_term(load(f"early/{place}/tfidf")).table
    weights = table[logits.argmax(dim=1)] if source == "predicted" else logits.softmax(dim=1) @ table
    corpus = weigh_words(weights, nearest_words(looked.patches, words)[1])
    dense = Dense(**capture, patches=looked.patches, prefix=backbone.prefix, grid=grid, indices=[0, 3, 7], seed=0)
    scores = minmax(enlarge(corpus, grid)) * minmax(enlarge(SCORERS["cls_mean"](dense), grid))
    scores = scores.half().float()
    assert row.budget is not None
    begun = tokens if place == GLANCE else looked
    short = begun.reduced(reduce(begun.patches, scores, row.budget, grid))
    final = backbone.encode(short, start=row.after)
    probe = load("probe")
    feature = image_feature(backbone.final_norm(final), backbone.prefix)
    classes, values = top5(LinearProbe.fitted(probe["weight"], probe["bias"]).logits(feature))
    at = torch.tensor([0, 3, 7])
    torch.testing.assert_close(stored["logits"][at], values, rtol=1e-3, atol=1e-3)
    assert torch.equal(stored["top5"][at], classes)
