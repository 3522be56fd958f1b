"""``accelerate``: every family against its library's own forward, and what may not change on the way."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from PIL import Image
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import BeitConfig, BeitModel, ViTImageProcessorPil, ViTModel, pipeline

from families import CHECKPOINTS, inputs_of, make_model, save_checkpoint
from pickling import copies
from redi import unreduce
from redi.backbone import Tokens, load_backbone
from redi.deploy import Accelerated, Setting, accelerate
from redi.errors import BackboneError, ConfigError, InvalidInput
from redi.grid import Grid
from redi.images.preprocessing import Preprocessing
from redi.reduction import Inside, Reduction
from redi.reduction.schedule import Shape
from timm_families import TIMM_CHECKPOINTS, TIMM_JOINT
from timm_import import timm

COST = 0.7
TRANSFORMERS = [name for name in CHECKPOINTS if not name.startswith("timm_")]
HEADS = [name for name in TRANSFORMERS if name.endswith(("_head", "_distilled"))]
READS_PREFIX = {"vit_head", "deit_head", "deit_distilled", "timm_deit_distilled", "timm_deit3"}
#: Tolerances at the native size. An attention pool rounds once more.
EXACT = {"timm_siglip": 1e-5}
ODD = [(5, 8), (3, 4), (10, 7)]  # grids of patches; the native one is 6x6
families = pytest.mark.parametrize("name", CHECKPOINTS)
of_transformers = pytest.mark.parametrize("name", TRANSFORMERS)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``accelerate`` gets: a model of transformers, or the folder of a timm checkpoint."""
    return {
        name: make_model(name) if name in TRANSFORMERS else save_checkpoint(name, tmp_path_factory.mktemp(name))
        for name in CHECKPOINTS
    }


def images(grid: Grid = (6, 6), batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 8 * grid[0], 8 * grid[1])


def library_outputs(name: str, pixels: Tensor) -> tuple[str | None, dict[str, Tensor]]:
    """The class and the content of the library's own output. An MAE runs without masking."""
    model = make_model(name)
    if name not in TRANSFORMERS:
        if TIMM_CHECKPOINTS[name].classes:
            return None, {"logits": model(pixels)}
        pooled = {"pooler_output": model(pixels)} if name in TIMM_JOINT else {}
        return None, {"last_hidden_state": model.forward_features(pixels), **pooled}
    if name == "mae":
        options: dict[str, Any] = {"interpolate_pos_encoding": True}
        model = model.vit
        model.config.mask_ratio = model.embeddings.config.mask_ratio = 0.0
        # Without masking MAE still shuffles by noise; increasing noise keeps the order.
        patches = pixels.shape[2] * pixels.shape[3] // 64
        options["noise"] = torch.arange(patches).float().expand(len(pixels), -1)
        hidden = model(pixels, **options).last_hidden_state
        return "BaseModelOutputWithPooling", {"last_hidden_state": hidden}
    output = model(**inputs_of(model, pixels))
    return type(output).__name__, dict(output)


def assert_equal_outputs(output: Any, expected: Any, exact: float = 1e-6) -> None:
    assert list(output.keys()) == list(expected.keys())
    for key, value in expected.items():
        torch.testing.assert_close(output[key], value, atol=exact, rtol=exact)


@families
def test_at_full_cost_the_outputs_are_the_librarys_own(name: str, models: dict[str, Any]) -> None:
    model = accelerate(models[name], cost=1.0)
    for grid, exact in (((6, 6), EXACT.get(name, 1e-6)), *((odd, 1e-5) for odd in ODD)):
        pixels = images(grid)
        kind, expected = library_outputs(name, pixels)
        output = model(pixels)
        assert kind in (None, type(output).__name__)
        assert_equal_outputs(output, expected, exact)
        as_tuple = model(pixels, return_dict=False)
        assert isinstance(as_tuple, tuple)
        assert all(map(torch.equal, as_tuple, output.values()))


@of_transformers
def test_the_given_model_is_left_alone(name: str) -> None:
    given = make_model(name)
    pixels = images()
    torch.manual_seed(1)
    before = given(**inputs_of(given, pixels))
    weights = {key: value.clone() for key, value in given.state_dict().items()}
    attention = given.config._attn_implementation
    learning = [parameter.requires_grad for parameter in given.parameters()]
    given.train()
    model = accelerate(given, cost=COST)
    if name != "mae":  # the weights of an MAE go into another class
        pointers = {parameter.data_ptr() for parameter in given.parameters()}
        assert {parameter.data_ptr() for parameter in model.parameters()} == pointers
    model.to(torch.bfloat16)(pixels)
    assert given.config._attn_implementation == attention
    assert [parameter.requires_grad for parameter in given.parameters()] == learning
    assert all(module.training for module in given.modules())
    assert given.state_dict().keys() == weights.keys()
    for key, value in given.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, weights[key])
    torch.manual_seed(1)  # MAE masks at random
    assert_equal_outputs(given.eval()(**inputs_of(given, pixels)), before, exact=0)


