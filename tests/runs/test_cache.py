"""The cache of patch features: what it saves, and that it changes hardly anything."""

import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from redi.backbone import Backbone
from redi.errors import ConfigError
from redi.pipeline import execute
from redi.records import artifacts
from redi.runs.config import RunConfig
from small_run import TRAIN, script, small_config


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


def damage(file: Path, how: str) -> None:
    """As a power cut does: pages that never reached the disk are zeros."""
    size = file.stat().st_size
    with file.open("r+b") as content:
        if how == "half":
            content.seek(size // 2)
            content.write(bytes(size - size // 2))
        elif how == "page":
            content.seek(4096)
            content.write(bytes(4096))
        else:
            content.seek(size - 1)
            last = content.read(1)
            content.seek(size - 1)
            content.write(bytes([last[0] ^ 1]))


@pytest.fixture(scope="module")
def cached(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a cache up to its vocabulary, and beside it the table that the rest of it gives."""
    folder = tmp_path_factory.mktemp("cached")
    execute(with_cache(small_data, folder / "whole"), until="tfidf")
    execute(with_cache(small_data, folder / "stopped"), until="vocabulary")
    return folder


def with_cache(small_data: Path, out: Path) -> RunConfig:
    config = small_config(small_data, out)
    return replace(config, runtime=replace(config.runtime, cache="fp16"))


@pytest.mark.parametrize("how", ["half", "page", "bit"])
def test_a_damaged_cache_is_noticed_and_computed_again(
    small_data: Path, cached: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    shutil.copytree(cached / "stopped", tmp_path / "run")
    for file in (tmp_path / "run" / "cache").glob("*.f16"):
        damage(file, how)
    execute(with_cache(small_data, tmp_path / "run"), until="tfidf")
    assert "is damaged; what is wrong is computed again" in capsys.readouterr().err
    here, there = (
        artifacts.load(out / "tfidf.safetensors")[0]["table"] for out in (tmp_path / "run", cached / "whole")
    )
    assert torch.equal(here, there)
    for file in (tmp_path / "run" / "cache").glob("*.f16"):
        assert file.read_bytes() == (cached / "whole" / "cache" / file.name).read_bytes(), "the cache is whole again"


def test_a_first_pass_that_is_continued_does_not_trust_what_it_finds(
    small_data: Path, cached: Path, tmp_path: Path
) -> None:
    """The first chunks count as done, but their features were lost."""
    done = script(small_data, tmp_path, "--cache", "fp16", "--kill-at", "vocabulary-pass-1/g0001-r0000-000002")
    assert done.returncode < 0
    for file in (tmp_path / "cache").glob("*.f16"):
        damage(file, "page")
    execute(with_cache(small_data, tmp_path), until="tfidf")
    here, there = (artifacts.load(out / "tfidf.safetensors")[0]["table"] for out in (tmp_path, cached / "whole"))
    assert torch.equal(here, there)


def test_a_cache_whose_digests_are_damaged_is_not_used(small_data: Path, cached: Path, tmp_path: Path) -> None:
    shutil.copytree(cached / "stopped", tmp_path / "run")
    damage(tmp_path / "run" / "cache" / "digests.safetensors", "bit")
    execute(with_cache(small_data, tmp_path / "run"), until="tfidf")
    here, there = (
        artifacts.load(out / "tfidf.safetensors")[0]["table"] for out in (tmp_path / "run", cached / "whole")
    )
    assert torch.equal(here, there)


def test_the_cache_is_on_disk_before_a_chunk_counts_as_done(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def recording_fsync(number: int) -> None:
        order.append(Path(f"/proc/self/fd/{number}").readlink().name)
        fsync(number)

    def recording_rename(self: Path, target: Path) -> Path:
        order.append(target.name)
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_rename)
    execute(with_cache(small_data, tmp_path), until="vocabulary")
    pass1 = [name for name in order if name.endswith(".f16") or name.startswith("g0001-r0000")]
    blocks = [name for name in dict.fromkeys(pass1) if name.endswith(".f16")]
    begin = pass1.index(blocks[0])  # before it lies the pass that gives the start, which fills no cache
    saves = [place for place, name in enumerate(pass1) if name.endswith(".rows") and place > begin][:4]
    assert len(saves) == 4, "28 images are four chunks of eight"
    for place in saves:
        assert pass1[place - len(blocks) : place] == blocks
        assert pass1[place + 1] == "g0001-r0000.safetensors"


def test_a_process_checks_what_it_reads_once_and_not_what_it_wrote(
    small_data: Path, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums: list[int] = []
    real = zlib.crc32

    def counting(content: Any) -> int:
        sums.append(1)
        return real(content)

    monkeypatch.setattr(zlib, "crc32", counting)
    execute(with_cache(small_data, tmp_path / "new"), until="tfidf")
    features = len(list((tmp_path / "new" / "cache").glob("*.f16"))) * 4 * TRAIN
    assert len(sums) == features, "once, while writing"
    sums.clear()
    shutil.copytree(cached / "stopped", tmp_path / "run")
    execute(with_cache(small_data, tmp_path / "run"), until="tfidf")
    assert len(sums) == features, "once, while reading"


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
