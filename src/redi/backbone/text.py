"""The text tower of a model of images and texts: prompts in, unit embeddings out.

The class of an image is then the one whose prompts are closest to :meth:`redi.backbone.Backbone.image_embedding`. The
tower and its tokenizer are those of transformers, read from local files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import (
    AutoTokenizer,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    PreTrainedConfig,
    PreTrainedModel,
    Siglip2TextConfig,
    Siglip2TextModel,
    SiglipTextConfig,
    SiglipTextModel,
)

from redi.backbone.checkpoint import FILES, checkpoint_digest, checkpoint_folder, read_json, weight_files, weight_shapes
from redi.backbone.loading import quiet_transformers, require_all_weights
from redi.backbone.sizes import require_sizes
from redi.errors import BackboneError, ConfigError, one_line

#: Files of a tokenizer, as patterns. One of the first three holds its words.
VOCABULARIES = ["tokenizer.json", "vocab.json", "spiece.model"]
TOKENIZER = [*VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
#: Number of prompts that are embedded at once.
PROMPTS = 64
#: Prompts in the manner of CLIP's; {} is the name of a class.
TEMPLATES = (
    "a photo of a {}.",
    "a photo of the {}.",
    "a picture that shows a {}.",
    "a close photo of a {}.",
    "a {} seen from afar.",
    "a dark photo of a {}.",
    "a drawing of a {}.",
)


@dataclass(frozen=True)
class TextFamily:
    """The text tower of one architecture."""

    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    output: str  # field of the model's output that images are compared with
    padded: bool  # whether every prompt has the longest length: SigLIP sees the padding, CLIP pools before it


#: Text towers by the ``model_type`` of the whole model.
TEXT_FAMILIES: dict[str, TextFamily] = {
    "clip": TextFamily(CLIPTextConfig, CLIPTextModelWithProjection, "text_embeds", padded=False),
    "siglip": TextFamily(SiglipTextConfig, SiglipTextModel, "pooler_output", padded=True),
    "siglip2": TextFamily(Siglip2TextConfig, Siglip2TextModel, "pooler_output", padded=True),
}


class TextTower(nn.Module):
    """A frozen text tower with its tokenizer, and the numbers that make logits of cosines: scale * cosine + bias."""

    def __init__(
        self, model: PreTrainedModel, family: TextFamily, tokenizer: Any, scale: float, bias: float, digest: str
    ) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.family = family
        self.tokenizer = tokenizer
        self.scale = scale
        self.bias = bias  # 0 for CLIP, which has none
        self.digest = digest  # of the checkpoint

    @torch.no_grad()
    def embed(self, prompts: Sequence[str]) -> Float[Tensor, "prompts joint"]:
        """The embedding that images are compared with, of unit length.

        Prompts are written in lower case, as all these models have learned them; not every tokenizer does it. No
        attention mask is passed: CLIP's attention is causal and the prompt ends before its padding, and SigLIP was
        trained without a mask.
        """
        parts = [self._embed(prompts[at : at + PROMPTS]) for at in range(0, len(prompts), PROMPTS)]
        return normalize(torch.cat(parts), dim=-1)

    def _embed(self, prompts: Sequence[str]) -> Float[Tensor, "prompts joint"]:
        config: Any = self.model.config
        try:
            words = self.tokenizer(
                [prompt.lower() for prompt in prompts],
                padding="max_length" if self.family.padded else "longest",
                padding_side="right",
                truncation=True,
                max_length=config.max_position_embeddings,
                return_tensors="pt",
            )["input_ids"]
        except Exception as error:  # a tokenizer's own code raises plain exceptions
            raise BackboneError(f"The tokenizer cannot read the prompts ({one_line(error)})") from error
        if words.max() >= config.vocab_size:
            raise BackboneError(f"The tokenizer has more words than the text tower's {config.vocab_size:,}.")
        embeddings: Tensor = self.model(input_ids=words.to(self.model.device))[self.family.output]
        return embeddings


def class_embeddings(tower: TextTower, names: Sequence[str], templates: Sequence[str]) -> Float[Tensor, "classes d"]:
    """One unit embedding per class: the mean over the templates of the prompts' unit embeddings, as CLIP does."""
    for template in templates:
        if "{}" not in template:
            raise ConfigError(f"The template {template!r} has no {{}} for the name of the class.")
    if not templates:
        raise ConfigError("At least one template is needed, e.g. 'a photo of a {}.'.")
    prompts = [template.replace("{}", name) for name in names for template in templates]
    embeddings = tower.embed(prompts).unflatten(0, (len(names), len(templates)))
    return normalize(embeddings.mean(dim=1), dim=-1)


