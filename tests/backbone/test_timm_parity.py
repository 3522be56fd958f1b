"""The same checkpoint through timm and through transformers: tokens, attention, reduced outputs."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from families import save_model, scrambled
from redi.backbone import AttentionScores, Backbone, load_backbone
from redi.images import load_image
from redi.reduction import PROGRESSIVE, Budget, reduce
from timm_convert import eva_weights, split_positions, stored_weights, timm_weights, tower_weights, write_timm_folder

_SMALL = {"img_size": 48, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "mlp_ratio": 2}


class Pair(NamedTuple):
    of_transformers: Backbone
    of_timm: Backbone


PAIRS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    # name: (checkpoint of tests/families.py, timm's architecture, outputs of its last layer, changed configuration)
    "vit": ("vit_head", "vit_tiny_patch16_224", 7, {"layer_norm_eps": 1e-6}),
    "dinov2": ("dinov2", "vit_small_patch14_dinov2", 0, {}),
    "dinov2_registers": ("dinov2_registers", "vit_small_patch14_reg4_dinov2", 0, {}),
    "dinov3": ("dinov3", "vit_small_patch16_dinov3_qkvb", 0, {}),
    "clip": ("clip_projection", "vit_base_patch16_clip_quickgelu_224", 24, {}),
    "siglip": ("siglip", "vit_base_patch16_siglip_224", 0, {"hidden_act": "gelu"}),  # timm's own choice
}
#: The functions that rename the weights, if it is not ``timm_weights``.
CONVERT = {"dinov3": eva_weights, "clip": tower_weights, "siglip": tower_weights}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pytest.importorskip("timm")
    name, architecture, outputs, changes = PAIRS[request.param]
    folder = tmp_path_factory.mktemp(name)
    original = save_model(scrambled(name, **changes), folder / "transformers")
    weights = stored_weights(original)
    converted = CONVERT.get(request.param, timm_weights)(weights, 3)
    if name == "dinov2_registers":
        converted = split_positions(converted)
    write_timm_folder(folder / "timm", converted, architecture, outputs, model_args=_SMALL)
    return Pair(load_backbone(original), load_backbone(f"timm:{folder / 'timm'}"))


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_tokens_positions_and_dense_outputs(pair: Pair, pixels: Tensor) -> None:
    one, other = pair.of_transformers.embed(pixels), pair.of_timm.embed(pixels)
    assert (pair.of_timm.prefix, other.grid) == (pair.of_transformers.prefix, one.grid)
    assert pair.of_timm.has_cls == pair.of_transformers.has_cls
    close(other.sequence, one.sequence)
    assert (one.rope is None) == (other.rope is None)
    if one.rope is not None and other.rope is not None:
        close(other.rope[0], one.rope[0])
        close(other.rope[1], one.rope[1])
    hidden = pair.of_transformers.encode(one)
    close(pair.of_timm.encode(other), hidden, 1e-4)
    close(pair.of_timm.final_norm(hidden), pair.of_transformers.final_norm(hidden))
    if pair.of_transformers.head is not None:
        close(pair.of_timm.classify(hidden), pair.of_transformers.classify(hidden))
    assert pair.of_timm.has_embedding == pair.of_transformers.has_embedding
    if pair.of_transformers.has_embedding:
        close(pair.of_timm.image_embedding(hidden), pair.of_transformers.image_embedding(hidden))


def test_attention_statistics(pair: Pair, pixels: Tensor) -> None:
    scores = []
    for backbone in pair:
        watched = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
        backbone.encode(backbone.embed(pixels), watch=watched.watches)
        scores.append(watched)
    for one, other in zip(scores[0].means.values(), scores[1].means.values(), strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=0)
    maps, others = scores[0].maps(), scores[1].maps()
    for name, values in maps.items():
        assert values.std() > 0.05, "a constant map would agree with anything"
        torch.testing.assert_close(others[name], values, atol=1e-4, rtol=0)


def test_reduced_outputs(pair: Pair, pixels: Tensor) -> None:
    scores = torch.rand(3, 36)
    for budget in (Budget(), Budget(keep=1, merge=0), Budget(keep=0.25, merge=0.5)):
        outputs = []
        for backbone in pair:
            tokens = backbone.embed(pixels)
            reduction = reduce(tokens.patches, scores, budget, tokens.grid)
            outputs.append(backbone.encode(tokens.reduced(reduction)))
        close(outputs[1], outputs[0], 1e-4)


@pytest.mark.parametrize("reducer", ["tome", "evit"])
def test_reducers_inside_the_blocks(pair: Pair, pixels: Tensor, reducer: str) -> None:
    """They read query, key and value, which on DINOv3 are rotated by each image's own positions."""
    one, other = (
        backbone.encode_progressively(backbone.embed(pixels), PROGRESSIVE[reducer], (30, 24, 13)) for backbone in pair
    )
    assert torch.equal(one.source, other.source)
    close(other.hidden, one.hidden, 1e-4)


def test_rotary_positions_agree_off_the_native_size(pair: Pair) -> None:
    """Learned positions are resampled by each library in its own way; rotary ones are computed."""
    pixels = torch.randn(2, 3, 40, 72)
    one, other = (backbone.encode(backbone.embed(pixels)) for backbone in pair)
    if pair.of_timm.embed(pixels).rope is None:
        assert one.shape == other.shape
    else:
        close(other, one, 1e-4)


def test_real_vit_tiny_through_both_loaders(shared: Path, tmp_path: Path) -> None:
    """The same predictions and logits to 1e-4 on real images, through each loader's preprocessing."""
    pytest.importorskip("timm")
    original = shared / "models" / "vit-tiny-patch16-224"
    settings = json.loads((original / "config.json").read_text())
    constants = json.loads((original / "preprocessor_config.json").read_text())
    folder = write_timm_folder(
        tmp_path / "timm",
        timm_weights(stored_weights(original), 12),
        "vit_tiny_patch16_224",
        1000,
        label_names=[settings["id2label"][str(number)] for number in range(1000)],
    )
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": constants["image_mean"], "std": constants["image_std"]}
    (folder / "config.json").write_text(json.dumps(config))
    pair = Pair(load_backbone(original), load_backbone(f"timm:{folder}"))
    assert pair.of_timm.class_names == pair.of_transformers.class_names
    assert pair.of_timm.preprocessing == pair.of_transformers.preprocessing
    files = sorted((shared / "data" / "imagenet-val-5k" / "val").glob("*/*"))[::50]
    assert len(files) == 20
    with torch.inference_mode():
        pixels = torch.stack([pair.of_timm.preprocessing(load_image(file)) for file in files])
        for reduced in (False, True):
            logits = []
            for backbone in pair:
                tokens = backbone.embed(pixels)
                if reduced:
                    scores = torch.rand(20, 196, generator=torch.Generator().manual_seed(0))
                    tokens = tokens.reduced(reduce(tokens.patches, scores))
                logits.append(backbone.classify(backbone.encode(tokens)))
            torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=0)
            assert torch.equal(logits[1].argmax(1), logits[0].argmax(1))
