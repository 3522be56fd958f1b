"""A run folder: whose it is, who may write to it, and what is cleared away."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from families import save_checkpoint
from redi.errors import ArtifactError, CorpusError
from redi.images.preprocessing import to_bytes
from redi.pipeline import STAGES, execute
from redi.records import artifacts
from redi.records.results import read_results
from redi.run.config import read_config
from redi.run.distributed import Ranks
from redi.run.folder import Run, lock
from redi.stages.inspect import inspect_in_run
from small_run import content, script, small_config, start


def test_a_run_of_other_data_or_another_backbone_is_refused(small_data: Path, finished: Path, tmp_path: Path) -> None:
    save_checkpoint("dinov3_gated", tmp_path / "other")
    config = small_config(small_data, finished)
    before = content(finished)
    with pytest.raises(ArtifactError, match="belongs to another backbone"):
        execute(replace(config, backbone=str(tmp_path / "other")))
    with pytest.raises(ArtifactError, match="belongs to another validation set"):
        execute(replace(config, val=config.train))
    assert content(finished) == before


def test_a_second_run_in_the_same_folder_is_refused(small_data: Path, tmp_path: Path) -> None:
    with lock(tmp_path):
        done = script(small_data, tmp_path)
    assert done.returncode == 1
    assert "Another redi process is working in" in done.stderr


def test_a_folder_that_cannot_be_written_is_refused(small_data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"cannot be written: .*Choose another --out"):
        execute(small_config(small_data, tmp_path / "file"))
    with pytest.raises(ArtifactError, match="cannot be written"):
        execute(small_config(small_data, tmp_path / "file" / "run"))


def test_a_full_disk_is_one_line_and_loses_nothing(small_data: Path, finished: Path, tmp_path: Path) -> None:
    """The limit on the size of a file stands in for a disk that is full."""
    done = script(small_data, tmp_path, "--file-size-limit", "30000")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("redi: There is no space left to write")
    assert "Traceback" not in done.stderr
    start(small_data, tmp_path)
    assert content(tmp_path) == content(finished)


def test_clearing_up_touches_nothing_of_the_users(small_data: Path, tmp_path: Path) -> None:
    mine = [tmp_path / ".notes.1", tmp_path / "work" / ".draft.json.7", tmp_path / ".bashrc"]
    half = tmp_path / "scores" / ".mass.safetensors.123"
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