@families
def test_a_pickled_or_copied_model_computes_the_same(name: str) -> None:
    model, pixels = accelerate(make_model(name), cost=COST), images()
    expected = model(pixels)
    for other in copies(model):
        assert_equal_outputs(other(pixels), expected, exact=0)
        assert other.schedule((6, 6)) == model.schedule((6, 6))


def test_weights_that_are_not_finite_are_refused() -> None:
    model = make_model("vit_head")
    with torch.no_grad():
        model.classifier.bias[3] = torch.nan
    with pytest.raises(BackboneError, match=r"^The weights classifier\.bias are not all finite: .*\.$"):
        accelerate(model, cost=COST)


@pytest.mark.parametrize("name", TIMM_CHECKPOINTS)
def test_a_live_model_of_timm_is_taken_as_it_is_and_left_alone(name: str) -> None:
    given, pixels = make_model(name), images()
    output = accelerate(given, cost=1.0)(pixels)
    _, expected = library_outputs(name, pixels)
    assert_equal_outputs(output, expected, EXACT.get(name, 1e-6))
    given.train()
    weights = {key: value.clone() for key, value in given.state_dict().items()}
    model = accelerate(given, cost=COST)
    assert {parameter.data_ptr() for parameter in model.parameters()} == {p.data_ptr() for p in given.parameters()}
    assert model.grid == (6, 6)
    model.to(torch.bfloat16)(pixels)
    assert all(module.training for module in given.modules())
    assert all(parameter.requires_grad for parameter in given.parameters())
    assert all(torch.equal(value, weights[key]) for key, value in given.state_dict().items())


