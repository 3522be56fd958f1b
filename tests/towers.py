"""Small random models of images and texts, each with a tokenizer that is made here."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    PreTrainedTokenizerFast,
    Siglip2Config,
    Siglip2Model,
    Siglip2Tokenizer,
    SiglipConfig,
    SiglipModel,
)

from families import in_patches, scramble

WORDS = "<pad> <bos> <eos> <unk> a an the of photo picture that shows close dark drawing seen from afar .".split()
WORDS += "amber blue green red".split()
LETTERS = [*"<pad> <eos> <bos> <unk> <mask> ▁".split(), *"abcdefghijklmnopqrstuvwxyz."]
LENGTH = 64
#: Size of the embeddings of CLIP's; SigLIP's have the width of the image tower.
JOINT = 24
_IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "patch_size": 8,
    "image_size": 48,
}
_TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": LENGTH,
}
_CLIP: dict[str, Any] = {"vocab_size": len(WORDS), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

TOWERS = ("clip", "siglip", "siglip2")


def make_towers(name: str, seed: int = 1, **text: Any) -> Any:
    """A whole model with random weights; ``text`` changes settings of the text tower."""
    torch.manual_seed(0)
    if name == "clip":
        config: Any = CLIPConfig(
            text_config={**_TEXT, **_CLIP, **text}, vision_config=dict(_IMAGE), projection_dim=JOINT
        )
        model: Any = CLIPModel(config)
    else:
        words = len(LETTERS) if name == "siglip2" else len(WORDS)
        settings = {**_TEXT, "vocab_size": words, "projection_size": _IMAGE["hidden_size"], **text}
        if name == "siglip2":
            config = Siglip2Config(text_config=settings, vision_config={**_IMAGE, "num_patches": 36})
            model = Siglip2Model(config)
        else:
            config = SiglipConfig(text_config=settings, vision_config=dict(_IMAGE))
            model = SiglipModel(config)
    scramble(model, seed)
    with torch.no_grad():
        model.logit_scale.fill_(4.6)
    return model


def make_tokenizer(name: str) -> Any:
    """Words for CLIP and SigLIP, letters for SigLIP 2, whose class transformers chooses itself."""
    if name == "siglip2":
        return Siglip2Tokenizer(vocab={letter: number for number, letter in enumerate(LETTERS)}, merges=[])
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    start, pad = ("<bos> ", "<eos>") if name == "clip" else ("", "<pad>")
    words.post_processor = TemplateProcessing(single=f"{start}$A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)])
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": pad}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def save_towers(name: str, folder: Path, seed: int = 1, dtype: torch.dtype = torch.float32) -> Path:
    make_towers(name, seed).to(dtype).save_pretrained(folder)
    make_tokenizer(name).save_pretrained(folder)
    return folder


def save_image_tower(folder: Path) -> Path:
    """The image tower of the small CLIP alone, as a checkpoint of its own."""
    whole = make_towers("clip")
    alone = CLIPVisionModelWithProjection(CLIPVisionConfig(**_IMAGE, projection_dim=JOINT))
    alone.load_state_dict({name: value for name, value in whole.state_dict().items() if name.startswith("vis")})
    alone.save_pretrained(folder)
    return folder


def word_numbers(name: str, prompts: list[str]) -> Tensor:
    """What the tokenizer should make of prompts in lower case, word by word or letter by letter."""
    rows = []
    for prompt in prompts:
        if name == "siglip2":
            row = [LETTERS.index(letter) if letter in LETTERS else 3 for letter in prompt.replace(" ", "▁")]
            rows.append(row + [0] * (LENGTH - len(row)))
            continue
        words = prompt.replace(".", " .").split()
        row = [WORDS.index(word) if word in WORDS else 3 for word in words]
        row = [1, *row, 2] if name == "clip" else [*row, 2]
        rows.append(row + [2 if name == "clip" else 0] * (LENGTH - len(row)))
    return torch.tensor(rows)


@torch.no_grad()
def library_logits(name: str, model: Any, pixels: Tensor, prompts: list[str]) -> Tensor:
    """transformers' own logits of normalised images, one column per prompt."""
    inputs: dict[str, Any] = {"pixel_values": pixels, "interpolate_pos_encoding": True}
    if name == "siglip2":
        rows, columns = (side // 8 for side in pixels.shape[2:])
        inputs = {
            "pixel_values": torch.stack([in_patches(image, 8) for image in pixels]),
            "pixel_attention_mask": torch.ones(len(pixels), rows * columns, dtype=torch.int64),
            "spatial_shapes": torch.tensor([[rows, columns]] * len(pixels)),
        }
    logits: Tensor = model(input_ids=word_numbers(name, prompts), **inputs).logits_per_image
    return logits
