"""The vocabulary and what depends on it, against the library called by hand."""

from pathlib import Path

import pytest
import torch

from redi.backbone import load_backbone
from redi.images import FolderImages
from redi.probe import image_feature
from redi.records import artifacts
from redi.tfidf import CorpusStatistics
from redi.vocabulary import Vocabulary


def test_vocabulary_and_table_equal_the_library_called_by_hand(small_data: Path, finished: Path) -> None:
    """The stages stream, chunk and merge; the mathematics must be that of the library."""
    backbone = load_backbone(small_data / "backbone")
    images = FolderImages(small_data / "train")
    pixels = torch.stack([backbone.preprocessing(images.load(k)) for k in range(len(images.labels))])
    hidden = backbone.encode(backbone.embed(pixels))
    vocabulary = Vocabulary(16).fit([hidden[:, backbone.prefix :]])
    stored, manifest = artifacts.load(finished / "vocabulary.safetensors")
    torch.testing.assert_close(stored["centroids"], vocabulary.centroids_, atol=1e-4, rtol=0)
    assert manifest["notes"]["objective"] == pytest.approx(vocabulary.objective_, abs=1e-5)
    words = vocabulary.assign(hidden[:, backbone.prefix :])
    statistics = CorpusStatistics(4, 16).update(words, torch.tensor(images.labels))
    table = artifacts.load(finished / "tfidf.safetensors")[0]["table"]
    torch.testing.assert_close(table, statistics.table(), atol=1e-4, rtol=1e-3)
    features = artifacts.load(finished / "features.safetensors")[0]
    expected = image_feature(backbone.final_norm(hidden), backbone.prefix)
    torch.testing.assert_close(features["features"], expected, atol=1e-5, rtol=0)
