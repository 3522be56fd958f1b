"""Vision-language models: the tower gives the full grid or N merged tokens, and all else is the original's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    ViTConfig,
    pipeline,
)

from families import make_model
from language_families import (
    DEPTH,
    IMAGE,
    KINDS,
    PATCHES,
    VOCABULARY,
    inputs_with,
    make_llava,
    make_processor,
    save_llava,
)
from pickling import copies
from redi.deploy import Accelerated, AcceleratedLanguageModel, Setting, accelerate
from redi.deploy.export import export
from redi.errors import BackboneError, ConfigError, InvalidInput

COST, TOKENS = 0.7, 9
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
PROMPT = "USER: <image> what is this ASSISTANT:"
kinds = pytest.mark.parametrize("name", KINDS)


def picture(height: int = 60, width: int = 50) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


@kinds
def test_at_full_cost_logits_loss_and_generated_ids_are_the_originals(name: str) -> None:
    given, inputs = make_llava(name), inputs_with(PATCHES)
    exact: Any = accelerate(given, cost=1.0)
    shorter: Any = accelerate(given, cost=COST)
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == IMAGE, -100)
    expected, output, merged = (model(**inputs, labels=labels) for model in (given, exact, shorter))
    assert type(output) is type(merged) is type(expected)
    states = [model(**inputs, output_hidden_states=True).hidden_states for model in (exact, given)]
    torch.testing.assert_close(*states, atol=1e-5, rtol=1e-5)
    for part in ("logits", "loss", "image_hidden_states"):
        torch.testing.assert_close(output[part], expected[part], atol=1e-5, rtol=1e-5)
        assert merged[part].shape == expected[part].shape
        assert not torch.allclose(merged[part], expected[part], atol=1e-3)
    assert torch.equal(exact.generate(**inputs, **GREEDY), given.generate(**inputs, **GREEDY))
    assert shorter.generate(**inputs, **GREEDY).shape == (2, PATCHES + 6 + 6)
    assert 0.6 < shorter.cost() <= COST
    assert shorter.setting.task == "dense"
    words = inputs["input_ids"][:, -4:]
    torch.testing.assert_close(shorter(words).logits, given(words).logits, atol=0, rtol=0)
    assert torch.equal(shorter.generate(words, **GREEDY), given.generate(words, **GREEDY))
    half = {**inputs, "pixel_values": inputs["pixel_values"].bfloat16()}
    assert shorter.to(torch.bfloat16)(**half).logits.isfinite().all()


@kinds
def test_a_pickled_or_copied_model_computes_the_same(name: str) -> None:
    model, inputs = accelerate(make_llava(name), cost=COST), inputs_with(PATCHES)
    expected = model(**inputs).logits
    assert all(torch.equal(other(**inputs).logits, expected) for other in copies(model))


@kinds
def test_pixels_that_fill_no_patch_are_left_out(name: str) -> None:
    """As in SigLIP's 384 px with patches of 14."""
    given, inputs = make_llava(name, side=50), {**inputs_with(PATCHES), "pixel_values": torch.randn(2, 3, 50, 50)}
    model: Any = accelerate(given, cost=1.0)
    torch.testing.assert_close(model(**inputs).logits, given(**inputs).logits, atol=1e-5, rtol=1e-5)
    assert model.image_tokens == PATCHES


@kinds
def test_the_given_model_is_left_alone(name: str) -> None:
    given, inputs = make_llava(name), inputs_with(PATCHES)
    before, tower = given(**inputs).logits, given.model.vision_tower
    attention = tower.config._attn_implementation
    given.train()
    model: Any = accelerate(given, cost=COST)
    own, theirs = list(model.parameters()), list(given.parameters())
    assert len(own) == len(theirs)
    assert {parameter.data_ptr() for parameter in own} == {parameter.data_ptr() for parameter in theirs}
    assert len(model.state_dict()) == len(given.state_dict()), "no weight has two names"
    assert not any(module.training for module in model.train().modules())
    model.to(torch.bfloat16).generate(**{**inputs, "pixel_values": inputs["pixel_values"].bfloat16()}, **GREEDY)
    assert given.model.vision_tower is tower
    assert tower.config._attn_implementation == attention
    assert all(module.training for module in given.modules())
    assert all(parameter.requires_grad for parameter in theirs)
    torch.testing.assert_close(given.eval()(**inputs).logits, before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("layer", "strategy"), [(-1, "full"), (2, "default"), (0, "full"), ([-2, 3], "default"), ([1, -3, DEPTH], "full")]
)
def test_every_layer_can_be_read_and_later_blocks_do_not_run(layer: Any, strategy: str) -> None:
    given = make_llava("clip", vision_feature_layer=layer, vision_feature_select_strategy=strategy)
    inputs = inputs_with(PATCHES + (strategy == "full"))
    model = accelerate(given, cost=1.0)
    torch.testing.assert_close(model(**inputs).logits, given(**inputs).logits, atol=1e-5, rtol=1e-5)
    last = max((each + DEPTH + 1) % (DEPTH + 1) for each in (layer if isinstance(layer, list) else [layer]))
    calls = [0] * DEPTH
    for number, block in enumerate(model.backbone.blocks):
        block.register_forward_hook(lambda *_, number=number: calls.__setitem__(number, calls[number] + 1))
    model(**inputs)
    assert calls == [int(number < max(last, 1)) for number in range(DEPTH)]
    assert len(model.schedule(model.grid)) == max(last, 1)
    with pytest.raises(InvalidInput, match=r"^vision_feature_layer cannot be 4 here.*$"):
        model(**inputs, vision_feature_layer=4)


