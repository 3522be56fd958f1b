"""What a model says of an image, as logits and as a decision, whether it has a head or not."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from redi.deploy.model import Accelerated
from redi.probe import image_feature

#: Scale of similarities for a model without a head, as contrastive training has it.
TEMPERATURE = 0.07

Pixels = UInt8[Tensor, "images channels height width"]
Logits = Float[Tensor, "images classes"]


class Readout:
    """Logits of a head. Without one, similarities to the dense features of some images (the bank):
    the decision is the nearest of them, or its class where ``labels`` are known."""

    def __init__(
        self,
        dense: Accelerated,
        bank: Pixels,
        labels: Int[Tensor, " bank"] | None,
        batch: int,
    ) -> None:
        self.batch = batch
        self.bank = self.labels = None
        if dense.backbone.head is None:
            self.bank, self.labels = torch.cat(list(self._outputs(dense, bank))), labels

    def logits(self, model: Accelerated, pixels: Pixels) -> Logits:
        found = torch.cat(list(self._outputs(model, pixels)))
        return found if self.bank is None else found @ self.bank.T / TEMPERATURE

    def decide(self, logits: Logits) -> Int[Tensor, " images"]:
        best = logits.argmax(dim=1)
        return best if self.labels is None else self.labels[best]

    @torch.inference_mode()
    def _outputs(self, model: Accelerated, pixels: Pixels) -> Iterator[Tensor]:
        backbone = model.backbone
        for some in pixels.split(self.batch):
            output = model(backbone.preprocessing.normalise(some.to(model.device)))
            if backbone.head is not None:
                yield output.logits.float().cpu()
            else:
                yield image_feature(output.last_hidden_state.float(), backbone.prefix).cpu()
