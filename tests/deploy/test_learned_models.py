"""Learned reducers in accelerated models: used, saved, exported, timed, and refused where they do not fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

import redi
from families import make_model
from learned_files import write_learned
from map_families import make_whole
from pickling import copies
from redi.backbone import Backbone, load_backbone
from redi.demo.generator import sample
from redi.deploy import Accelerated, Setting, accelerate
from redi.deploy.card import model_card
from redi.deploy.export import export
from redi.errors import ConfigError
from redi.learning.files import load_learned, save_learned
from redi.reduction import Progressive
from redi.reduction.learned import LEARNED
from redi.reduction.schedule import Shape
from redi.speed.bench import BenchConfig, run_bench

FIXED = [name for name in LEARNED if name != "a-vit"]


@pytest.fixture
def vit() -> Path:
    """The demo's backbone: deep enough that every method has a block to work in."""
    return Path(redi.__file__).parent / "demo" / "demo-vit"


def pixels_of(backbone: Backbone) -> torch.Tensor:
    size = backbone.preprocessing.size
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FIXED)
def test_an_accelerated_model_does_what_the_file_says(name: str, vit: Path, tmp_path: Path) -> None:
    backbone = load_backbone(vit)
    learned = write_learned(tmp_path / "learned.safetensors", backbone, name)
    faster = accelerate(backbone, cost=0.65, reducer=tmp_path / "learned.safetensors")
    pixels = pixels_of(backbone)
    reducer = learned.method.reducer()
    assert isinstance(reducer, Progressive)
    schedule = reducer.extent_within_cost(0.65, backbone.geometry, faster.prefix_only).schedule
    assert faster.schedule(faster.grid) == schedule
    assert min(schedule) < backbone.geometry.patches
    short = backbone.encode_progressively(backbone.embed(pixels), reducer, schedule, residual=True)
    expected = backbone.final_norm(short.full(backbone.prefix))
    torch.testing.assert_close(faster(pixels).last_hidden_state, expected)
    assert faster.cost() <= 0.65
    lower = faster.at_cost(0.6)
    assert lower.learned is not None
    assert lower.cost() <= 0.6


def test_a_saved_model_keeps_its_learned_reducer(vit: Path, tmp_path: Path) -> None:
    backbone = load_backbone(vit)
    write_learned(tmp_path / "learned.safetensors", backbone, "spvit")
    faster = redi.accelerate(str(vit), cost=0.65, reducer=str(tmp_path / "learned.safetensors"))
    faster.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "reducer.safetensors").is_file()
    again = AutoModel.from_pretrained(tmp_path / "saved")
    assert isinstance(again, Accelerated)
    pixels = pixels_of(backbone)
    assert torch.equal(again(pixels).last_hidden_state, faster(pixels).last_hidden_state)
    redi.accelerate(str(vit), cost=0.65).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "reducer.safetensors").exists(), "saving again replaces everything"


@pytest.mark.parametrize("name", ["dynamicvit", "tokenlearner", "protected-learned"])
def test_it_can_be_exported(name: str, vit: Path, tmp_path: Path) -> None:
    backbone = load_backbone(vit)
    write_learned(tmp_path / "learned.safetensors", backbone, name)
    faster = accelerate(backbone, cost=0.65, reducer=tmp_path / "learned.safetensors")
    assert export(faster, tmp_path / "model.onnx", pixels_of(backbone)).differences["openvino"] < 1e-4


def test_it_can_be_timed(vit: Path, tmp_path: Path) -> None:
    file = tmp_path / "learned.safetensors"
    write_learned(file, load_backbone(vit), "dynamicvit")
    settings = BenchConfig(backbone=str(vit), reducers=(str(file),), cost=0.65, quick=True, seconds=0.1)
    rows = [row.row for row in run_bench(settings).rows]
    assert rows == ["dense", "dynamicvit"]


def refusal(**changes: object) -> str:
    with pytest.raises(ConfigError) as error:
        accelerate(**changes)  # type: ignore[arg-type]
    message = str(error.value)
    assert "\n" not in message
    return message


def test_what_does_not_fit_is_refused_in_one_line(vit: Path, tmp_path: Path) -> None:
    backbone, file = load_backbone(vit), tmp_path / "learned.safetensors"
    write_learned(tmp_path / "halting.safetensors", backbone, "a-vit")
    assert "length of its own" in refusal(model=backbone, reducer=tmp_path / "halting.safetensors")
    write_learned(file, backbone, "dynamicvit")
    tuned = Setting(0.65, shape=Shape(0, 2))
    assert "its own schedule" in refusal(model=backbone, setting=tuned, reducer=file)
    for changed in (Setting(0.65, protection=2.0), Setting(0.65, relevance="received"), Setting(0.65, task="dense")):
        assert "nothing else" in refusal(model=backbone, setting=changed, reducer=file)
    assert "was learned on" in refusal(model=make_model("dinov2"), reducer=file)
    assert "was learned on" in refusal(model=make_model("dinov2"), reducer=load_learned(file, backbone))
    assert "no file" in refusal(model=backbone, reducer=tmp_path / "absent.safetensors")
    assert "no file" in refusal(model=backbone, reducer=tmp_path)
    assert "redi.learn()" in refusal(model=backbone, reducer=3)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(redi.RediError):
        accelerate(backbone, reducer=file)