@kinds
def test_n_tokens_give_n_placeholders(name: str) -> None:
    given, processor = make_llava(name), make_processor(name)
    for count in (TOKENS, 20, PATCHES):
        model: Any = accelerate(given, tokens=count)
        assert model.schedule(model.grid)[-1] == count
        assert model.setting.task == "classify"
        fitting = model.processor(processor)
        for sides in ((60, 50), (90, 120)):  # the second is larger, and two images share a prompt
            images, text = [picture(*sides)] * 2, PROMPT.replace("<image>", "<image> <image>")
            inputs = fitting(images=images, text=text, return_tensors="pt")
            assert (inputs["input_ids"] == IMAGE).sum() == 2 * count
            assert [len(part) for part in model.get_image_features(inputs["pixel_values"]).pooler_output] == [count] * 2
            assert model.generate(**inputs, **GREEDY).shape == (1, inputs["input_ids"].shape[1] + 6)
        sizes = fitting._get_num_multimodal_tokens([(60, 50)], crop_size={"height": 48, "width": 48})
        assert sizes["num_image_tokens"] == [count]
    assert processor.patch_size == 8, "the original's processor is not changed"
    inputs = inputs_with(PATCHES)
    torch.testing.assert_close(model(**inputs).logits, given(**inputs).logits, atol=1e-5, rtol=1e-5)
    assert accelerate(given, cost=COST).processor(processor) is processor  # type: ignore[operator]
    with pytest.raises(InvalidInput, match=r"^The prompts have 72 placeholders.* 9 tokens per image.*$"):
        accelerate(given, tokens=TOKENS).generate(**inputs, **GREEDY)  # type: ignore[operator]


def test_the_language_model_reads_the_merged_tokens_in_their_order() -> None:
    """They are those of the tower alone with the same schedule; CLS comes first if the strategy is full."""
    given = make_llava("clip", vision_feature_layer=-1, vision_feature_select_strategy="full")
    model: Any = accelerate(given, tokens=TOKENS)
    tower = accelerate(given.model.vision_tower, setting=Setting(model.cost() + 1e-9, task="classify"))
    assert tower.schedule(tower.grid) == model.schedule(model.grid)
    inputs = inputs_with(TOKENS + 1)
    merged = tower(inputs["pixel_values"], reduced=True).last_hidden_state
    expected = given.model.multi_modal_projector(merged)
    assert model.image_tokens == TOKENS + 1
    torch.testing.assert_close(model(**inputs).image_hidden_states, expected.flatten(0, 1))
    fitting = model.processor(make_processor("clip"))
    assert (fitting(images=picture(), text=PROMPT, return_tensors="pt")["input_ids"] == IMAGE).sum() == TOKENS + 1


@kinds
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    given, processor = make_llava(name), make_processor(name)
    given.generation_config.max_new_tokens = 3
    model: Any = accelerate(given, tokens=TOKENS)
    model.save_pretrained(tmp_path / "faster", license="mit")
    model.processor(processor).save_pretrained(tmp_path / "faster")
    again: Any = Accelerated.from_pretrained(tmp_path / "faster")
    assert type(again) is AcceleratedLanguageModel
    assert again.setting == model.setting
    assert again.generation_config.max_new_tokens == 3
    inputs = AutoProcessor.from_pretrained(tmp_path / "faster")(images=picture(), text=PROMPT, return_tensors="pt")
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
    answer = model.generate(**inputs, do_sample=False)
    assert torch.equal(again.generate(**inputs, do_sample=False), answer)
    talk = pipeline("image-text-to-text", model=str(tmp_path / "faster"))
    written = talk(images=picture(), text=PROMPT, generate_kwargs={"do_sample": False}, return_full_text=False)
    assert written[0]["generated_text"].split() == processor.decode(answer[0, -3:], skip_special_tokens=True).split()
    card = (tmp_path / "faster" / "README.md").read_text()
    assert "pipeline_tag: image-text-to-text" in card
    assert f"reads per image | {TOKENS} |" in card
    again.save_pretrained(tmp_path / "faster")  # whose weights are read from the file that is replaced
    assert (tmp_path / "faster" / "processor_config.json").exists()
    plain = LlavaForConditionalGeneration.from_pretrained(tmp_path / "faster", subfolder="dense")
    full = inputs_with(PATCHES)
    torch.testing.assert_close(plain(**full).logits, given(**full).logits)
    assert json.loads((tmp_path / "faster" / "config.json").read_text())["model_type"] == "redi_accelerated_language"


