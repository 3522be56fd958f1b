"""Scores and predictions of the stages, against the library called by hand."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from families import save_model, scrambled
from redi.backbone import AttentionScores, Backbone, load_backbone
from redi.comparison.ground import Ground
from redi.comparison.studies import deployable_rows
from redi.cost import vit_block
from redi.images import FolderImages
from redi.images.preprocessing import crop, to_bytes
from redi.probe import image_feature
from redi.records import artifacts
from redi.reduction import Extent, reduce
from redi.reduction.adaptive import Point
from redi.rows import Catalogue
from redi.runs.config import VocabularyConfig
from redi.runs.distributed import Ranks
from redi.runs.folder import Run
from redi.score import hybrid
from redi.stages.evaluate import block_key, forward
from redi.tfidf import lookup
from redi.views import aggregate, align, validation_views
from redi.vocabulary import Vocabulary
from small_run import small_config


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A backbone with a head that reads CLS alone."""
    return load_backbone(save_model(scrambled("vit_head"), tmp_path_factory.mktemp("head")))


def test_the_shortcut_of_the_last_block_changes_no_logits_of_any_row(headed: Backbone) -> None:
    """The same schedules with and without it: every reducer, given scores, and a length that follows the image."""
    assert headed.head is not None
    assert headed.head.prefix_only
    size, on = headed.preprocessing.size, headed.geometry
    catalogue = Catalogue().with_curves(lambda name, reducer: (Point(0.0, 1.0, on.patches), Point(1.0, 0.2, 1.0)))
    ground = Ground(on, Extent(), catalogue, VocabularyConfig(), training_images=0, prefix_only=True)
    rows = deployable_rows(ground, 0.65)
    assert {"tome", "gtp", "zero-tprune", "diffrate", "evo-vit", "atm", "prune", "keep-merge-compress"} <= {
        row.reducer for row in rows
    }
    with torch.inference_mode():
        tokens, scores = headed.embed(torch.randn(2, 3, size, size)), torch.rand(2, on.patches)
        for row in rows:
            given = scores if row.score.name else None
            whole, short = (forward(headed, catalogue, row, given, {0: tokens}, only) for only in (False, True))
            assert short.hidden.shape[1] == headed.prefix, "only the prefix is left"
            expected, logits = (final.read(headed.classify, headed.prefix) for final in (whole, short))
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
            assert catalogue.cost(row, on, prefix_only=True) <= catalogue.cost(row, on), row.title


def test_scores_and_predictions_equal_the_library_called_by_hand(small_data: Path, finished: Path) -> None:
    backbone = load_backbone(small_data / "backbone")
    images = FolderImages(small_data / "val")
    table = artifacts.load(finished / "tfidf.safetensors")[0]["table"]
    vocabulary = Vocabulary(16)
    vocabulary.centroids_ = artifacts.load(finished / "vocabulary.safetensors")[0]["centroids"]
    probe = artifacts.load(finished / "probe.safetensors")[0]
    index = 13
    resized = backbone.preprocessing.resized(images.load(index))
    views = validation_views(resized.width, resized.height, index, backbone.preprocessing.size)
    maps, masks = [], []
    watched = AttentionScores(backbone.depth, backbone.prefix)
    for view in views:
        picture = to_bytes(crop(resized, view, backbone.preprocessing.size))
        tokens = backbone.embed(backbone.preprocessing.normalise(picture)[None])
        hidden = backbone.encode(tokens, watch=watched.watches if view is views[0] else ())
        words = vocabulary.assign(hidden[:, backbone.prefix :])
        raw = lookup(table, words, torch.tensor([images.labels[index]]))
        values, valid = align(raw[0], view, views[0])
        maps.append(values)
        masks.append(valid)
    tfidf = aggregate(torch.stack(maps), torch.stack(masks))
    expected = hybrid(tfidf[None], watched.maps()["mass"])
    stored = artifacts.load(finished / "scores" / "redi_mass.safetensors")[0]
    assert stored["scores"].dtype == torch.float16
    torch.testing.assert_close(stored["scores"][index].float(), expected[0], atol=2e-3, rtol=0)

    tokens = backbone.embed(backbone.preprocessing(images.load(index))[None])
    reduction = reduce(tokens.patches, stored["scores"][index : index + 1].float())
    normed = backbone.final_norm(backbone.encode(tokens.reduced(reduction)))
    logits = image_feature(normed, backbone.prefix) @ probe["weight"].T + probe["bias"]
    predicted = artifacts.load(finished / "predictions" / "probe" / "redi_mass.safetensors")[0]
    torch.testing.assert_close(predicted["logits"][index], logits.sort(descending=True).values[0], atol=1e-4, rtol=1e-4)


def test_predictions_depend_on_blocks_that_the_formula_does_not_describe(
    small_data: Path, finished: Path, tmp_path: Path
) -> None:
    """They hold a cost. A backbone of the paper's kind keeps the predictions that it has."""
    for name in ("predictions/probe/mass", "analysis/explorer"):
        manifest = artifacts.read_manifest(finished / f"{name}.safetensors")
        assert manifest is not None
        assert manifest["key"]["block"] == asdict(vit_block(32, 64))
    save_model(scrambled("dinov3", intermediate_size=128), tmp_path / "backbone")
    config = replace(small_config(small_data, tmp_path / "run"), backbone=str(tmp_path / "backbone"))
    assert block_key(Run(config, Ranks(), torch.device("cpu"))) == {}
