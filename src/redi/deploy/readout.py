"""Logits and decisions of a model, whether it has a head or not."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from redi.deploy.model import Accelerated
from redi.probe import image_feature
from redi.runs.progress import track

#: Scale of similarities for a model without a head, as in contrastive training.
TEMPERATURE = 0.07

Pixels = UInt8[Tensor, "images channels height width"]
Logits = Float[Tensor, "images classes"]


class Readout:
    """The logits of a model's head or, without a head, similarities to the dense features of a bank of images.

    Without a head, the decision is the nearest image of the bank, or its class if ``labels`` are given.
    """

    def __init__(self, dense: Accelerated, bank: Pixels, labels: Int[Tensor, " bank"] | None, batch: int) -> None:
        self.batch = batch
        self.bank = self.labels = None
        if dense.backbone.head is None:
            self.bank, self.labels = torch.cat(list(self._outputs(dense, bank, "nearest neighbours, dense"))), labels

    def logits(self, model: Accelerated, pixels: Pixels, title: str = "") -> Logits:
        """The logits of all images. With a title, the progress is shown."""
        outputs = torch.cat(list(self._outputs(model, pixels, title)))
        return outputs if self.bank is None else outputs @ self.bank.T / TEMPERATURE

    def decide(self, logits: Logits) -> Int[Tensor, " images"]:
        best = logits.argmax(dim=1)
        return best if self.labels is None else self.labels[best]

    @torch.inference_mode()
    def _outputs(self, model: Accelerated, pixels: Pixels, title: str) -> Iterator[Tensor]:
        backbone = model.backbone
        with track(title, len(pixels), show=bool(title)) as advance:
            for chunk in pixels.split(self.batch):
                output = model(backbone.preprocessing.normalise(chunk.to(model.device)))
                if backbone.head is not None:
                    yield output.logits.float().cpu()
                else:
                    yield image_feature(output.last_hidden_state.float(), backbone.prefix).cpu()
                advance(len(chunk))
