"""A run folder: whose it is, who may write to it, and what is cleared away."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from families import save_checkpoint
from redi.errors import ArtifactError, BackboneError, ConfigError, CorpusError, RediError
from redi.images.preprocessing import to_bytes
from redi.pipeline import STAGES, execute
from redi.records import artifacts, drafts
from redi.records.outputs import mark_run
from redi.records.results import read_results
from redi.reduction import Budget
from redi.runs.config import AnalysisConfig, ProbeConfig, RunConfig, RuntimeConfig, VocabularyConfig, read_config
from redi.runs.distributed import Ranks
from redi.runs.folder import Run, lock
from redi.stages.inspect import inspect_in_run
from small_run import content, copy_images, files_of, script, small_config, start


def test_a_run_of_other_data_or_another_backbone_is_refused(small_data: Path, finished: Path, tmp_path: Path) -> None:
    save_checkpoint("dinov3_gated", tmp_path / "other")
    config = small_config(small_data, finished)
    before = content(finished)
    with pytest.raises(ArtifactError, match="belongs to another backbone"):
        execute(replace(config, backbone=str(tmp_path / "other")))
    with pytest.raises(ArtifactError, match="belongs to another validation set"):
        execute(replace(config, val=config.train))
    assert content(finished) == before


def test_moved_data_are_the_same_and_a_replaced_image_of_equal_size_is_not(
    small_data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(small_data / "val", tmp_path / "moved", copy_function=shutil.copyfile)  # with other times
    config = replace(small_config(small_data, tmp_path / "run"), val=str(tmp_path / "moved"))
    execute(config)
    said = capsys.readouterr().err
    assert all(f"{stage.name}: already done" in said for stage in STAGES)
    image = tmp_path / "moved" / "red" / "002.jpg"
    changed = bytearray(image.read_bytes())
    changed[len(changed) // 2] ^= 1
    image.write_bytes(changed)
    with pytest.raises(ArtifactError, match=r"another validation set than .*/moved, or its content has"):
        execute(config)


def test_a_second_run_in_the_same_folder_is_refused(small_data: Path, tmp_path: Path) -> None:
    with lock(tmp_path):
        done = script(small_data, tmp_path)
    assert done.returncode == 1
    assert "Another redi process is working in" in done.stderr


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"cannot be written: .*Choose another --out\.$"), lock(tmp_path / "run"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_written_is_refused(small_data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"cannot be written: .*Choose another --out"):
        execute(small_config(small_data, tmp_path / "file"))
    for dry_run in (False, True):
        with pytest.raises(ArtifactError, match="cannot be written"):
            execute(small_config(small_data, tmp_path / "file" / "run"), dry_run=dry_run)


def test_a_full_disk_is_one_line_and_loses_nothing(small_data: Path, finished: Path, tmp_path: Path) -> None:
    """The limit on the size of a file stands in for a disk that is full."""
    done = script(small_data, tmp_path, "--file-size-limit", "30000")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("redi: There is no space left to write")
    assert "Traceback" not in done.stderr
    start(small_data, tmp_path)
    assert content(tmp_path) == content(finished)


def test_a_folder_of_the_users_is_refused_untouched(small_data: Path, tmp_path: Path) -> None:
    for name in ("partial/thesis.txt", "config.toml", "results.json", "cache/a", ".scores.json.12", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = files_of(tmp_path)
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match="is not empty and was not made by redi"):
            execute(small_config(small_data, tmp_path), dry_run=dry_run)
    assert files_of(tmp_path) == before
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("train", "is the training data"),
        ("val", "is the validation data"),
        ("train/blue", "lies inside the training data"),
        ("val/new", "lies inside the validation data"),
        ("", "contains the training data"),
        ("link/new", "lies inside the training data"),
        ("elsewhere/new", "lies inside the training data"),
        ("backbone", "is the backbone"),
        ("backbone/run", "lies inside the backbone"),
    ],
)
def test_an_out_that_touches_the_data_or_the_backbone_is_refused(
    small_data: Path, tmp_path: Path, out: str, message: str
) -> None:
    """Also if somebody puts our marker there; links are followed."""
    config = copy_images(small_data, tmp_path)
    shutil.copytree(small_data / "backbone", tmp_path / "backbone")
    (tmp_path / "link").symlink_to(tmp_path / "train")
    (tmp_path / "train" / "red").rename(tmp_path / "elsewhere")
    (tmp_path / "train" / "red").symlink_to(tmp_path / "elsewhere")
    for marked in (False, True):
        if marked:
            mark_run(tmp_path / out, {})
        before = files_of(tmp_path)
        with pytest.raises(ConfigError, match=rf"^--out .* {message} .* choose another --out\.$"):
            execute(replace(config, backbone=str(tmp_path / "backbone"), out=str(tmp_path / out)))
        assert files_of(tmp_path) == before


def test_a_run_killed_before_it_wrote_its_marker_goes_on(small_data: Path, tmp_path: Path) -> None:
    done = script(small_data, tmp_path / "run", "--kill-at", "run.json")
    assert done.returncode < 0
    names = {path.name.rpartition(".")[0] for path in (tmp_path / "run").iterdir()}
    assert names == {"", ".run.json"}, "nothing is written before the marker"
    execute(small_config(small_data, tmp_path / "run"), until="vocabulary")
    assert (tmp_path / "run" / "run.json").exists()


WRONG: dict[str, dict[str, object]] = {
    "words": {"vocabulary": VocabularyConfig(n_words=30_000)},
    "figure words": {"analysis": AnalysisConfig(n_words=30_000)},
    "learning rate": {"probe": ProbeConfig(learning_rate=-1.0)},
    "no number": {"probe": ProbeConfig(learning_rate=float("nan"))},
    "weight decay": {"probe": ProbeConfig(weight_decay=float("inf"))},
    "cells": {"budget": Budget(cells=99)},
    "tokens": {"budget": Budget(keep=0.95, merge=0.0, cells=14)},
    "keep": {"budget": Budget(keep=0.001, merge=0.9)},
    "size": {"size": 150},
    "huge size": {"size": 8 * 200},
    "threads": {"runtime": RuntimeConfig(threads=-1)},
    "device": {"runtime": RuntimeConfig(device="abacus")},
    "no head": {"classifier": "native"},
    "other backbone": {"backbone": "head"},
    "damaged backbone": {"backbone": "damaged"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_changes_no_byte_of_a_finished_run(
    small_data: Path, finished: Path, tmp_path: Path, name: str
) -> None:
    config: RunConfig = replace(small_config(small_data, finished), **WRONG[name])  # type: ignore[arg-type]
    if name == "other backbone":
        config = replace(config, backbone=str(small_data / "head"))
    if name == "damaged backbone":
        shutil.copytree(small_data / "backbone", tmp_path / "backbone")
        (tmp_path / "backbone" / "model.safetensors").write_bytes(b"nothing")
        config = replace(config, backbone=str(tmp_path / "backbone"))
    before = files_of(finished)
    with pytest.raises(RediError) as raised:
        execute(config)
    assert "\n" not in str(raised.value)
    with pytest.raises(RediError) as dry:
        execute(config, dry_run=True)
    assert str(dry.value) == str(raised.value), "a dry run refuses what the run refuses"
    assert files_of(finished) == before


def test_a_backbone_that_cannot_be_loaded_leaves_no_folder_behind(small_data: Path, tmp_path: Path) -> None:
    shutil.copytree(small_data / "backbone", tmp_path / "backbone")
    (tmp_path / "backbone" / "model.safetensors").write_bytes(b"nothing")
    config = replace(small_config(small_data, tmp_path / "run"), backbone=str(tmp_path / "backbone"))
    with pytest.raises(BackboneError):
        execute(config)
    assert not files_of(tmp_path / "run")


def test_a_class_map_that_does_not_fit_changes_nothing(small_data: Path, tmp_path: Path) -> None:
    (tmp_path / "map.tsv").write_text("amber\t2\n")
    config = replace(
        small_config(small_data, tmp_path / "run"),
        backbone=str(small_data / "head"),
        classifier="both",
        class_map=str(tmp_path / "map.tsv"),
    )
    with pytest.raises(ConfigError, match="does not name the folder"):
        execute(config)
    assert not files_of(tmp_path / "run")


def test_clearing_up_touches_nothing_of_the_users(small_data: Path, tmp_path: Path) -> None:
    mark_run(tmp_path, {})
    mine = [tmp_path / ".notes.1", tmp_path / "work" / ".draft.json.7", tmp_path / ".bashrc"]
    half = drafts._name(tmp_path / "scores" / "mass.safetensors")
    for path in (*mine, half):
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    execute(small_config(small_data, tmp_path), until="vocabulary")
    assert all(path.exists() for path in mine)
    assert not half.exists()


def test_folders_without_images_and_missing_folders(small_data: Path, tmp_path: Path) -> None:
    config = small_config(small_data, tmp_path / "run")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CorpusError, match="There are no images in"):
        execute(replace(config, train=str(tmp_path / "nothing")))
    with pytest.raises(CorpusError, match="There is no folder"):
        execute(replace(config, val=str(tmp_path / "missing")))
    assert not (tmp_path / "run").exists()


def test_run_object_reports_a_missing_artefact(small_data: Path, tmp_path: Path) -> None:
    run = Run(small_config(small_data, tmp_path), Ranks(), torch.device("cpu"))
    with pytest.raises(ArtifactError, match="is missing; run the stage"):
        run.digest("vocabulary")


def test_the_default_size_by_name_is_the_default(
    small_data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    execute(replace(small_config(small_data, tmp_path / "run"), size=112))
    assert capsys.readouterr().err.count("already done") == len(STAGES)
    execute(replace(small_config(small_data, tmp_path / "run"), size=128), until="tfidf")
    assert "already done" not in capsys.readouterr().err


def test_the_checkpoints_filter_by_name_is_the_default(
    small_data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    config = small_config(small_data, tmp_path / "run")
    execute(replace(config, resize="bicubic"))
    assert capsys.readouterr().err.count("already done") == len(STAGES)
    plain, other = (Run(changed, Ranks(), torch.device("cpu")) for changed in (config, replace(config, resize="box")))
    assert other.key("score", "val") == {**plain.key("score", "val"), "resize": "box"}
    assert "resize" not in plain.key("score", "val")


def test_another_filter_changes_the_pixels_and_every_result(
    small_data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run, its record and ``redi inspect`` all see images that were resized with the filter."""
    shutil.copytree(finished, tmp_path / "run")
    config = replace(small_config(small_data, tmp_path / "run"), resize="bilinear")
    results = execute(config)
    assert results is not None
    assert "already done" not in capsys.readouterr().err
    assert (results.notes.resize, read_results(finished).notes.resize) == ("bilinear", "bicubic")
    assert read_config(tmp_path / "run" / "config.toml").resize == "bilinear"
    with Image.open(small_data / "val" / "blue" / "000.jpg") as picture:
        by_hand = picture.resize((153, 128), Image.Resampling.BILINEAR).crop((20, 8, 132, 120))
    run = Run(config, Ranks(), torch.device("cpu"))
    (batch,) = run.dataset(run.validation).batches([[5]], 0)
    assert torch.equal(batch.pixels[0, 0], to_bytes(by_hand))
    explained = inspect_in_run(small_data / "val" / "blue" / "000.jpg", tmp_path / "run", "blue", "cpu")
    assert torch.equal(explained.crops[0], batch.pixels[0, 0])
    stored = artifacts.load(tmp_path / "run" / "scores" / "redi_mass.safetensors")[0]["scores"][5]
    torch.testing.assert_close(explained.scores["redi_mass"], stored.float(), atol=1e-3, rtol=0)
