"""Every experiment still runs, on two images and a small model."""

import importlib
import runpy
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from redi.demo.generator import sample
from redi.deploy import Setting
from redi.learning.files import read_training
from redi.reduction import PROGRESSIVE

FOLDER = Path(__file__).parents[1] / "experiments"
EXPERIMENTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "common.py")


#: Options that make an experiment short.
SHORT = {
    "engines.py": ["--cost", "0.75", "--batches", "2"],
    "corpus_size.py": ["--sizes", "1", "2"],
    "schedules.py": ["--costs", "0.75", "--shapes", "default", "hold=0.5"],
    "relevance.py": ["--costs", "0.75"],
    "pooling.py": ["--costs", "0.75", "--train", "4", "--steps", "2"],
    "second_look.py": ["--costs", "0.75", "--shares", "0.1", "--batches", "1"],
    "step_variants.py": ["--cost", "0.75"],
}

#: Two images are too few to learn from, so this one has a test below.
OWN_TEST = ("learning.py",)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_prints_its_table(
    name: str, small_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment that takes no images, such as one on speed, only shows its help."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    if "--images" in capsys.readouterr().out and name not in OWN_TEST:
        options = ["--backbone", str(small_data / "head"), "--images", str(small_data / "val"), "--limit", "2"]
        monkeypatch.setattr(sys, "argv", [name, *options, *SHORT.get(name, [])])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        assert "|---" in capsys.readouterr().out


def test_learning_writes_a_file_of_the_even_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The held-out images and those to learn from are all the images that even classes have."""
    for label in range(4):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        for index in range(32):
            picture = sample(1, 32 * label + index).image.resize((64, 64))
            picture.save(tmp_path / "images" / str(label) / f"{index}.png")
    demo = str(files("redi.demo") / "demo-vit")
    options = ["--backbone", demo, "--images", str(tmp_path / "images"), "--out", str(tmp_path)]
    shorter = ["--methods", "weitop", "--steps", "1", "--checks", "1", "--held", "16"]
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", ["learning.py", *options, *shorter])
    runpy.run_path(str(FOLDER / "learning.py"), run_name="__main__")
    assert "| weitop |" in capsys.readouterr().out
    training = read_training(tmp_path / "weitop.safetensors")
    assert (training.images, training.held) == (48, 16)


def test_a_dense_row_differs_from_dense_in_nothing(small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the given number of images of even classes, with a head and without one."""
    monkeypatch.syspath_prepend(str(FOLDER))
    common = importlib.import_module("common")
    for backbone in ("head", "backbone"):
        ground = common.development(small_data / backbone, str(small_data / "val"), limit=3)
        dense, short = ground.row("dense", Setting(1.0)), ground.row("short", PROGRESSIVE["tome"], 0.6)
        assert dense.kl[0] == pytest.approx(0, abs=1e-6)
        assert dense.agreement == 100
        assert len(dense.divergence) == 3
        assert short.kl[0] > 1e-6
        assert short.cost == pytest.approx(0.6, abs=0.02)


def test_every_experiment_has_a_line_in_the_readme() -> None:
    lines = (FOLDER / "README.md").read_text()
    assert EXPERIMENTS
    assert [name for name in EXPERIMENTS if f"| `{name}` |" not in lines] == []