def test_a_folder_is_loaded_in_its_precision(tmp_path: Path) -> None:
    """With rotary frequencies in FP32, as transformers has them: in BF16 they would move every position."""
    folder = save_llava("clip", tmp_path / "given")
    given = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
    given.save_pretrained(folder)
    inputs = inputs_with(PATCHES)
    expected = given(**inputs).logits
    model = accelerate(folder, cost=1.0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(model(**inputs).logits, expected)
    model.save_pretrained(tmp_path / "faster")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "faster")
    torch.testing.assert_close(again(**inputs).logits, expected)
    exact = AutoModelForImageTextToText.from_pretrained(tmp_path / "faster", dtype=torch.float32)
    assert exact(**inputs).logits.dtype == torch.float32


def test_what_cannot_be_done_is_refused_in_one_line(tmp_path: Path) -> None:
    given, other_inputs = make_llava("clip"), inputs_with(PATCHES)
    for wrong in (PATCHES + 1, 1):
        with pytest.raises(ConfigError, match=rf"^{wrong} tokens cannot be left: an image has 36 patches here.*$"):
            accelerate(given, tokens=wrong)
    with pytest.raises(ConfigError, match=r"^The cost follows from tokens=9.*$"):
        accelerate(given, cost=0.5, tokens=TOKENS)
    with pytest.raises(ConfigError, match=r"^This setting leaves 9 tokens.*$"):
        accelerate(given, tokens=TOKENS).at_cost(0.5)
    for layers in ([-2, -1], 0):
        with pytest.raises(ConfigError, match=r"^tokens needs a language model that reads one block.*$"):
            accelerate(make_llava("clip", vision_feature_layer=layers), tokens=TOKENS)
    for name in ("vit_head", "dinov2", "siglip2"):
        with pytest.raises(ConfigError, match=r"^tokens is for vision-language models\..*$"):
            accelerate(make_model(name), tokens=TOKENS)
    with pytest.raises(BackboneError, match=r"^vision_feature_layer=9 does not fit a tower of 6 blocks\.$"):
        accelerate(make_llava("clip", vision_feature_layer=9))
    sizes: Any = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    text = given.config.text_config
    other = LlavaForConditionalGeneration(LlavaConfig(vision_config=ViTConfig(**sizes), text_config=text))
    with pytest.raises(
        BackboneError, match=r"^This Llava\w+ has the vision tower ViTModel; .* CLIPVisionModel, SiglipVisionModel\.$"
    ):
        accelerate(other)
    text_sizes = {**sizes, "vocab_size": VOCABULARY, "num_key_value_heads": 1}
    qwen = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config={**text_sizes, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
            vision_config={"depth": 1, "embed_dim": 8, "num_heads": 1, "hidden_size": 8},
        )
    )
    with pytest.raises(BackboneError, match=r"^Qwen2VL\w+ cannot be accelerated; .*LlavaForConditionalGeneration.*$"):
        accelerate(qwen)
    config = save_llava("clip", tmp_path / "given") / "config.json"
    settings = json.loads(config.read_text())
    for part in ("vision_config", "text_config"):
        damaged = {**settings, part: {**settings[part], "num_hidden_layers": 10**6}}
        config.write_text(json.dumps(damaged))
        with pytest.raises(BackboneError, match=r"^.*num_hidden_layers = 1000000, but the weights are those of a.*$"):
            accelerate(tmp_path / "given")
    model: Any = accelerate(given, tokens=TOKENS)
    with pytest.raises(ConfigError, match=r"^A vision-language model cannot be exported.*$"):
        export(model, tmp_path / "model.onnx", other_inputs["pixel_values"])
    with pytest.raises(ConfigError, match=r"^processor\(\) takes the LlavaProcessor of the model, not a CLIPImage.*$"):
        model.processor(CLIPImageProcessorPil())
    with pytest.raises(InvalidInput, match=r"^An accelerated model has no output_attentions.*$"):
        model.get_image_features(other_inputs["pixel_values"], output_attentions=True)
