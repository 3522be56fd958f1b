"""``redi tune --task dense``: what is read from patches, and a setting that is measured as it is used."""

import json
import sys
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

import redi
from families import save_checkpoint
from redi.backbone import Backbone, load_backbone
from redi.cli import main
from redi.demo.generator import sample
from redi.deploy import Accelerated, Setting
from redi.deploy.calibrate import calibrate
from redi.deploy.readout import BANK_TOKENS, PatchReadout, _spread_evenly
from redi.deploy.tune import tune
from redi.records.tuning import TuneConfig, Tuned
from redi.reduction.schedule import dense_shape
from redi.report.tune import tune_sheet, verdict

IMAGES = 40


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two class folders, whose labels a dense task does not use."""
    folder = tmp_path_factory.mktemp("pictures")
    for index in range(IMAGES):
        nested = folder / f"LABEL_{index % 2}"
        nested.mkdir(exist_ok=True)
        sample(3, index).image.resize((64, 64)).save(nested / f"{index:03}.png")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint("dinov3", tmp_path_factory.mktemp("dinov3"))


@pytest.fixture(scope="module")
def backbone(encoder: Path) -> Backbone:
    return load_backbone(encoder).at_size(48)


@pytest.fixture(scope="module")
def tuned(backbone: Backbone, pictures: Path, encoder: Path) -> Tuned:
    config = TuneConfig(str(encoder), str(pictures), task="dense", calibration=8, costs=(0.6, 0.9), workers=0)
    return tune(replace(config, repeats=2, batch=4), backbone)


def noise(images: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 255, (images, 3, 48, 48), dtype=torch.uint8, generator=generator)


def test_the_tuned_setting_is_that_of_the_measured_models(tuned: Tuned, backbone: Backbone) -> None:
    assert tuned.setting.task == "dense"
    assert tuned.calibration.default == dense_shape(backbone.depth)
    assert (tuned.measure, tuned.dense_accuracy, tuned.images) == ("patch agreement", None, IMAGES - 16)
    for point, cost in zip(tuned.points, (0.6, 0.9), strict=True):
        model = Accelerated(backbone, replace(tuned.setting, cost=cost))
        assert (point.schedule, point.cost) == (model.schedule(model.grid), model.cost())
        assert point.agreement == pytest.approx(100 - point.drop)
        assert point.drop < point.drop_bound
        assert (point.accuracy, point.divergence) == (None, None)
    cheap, dear = tuned.points
    assert cheap.cosine is not None
    assert dear.cosine is not None
    assert cheap.cosine < dear.cosine < 1


def test_a_patch_decides_for_the_nearest_dense_patch_of_the_bank(backbone: Backbone) -> None:
    """The decisions, the loss per image and its bound, counted patch by patch."""
    dense = Accelerated(backbone, Setting(1.0, task="dense"))
    model = Accelerated(backbone, Setting(0.6, task="dense"))
    readout = PatchReadout(dense, noise(3), batch=2)
    assert readout.bank.shape == (3 * 36, 32), "all patches, if there are few"
    pixels = noise(5, seed=1)
    outputs = []
    for one in (dense, model):
        with torch.no_grad():
            hidden = one(backbone.preprocessing.normalise(pixels)).last_hidden_state[:, backbone.prefix :]
        outputs.append((readout.read(one, pixels), hidden))
        assert torch.allclose(outputs[-1][0].float(), hidden / hidden.norm(dim=-1, keepdim=True), atol=1e-3)
    (before, before_hidden), (after, after_hidden) = outputs
    lost = []
    for image in range(5):
        changed = [
            max(range(108), key=lambda k: float(first.float() @ readout.bank[k]))
            != max(range(108), key=lambda k: float(second.float() @ readout.bank[k]))
            for first, second in zip(before[image], after[image], strict=True)
        ]
        lost.append(100 * sum(changed) / 36)
    mean = sum(lost) / 5
    deviation = sqrt(sum((value - mean) ** 2 for value in lost) / 4)
    loss = readout.loss(before, after, None, allowed=100.0)
    assert 0 < loss.drop < 100
    assert (loss.drop, loss.agreement) == pytest.approx((mean, 100 - mean))
    assert loss.drop_bound == pytest.approx(mean + 2.1318 * deviation / sqrt(5), abs=1e-2), "t at 4 degrees of freedom"
    cosine = cosine_similarity(before_hidden, after_hidden, dim=-1).mean(dim=1)
    assert loss.cosine == pytest.approx(cosine.mean().item(), abs=1e-4)
    assert torch.allclose(readout.distance(before, after), 1 - cosine, atol=1e-3)
    assert readout.distance(before, before).max() < 1e-6
    assert readout.loss(before, before, None, allowed=1.0).drop_bound == 0


def test_the_bank_is_spread_evenly_over_images_and_columns() -> None:
    """96 patches lie between two of the bank: a fixed step would be six whole rows of a 16x16 grid."""
    positions = _spread_evenly(192 * 256, BANK_TOKENS)
    assert len(positions) == BANK_TOKENS
    assert (positions.diff() > 0).all()
    per_image = torch.bincount(positions // 256, minlength=192)
    assert per_image.min() >= 1
    assert per_image.max() <= 4
    assert torch.bincount(positions % 16, minlength=16).min() > 10
    assert _spread_evenly(7, BANK_TOKENS).tolist() == list(range(7))


def test_calibration_minimises_the_distance_of_patches(backbone: Backbone) -> None:
    class EarlyIsGood(PatchReadout):
        """Its distance falls with the number of tokens that the first block removes."""

        def __init__(self) -> None:
            self.batch = 4

        def read(self, model: Accelerated, pixels: torch.Tensor, title: str = "") -> torch.Tensor:  # noqa: ARG002
            first = model.schedule(model.grid)[0] / 36
            spread = torch.linspace(0.9, 1.1, len(pixels))
            angle = (first if model.setting.cost < 1 else 0.0) * spread
            return torch.stack([angle.cos(), angle.sin()], dim=1)[:, None].half()

    dense = Accelerated(backbone, Setting(1.0, task="dense"))
    moved = calibrate(dense, EarlyIsGood(), noise(40), noise(20), cost=0.7)
    models = [Accelerated(backbone, Setting(0.7, shape, task="dense")) for shape in (moved.shape, moved.default)]
    firsts = [model.schedule(model.grid)[0] for model in models]
    assert moved.shape != moved.default
    assert firsts[0] < firsts[1]
    assert moved.unseen[0] < moved.unseen[1]


def test_the_texts_speak_of_patches(tuned: Tuned, backbone: Backbone, tmp_path: Path) -> None:
    sheet = tune_sheet(tuned)
    assert sheet.columns[-1] == "Cosine"
    assert "Agree: percent of the patches" in " ".join(sheet.notes)
    assert "Drop: points of patch agreement lost" in " ".join(sheet.notes)
    recommended = replace(tuned, chosen=1, setting=replace(tuned.setting, cost=0.9, outside=""))
    assert "The drop in patch agreement is" in verdict(recommended)
    tuned.write(tmp_path)
    model = redi.accelerate(backbone, cost=0.6, setting=tmp_path / "setting.json")
    model.save_pretrained(tmp_path / "faster")
    card = (tmp_path / "faster" / "README.md").read_text()
    assert "| cost | speed-up | cosine of patches | patches that agree | drop |" in card
    assert "The drop is in points of patch agreement" in card
    assert f"**{tuned.points[0].cosine:.3f}**" in card
    other = redi.accelerate(backbone, cost=0.6, setting=tmp_path / "setting.json", task="classify")
    other.save_pretrained(tmp_path / "other")
    assert "Not measured: " in (tmp_path / "other" / "README.md").read_text(), "the curve is of the dense task"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["redi", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_the_command_writes_a_setting_for_the_dense_task(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = save_checkpoint("dinov2", tmp_path / "dinov2")
    few = ("--size", "48", "--calibration", "8", "--cost", "0.7", "--repeats", "1", "--workers", "0")
    options = (*few, "--max-drop", "2", "--min-agreement", "0")
    assert run(monkeypatch, "tune", encoder, "--images", pictures, "--task", "dense", *options) == 0
    done = capsys.readouterr()
    assert "points of patch agreement lost" in " ".join(done.out.split())
    assert "--max-drop is not used: in a dense task, the agreement of patches decides" in done.err
    assert "on average over 24 images to check on; warning: the bound is rough with fewer than 30" in done.err
    assert "labels" not in done.err
    assert {file.name for file in Path("tuned").iterdir()} == {"tune.json", "setting.json", "curve.png"}
    assert json.loads(Path("tuned/setting.json").read_text())["task"] == "dense"
    assert json.loads(Path("tuned/tune.json").read_text())["points"][0]["cosine"] < 1
    assert redi.accelerate(encoder, setting="tuned/setting.json").setting.task == "dense"


@pytest.mark.parametrize("name", ["vit_head", "dinov2_registers_head"])
def test_a_head_gives_no_patches_to_tune(
    name: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a head that reads CLS nor one that averages patches."""
    headed = save_checkpoint(name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(monkeypatch, "tune", headed, "--images", pictures, "--task", "dense") == 1
    said = capsys.readouterr().err
    assert "--task dense needs a model whose output is the patch grid" in said
    assert len(said.splitlines()) == 1
    assert run(monkeypatch, "tune", headed, "--images", pictures, "--task", "segment") == 1
    assert "--task must be classify or dense, not 'segment'" in capsys.readouterr().err
