"""The features that the probe learns from."""

from dataclasses import replace
from pathlib import Path

import torch

from redi.pipeline import execute
from redi.records import artifacts
from small_run import small_config


def test_prenorm_features_are_the_other_reading(small_data: Path, finished: Path, tmp_path: Path) -> None:
    config = small_config(small_data, tmp_path)
    execute(replace(config, probe=replace(config.probe, features="prenorm")), until="vocabulary")
    here, there = (artifacts.load(out / "features.safetensors")[0]["features"] for out in (tmp_path, finished))
    assert here.shape == there.shape
    assert not torch.allclose(here, there, atol=1e-2)
