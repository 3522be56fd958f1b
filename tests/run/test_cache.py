"""The cache of patch features: what it saves, and that it changes hardly anything."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from redi.backbone import Backbone
from redi.errors import ConfigError
from redi.pipeline import execute
from redi.records import artifacts
from small_run import TRAIN, small_config


def test_with_a_cache_later_passes_skip_the_backbone_and_the_result_hardly_changes(
    small_data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(small_data, tmp_path)
    config = replace(config, runtime=replace(config.runtime, cache="fp16"))
    forwards: list[int] = []
    embed = Backbone.embed

    def counting_embed(self: Backbone, pixels: torch.Tensor) -> Any:
        forwards.append(len(pixels))
        return embed(self, pixels)

    monkeypatch.setattr(Backbone, "embed", counting_embed)
    execute(config, until="tfidf")
    images = 4 * TRAIN
    assert sum(forwards) == 16 + images, "the start's 16 images and one pass instead of four"
    cached, plain = (artifacts.load(out / "vocabulary.safetensors")[0]["centroids"] for out in (tmp_path, finished))
    torch.testing.assert_close(cached, plain, atol=2e-2, rtol=0)

    # Without the cache's files the same numbers come from the images.
    again = replace(config, out=str(tmp_path / "again"))
    execute(again, until="tfidf")
    for file in (tmp_path / "again" / "cache").iterdir():
        file.unlink()
    (tmp_path / "again" / "tfidf.safetensors").unlink()
    execute(again, until="tfidf")
    here, there = (artifacts.load(out / "tfidf.safetensors")[0]["table"] for out in (tmp_path, tmp_path / "again"))
    assert torch.equal(here, there)


def test_a_cache_that_does_not_fit_is_refused_before_any_work(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(small_data, tmp_path)
    config = replace(config, runtime=replace(config.runtime, cache="fp16"))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"--cache fp16 needs .* GB .* are free"):
        execute(config)
    assert not list(tmp_path.rglob("*.f16"))
