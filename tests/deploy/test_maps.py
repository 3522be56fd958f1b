"""Backbones of transformers: feature maps at several depths, against the originals' own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import VitDetBackbone, VitDetConfig
from transformers.backbone_utils import BackboneMixin

from map_families import BACKBONES, flat, images, make_backbone
from pickling import copies
from redi.deploy import Accelerated, AcceleratedBackbone, Setting, accelerate
from redi.deploy.export import export
from redi.errors import BackboneError, ConfigError, InvalidInput
from redi.reduction.schedule import Shape

COST = 0.7
OPTIONS: list[dict[str, Any]] = [
    {},
    {"out_indices": [0, 2, 3]},
    {"out_features": ["stage1", "stage4"], "apply_layernorm": False},
    {"out_indices": [-3, -1], "reshape_hidden_states": False},
    {"out_indices": [0, 4], "reshape_hidden_states": False, "apply_layernorm": False, "return_class_token": True},
]
families = pytest.mark.parametrize("name", BACKBONES)


def build(name: str, options: dict[str, Any]) -> Any:
    if name != "dinov3":
        options = {key: value for key, value in options.items() if key != "return_class_token"}
    return make_backbone(name, **options)


@families
def test_a_pickled_or_copied_backbone_computes_the_same(name: str) -> None:
    model, pixels = accelerate(make_backbone(name), cost=COST), images()
    for other in copies(model):
        torch.testing.assert_close(flat(other(pixels)), flat(model(pixels)), atol=0, rtol=0)


@families
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "default")
def test_at_full_cost_the_maps_are_the_originals(name: str, options: dict[str, Any]) -> None:
    given = build(name, options)
    faster, shorter = accelerate(given, cost=1.0), accelerate(given, cost=COST)
    for pixels in (images(), images(40, 64, batch=1), images(80, 56), images(45, 61)):  # the last fills no patch
        expected, output = given(pixels), faster(pixels)
        assert type(output) is type(expected)
        assert output.keys() == expected.keys()
        torch.testing.assert_close(flat(output), flat(expected), atol=1e-5, rtol=1e-5)
        as_tuple = faster(pixels, return_dict=False)
        assert [type(part) for part in as_tuple] == [type(part) for part in given(pixels, return_dict=False)]
        merged = flat(shorter(pixels))
        assert {key: value.shape for key, value in merged.items()} == {
            key: value.shape for key, value in flat(expected).items()
        }
        changed = [key for key, value in flat(expected).items() if not torch.allclose(merged[key], value, atol=1e-3)]
        assert changed
        if 0 in (options.get("out_indices") or ()):
            assert "feature_maps 0" not in changed, "the stem comes before any merge"


@families
def test_it_has_what_a_backbone_has(name: str) -> None:
    given = make_backbone(name, out_indices=[1, 3])
    faster: Any = accelerate(given, cost=COST)
    assert isinstance(faster, AcceleratedBackbone)
    assert isinstance(faster, BackboneMixin)
    for attribute in ("out_features", "out_indices", "channels", "stage_names", "num_features", "out_feature_channels"):
        assert getattr(faster, attribute) == getattr(given, attribute)
    pixels = images()
    direct = faster.forward_with_filtered_kwargs(pixels, output_hidden_states=False, output_attentions=None)
    assert all(map(torch.equal, direct.feature_maps, faster(pixels).feature_maps))
    faster.out_features = ["stem", "stage4"]
    assert given.out_indices == [1, 3]
    assert (faster.out_indices, faster.config.out_indices) == ([0, 4], [0, 4])
    given.out_indices = [0, 4]
    torch.testing.assert_close(
        flat(accelerate(given, COST)(pixels)), flat(faster(pixels)), msg="maps may be chosen before or after"
    )


def test_only_the_blocks_up_to_the_last_map_run_and_count() -> None:
    given = make_backbone("dinov2", out_indices=[1, 3])
    faster, ran = accelerate(given, cost=COST), []
    for block in faster.backbone.blocks:
        block.mlp.register_forward_hook(lambda _, inputs, __: ran.append(inputs[0].shape[1] - 1))  # type: ignore[union-attr]
    faster(images())
    assert tuple(ran) == faster.schedule((6, 6))
    assert len(ran) == 3
    assert 0.6 < faster.cost() <= COST
    with pytest.raises(ConfigError, match="up to block 4, but only 3 blocks run"):
        accelerate(given, setting=Setting(COST, Shape(1, 4)))
    ran.clear()
    stem = accelerate(make_backbone("dinov2", out_indices=[0]), cost=1.0)
    assert len(stem(images()).feature_maps) == 1


@families
def test_copies_are_tokens_and_residuals_are_not(name: str) -> None:
    given, pixels = make_backbone(name, out_indices=[4], reshape_hidden_states=False), images(batch=1)
    distinct = {
        restore: accelerate(given, setting=Setting(COST, restore=restore))(pixels).feature_maps[0][0].unique(dim=0)
        for restore in ("copy", "residual")
    }
    assert len(distinct["copy"]) < 36 <= len(distinct["residual"])


@families
def test_the_given_backbone_is_left_alone(name: str) -> None:
    given, pixels = make_backbone(name, out_indices=[2, 4]), images()
    before, attention = given(pixels), given.config._attn_implementation
    given.train()
    model = accelerate(given, cost=COST)
    assert {p.data_ptr() for p in model.parameters()} == {p.data_ptr() for p in given.parameters()}
    model.to(torch.bfloat16)(pixels)
    assert given.config._attn_implementation == attention
    assert all(module.training for module in given.modules())
    assert all(parameter.requires_grad for parameter in given.parameters())
    torch.testing.assert_close(flat(given.eval()(pixels)), flat(before), atol=0, rtol=0)
    dense = accelerate(given, cost=COST).dense
    torch.testing.assert_close(flat(dense(pixels)), flat(before), msg="the copy can be called too")


@families
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    given, pixels = make_backbone(name, out_indices=[0, 2, 4], apply_layernorm=False), images()
    model = accelerate(given, cost=COST)
    model.save_pretrained(tmp_path / "faster")
    for kind in (Accelerated, AcceleratedBackbone):
        again = kind.from_pretrained(tmp_path / "faster")
        assert type(again) is AcceleratedBackbone
        assert (again.setting, again.out_indices) == (model.setting, [0, 2, 4])
        torch.testing.assert_close(flat(again(pixels)), flat(model(pixels)), atol=0, rtol=0)
    dense = type(given).from_pretrained(tmp_path / "faster" / "dense")
    torch.testing.assert_close(flat(dense(pixels)), flat(given(pixels)))
    card = (tmp_path / "faster" / "README.md").read_text()
    assert "Accelerated.from_pretrained" in card
    assert "pipeline" not in card
    by_folder = accelerate(tmp_path / "faster" / "dense", cost=COST)
    torch.testing.assert_close(flat(by_folder(pixels)), flat(model(pixels)))
    torch.testing.assert_close(flat(again.at_cost(1.0)(pixels)), flat(given(pixels)), atol=1e-5, rtol=1e-5)


@pytest.mark.compiles
@families
def test_it_is_compiled_whole(name: str) -> None:
    torch._dynamo.reset()
    model = accelerate(make_backbone(name, out_indices=[2, 4]), cost=COST)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    pixels = images(40, 64)
    torch.testing.assert_close(flat(compiled(pixels)), flat(model(pixels)), atol=1e-5, rtol=1e-5)


def test_what_a_merged_backbone_has_not_is_refused(tmp_path: Path) -> None:
    given = make_backbone("dinov2")
    model, pixels = accelerate(given, cost=COST), images()
    for option in ({"output_attentions": True}, {"output_hidden_states": True}, {"attention_mask": pixels}):
        with pytest.raises(InvalidInput, match=f"^.*no {next(iter(option))}: tokens are merged.*$"):
            model(pixels, **option)
    given.config.output_hidden_states = True
    with pytest.raises(InvalidInput, match=r"^.*no output_hidden_states: tokens are merged.*$"):
        accelerate(given, cost=COST)(pixels)
    with pytest.raises(InvalidInput, match=r"^Pixels must be .*$"):
        model(images(4, 48))
    with pytest.raises(InvalidInput, match=r"^forward_intermediates\(\) is for models of timm; .*$"):
        model.forward_intermediates(pixels)
    with pytest.raises(ConfigError, match=r"^A backbone with feature maps cannot be exported: .*$"):
        export(model, tmp_path / "model.onnx", pixels)
    with pytest.raises(ConfigError, match=r"^Second looks need a head.*$"):
        accelerate(make_backbone("dinov2"), cost=COST, adaptive=True, images=pixels)
    small: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with pytest.raises(
        BackboneError, match=r"^VitDetBackbone cannot be accelerated; supported are .*Dinov2Backbone.*$"
    ):
        accelerate(VitDetBackbone(VitDetConfig(**small, image_size=32, pretrain_image_size=32)))


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    make_backbone("dinov2").save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    text = config.read_text()
    for blocks, message in (
        (5, "(lacks .* weights of a Dinov2Backbone|cannot be loaded)"),
        (999, "has num_hidden_lay"),
    ):
        config.write_text(text.replace('"num_hidden_layers": 4', f'"num_hidden_layers": {blocks}'))
        with pytest.raises(BackboneError, match=rf"^\S+ {message}.*$"):
            accelerate(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match=r"^\S+ has no model.safetensors.*$"):
        accelerate(tmp_path)
