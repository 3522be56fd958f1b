"""The checkpoint's own head as a classifier of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from redi.backbone import load_backbone
from redi.errors import BackboneError, ConfigError
from redi.images import load_image
from redi.pipeline import execute
from redi.records import artifacts
from small_run import VAL, small_config


def test_native_head_is_evaluated_beside_the_probe(small_data: Path, tmp_path: Path) -> None:
    config = replace(
        small_config(small_data, tmp_path / "run"),
        backbone=str(small_data / "head"),
        classifier="both",
        class_map=str(small_data / "map.tsv"),
    )
    results = execute(config)
    assert results is not None
    assert results.classifiers == ["probe", "native"]
    assert results.notes.native_classes == "by map.tsv"
    stored = artifacts.load(tmp_path / "run" / "predictions" / "native" / "dense.safetensors")[0]
    assert stored["labels"].tolist() == [label for label in (2, 5, 0, 6) for _ in range(VAL)]
    backbone = load_backbone(small_data / "head")
    images = sorted((small_data / "val").rglob("*.jpg"))
    pixels = torch.stack([backbone.preprocessing(load_image(file)) for file in images[:3]])
    logits = backbone.classify(backbone.encode(backbone.embed(pixels)))
    torch.testing.assert_close(stored["logits"][:3], logits.topk(5).values, atol=1e-4, rtol=1e-4)
    with pytest.raises(ConfigError, match=r"7 classes and none is called 'amber'.*--class-map"):
        execute(replace(config, class_map=""))


def test_native_without_a_head_is_refused_before_any_work(small_data: Path, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="has no classifier of its own: use --classifier probe"):
        execute(replace(small_config(small_data, tmp_path / "run"), classifier="native"))
    assert not list((tmp_path / "run").rglob("*.safetensors"))
