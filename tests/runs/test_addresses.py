"""Runs whose folder or whose data are moved or copied, or that are used from another working directory."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from redi.comparison.compare import compare
from redi.errors import ArtifactError, CorpusError
from redi.pipeline import execute
from redi.records.outputs import mark_run
from redi.runs.config import RunConfig, located, saved_config, to_toml
from redi.runs.folder import repair
from redi.stages.inspect import inspect_in_run
from small_run import copy_images, small_config


def made_in(out: Path, config: RunConfig) -> None:
    mark_run(out, {})
    (out / "config.toml").write_text(to_toml(located(replace(config, out=str(out)))))


def test_an_address_means_the_same_everywhere_and_names_stay_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = located(RunConfig(backbone="timm:model", train="~/train", val="shards/*.tar", out="run"))
    assert config.backbone == f"timm:{tmp_path}/model"
    assert config.train == f"{tmp_path}/home/train"
    assert (config.val, config.out, config.class_map) == (f"{tmp_path}/shards/*.tar", f"{tmp_path}/run", "")
    named = RunConfig(backbone="owner/name", train="hf:owner/name:train", val="hf:model:val")
    assert (located(named).backbone, located(named).train) == (named.backbone, named.train)
    assert located(named).val == f"hf:{tmp_path}/model:val"


def test_data_inside_a_run_folder_go_with_it_and_with_its_copies(tmp_path: Path) -> None:
    images = tmp_path / "run" / "images"
    images.mkdir(parents=True)
    made_in(tmp_path / "run", RunConfig(backbone="b", train=str(images / "train"), val=str(tmp_path / "val")))
    shutil.copytree(tmp_path / "run", tmp_path / "deep" / "copy")
    copied = saved_config(tmp_path / "deep" / "copy")
    assert copied.train == str(tmp_path / "deep" / "copy" / "images" / "train"), "though the original is still there"
    assert copied.val == str(tmp_path / "val")


def test_a_project_that_moves_as_a_whole_finds_its_data_beside_the_run(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("data/train", "shards", "runs"):
        (project / name).mkdir(parents=True)
    (project / "shards" / "0.tar").touch()
    made_in(project / "runs", RunConfig(train=str(project / "data" / "train"), val=str(project / "shards" / "*.tar")))
    project.rename(tmp_path / "moved")
    config = saved_config(tmp_path / "moved" / "runs")
    assert config.train == str(tmp_path / "moved" / "data" / "train")
    assert config.val == str(tmp_path / "moved" / "shards" / "*.tar")


def test_a_run_started_with_relative_paths_works_from_another_folder(
    small_data: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(small_data)
    execute(replace(small_config(small_data, tmp_path / "run"), backbone="backbone", train="train", val="val"))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    compare(saved_config(Path("run")), ["scorers"], dry_run=True)
    assert "total" in capsys.readouterr().out, "the plan is printed"
    inspect_in_run(small_data / "val" / "red" / "002.jpg", Path("run"), device="cpu")


def test_moved_data_are_named_and_repaired_and_other_data_are_refused(
    small_data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    config = copy_images(small_data, tmp_path)
    execute(replace(config, out=str(tmp_path / "run")))
    for name in ("train", "val"):
        (tmp_path / name).rename(tmp_path / f"{name}-2026")
    with pytest.raises(CorpusError, match=r"^--train: There is no folder .*/train; "):
        compare(saved_config(tmp_path / "run"), ["scorers"], dry_run=True)
    capsys.readouterr()
    image = tmp_path / "val-2026" / "red" / "002.jpg"
    unknown = inspect_in_run(image, tmp_path / "run", device="cpu")
    assert "--val repairs this" in capsys.readouterr().err
    for wrong in ({"train": str(tmp_path / "val-2026")}, {"val": str(tmp_path / "train-2026")}):
        with pytest.raises(ArtifactError, match=rf"run belongs to another .* than .*-2026, or .* --{min(wrong)}, or"):
            repair(tmp_path / "run", wrong.get("train"), wrong.get("val"))
    repair(tmp_path / "run", str(tmp_path / "train-2026"), str(tmp_path / "val-2026"))
    compare(saved_config(tmp_path / "run"), ["scorers"], dry_run=True)
    capsys.readouterr()
    assert inspect_in_run(image, tmp_path / "run", device="cpu").views != unknown.views, "those of the run again"
