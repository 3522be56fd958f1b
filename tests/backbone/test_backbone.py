"""Every supported family through the one interface, against its library's own forward."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel, ViTMAEForPreTraining

from families import encoder_of, inputs_of, make_model, save_checkpoint
from redi.attention import cls_max, cls_mean, incoming_mass, rollout
from redi.backbone import AttentionScores, Backbone, Watch, load_backbone
from redi.backbone.families import FAMILIES
from redi.errors import BackboneError, InvalidInput
from redi.reduction import Budget, Reduction, reduce
from timm_families import TIMM_CHECKPOINTS, timm_attentions


def reference_outputs(name: str, pixels: Tensor) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """(normed tokens, logits or None, attention of every block) of the library's eager forward."""
    model = make_model(name)
    if name.startswith("timm_"):
        with torch.no_grad():
            normed, logits = model.forward_features(pixels), model(pixels)
        return normed, logits if TIMM_CHECKPOINTS[name].classes else None, timm_attentions(model, pixels)
    model.set_attn_implementation("eager")
    encoder = encoder_of(model)
    options = {}
    if isinstance(model, ViTMAEForPreTraining):
        encoder.config.mask_ratio = 0.0
        encoder.embeddings.config.mask_ratio = 0.0
        # Without masking MAE still shuffles by noise; increasing noise keeps the order.
        patches = (pixels.shape[2] // 8) * (pixels.shape[3] // 8)
        options["noise"] = torch.arange(patches).float().expand(len(pixels), -1)
    with torch.no_grad():
        output = encoder(**inputs_of(model, pixels), output_attentions=True, **options)
        logits = None if isinstance(model, ViTMAEForPreTraining) else _logits(model, pixels)
    return output.last_hidden_state, logits, list(output.attentions)


def _logits(model: PreTrainedModel, pixels: Tensor) -> Tensor | None:
    output: Any = model(**inputs_of(model, pixels))
    return getattr(output, "logits", None)


def as_output(backbone: Backbone, hidden: Tensor) -> Tensor:
    """The library's ``last_hidden_state``, which CLIP does not norm."""
    return hidden if backbone.family is FAMILIES["clip_vision_model"] else backbone.final_norm(hidden)


@pytest.fixture
def name(checkpoint: Path, request: pytest.FixtureRequest) -> str:
    callspec: Any = request.node.callspec
    value: str = callspec.params["checkpoint"]
    return value


def test_dense_path_equals_the_library(name: str, backbone: Backbone, pixels: Tensor) -> None:
    normed, logits, _ = reference_outputs(name, pixels)
    tokens = backbone.embed(pixels)
    assert tokens.grid == (6, 6)
    assert tokens.patches.shape[1] == 36
    hidden = backbone.encode(tokens)
    torch.testing.assert_close(as_output(backbone, hidden), normed, atol=1e-5, rtol=1e-5)
    if logits is None:
        assert backbone.class_names is None
        with pytest.raises(BackboneError, match="no classifier of its own"):
            backbone.classify(hidden)
    else:
        torch.testing.assert_close(backbone.classify(hidden), logits, atol=1e-5, rtol=1e-5)
        assert backbone.class_names == [f"LABEL_{k}" for k in range(7)]


def test_dinov3_dense_path_equals_transformers_bit_for_bit(dinov3: Backbone, pixels: Tensor) -> None:
    model = make_model("dinov3")
    with torch.no_grad():
        expected = model(pixels).last_hidden_state
    assert torch.equal(dinov3.final_norm(dinov3.encode(dinov3.embed(pixels))), expected)


def test_keeping_everything_gives_the_dense_output(backbone: Backbone, pixels: Tensor) -> None:
    tokens = backbone.embed(pixels)
    scores = torch.rand(3, 36)
    reduction = reduce(tokens.patches, scores, Budget(keep=1, merge=0), tokens.grid)
    assert torch.equal(backbone.encode(tokens.reduced(reduction)), backbone.encode(tokens))


def test_captured_statistics_equal_full_eager_attention(name: str, backbone: Backbone, pixels: Tensor) -> None:
    _, _, attentions = reference_outputs(name, pixels)
    scores = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
    backbone.encode(backbone.embed(pixels), watch=scores.watches)
    for block in scores.means.blocks:
        torch.testing.assert_close(scores.means.value(block), attentions[block].mean(1), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.rows.value(2), attentions[-1][:, :, 0], atol=1e-6, rtol=0)
    maps = scores.maps()
    prefix = backbone.prefix
    last = attentions[-1]
    # Normalised maps divide by the range of raw values, about 1e-2: 1e-6 becomes 1e-4.
    torch.testing.assert_close(maps["mass"], incoming_mass(last, prefix), atol=1e-4, rtol=0)
    assert all(values.shape == (3, 36) for values in maps.values())
    if not backbone.has_cls:
        assert list(maps) == ["mass"]
        return
    torch.testing.assert_close(maps["cls_mean"], cls_mean(last, prefix), atol=1e-4, rtol=0)
    torch.testing.assert_close(maps["cls_max"], cls_max(last, prefix), atol=1e-4, rtol=0)
    torch.testing.assert_close(maps["rollout"], rollout(attentions, prefix), atol=1e-4, rtol=0)


def test_watching_does_not_change_the_output(backbone: Backbone, pixels: Tensor) -> None:
    tokens = backbone.embed(pixels)
    scores = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
    watched = backbone.encode(tokens, watch=scores.watches)
    torch.testing.assert_close(watched, backbone.encode(tokens), atol=1e-5, rtol=1e-5)


class Calls(TorchFunctionMode):
    """Counts the calls of torch's fused attention and keeps the shapes of what softmax was given."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = 0
        self.softmaxes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.fused += func is scaled_dot_product_attention
        if func is Tensor.softmax:
            self.softmaxes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def test_blocks_that_nobody_watches_never_materialise_attention(backbone: Backbone, pixels: Tensor) -> None:
    watch = Watch(lambda attention: attention.mean(1), blocks=[1])
    tokens = backbone.embed(pixels)
    with Calls() as calls:
        backbone.encode(tokens, watch=[watch])
    assert calls.fused == backbone.depth - 1
    length = backbone.prefix + 36
    slices = [(2, 4, length, length), (1, 4, length, length)]
    assert calls.softmaxes == slices, "two images, then one"
    with Calls() as calls:
        backbone.encode(tokens)
    assert (calls.fused, calls.softmaxes) == (backbone.depth, [])


def test_encode_in_two_halves_equals_encode(backbone: Backbone, pixels: Tensor) -> None:
    tokens = backbone.embed(pixels)
    middle = backbone.encode(tokens, stop=2)
    resumed = backbone.encode(tokens.advanced(middle), start=2)
    assert torch.equal(resumed, backbone.encode(tokens))
    assert torch.equal(backbone.encode(tokens, stop=0), tokens.sequence)


def test_a_reduced_batch_equals_its_images_one_at_a_time(backbone: Backbone, pixels: Tensor) -> None:
    tokens = backbone.embed(pixels)
    scores = torch.rand(3, 36)
    together = backbone.encode(tokens.reduced(reduce(tokens.patches, scores)))
    assert together.shape[1] == backbone.prefix + 18 + 4
    for image in range(3):
        alone = backbone.embed(pixels[image : image + 1])
        reduction = reduce(alone.patches, scores[image : image + 1])
        torch.testing.assert_close(backbone.encode(alone.reduced(reduction))[0], together[image], atol=1e-5, rtol=1e-5)


def test_shuffling_dinov3_patches_with_their_positions_shuffles_the_outputs(dinov3: Backbone, pixels: Tensor) -> None:
    tokens = dinov3.embed(pixels)
    order = torch.stack([torch.randperm(36) for _ in range(3)])
    picked = tokens.patches.gather(1, order[..., None].expand(-1, -1, 32))
    shuffled = tokens.reduced(Reduction(picked, order, order))
    dense, output = dinov3.encode(tokens), dinov3.encode(shuffled)
    torch.testing.assert_close(output[:, :5], dense[:, :5], atol=1e-5, rtol=1e-5)
    expected = dense[:, 5:].gather(1, order[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(output[:, 5:], expected, atol=1e-5, rtol=1e-5)
    # This rests on the positions: with those of the raster order it does not hold.
    wrong = tokens.reduced(Reduction(picked, torch.arange(36).expand(3, -1), order))
    assert not torch.allclose(dinov3.encode(wrong)[:, 5:], expected, atol=1e-2)


def test_learned_positions_are_averaged_with_the_patches_that_carry_them(tmp_path: Path, pixels: Tensor) -> None:
    """A merged token is the mean of its members' contents plus the mean of their positions, by the same weights. The
    position that it inherits, which RoPE would use, plays no part."""
    embeddings = make_model("vit").embeddings
    backbone = load_backbone(save_checkpoint("vit", tmp_path))
    tokens, scores = backbone.embed(pixels), torch.rand(3, 36)
    reduction = reduce(tokens.patches, scores)
    with torch.no_grad():
        contents, positions = embeddings.patch_embeddings(pixels), embeddings.position_embeddings[0, 1:]
    for image in range(3):
        for token, own in enumerate(reduction.positions[image].tolist()):
            members = (reduction.source[image] == token).nonzero().flatten().tolist()
            weights = scores[image, members] + 1e-4
            if token < 18:
                weights[members.index(own)] = 1  # a kept patch
            weights = weights / weights.sum()
            expected = weights @ contents[image, members] + weights @ positions[members]
            torch.testing.assert_close(reduction.tokens[image, token], expected, atol=1e-5, rtol=1e-5)
    reduced = tokens.reduced(reduction)
    assert reduced.rope is None
    elsewhere = tokens.reduced(reduction._replace(positions=reduction.positions.flip(1)))
    assert torch.equal(backbone.encode(elsewhere), backbone.encode(reduced))


def test_dinov3_can_be_reduced_twice(dinov3: Backbone, pixels: Tensor) -> None:
    """Positions are grid indices the first time and places in the sequence the second."""
    tokens = dinov3.embed(pixels)
    order = torch.randperm(36)[:20].expand(3, -1)
    once = tokens.reduced(Reduction(tokens.patches[:, order[0]], order, order))
    places = torch.randperm(20)[:9].expand(3, -1)
    twice = once.reduced(Reduction(once.patches[:, places[0]], places, places))
    direct = order[:, places[0]]
    expected = tokens.reduced(Reduction(tokens.patches[:, direct[0]], direct, direct))
    assert torch.equal(dinov3.encode(twice), dinov3.encode(expected))


@pytest.mark.parametrize(("patch", "grid"), [(8, (12, 10)), (14, (5, 9)), (32, (8, 8)), (8, (5, 9))], ids=str)
def test_other_patch_sizes_larger_inputs_and_grids(
    name: str, checkpoint: Path, tmp_path: Path, patch: int, grid: tuple[int, int]
) -> None:
    folder = checkpoint if patch == 8 else save_checkpoint(name, tmp_path, patch=patch)
    backbone = load_backbone(folder)
    assert backbone.patch_size == patch
    assert backbone.preprocessing.size == 14 * patch
    pixels = torch.randn(2, 3, grid[0] * patch, grid[1] * patch)
    tokens = backbone.embed(pixels)
    assert tokens.grid == grid
    scores = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
    hidden = backbone.encode(tokens, watch=scores.watches)
    if name != "mae":  # transformers' MAE model masks
        normed = as_output(backbone, hidden)
        expected = library_forward(name, patch, pixels)
        torch.testing.assert_close(normed, expected, atol=1e-4, rtol=1e-4)
    mass = scores.maps()["mass"]
    assert mass.shape == (2, grid[0] * grid[1])
    everything = reduce(tokens.patches, mass, Budget(keep=1, merge=0), grid)
    kept = backbone.encode(tokens.reduced(everything))
    torch.testing.assert_close(kept, backbone.encode(tokens), atol=1e-5, rtol=1e-5)
    reduction = reduce(tokens.patches, mass, grid=grid)
    assert backbone.encode(tokens.reduced(reduction)).isfinite().all()


@torch.no_grad()
def library_forward(name: str, patch: int, pixels: Tensor) -> Tensor:
    """Tokens after the final norm, by the library's own forward off the native size."""
    model = make_model(name, patch)
    if name.startswith("timm_"):
        features: Tensor = model.forward_features(pixels)
        return features
    output: Tensor = encoder_of(model)(**inputs_of(model, pixels)).last_hidden_state
    return output


def test_frozen_and_always_in_evaluation_mode(backbone: Backbone, pixels: Tensor) -> None:
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    backbone.train()
    assert not any(module.training for module in backbone.modules())
    assert torch.equal(backbone.encode(backbone.embed(pixels)), backbone.encode(backbone.embed(pixels)))


def test_the_papers_geometry_gives_201_and_107_tokens() -> None:
    """A DINOv3 of patch 16 on 224 px, at the smallest width its RoPE allows."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    from redi.images import Preprocessing

    config = DINOv3ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_register_tokens=4
    )
    preprocessing = Preprocessing(256, 224, (0.5,) * 3, (0.5,) * 3)
    backbone = Backbone(DINOv3ViTModel(config), FAMILIES["dinov3_vit"], None, preprocessing)
    tokens = backbone.embed(torch.randn(1, 3, 224, 224))
    assert tokens.sequence.shape[1] == 201
    assert tokens.reduced(reduce(tokens.patches, torch.rand(1, 196))).sequence.shape[1] == 107


def test_a_watch_forgets_the_pass_before(dinov3: Backbone, pixels: Tensor) -> None:
    scores = AttentionScores(dinov3.depth, dinov3.prefix)
    dinov3.encode(dinov3.embed(pixels), watch=scores.watches)
    dinov3.encode(dinov3.embed(pixels[:2]), watch=scores.watches)
    assert all(values.shape == (2, 36) for values in scores.maps().values())
    tokens = dinov3.embed(pixels)
    middle = dinov3.encode(tokens, stop=1, watch=scores.watches)
    dinov3.encode(tokens.advanced(middle), start=1, watch=scores.watches)
    assert all(values.shape == (3, 36) for values in scores.maps().values())


def test_statistics_do_not_keep_the_attention_alive(dinov3: Backbone, pixels: Tensor) -> None:
    scores = AttentionScores(dinov3.depth, dinov3.prefix)
    dinov3.encode(dinov3.embed(pixels), watch=scores.watches)
    for watch in scores.watches:
        for value in watch.values():
            assert value.untyped_storage().nbytes() == value.nbytes


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_pictures_of_any_mode_can_be_preprocessed(dinov3: Backbone, mode: str) -> None:
    assert dinov3.preprocessing(Image.new(mode, (50, 40))).shape == (3, 112, 112)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused(dinov3: Backbone, pixels: Tensor) -> None:
    with pytest.raises(InvalidInput, match=r"Pixels \(normalised.*must be floating point"):
        dinov3.embed(torch.zeros(1, 3, 48, 48, dtype=torch.uint8))
    with pytest.raises(InvalidInput, match="50x48 is not a multiple of the patch size 8"):
        dinov3.embed(torch.rand(1, 3, 48, 50))
    with pytest.raises(InvalidInput, match=r"\[batch 3 height width\]"):
        dinov3.embed(torch.rand(3, 48, 48))
    with pytest.raises(InvalidInput, match="Blocks 0 to 9"):
        dinov3.encode(dinov3.embed(pixels), stop=9)
    with pytest.raises(InvalidInput, match="Block 0 was not watched"):
        Watch(lambda attention: attention.mean(1), blocks=[0]).values()


def test_real_vit_tiny_reaches_its_accuracy(shared: Path) -> None:
    """76.1 % Top-1 of its own head on the 1,000 real images, through our preprocessing."""
    from redi.images import load_image

    backbone = load_backbone(shared / "models" / "vit-tiny-patch16-224")
    folders = sorted((shared / "data" / "imagenet-val-5k" / "val").iterdir())
    labelled = [(file, label) for label, folder in enumerate(folders) for file in folder.iterdir()]
    assert len(labelled) == 1000
    correct = 0
    with torch.inference_mode():
        for start in range(0, len(labelled), 50):
            batch = labelled[start : start + 50]
            pixels = torch.stack([backbone.preprocessing(load_image(file)) for file, _ in batch])
            logits = backbone.classify(backbone.encode(backbone.embed(pixels)))
            correct += int((logits.argmax(1) == torch.tensor([label for _, label in batch])).sum())
    assert correct / 10 == pytest.approx(76.1, abs=0.5)
