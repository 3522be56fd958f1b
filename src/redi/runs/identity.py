"""Which model a setting belongs to."""

import hashlib
from dataclasses import replace

import torch

from redi.backbone import Backbone
from redi.errors import ConfigError
from redi.records.setting import Setting, TunedModel
from redi.runs.progress import say

#: Largest number of values per parameter in the digest of the weights; larger parameters are sampled evenly.
SAMPLES = 4096


def identify(backbone: Backbone) -> TunedModel:
    """The kind of a model and a digest of its weights, the same for a checkpoint's name and for its loaded model.

    The digest is of values in BF16, so that it does not change when an FP32 model is converted to BF16. It leaves out
    the pooler, which a checkpoint may lack and transformers then fills at random.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(backbone.model.named_parameters()):
        if "pooler." not in name:
            values = parameter.detach().flatten()
            sample = values[:: max(1, -(-len(values) // SAMPLES))].to("cpu", torch.bfloat16).contiguous()
            digest.update(f"{name} {list(parameter.shape)}".encode())
            digest.update(sample.view(torch.uint8).numpy().data)
    family = getattr(backbone.config, "model_type", "timm")
    return TunedModel(family, backbone.depth, backbone.width, backbone.patch_size, digest.hexdigest()[:16])


def require_own_model(setting: Setting, backbone: Backbone) -> None:
    """Refuse a setting of another kind of model. Warn of other weights, and of a setting outside its tolerance."""
    model = identify(backbone) if setting.model else None
    if model and setting.model and replace(model, weights=setting.model.weights) != setting.model:
        raise ConfigError(f"This setting is for a {setting.model}, not for a {model}: run `redi tune` for this model.")
    if model != setting.model:
        say(
            "warning: this setting was tuned on other weights or in another precision: run `redi tune` again to know "
            "what it loses here."
        )
    if setting.outside:
        say(f"warning: this setting is outside the tolerance: {setting.outside}")
