"""Rows of learned reducers, which are named by their files."""

import shutil
from pathlib import Path

import pytest

from learned_files import write_learned
from redi.backbone import load_backbone
from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.errors import ConfigError
from redi.records.comparison import Bundle
from redi.runs.config import saved_config


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def ask(folder: Path, *files: Path) -> Bundle:
    bundle = compare(saved_config(folder), (), Request(reducers=[*map(str, files), "tome"], costs=[0.8]))
    assert bundle is not None
    return bundle


def test_a_file_is_a_row_and_another_file_of_the_method_is_measured_again(folder: Path, tmp_path: Path) -> None:
    backbone = load_backbone(saved_config(folder).backbone)
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    write_learned(first, backbone, "dynamicvit")
    write_learned(second, backbone, "dynamicvit", seed=1)
    assert "dynamicvit" in [line.row.reducer for line in ask(folder, first).comparisons[0].lines]
    (stored,) = (folder / "predictions" / "probe").glob("dynamicvit~*")
    before = stored.read_bytes()
    ask(folder, first)
    assert stored.read_bytes() == before, "it is not measured again"
    ask(folder, second)
    assert stored.read_bytes() != before
    with pytest.raises(ConfigError, match="Two files hold dynamicvit"):
        ask(folder, first, second)


def test_a_method_whose_length_follows_the_image_is_measured_on_training_images(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "halting.safetensors"
    write_learned(file, load_backbone(saved_config(folder).backbone), "a-vit")
    rows = {line.row.reducer: line.row for line in ask(folder, file).comparisons[0].lines}
    assert rows["a-vit"].cost == pytest.approx(0.8, abs=0.1)
    assert (folder / "adaptive" / "a-vit.safetensors").is_file()


def test_a_file_that_is_missing_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no file .*absent.safetensors: make one with `redi learn`\."):
        ask(folder, tmp_path / "absent.safetensors")
