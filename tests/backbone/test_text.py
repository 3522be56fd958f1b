"""Text towers: against transformers' own models, against loops, and what is said when there is none."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from families import save_checkpoint
from redi.backbone import load_backbone
from redi.backbone.text import PROMPTS, TEMPLATES, class_embeddings, load_text_tower
from redi.corpus import zero_shot
from redi.errors import BackboneError, ConfigError
from towers import TOWERS, library_logits, make_towers, save_image_tower, save_towers

NAMES = ["amber", "blue", "green"]
PROMPT = "a photo of a {}."


@pytest.fixture(scope="module", params=TOWERS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def whole(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_towers(name, tmp_path_factory.mktemp(name))


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return save_towers("clip", tmp_path / "clip")


def images_of(folder: Path, pixels: Tensor) -> Tensor:
    backbone = load_backbone(folder)
    return backbone.image_embedding(backbone.encode(backbone.embed(pixels)))


def test_the_probabilities_are_those_of_transformers_own_model(name: str, whole: Path, pixels: Tensor) -> None:
    tower = load_text_tower(whole)
    prompts = [PROMPT.replace("{}", word) for word in NAMES]
    expected = library_logits(name, make_towers(name), pixels, prompts)
    images, texts = images_of(whole, pixels), tower.embed(prompts)
    torch.testing.assert_close(tower.scale * images @ texts.T + tower.bias, expected, atol=1e-3, rtol=1e-5)
    probabilities = zero_shot(images, class_embeddings(tower, NAMES, [PROMPT]), tower.scale)
    torch.testing.assert_close(probabilities, expected.softmax(dim=1), atol=1e-4, rtol=1e-4)
    assert probabilities.max() > 0.4, "far from uniform, or nothing is seen"
    assert (tower.bias == 0) == (name == "clip")


def test_a_class_is_the_mean_of_its_prompts_image_by_image(whole: Path) -> None:
    tower = load_text_tower(whole)
    made = class_embeddings(tower, NAMES, TEMPLATES)
    for place, word in enumerate(NAMES):
        prompts = [tower.embed([template.replace("{}", word)])[0] for template in TEMPLATES]
        mean = sum(prompts, torch.zeros(1)) / len(prompts)
        torch.testing.assert_close(made[place], mean / mean.norm(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(made.norm(dim=1), torch.ones(len(NAMES)))
    assert not torch.allclose(made, class_embeddings(tower, NAMES, TEMPLATES[:1]), atol=1e-3)


def test_a_prompt_means_the_same_alone_in_a_batch_and_in_capitals(whole: Path) -> None:
    tower = load_text_tower(whole)
    prompts = [f"a {'dark ' * (number % 5)}photo of a red." for number in range(PROMPTS + 3)]
    together = tower.embed(prompts)
    alone = torch.cat([tower.embed([prompt]) for prompt in prompts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tower.embed([prompts[4].upper()]), alone[4:5], atol=1e-6, rtol=1e-6)


def test_a_prompt_that_is_too_long_is_cut(whole: Path) -> None:
    embedding = load_text_tower(whole).embed(["a photo " * 200])
    assert embedding.isfinite().all()


def test_half_precision_on_disk_becomes_fp32(name: str, whole: Path, tmp_path: Path) -> None:
    half = load_text_tower(save_towers(name, tmp_path / "half", dtype=torch.float16))
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}
    close = load_text_tower(whole).embed(["a photo of a red."])
    torch.testing.assert_close(half.embed(["a photo of a red."]), close, atol=0.02, rtol=0)


def test_a_local_folder_causes_no_network_access(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_text_tower(str(whole)).scale == pytest.approx(99.4843)


def test_an_image_tower_alone_gives_the_same_image_embeddings(tmp_path: Path, clip: Path, pixels: Tensor) -> None:
    alone = save_image_tower(tmp_path / "vision")
    torch.testing.assert_close(images_of(alone, pixels), images_of(clip, pixels))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(folder: Path) -> str:
    with pytest.raises(BackboneError) as caught:
        load_text_tower(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", ["dinov3", "clip_projection", "siglip", "timm_deit3"])
def test_a_checkpoint_without_a_text_tower_is_named(tmp_path: Path, kind: str) -> None:
    message = refusal(save_checkpoint(kind, tmp_path / kind))
    assert "has no text tower that can be loaded" in message
    assert message.endswith("not one of clip, siglip, siglip2.")


def test_a_checkpoint_without_a_tokenizer_is_named(whole: Path, tmp_path: Path) -> None:
    """transformers would make a tokenizer that knows no word."""
    folder = tmp_path / "bare"
    shutil.copytree(whole, folder)
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer: there is none of tokenizer.json, vocab.json, spiece.model in" in refusal(folder)


def test_a_tokenizer_that_needs_another_package_is_named(tmp_path: Path) -> None:
    folder = save_towers("siglip", tmp_path / "siglip")
    edit(folder / "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    message = refusal(folder)
    assert "sentencepiece" in message


def test_a_broken_tokenizer_is_one_line(clip: Path) -> None:
    (clip / "tokenizer.json").write_text("{")
    assert "The tokenizer of" in refusal(clip)


def test_a_tokenizer_that_does_not_know_the_unknown_is_refused(clip: Path) -> None:
    edit(clip / "tokenizer_config.json", unk_token=None)
    assert "has no token for unknown words: name one of its words as unk_token" in refusal(clip)


def test_a_tokenizer_whose_own_code_fails_is_one_line(clip: Path) -> None:
    """Its words lack the token that they name for unknown ones."""
    file = clip / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["unk_token"] = "<gone>"
    file.write_text(json.dumps(content))
    tower = load_text_tower(clip)
    with pytest.raises(BackboneError, match=r"^The tokenizer cannot read the prompts \([^\n]*\)$"):
        tower.embed(["a photo of a zebra."])


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    make_towers("clip", vocab_size=5).save_pretrained(tmp_path)
    save_towers("clip", tmp_path / "other")
    for file in (tmp_path / "other").glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    with pytest.raises(BackboneError, match=r"more words than the text tower's 5\.$"):
        load_text_tower(tmp_path).embed(["a photo of a red."])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": None}, "must describe the text tower as a JSON object, text_config"),
        ({"text_config": {"vocab_size": 10**9}}, "vocab_size = 1000000000, but the weights"),
        ({"text_config": {"hidden_size": 48, "num_attention_heads": 2}}, "lacks .* weights of a clip text model"),
        ({"projection_dim": 0}, "projection_dim = 0, which is not a whole number from 1"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense_is_one_sentence(clip: Path, change: dict[str, Any], message: str) -> None:
    edit(clip / "config.json", **change)
    with pytest.raises(BackboneError, match=message):
        load_text_tower(clip)


@pytest.mark.parametrize("scale", [None, float("nan"), 1000.0, [1.0, 2.0]], ids=str)
def test_without_a_scale_there_are_no_probabilities(clip: Path, scale: Any) -> None:
    weights = load_file(clip / "model.safetensors")
    del weights["logit_scale"]
    if scale is not None:
        weights["logit_scale"] = torch.tensor(scale)
    save_file(weights, clip / "model.safetensors", {"format": "pt"})
    assert "logit_scale" in refusal(clip)


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        (["a photo of a {}.", "a photo"], "The template 'a photo' has no {} for the name"),
        ([], "At least one template is needed"),
    ],
)
def test_templates_without_a_place_for_the_name_are_refused(clip: Path, templates: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        class_embeddings(load_text_tower(clip), NAMES, templates)


def test_braces_in_a_name_or_a_template_are_only_letters(clip: Path) -> None:
    tower = load_text_tower(clip)
    made = class_embeddings(tower, ["{0.__class__}"], ["a {} {{ {x}"])
    torch.testing.assert_close(made, normalize(tower.embed(["a {0.__class__} {{ {x}"]), dim=-1))
