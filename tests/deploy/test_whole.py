"""Whole models: the decoder reads an accelerated backbone, and all else is the original's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForDepthEstimation,
    AutoModelForSemanticSegmentation,
    ConvNextConfig,
    DPTConfig,
    DPTForDepthEstimation,
    DPTImageProcessorPil,
    SegformerImageProcessorPil,
    UperNetConfig,
    UperNetForSemanticSegmentation,
    ZoeDepthImageProcessorPil,
    pipeline,
)

from map_families import WHOLE, flat, images, make_whole
from pickling import copies
from redi.deploy import Accelerated, AcceleratedModel, accelerate
from redi.errors import BackboneError, InvalidInput

COST = 0.7
models = pytest.mark.parametrize("name", WHOLE)


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 50, 3), dtype=np.uint8))


def processor_of(name: str) -> Any:
    size = {"height": 48, "width": 64}
    if name.startswith("upernet"):
        return SegformerImageProcessorPil(size=size, image_std=[0.25] * 3)
    if name == "zoedepth":
        return ZoeDepthImageProcessorPil(size=size, ensure_multiple_of=8, do_pad=False)
    return DPTImageProcessorPil(size=size, ensure_multiple_of=8, keep_aspect_ratio=True)


def task_of(name: str) -> Any:
    return "image-segmentation" if name.startswith("upernet") else "depth-estimation"


@models
def test_at_full_cost_the_outputs_are_the_originals(name: str) -> None:
    given = make_whole(name)
    faster, shorter = accelerate(given, cost=1.0), accelerate(given, cost=COST)
    for pixels in (images(), images(40, 64, batch=1), images(64, 56)):
        expected, output = given(pixels), faster(pixels)
        assert type(output) is type(expected)
        torch.testing.assert_close(flat(output), flat(expected), atol=1e-5, rtol=1e-5)
        as_tuple = faster(pixels, return_dict=False)
        assert [part.shape for part in as_tuple] == [part.shape for part in given(pixels, return_dict=False)]
        merged = shorter(pixel_values=pixels)
        assert type(merged) is type(expected)
        for key, value in flat(expected).items():
            assert flat(merged)[key].shape == value.shape
            assert value.std() > 0.01
            assert not torch.allclose(flat(merged)[key], value, atol=1e-3)
    assert 0.6 < shorter.cost() <= COST


@models
def test_a_pickled_or_copied_model_computes_the_same(name: str) -> None:
    model, pixels = accelerate(make_whole(name), cost=COST), images()
    expected = flat(model(pixels))
    for other in copies(model):
        assert all(torch.equal(value, expected[key]) for key, value in flat(other(pixels)).items())


def test_a_decoder_whose_weights_are_not_finite_is_refused() -> None:
    given = make_whole("depth_anything")
    with torch.no_grad():
        given.head.conv1.bias[0] = torch.inf
    with pytest.raises(BackboneError, match=r"^The weights head\.conv1\.bias are not all finite: .*\.$"):
        accelerate(given, cost=COST)


@models
def test_the_given_model_is_left_alone(name: str) -> None:
    given, pixels = make_whole(name), images()
    before, inner = given(pixels), given.backbone
    weights = {key: value.clone() for key, value in given.state_dict().items()}
    attention = given.backbone.config._attn_implementation
    given.train()
    model = accelerate(given, cost=COST)
    own, theirs = list(model.parameters()), list(given.parameters())
    assert len(own) == len(theirs)
    assert {parameter.data_ptr() for parameter in own} == {parameter.data_ptr() for parameter in theirs}
    assert len(model.state_dict()) == len(weights), "no weight has two names"
    model.train()(pixels)  # which would change the statistics of a batch norm
    model.to(torch.bfloat16)(pixels.to(torch.bfloat16))
    assert given.backbone is inner
    assert given.backbone.config._attn_implementation == attention
    assert all(module.training for module in given.modules())
    assert all(parameter.requires_grad for parameter in theirs)
    assert all(torch.equal(value, weights[key]) for key, value in given.state_dict().items())
    torch.testing.assert_close(flat(given.eval()(pixels)), flat(before), atol=0, rtol=0)


def test_labels_give_the_models_own_loss() -> None:
    given, pixels, labels = make_whole("upernet_dinov2"), images(), torch.randint(0, 5, (2, 48, 48))
    loss = accelerate(given, cost=1.0)(pixels, labels=labels).loss
    torch.testing.assert_close(loss, given(pixels, labels=labels).loss)


def assert_same_answer(answer: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        torch.testing.assert_close(answer["predicted_depth"], expected["predicted_depth"])
        return
    assert [entry["label"] for entry in answer] == [entry["label"] for entry in expected]
    assert all(np.array_equal(a["mask"], b["mask"]) for a, b in zip(answer, expected, strict=True))


@models
def test_pipelines_take_the_model_and_its_folder(name: str, tmp_path: Path) -> None:
    given, processor = make_whole(name), processor_of(name)
    given.save_pretrained(tmp_path / "given")
    processor.save_pretrained(tmp_path / "given")
    dense = pipeline(task_of(name), model=given, image_processor=processor)(picture())
    exact: Any = accelerate(tmp_path / "given", cost=1.0)
    assert_same_answer(pipeline(task_of(name), model=exact, image_processor=processor)(picture()), dense)
    model: Any = accelerate(tmp_path / "given", cost=COST)
    assert model.setting == model.decoder.backbone.setting
    assert model.setting.task == "dense"
    live = pipeline(task_of(name), model=model, image_processor=processor)(picture())
    model.save_pretrained(tmp_path / "faster", license="mit")
    loaded = pipeline(task_of(name), model=str(tmp_path / "faster"))
    assert type(loaded.model) is AcceleratedModel
    assert type(loaded.image_processor).__name__.removesuffix("Pil") == type(processor).__name__.removesuffix("Pil")
    assert_same_answer(pipeline(task_of(name), str(tmp_path / "faster"), image_processor=processor)(picture()), live)
    card = (tmp_path / "faster" / "README.md").read_text()
    assert f'pipeline("{task_of(name)}"' in card
    assert "that of the original model" in card
    for file in ("README.md", "config.json", "setting.json", "dense/config.json"):
        assert str(tmp_path) not in (tmp_path / "faster" / file).read_text()


@models
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    given, pixels = make_whole(name), images()
    model = accelerate(given, cost=COST)
    model.save_pretrained(tmp_path / "faster")
    again = Accelerated.from_pretrained(tmp_path / "faster")
    assert type(again) is AcceleratedModel
    assert again.setting == model.setting
    # Convolutions round by the place of their weights in memory.
    torch.testing.assert_close(flat(again(pixels)), flat(model(pixels)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(flat(again.at_cost(1.0)(pixels)), flat(given(pixels)), atol=1e-5, rtol=1e-5)
    auto: Any = AutoModelForSemanticSegmentation if name.startswith("upernet") else AutoModelForDepthEstimation
    assert auto.from_pretrained(tmp_path / "faster", dtype="bfloat16")(pixels.bfloat16()) is not None
    plain = type(given).from_pretrained(tmp_path / "faster" / "dense")
    torch.testing.assert_close(flat(plain(pixels)), flat(given(pixels)))
    marks = json.loads((tmp_path / "faster" / "config.json").read_text())
    assert marks["model_type"].startswith("redi_accelerated_")
    again.save_pretrained(tmp_path / "faster")  # whose weights are read from the file that is replaced
    torch.testing.assert_close(
        flat(Accelerated.from_pretrained(tmp_path / "faster")(pixels)), flat(model(pixels)), atol=1e-5, rtol=1e-5
    )


def test_what_cannot_be_done_is_refused_in_one_line() -> None:
    model, pixels = accelerate(make_whole("dpt"), cost=COST), images()
    for option in ("output_attentions", "output_hidden_states"):
        with pytest.raises(InvalidInput, match=f"^.*no {option}: tokens are merged.*$"):
            model(pixels, **{option: True})
    small: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 1, "intermediate_size": 8}
    small |= {"neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8, "backbone_out_indices": [0, 1, 2, 3]}
    own = DPTForDepthEstimation(DPTConfig(**small, image_size=32))
    with pytest.raises(
        BackboneError, match=r"^This DPTForDepthEstimation has no backbone but an encoder of its own.*$"
    ):
        accelerate(own)
    stages: Any = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
    maps = ConvNextConfig(hidden_sizes=[8] * 4, depths=[1] * 4, **stages)
    other = UperNetForSemanticSegmentation(UperNetConfig(backbone_config=maps, hidden_size=8, auxiliary_in_channels=8))
    with pytest.raises(
        BackboneError, match=r"^This UperNet\w+ has the backbone ConvNextBackbone; supported backbones.*$"
    ):
        accelerate(other)
