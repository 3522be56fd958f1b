"""Second looks: the images that the fast model is not sure of get the answer of the dense model.

An image whose decision could change when tokens are merged is one that the head is unsure of, and the head says so. So
a budget that is a mean over images is spent better on a cheap first look at all images and a dense second look at few
than on one look at all. The two looks share the blocks before the first merge.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from redi.deploy.model import NO_HEAD, Accelerated
from redi.errors import ConfigError
from redi.records.setting import SecondLook, Setting

Images = Float[Tensor, "images channels height width"]

#: Half of what a budget has above this cost is spent on second looks (docs/LOG.md); a lower budget has none.
CHEAPEST = 0.5
#: Images per call when a confidence is set.
BATCH = 32


@torch.inference_mode()
def with_second_look(model: Accelerated, images: Images) -> Accelerated:
    """The same model at the same mean cost, with second looks; ``images`` are normalised and need no label.

    The share of second looks follows from the cost. The confidence is the one that this share of ``images`` does not
    reach at the first look. A budget of ``CHEAPEST`` or less is not divided.
    """
    if model.backbone.head is None:
        raise ConfigError(NO_HEAD)
    setting = replace(model.setting, second_look=None, outside="")
    if not len(images):
        raise ConfigError("There are no images to set a confidence on.")
    if setting.cost <= CHEAPEST:
        raise ConfigError(f"A cost of {setting.cost:g} leaves nothing for second looks: it must be above {CHEAPEST}.")
    share = (setting.cost - CHEAPEST) / 2 / setting.second_cost(model.backbone.geometry, model.prefix_only)
    look = SecondLook(0.0, share)
    confidence = _confidences(model, replace(setting, second_look=look), images).quantile(share).item()
    chosen = replace(setting, second_look=replace(look, confidence=confidence))
    return Accelerated(model.backbone, chosen, None, model.original)


@torch.inference_mode()
def look_costs(model: Accelerated, images: Images) -> Float[Tensor, " images"]:
    """The cost of each image, relative to dense: of one look, or of two."""
    look, costs = model.setting.second_look, torch.full((len(images),), model.cost())
    if look is None:
        return costs
    second = model.setting.second_cost(model.backbone.geometry, model.prefix_only)
    unsure = _confidences(model, model.setting, images) < look.confidence
    return costs + second * (unsure.float().cpu() - look.share)


def _confidences(model: Accelerated, setting: Setting, images: Images) -> Float[Tensor, " images"]:
    """The probability of the best class at the first look."""
    assert setting.second_look is not None
    never = replace(setting, second_look=replace(setting.second_look, confidence=0.0))
    first = Accelerated(model.backbone, never)
    logits = [first(part.to(model.device)).logits for part in images.split(BATCH)]
    return torch.cat(logits).float().softmax(dim=-1).amax(dim=-1)
