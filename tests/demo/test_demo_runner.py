"""The demo from end to end at a smaller size, and how much of the object a score keeps."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from redi.demo.coverage import kept_coverage
from redi.demo.runner import run_demo
from redi.errors import ArtifactError, ConfigError
from redi.records.outputs import mark_run
from redi.records.results import read_results
from redi.reduction import Budget
from redi.rows import SCORES
from small_run import files_of


def test_coverage_by_hand() -> None:
    share = torch.tensor([[1.0, 0.5, 0.0, 0.5]])
    budget = Budget(keep=0.5, merge=0.0)
    assert kept_coverage(torch.tensor([[4.0, 3.0, 2.0, 1.0]]), share, budget).item() == 0.75
    assert kept_coverage(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), share, budget).item() == 0.25
    everything = kept_coverage(torch.rand(1, 4), share, Budget(keep=1.0, merge=0.0))
    assert everything.item() == pytest.approx(1.0)


def test_the_demo_runs_prints_its_tables_and_is_quick_the_second_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_demo(tmp_path / "run", train_per_class=4, val_per_class=2)
    printed = capsys.readouterr()
    for text in ("Table 1", "Table 2", "Table 3", "What you can deploy", "Object kept"):
        assert text in printed.out
    assert printed.out.count("\n redi.acc") == printed.out.count("\n ToMe ") == 3, "at three costs"
    results = read_results(tmp_path / "run")
    assert [row.tokens for row in results.rows[:11]] == [201, *[107] * 10]
    assert {row.reducer for row in results.rows[11:]} == {"protected", "tome"}
    coverage = results.notes.object_coverage
    assert coverage is not None
    assert set(coverage) == set(SCORES)
    assert 35 < coverage["random"] < 65, "a random half covers about half"
    assert coverage["mass"] != coverage["random"]
    run_demo(tmp_path / "run", train_per_class=4, val_per_class=2)
    said = capsys.readouterr().err
    assert said.count("already done") == 6


def test_a_folder_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    mark_run(tmp_path / "run", {})
    (tmp_path / "run" / "images").write_text("in the way")
    with pytest.raises(ArtifactError, match="The demo cannot write its pictures"):
        run_demo(tmp_path / "run")
    mark_run(tmp_path / "other", {})
    (tmp_path / "other" / "images" / "train").mkdir(parents=True)
    (tmp_path / "other" / "images" / "train" / "mine.txt").touch()
    with pytest.raises(ArtifactError, match="was not written by the generator"):
        run_demo(tmp_path / "other")
    (tmp_path / "other" / "images" / "train" / "recipe.json").write_text("junk")
    with pytest.raises(ArtifactError, match="holds pictures of another recipe"):
        run_demo(tmp_path / "other")


def test_a_folder_of_the_users_gets_no_picture(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "cat.jpg").touch()
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="is not empty and was not made by redi: it holds images"):
        run_demo(tmp_path)
    with pytest.raises(ConfigError, match="threads must lie in"):
        run_demo(tmp_path / "new", threads=-1)
    assert files_of(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_the_folder_of_another_run_gets_no_picture(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="is the folder of another run"):
        run_demo(tmp_path / "run")
    assert files_of(tmp_path) == before


def test_a_demo_that_is_stopped_while_it_draws_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, drawn = Image.Image.save, 0

    def stop_at_the_third(self: Image.Image, *arguments: Any, **options: Any) -> None:
        nonlocal drawn
        drawn += 1
        if drawn == 3:
            raise KeyboardInterrupt
        save(self, *arguments, **options)

    monkeypatch.setattr(Image.Image, "save", stop_at_the_third)
    for _ in range(2):
        drawn = 0
        with pytest.raises(KeyboardInterrupt):
            run_demo(tmp_path / "run", train_per_class=1, val_per_class=1)
    assert len(list(tmp_path.rglob("*.jpg"))) == 4, "two more the second time"