def load_text_tower(name_or_path: str | Path, revision: str | None = None) -> TextTower:
    """Load the text tower of a whole model, in FP32, whatever precision it is stored in.

    ``name_or_path`` is a folder in the Hub's format, or a Hub name. Its ``model_type`` must be one of
    :data:`TEXT_FAMILIES`, and its tokenizer must lie beside it.
    """
    folder = checkpoint_folder(name_or_path, revision, [*FILES, *TOKENIZER])
    file = folder / "config.json"
    settings = read_json(file)
    kind = settings.get("model_type")
    family = TEXT_FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise BackboneError(
            f"{name_or_path} has no text tower that can be loaded: its model type is {kind!r}, not one of "
            f"{', '.join(TEXT_FAMILIES)}."
        )
    text = settings.get("text_config")
    if not isinstance(text, dict):
        raise BackboneError(f"{file} must describe the text tower as a JSON object, text_config.")
    shapes = weight_shapes(folder, name_or_path)
    joint = {"projection_dim": settings["projection_dim"]} if "projection_dim" in settings else {}
    require_sizes(file, {**text, **joint}, shapes)
    tokenizer = _load_tokenizer(folder, name_or_path)
    try:
        with quiet_transformers():
            loaded: Any = family.model
            model, report = loaded.from_pretrained(
                folder,
                config=family.config.from_dict({**text, **joint}),
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report lists them
            )
    except Exception as error:  # transformers and safetensors raise many types on broken files
        raise BackboneError(f"The text tower of {name_or_path} cannot be loaded ({one_line(error)})") from error
    require_all_weights(report, name_or_path, f"{kind} text")
    logarithm, bias = (_read_number(folder, name_or_path, name, shapes) for name in ("logit_scale", "logit_bias"))
    if logarithm is None or not logarithm.exp().isfinite():
        raise BackboneError(f"{name_or_path} has no logit_scale that could make probabilities of cosines.")
    scale = float(logarithm.exp())
    return TextTower(model, family, tokenizer, scale, 0.0 if bias is None else float(bias), checkpoint_digest(folder))


def _load_tokenizer(folder: Path, name: str | Path) -> Any:
    """The tokenizer of a checkpoint. Without files, transformers would make one that knows no word."""
    if not any((folder / file).is_file() for file in VOCABULARIES):
        raise BackboneError(f"{name} has no tokenizer: there is none of {', '.join(VOCABULARIES)} in {folder}.")
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError:
        raise BackboneError(
            f"The tokenizer of {name} needs a package that is not installed, for SigLIP: pip install sentencepiece."
        ) from None
    except Exception as error:
        raise BackboneError(f"The tokenizer of {name} cannot be loaded ({one_line(error)})") from error
    if tokenizer.pad_token is None:
        raise BackboneError(f"The tokenizer of {name} has no pad_token: name one in tokenizer_config.json.")
    unknown = tokenizer.unk_token
    if unknown is None or unknown not in tokenizer.get_vocab():  # other words would be dropped, or end in an error
        raise BackboneError(
            f"The tokenizer of {name} has no token for unknown words: name one of its words as unk_token in "
            "tokenizer_config.json."
        )
    return tokenizer


def _read_number(folder: Path, name: str | Path, key: str, shapes: dict[str, tuple[int, ...]]) -> Tensor | None:
    """A weight that is a single number; None if there is none."""
    if key not in shapes:
        return None
    for file in weight_files(folder, name):
        with safe_open(file, "pt") as weights:
            if key in weights.keys():  # noqa: SIM118
                number: Tensor = weights.get_tensor(key).float()
                if number.numel() == 1 and number.isfinite().all():
                    return number.flatten()[0]
    raise BackboneError(f"{name} has a {key} that is not one finite number.")
