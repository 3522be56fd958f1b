"""Small random vision-language models with their processors."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

from families import scramble

VOCABULARY, IMAGE = 100, 4
DEPTH, SIDE, PATCH = 6, 48, 8
PATCHES = (SIDE // PATCH) ** 2
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "patch_size": PATCH,
}
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: The tower, what the language model reads of it, and the language model; as in LLaVA 1.5 and in LLaVA-Interleave.
_KINDS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "clip": (CLIPVisionConfig, {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}, LlamaConfig),
    "siglip": (SiglipVisionConfig, {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}, Qwen2Config),
}
KINDS = tuple(_KINDS)


def make_llava(name: str, side: int = SIDE, **changes: Any) -> Any:
    tower, read, text = _KINDS[name]
    settings = {**read, **changes}
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=tower(**_TOWER, image_size=side),
        text_config=text(**_TEXT, tie_word_embeddings=name == "siglip"),
        image_token_index=IMAGE,
        **settings,
    )
    return scramble(LlavaForConditionalGeneration(config))


def make_processor(name: str, side: int = SIDE) -> Any:
    """The processor that belongs to :func:`make_llava`."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "USER:", "ASSISTANT:", "what", "is", "this"]
    words += [f"word{number}" for number in range(VOCABULARY - len(words))]
    text = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    text.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special: Any = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=text, **special, additional_special_tokens=["<image>"])
    size = {"height": side, "width": side}
    clip = name == "clip"
    images: Any = CLIPImageProcessorPil(crop_size=size, size={"shortest_edge": side}) if clip else None
    return LlavaProcessor(
        image_processor=images or SiglipImageProcessorPil(size=size),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy=_KINDS[name][1]["vision_feature_select_strategy"],
        num_additional_image_tokens=int(clip),
    )


def save_llava(name: str, folder: Path, side: int = SIDE) -> Path:
    make_llava(name, side).save_pretrained(folder)
    make_processor(name, side).save_pretrained(folder)
    return folder


def inputs_with(placeholders: int, batch: int = 2) -> dict[str, Tensor]:
    """Prompts with one image each."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(5, VOCABULARY, (batch, 6), generator=generator)
    ids = torch.cat([words[:, :2], torch.full((batch, placeholders), IMAGE), words[:, 2:]], dim=1)
    pixels = torch.randn(batch, 3, SIDE, SIDE, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