def test_the_input_of_a_live_model_of_timm_is_that_of_its_pretrained_cfg() -> None:
    fixed: dict[str, Any] = {"embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5}
    model = timm().create_model("vit_tiny_patch16_224.augreg_in21k", **fixed)
    faster = accelerate(model, cost=COST)
    assert faster.backbone.preprocessing == Preprocessing(256, 224, (0.5,) * 3, (0.5,) * 3)
    assert faster(torch.randn(1, 3, 224, 224)).logits.shape == (1, 5)
    with pytest.raises(InvalidInput, match=r"takes images of 224x224 px only, not 64x32: create it with dynamic_img"):
        faster(torch.randn(1, 3, 32, 64))


@families
def test_every_patch_has_the_token_it_went_into(name: str, models: dict[str, Any]) -> None:
    model = accelerate(models[name], setting=Setting(COST, restore="copy"))
    prefix = model.backbone.prefix
    for grid in ((6, 6), *ODD):
        pixels = images(grid)
        if model.backbone.head is not None:
            with pytest.raises(InvalidInput, match=r"A classifier gives logits; reduced=True"):
                model(pixels, reduced=True)
            assert model(pixels).logits.shape == (2, 7)
            continue
        full, short = model(pixels), model(pixels, reduced=True)
        left, patches = model.schedule(grid)[-1], grid[0] * grid[1]
        assert short.last_hidden_state.shape[1] == prefix + left < prefix + patches
        assert short.sizes.sum(dim=1).tolist() == [patches] * 2
        spread = unreduce(short.last_hidden_state[:, prefix:], short.source)
        assert torch.equal(full.last_hidden_state[:, prefix:], spread)
        assert torch.equal(full.last_hidden_state[:, :prefix], short.last_hidden_state[:, :prefix])
        if getattr(full, "pooler_output", None) is not None:
            torch.testing.assert_close(full.pooler_output, short.pooler_output, atol=1e-5, rtol=1e-5)
        if name == "clip_projection":
            assert torch.equal(full.image_embeds, model.backbone.project(short.pooler_output))


@families
def test_the_full_grid_is_restored_at_every_depth(name: str, models: dict[str, Any]) -> None:
    model = accelerate(models[name], cost=COST)
    backbone, reducer = model.backbone, model.setting.reducer
    tokens, depth = backbone.embed(images()), backbone.depth
    schedule, levels = (30, *(20,) * (depth - 1)), range(depth + 1)
    short = backbone.encode_progressively(tokens, reducer, schedule, residual=True, levels=levels)
    assert torch.equal(short.levels[0], tokens.sequence)
    assert torch.equal(short.levels[-1], short.full(backbone.prefix))
    assert {level.shape[1] for level in short.levels} == {backbone.prefix + 36}
    copies = backbone.encode_progressively(tokens, reducer, schedule, levels=levels)
    assert torch.equal(copies.hidden, short.hidden), "it changes what is restored, not what runs"
    assert torch.equal(
        copies.levels[-1][:, backbone.prefix :], unreduce(short.hidden[:, backbone.prefix :], short.source)
    )
    kept = backbone.encode_progressively(tokens, reducer, (36,) * depth, residual=True, levels=levels)
    for level, state in enumerate(kept.levels):
        assert torch.equal(state, backbone.encode(tokens, stop=level)), "where nothing merges, the dense states"
    if model.prefix_only:
        with pytest.raises(InvalidInput, match="no patches to restore"):
            backbone.encode_progressively(tokens, reducer, schedule, prefix_only=True, levels=(1,))


@families
def test_the_task_is_classify_unless_dense_is_named(name: str, models: dict[str, Any]) -> None:
    for task, expected in ((None, "classify"), ("classify", "classify"), ("dense", "dense")):
        setting = accelerate(models[name], cost=COST, task=task).setting
        assert setting.task == expected
        assert setting.reducer == replace(setting, task=expected).reducer
    first = accelerate(models[name], cost=COST, task="dense").schedule((6, 6))
    assert first[0] < 36, "a dense task removes tokens from the first block on"


def test_an_unknown_task_or_restore_is_refused(models: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="A task is classify or dense, not 'segment'"):
        accelerate(models["dinov3"], task="segment")
    with pytest.raises(ConfigError, match="residual or copy, not by 'mean'"):
        Setting(restore="mean")


@pytest.mark.parametrize("name", [name for name in HEADS if name != "deit_distilled"])
def test_labels_give_the_models_own_loss(name: str, models: dict[str, Any]) -> None:
    pixels, labels = images(), torch.tensor([4, 0])
    output = accelerate(models[name], cost=1.0)(pixels, labels=labels)
    assert_equal_outputs(output, models[name](pixels, labels=labels))
    assert output.loss > 0


@families
def test_leaving_out_the_last_mlp_of_the_patches_is_exact(name: str, models: dict[str, Any]) -> None:
    model = accelerate(models[name], cost=COST)
    assert model.prefix_only == (name in READS_PREFIX)
    if model.backbone.head is None:
        return
    backbone, grid = model.backbone, (6, 6)
    schedule = model.schedule(grid)
    assert schedule[-1] == schedule[-2] < 36, "the last block removes nothing"
    pixels = images(grid)
    whole = backbone.encode_progressively(backbone.embed(pixels), model.setting.reducer, schedule, residual=True)
    # A head that averages reads every patch, on the full grid.
    expected = backbone.classify(whole.hidden if model.prefix_only else whole.full(backbone.prefix))
    torch.testing.assert_close(model(pixels).logits, expected, atol=1e-6, rtol=1e-6)


@families
def test_the_last_block_can_compute_the_prefix_alone(name: str, models: dict[str, Any]) -> None:
    backbone = accelerate(models[name]).backbone
    if not backbone.prefix:
        return
    tokens, reducer, schedule = backbone.embed(images()), Setting().reducer, (30, 20, 20)
    rows: list[int] = []
    queries = [part for path, part in backbone.blocks[-1].named_modules() if path.endswith("q_proj")]
    hooks = [part.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1])) for part in queries]
    whole, short = (
        backbone.encode_progressively(tokens, reducer, schedule, prefix_only=only) for only in (False, True)
    )
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(short.hidden, whole.hidden[:, : backbone.prefix], atol=1e-5, rtol=1e-5)
    assert torch.equal(short.source, whole.source)
    assert backbone.geometry.prefix_queries == (not name.startswith(("timm", "clip")))
    if backbone.geometry.prefix_queries:
        assert rows == [backbone.prefix + 20, backbone.prefix]


@pytest.mark.compiles
@families
def test_it_is_compiled_whole_for_a_resolution_never_seen(name: str, models: dict[str, Any]) -> None:
    torch._dynamo.reset()
    model = accelerate(models[name], cost=COST)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    pixels = images((5, 8))
    assert_equal_outputs(compiled(pixels), model(pixels), exact=1e-5)