def test_models_that_give_maps_are_refused(tmp_path: Path) -> None:
    whole = make_whole("depth_anything")
    write_learned(tmp_path / "learned.safetensors", accelerate(whole, cost=1.0).backbone, "dynamicvit")
    assert "not for models that give maps" in refusal(model=whole, reducer=tmp_path / "learned.safetensors")


def test_a_head_that_averages_patches_leaves_out_those_that_were_dropped(tmp_path: Path) -> None:
    model = make_model("dinov2_registers_head")
    backbone = accelerate(model, cost=1.0).backbone
    learned = write_learned(tmp_path / "learned.safetensors", backbone, "dynamicvit")
    faster = accelerate(model, cost=0.8, reducer=learned)
    assert not faster.prefix_only
    pixels = pixels_of(backbone)
    reducer = learned.method.reducer()
    assert isinstance(reducer, Progressive)
    with torch.no_grad():
        short = backbone.encode_progressively(backbone.embed(pixels), reducer, faster.schedule(faster.grid))
        assert (short.source < 0).any()
        expected = backbone.classify(short.hidden)  # all tokens that are left, and none that is not
        torch.testing.assert_close(faster(pixels).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FIXED)
def test_a_pickled_or_copied_model_computes_the_same_with_its_own_reducer(name: str, vit: Path, tmp_path: Path) -> None:
    backbone = load_backbone(vit)
    backbone.load_state_dict({key: value.clone() for key, value in backbone.state_dict().items()}, assign=True)
    write_learned(tmp_path / "learned.safetensors", backbone, name)
    faster = accelerate(backbone, cost=0.65, reducer=tmp_path / "learned.safetensors")
    pixels, schedule = pixels_of(backbone), faster.schedule(faster.grid)
    expected = faster(pixels).last_hidden_state
    others = copies(faster)
    for value in faster.learned_module.state_dict().values():
        value.fill_(torch.nan)
    for other in others:
        assert torch.equal(other(pixels).last_hidden_state, expected)
        assert other.schedule(faster.grid) == schedule


@pytest.mark.parametrize("name", FIXED)
def test_a_model_can_change_its_precision(name: str, vit: Path, tmp_path: Path) -> None:
    backbone = load_backbone(vit)
    write_learned(tmp_path / "learned.safetensors", backbone, name)
    faster = accelerate(backbone, cost=0.65, reducer=tmp_path / "learned.safetensors").to(torch.bfloat16)
    assert {value.dtype for value in faster.learned_module.state_dict().values()} == {torch.bfloat16}, "it moves too"
    output = faster(pixels_of(backbone).bfloat16()).last_hidden_state
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()
    half = load_backbone(vit).to(torch.bfloat16)
    apart = accelerate(half, cost=0.65, reducer=load_learned(tmp_path / "learned.safetensors", half))
    assert apart(pixels_of(half).bfloat16()).last_hidden_state.dtype == torch.bfloat16, "whatever the reducer has"


@pytest.mark.parametrize("kind", ["live", "accelerated"])
def test_learning_leaves_the_users_model_alone(kind: str, tmp_path: Path) -> None:
    for index in range(64):
        (tmp_path / "images").mkdir(exist_ok=True)
        sample(2, index).image.resize((64, 64)).save(tmp_path / "images" / f"{index}.png")
    model = make_model("vit_head").requires_grad_(True)
    given = model if kind == "live" else accelerate(model, cost=1.0)
    before = {name: (value.clone(), value.requires_grad) for name, value in given.named_parameters()}
    out = tmp_path / "weitop.safetensors"
    result = redi.learn(given, "weitop", tmp_path / "images", out=out, size=48, cost=0.8, steps=1, checks=1, workers=0)
    for name, value in given.named_parameters():
        assert torch.equal(value, before[name][0])
        assert value.requires_grad == before[name][1]
    assert accelerate(model, cost=0.8, reducer=result).learned is not None


def test_the_model_card_names_the_reducer(vit: Path, tmp_path: Path) -> None:
    backbone = load_backbone(vit)
    learned = write_learned(tmp_path / "learned.safetensors", backbone, "spvit")
    card = model_card(accelerate(backbone, cost=0.65, reducer=learned).facts("name", ""))
    assert "SPViT, learned" in card
    assert "merged from block to block" not in card
    assert "redi tune" not in card


def test_other_weights_give_a_warning(vit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone, file = load_backbone(vit), tmp_path / "learned.safetensors"
    learned = write_learned(file, backbone, "dynamicvit")
    other = replace(learned.training, model=replace(learned.training.model, weights="0"))
    save_learned(file, learned.method, other, {"learned": "dynamicvit"})
    load_learned(file, backbone)
    assert "other weights" in capsys.readouterr().err
