"""``redi diagnose``: several backbones, one table, and nothing measured twice."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from families import save_checkpoint
from redi.attention import ATTENTION_SCORES
from redi.cli import app
from redi.comparison.diagnose import diagnose, folder_name, plan
from redi.errors import BackboneError, ConfigError
from redi.pipeline import STAGES
from redi.records import artifacts
from redi.records.diagnosis import Diagnosis
from redi.records.outputs import mark_run
from redi.records.reading import read_record
from redi.records.results import read_results
from redi.report.diagnose import publish
from redi.runs.config import RunConfig, to_toml
from redi.runs.passes import PassRunner
from redi.statistics import holm
from small_run import CLASS_MAP, files_of, small_config, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_images(folder)
    save_checkpoint("dinov2", folder / "plain")
    save_checkpoint("vit_head", folder / "head")
    (folder / "map.tsv").write_text(CLASS_MAP)
    return folder


def base(folder: Path, out: Path) -> RunConfig:
    return replace(small_config(folder, out), backbone="", classifier="both", class_map=str(folder / "map.tsv"))


@pytest.fixture(scope="module")
def done(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Diagnosis]:
    out = tmp_path_factory.mktemp("out")
    diagnosis = diagnose(base(folder, out), [str(folder / "plain"), str(folder / "head")])
    assert diagnosis is not None
    return out, diagnosis


def test_each_backbone_is_a_run_with_the_classifiers_it_has(done: tuple[Path, Diagnosis]) -> None:
    out, diagnosis = done
    assert read_results(out / "plain").classifiers == ["probe"]
    assert read_results(out / "head").classifiers == ["probe", "native"]
    groups = [(row.backbone, row.classifier) for row in diagnosis.rows]
    assert list(dict.fromkeys(groups)) == [("plain", "probe"), ("head", "native"), ("head", "probe")]
    assert [row.score for row in diagnosis.rows] == [*ATTENTION_SCORES] * 3
    assert {row.images for row in diagnosis.rows} == {20}


def test_the_rows_are_those_of_the_runs_and_the_gain_is_paired(done: tuple[Path, Diagnosis]) -> None:
    out, diagnosis = done
    for row in diagnosis.rows:
        results = read_results(out / row.backbone)
        assert row.dense == results.row("dense", row.classifier).top1
        assert row.attention == results.row(row.score, row.classifier).top1
        assert row.hybrid == results.row(f"redi_{row.score}", row.classifier).top1
        assert row.gain == pytest.approx(row.hybrid - row.attention)
        right = [
            stored["top5"][:, 0] == stored["labels"]
            for stored in (
                artifacts.load(out / row.backbone / "predictions" / row.classifier / f"{name}.safetensors")[0]
                for name in (f"redi_{row.score}", row.score)
            )
        ]
        assert row.gain == pytest.approx(100 * float((right[0].float() - right[1].float()).mean()))
    plain = [
        read_results(out / row.backbone).row(f"redi_{row.score}", row.classifier).p_value for row in diagnosis.rows
    ]
    assert [row.hybrid_p for row in diagnosis.rows] == holm(plain), "corrected over the whole table"


def test_the_same_command_measures_nothing_again(
    done: tuple[Path, Diagnosis], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, diagnosis = done

    def refuse(*arguments: object) -> None:
        raise AssertionError("a pass over the images was started")

    monkeypatch.setattr(PassRunner, "run", refuse)
    again = diagnose(base(folder, out), [str(folder / "plain"), str(folder / "head")])
    assert again == diagnosis


def test_the_table_and_the_markdown_hold_every_row(done: tuple[Path, Diagnosis], tmp_path: Path) -> None:
    _, diagnosis = done
    with (tmp_path / "screen").open("w") as screen:
        path = publish(tmp_path, diagnosis, Console(file=screen, width=80))
    shown = (tmp_path / "screen").read_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown, "nothing was cut off"
    for group in ("plain, probe", "head, native", "head, probe"):
        assert f"{group}: Top-1, dense" in shown
    tables = [line for line in shown.splitlines() if line.startswith((" Incoming mass ", " CLS mean "))]
    assert len(tables) == 6, "each row is one line"
    lines = [line for line in path.read_text().splitlines() if line.startswith(("| plain", "| head"))]
    assert len(lines) == len(diagnosis.rows)
    assert all(f"{row.hybrid:.2f}" in line for row, line in zip(diagnosis.rows, lines, strict=True))
    assert "an oracle" in path.read_text()


def test_the_record_reads_back(done: tuple[Path, Diagnosis]) -> None:
    out, diagnosis = done
    stored = json.loads((out / "diagnose.json").read_text())
    assert [row["hybrid"] for row in stored["rows"]] == [row.hybrid for row in diagnosis.rows]
    assert read_record(out / "diagnose.json", Diagnosis, "redi diagnose") == diagnosis


def test_what_cannot_work_is_said_before_any_work(folder: Path, tmp_path: Path) -> None:
    plain, head = str(folder / "plain"), str(folder / "head")
    with pytest.raises(ConfigError, match="--backbone is missing"):
        plan(base(folder, tmp_path), [])
    with pytest.raises(ConfigError, match="Two of the backbones are called plain"):
        plan(base(folder, tmp_path), [plain, f"{plain}/"])
    with pytest.raises(ConfigError, match="classifier must be both or probe"):
        plan(replace(base(folder, tmp_path), classifier="native"), [plain])
    with pytest.raises(ConfigError, match=r"head: The checkpoint's head has 7 classes.*--class-map"):
        plan(replace(base(folder, tmp_path), class_map=""), [plain, head])
    alone = plan(replace(base(folder, tmp_path), classifier="probe", class_map=""), [plain, head])
    assert [config.classifier for config in alone.values()] == ["probe", "probe"]
    assert not list(tmp_path.iterdir())


def test_folder_names() -> None:
    assert folder_name("timm:deit3_base_patch16_224.fb_in1k") == "deit3_base_patch16_224.fb_in1k"
    assert folder_name("facebook/dinov2-small") == "dinov2-small"
    assert folder_name("../models/my vit/") == "my-vit"


def test_the_command_prints_the_plan(folder: Path, tmp_path: Path) -> None:
    options = ["--train", str(folder / "train"), "--val", str(folder / "val")]
    options += ["--backbone", str(folder / "plain"), "--backbone", str(folder / "head")]
    options += ["--class-map", str(folder / "map.tsv"), "--out", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(app, ["diagnose", *options])
    assert result.exit_code == 0, result.output
    assert result.output.count("run folder") == 2
    assert all(stage.name in result.output for stage in STAGES)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "tokens"), [("timm_deit3", (197, 103)), ("timm_gap_registers", (200, 106))])
def test_a_timm_backbone_goes_through_the_whole_protocol(
    name: str, tokens: tuple[int, int], folder: Path, tmp_path: Path
) -> None:
    checkpoint = save_checkpoint(name, tmp_path / "given")
    diagnosis = diagnose(base(folder, tmp_path / "out"), [f"timm:{checkpoint}"])
    assert diagnosis is not None
    assert {row.classifier for row in diagnosis.rows} == {"native", "probe"}
    assert {row.tokens for row in diagnosis.rows} == {tokens}
    results = read_results(tmp_path / "out" / "given")
    assert results.environment.timm
    stored = artifacts.load(tmp_path / "out" / "given" / "scores" / "mass.safetensors")[0]
    assert torch.isfinite(stored["scores"]).all()


def test_a_size_that_does_not_fit_one_of_them_is_said_before_any_work(folder: Path, tmp_path: Path) -> None:
    save_checkpoint("vit", tmp_path / "wide", patch=14)
    both = [str(folder / "plain"), str(tmp_path / "wide")]
    with pytest.raises(BackboneError, match="multiple of the patch size 14, not 64"):
        diagnose(replace(base(folder, tmp_path / "out"), size=64), both)
    assert not (tmp_path / "out").exists()


def test_two_processes_share_the_runs_of_two_backbones(
    done: tuple[Path, Diagnosis], folder: Path, tmp_path: Path
) -> None:
    """One process group for all of them: joining again for each would race."""
    settings = tmp_path / "run.toml"
    settings.write_text(to_toml(replace(base(folder, tmp_path / "out"), train="x", val="x")))
    options = ["--config", str(settings), "--out", str(tmp_path / "out")]
    options += ["--train", str(folder / "train"), "--val", str(folder / "val")]
    for name in ("plain", "head"):
        options += ["--backbone", str(folder / name)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "redi", "diagnose", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("head: native head and probe") == 1, "said once"
    stored = json.loads((tmp_path / "out" / "diagnose.json").read_text())
    assert [row["hybrid"] for row in stored["rows"]] == [row.hybrid for row in done[1].rows]


def test_a_folder_of_the_users_or_among_the_data_is_refused_before_any_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    (folder / "run").mkdir()
    mark_run(folder / "run", {})
    for out, message in (
        (tmp_path, r"is not a folder of runs: it holds thesis\.tex"),
        (folder, "contains the training data"),
        (folder / "train" / "new", "lies inside the training data"),
    ):
        with pytest.raises(ConfigError, match=message):
            diagnose(base(folder, out), [str(folder / "plain")])
    assert files_of(tmp_path) == {"thesis.tex": b"mine"}
    assert not (folder / "train" / "new").exists()