@pytest.mark.compiles
def test_it_is_compiled_once_for_a_shape_and_again_for_another(models: dict[str, Any]) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = accelerate(models["vit"], cost=COST)
    compiled: Any = torch.compile(model, fullgraph=True, backend=counter)
    for grid, compilations in (((6, 6), 1), ((6, 6), 1), ((5, 8), 2)):
        pixels = images(grid)
        assert_equal_outputs(compiled(pixels), model(pixels), exact=1e-5)
        assert counter.frame_count == compilations


@families
def test_half_precision(name: str, models: dict[str, Any]) -> None:
    pixels = images()
    exact = accelerate(models[name], cost=1.0)(pixels)
    model = accelerate(models[name], cost=1.0).to(torch.bfloat16)
    assert model.dtype == torch.bfloat16
    for key, value in model(pixels).items():
        assert value.dtype == torch.bfloat16
        assert (value - exact[key]).norm() < 0.03 * exact[key].norm()
    shorter = accelerate(models[name], cost=COST).to(torch.bfloat16)(pixels)
    assert all(value.isfinite().all() for value in shorter.values())


@families
def test_an_image_does_not_see_the_others_of_its_batch(name: str, models: dict[str, Any]) -> None:
    model = accelerate(models[name], cost=COST)
    pixels = images(batch=5)
    alone = [model(image[None]) for image in pixels]
    for batch in (1, 2, 5):
        for key, value in model(pixels[:batch]).items():
            expected = torch.cat([output[key] for output in alone[:batch]])
            torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shard", ["50GB", "20KB"])
@pytest.mark.parametrize("pooler", [True, False])
def test_a_pooler_is_loaded_where_there_is_one(tmp_path: Path, pooler: bool, shard: str) -> None:
    model: Any = ViTModel(make_model("vit").config, add_pooling_layer=pooler).eval()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").exists() == (shard == "50GB")
    pixels = images()
    for each in (tmp_path, model, load_backbone(tmp_path)):
        assert_equal_outputs(accelerate(each, cost=1.0)(pixels), model(pixels))


@families
def test_pipelines_of_transformers(
    name: str, models: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = accelerate(models[name], cost=COST)
    noise = np.random.default_rng(0).integers(0, 255, (60, 50, 3), dtype=np.uint8)
    processor: Any = ViTImageProcessorPil(size={"height": 48, "width": 48})
    direct = model(processor(Image.fromarray(noise), return_tensors="pt")["pixel_values"])
    task: Any = "image-classification" if "logits" in direct else "image-feature-extraction"
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    answer = pipeline(task, model=model, image_processor=processor)(Image.fromarray(noise))
    assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    expected = direct[0] if "logits" not in direct else None
    if expected is None:
        expected, classes = direct["logits"][0].softmax(dim=0).topk(5)
        names = [model.config.id2label[number] for number in classes.tolist()]
        assert [entry["label"] for entry in answer] == names
        answer = [entry["score"] for entry in answer]
    torch.testing.assert_close(torch.tensor(answer), expected)


def test_a_merged_token_turns_by_the_position_of_its_most_relevant_member(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = accelerate(models["dinov3"], setting=Setting(0.7, Shape(0, 3, 0.0, 0.3)))
    insides: list[Inside] = []
    ropes: list[tuple[Reduction, Any]] = []
    reduced, cls_attention = Tokens.reduced, Inside.attention.fget  # type: ignore[attr-defined]

    def watched(inside: Inside) -> Tensor:
        insides.append(inside)
        attention: Tensor = cls_attention(inside)
        return attention

    def spy(tokens: Tokens, reduction: Reduction) -> Tokens:
        shorter = reduced(tokens, reduction)
        ropes.append((reduction, shorter.rope))
        return shorter

    monkeypatch.setattr(Tokens, "reduced", spy)
    monkeypatch.setattr(Inside, "attention", property(watched))
    pixels = images()
    model(pixels)
    cos, sin = models["dinov3"].rope_embeddings(pixels)
    assert len(insides) == len(ropes) == 3
    for image in range(2):
        at = list(range(36))  # place on the grid that each token stands for
        for inside, (reduction, rope) in zip(insides, ropes, strict=True):
            relevance = cls_attention(inside)[image].tolist()
            groups: list[list[int]] = [[] for _ in range(reduction.tokens.shape[1])]
            for token, place in enumerate(reduction.source[image].tolist()):
                groups[place].append(token)
            at = [at[max(group, key=lambda i: relevance[i])] for group in groups]
            assert torch.equal(rope[0][image, 0], cos[at])
            assert torch.equal(rope[1][image, 0], sin[at])


@contextmanager
def patches_into_the_mlps(model: Accelerated) -> Iterator[list[int]]:
    seen: list[int] = []
    blocks: Any = model.backbone.blocks
    hooks = [
        block.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1] - model.backbone.prefix))
        for block in blocks
    ]
    yield seen
    for hook in hooks:
        hook.remove()


