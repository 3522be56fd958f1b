"""A setting knows the model it was tuned for."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification, Dinov2Model

from families import make_model, save_checkpoint
from redi.backbone import load_backbone
from redi.deploy import Setting, accelerate
from redi.errors import ConfigError
from redi.runs.identity import identify


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint("vit_head", tmp_path_factory.mktemp("vit_head"))


def test_a_checkpoint_and_its_live_model_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    named = identify(load_backbone(folder))
    assert (named.family, named.depth, named.width, named.patch) == ("vit", 3, 32, 8)
    live = AutoModelForImageClassification.from_pretrained(folder)
    for dtype in (torch.float32, torch.bfloat16):
        assert identify(accelerate(live.to(dtype), cost=0.9).backbone) == named
    half = save_checkpoint("dinov2", tmp_path, dtype=torch.float16)
    live = Dinov2Model.from_pretrained(half, dtype=torch.float16)
    assert identify(accelerate(live, cost=0.9).backbone) == identify(load_backbone(half))


def test_a_setting_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    Setting(0.9, model=identify(load_backbone(folder))).save(tmp_path / "setting.json")
    with pytest.raises(ConfigError, match="for a vit of 3 blocks, width 32 and patch 8, not for a dinov2 of 3 blocks"):
        accelerate(make_model("dinov2"), setting=tmp_path / "setting.json")
    with pytest.raises(ConfigError, match="not for a vit of 3 blocks, width 32 and patch 16"):
        accelerate(make_model("vit_head", patch=16), setting=tmp_path / "setting.json")


def test_other_weights_are_a_warning_and_a_setting_made_by_hand_fits_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = Setting(0.9, model=identify(load_backbone(folder)))
    accelerate(folder, setting=setting)
    assert not capsys.readouterr().err
    tuned_further = make_model("vit_head")
    with torch.no_grad():
        tuned_further.classifier.bias += 0.01
    accelerate(tuned_further, setting=setting)
    said = capsys.readouterr().err
    assert said.startswith("warning: this setting was tuned on other weights")
    assert len(said.splitlines()) == 1
    for model in (tuned_further, make_model("dinov2")):
        accelerate(model, setting=Setting(0.9))
    assert not capsys.readouterr().err
