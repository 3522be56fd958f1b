"""A run folder: whose it is, who may write to it, and what is cleared away."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from families import save_checkpoint
from redi.errors import ArtifactError, CorpusError
from redi.pipeline import STAGES, execute
from redi.run.distributed import Ranks
from redi.run.folder import Run, lock
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
    with pytest.raises(ArtifactError, match=r"another validation set than this command names, or its content has"):
        execute(config)


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