@settings(max_examples=30)
@given(
    name=st.sampled_from(["vit", "vit_head", "dinov3"]),
    grid=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    cost=st.floats(0.5, 1),
)
def test_the_schedule_says_what_happens_and_costs_no_more(name: str, grid: Grid, cost: float) -> None:
    try:
        model = accelerate(make_model(name), cost=cost)
        schedule = model.schedule(grid)
    except ConfigError:  # few patches beside the prefix: there is not so much to save
        assume(False)
    assert model.cost(grid) <= cost
    with torch.no_grad(), patches_into_the_mlps(model) as seen:
        model(images(grid, batch=1))
    assert seen == ([*schedule[:-1], 0] if model.prefix_only else list(schedule))


# What is refused ----------------------------------------------------------------------------------


def test_what_a_merged_sequence_has_not_is_refused(models: dict[str, Any]) -> None:
    model = accelerate(models["vit"], cost=COST)
    pixels = images()
    model(pixels, output_attentions=False, bool_masked_pos=None, interpolate_pos_encoding=True)
    mask = torch.zeros(2, 36, dtype=torch.bool)
    for option in ({"output_attentions": True}, {"output_hidden_states": True}):
        with pytest.raises(InvalidInput, match=f"^.*no {next(iter(option))}: tokens are merged.*$"):
            model(pixels, **option)
    with pytest.raises(InvalidInput, match="no bool_masked_pos"):
        model(pixels, bool_masked_pos=mask)


def test_labels_of_a_timm_head_give_a_loss_or_one_line(models: dict[str, Any]) -> None:
    model, labels = accelerate(models["timm_deit3"], cost=COST), torch.tensor([4, 0])
    try:
        assert model(images(), labels=labels).loss > 0
    except InvalidInput as error:
        assert "labels" in str(error)  # noqa: PT017


@pytest.mark.usefixtures("unchecked")
def test_other_models_are_refused() -> None:
    size: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with pytest.raises(BackboneError, match=r"^BeitModel cannot be accelerated; supported are .*$"):
        accelerate(BeitModel(BeitConfig(**size, intermediate_size=8)))
    anything: Any = nn.Linear(2, 2)
    with pytest.raises(BackboneError, match="not an object of the type Linear"):
        accelerate(anything)
    resnet = timm().create_model("resnet18")
    with pytest.raises(BackboneError, match=r"^resnet18 is a ResNet; supported are timm's VisionTransformer and .*$"):
        accelerate(resnet)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": 0.0}, "cost must lie above 0, up to 1"),
        ({"cost": 1.5}, "cost must lie above 0, up to 1"),
        ({"cost": float("nan")}, "cost must be a finite number"),
        ({"shape": Shape(1, 4)}, "up to block 4, but only 3 blocks run"),
        ({"protection": -1.0}, "protection must lie in 0 to"),
        ({"steps": -1}, "steps must lie in 0 to"),
        ({"cost": 0.05}, "cannot be met"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str, models: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        accelerate(models["vit"], setting=Setting(**options))


def test_settings_are_files(models: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    setting = Setting(cost=0.8, shape=Shape(0, 3, 1.5, 0.2), protection=0.05, task="classify")
    setting.save(file)
    assert Setting.load(file) == setting
    assert accelerate(models["vit"], setting=file).setting == setting
    assert accelerate(models["vit"], cost=0.9, setting=file).setting.cost == 0.9
    assert accelerate(models["vit"], setting=file).at_cost(0.9).setting.shape == setting.shape
    with pytest.raises(ConfigError, match=r"There is no gone\.json in .*: run `redi tune` first"):
        accelerate(models["vit"], setting=tmp_path / "gone.json")
    bad_shape = '{"cost": 0.5, "shape": {"first": 2, "last": 1, "start": 1.0, "hold": 0.5}, "protection": 0.5}'
    texts = ("{", "[]", "[1]", "{}", '{"cost": 0.5}', '{"cost": 2, "shape": null, "protection": 0}', bad_shape)
    for broken in texts:
        file.write_text(broken)
        with pytest.raises(ConfigError, match="cannot be read as a result of `redi tune`"):
            Setting.load(file)
