"""What is read from a model's output, and how it is compared with what dense gives.

An :class:`ImageReadout` reads one decision per image, a :class:`PatchReadout` one per patch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float16, Int, UInt8
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from redi.backbone import Backbone
from redi.checks import require_finite
from redi.deploy.model import Accelerated
from redi.probe import image_feature
from redi.runs.progress import track
from redi.statistics import agreement, divergence, images_needed, images_needed_for_mean, mean_bound, paired_bound

#: Scale of similarities for a model without a head, as in contrastive training.
TEMPERATURE = 0.07
#: The most dense patch tokens that patches are compared with.
BANK_TOKENS = 512

Pixels = UInt8[Tensor, "images channels height width"]
Logits = Float[Tensor, "images classes"]
Tokens = Float16[Tensor, "images patches dim"]
Labels = Int[Tensor, " images"]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a setting loses; the fields are those of :class:`redi.records.tuning.Point`."""

    accuracy: float | None = None
    agreement: float
    divergence: float | None = None
    cosine: float | None = None
    drop: float
    drop_bound: float
    needed: int | None


class Readout(ABC):
    """Reads the outputs of models and compares them with those of dense."""

    distance_name: str

    def __init__(self, batch: int) -> None:
        self.batch = batch

    @abstractmethod
    def read(self, model: Accelerated, pixels: Pixels, title: str = "") -> Tensor:
        """What is read from all images. With a title, the progress is shown."""

    @abstractmethod
    def distance(self, dense: Any, reduced: Any) -> Float[Tensor, " images"]:
        """How far each image is from dense. Calibration minimises the mean of its root."""

    @abstractmethod
    def loss(self, dense: Any, reduced: Any, labels: Labels | None, allowed: float) -> Loss:
        """What is lost against dense, with its bound, and the images needed to show that it is ``allowed``."""

    @torch.inference_mode()
    def _outputs(self, model: Accelerated, pixels: Pixels, title: str) -> Iterator[Any]:
        with track(title, len(pixels), show=bool(title)) as advance:
            for chunk in pixels.split(self.batch):
                yield model(model.backbone.preprocessing.normalise(chunk.to(model.device)))
                advance(len(chunk))


class ImageReadout(Readout):
    """The logits of a model's head or, without a head, similarities to the dense features of a bank of images.

    Without a head, the decision is the nearest image of the bank, or its class if ``labels`` are given.
    """

    distance_name = "KL from dense"

    def __init__(self, dense: Accelerated, bank: Pixels, labels: Int[Tensor, " bank"] | None, batch: int) -> None:
        super().__init__(batch)
        self.bank = self.labels = None
        if dense.backbone.head is None:
            self.bank, self.labels = self._vectors(dense, bank, "nearest neighbours, dense"), labels

    def read(self, model: Accelerated, pixels: Pixels, title: str = "") -> Logits:
        vectors = self._vectors(model, pixels, title)
        return vectors if self.bank is None else vectors @ self.bank.T / TEMPERATURE

    def decide(self, logits: Logits) -> Int[Tensor, " images"]:
        best = logits.argmax(dim=1)
        return best if self.labels is None else self.labels[best]

    def distance(self, dense: Logits, reduced: Logits) -> Float[Tensor, " images"]:
        return divergence(dense, reduced)

    def loss(self, dense: Logits, reduced: Logits, labels: Labels | None, allowed: float) -> Loss:
        before, after = self.decide(dense), self.decide(reduced)
        images, accuracy, lost, gained = len(after), None, int((before != after).sum()), 0
        if labels is not None:
            accuracy = agreement(after, labels)
            was_right, is_right = before == labels, after == labels
            lost, gained = int((was_right & ~is_right).sum()), int((~was_right & is_right).sum())
        return Loss(
            accuracy=accuracy,
            agreement=agreement(before, after),
            divergence=divergence(dense, reduced).mean().item(),
            drop=100 * (lost - gained) / images,
            drop_bound=paired_bound(lost, gained, images),
            needed=images_needed(lost / images, gained / images, allowed),
        )

    def _vectors(self, model: Accelerated, pixels: Pixels, title: str) -> Float[Tensor, "images dim"]:
        backbone = model.backbone
        outputs = self._outputs(model, pixels, title)
        if backbone.head is not None:
            return _finite(torch.cat([output.logits.float().cpu() for output in outputs]))
        return _finite(torch.cat([_feature(backbone, output).cpu() for output in outputs]))


def _feature(backbone: Backbone, output: Any) -> Float[Tensor, "batch dim"]:
    """The embedding that texts are compared with, if the model gives one, else the feature of the linear probe."""
    pooled = output.pooler_output if backbone.projection is None else output.image_embeds
    if backbone.has_embedding and pooled is not None:
        return normalize(pooled.float(), dim=-1)
    tokens = output.last_hidden_state
    normed = tokens if backbone.family.normed_output else backbone.final_norm(tokens)
    return image_feature(normed.float(), backbone.prefix, backbone.has_cls)


class PatchReadout(Readout):
    """The patch tokens on the full grid. The decision of a patch is the nearest of some dense patch tokens.

    These are at most :data:`BANK_TOKENS`, spread evenly over the patches of a bank of images.
    """

    distance_name = "1 - cosine to dense"

    def __init__(self, dense: Accelerated, bank: Pixels, batch: int) -> None:
        super().__init__(batch)
        tokens = self.read(dense, bank, "patches to compare with, dense").flatten(0, 1)
        self.bank = tokens[_spread_evenly(len(tokens), BANK_TOKENS)].float()

    def read(self, model: Accelerated, pixels: Pixels, title: str = "") -> Tokens:
        """Tokens of unit length, in half precision to keep a thousand images in memory."""
        prefix = model.backbone.prefix
        hidden = (output.last_hidden_state[:, prefix:].float() for output in self._outputs(model, pixels, title))
        return _finite(torch.cat([normalize(patches, dim=-1).half().cpu() for patches in hidden]))

    def decide(self, tokens: Tokens) -> Int[Tensor, "images patches"]:
        """The nearest token of the bank, for each patch."""
        return torch.cat([(chunk.float() @ self.bank.T).argmax(dim=-1) for chunk in tokens.split(self.batch)])

    def distance(self, dense: Tokens, reduced: Tokens) -> Float[Tensor, " images"]:
        """The mean of 1 - cosine over the patches."""
        return (1 - self._cosine(dense, reduced)).clamp(min=0)

    def loss(self, dense: Tokens, reduced: Tokens, labels: Labels | None, allowed: float) -> Loss:  # noqa: ARG002
        """The loss of an image is the percentage of its patches whose decision changed.

        Images are the independent units, not patches, so the bound is that of a mean over images.
        """
        lost = 100 * (self.decide(dense) != self.decide(reduced)).double().mean(dim=1)
        drop = lost.mean().item()
        return Loss(
            agreement=100 - drop,
            cosine=self._cosine(dense, reduced).mean().item(),
            drop=drop,
            drop_bound=mean_bound(lost),
            needed=images_needed_for_mean(drop, lost.std().item(), allowed),
        )

    def _cosine(self, dense: Tokens, reduced: Tokens) -> Float[Tensor, " images"]:
        """The mean cosine of the patches to those of dense."""
        chunks = zip(dense.split(self.batch), reduced.split(self.batch), strict=True)
        return torch.cat([cosine_similarity(a.float(), b.float(), dim=-1).mean(dim=1) for a, b in chunks])


def _finite(outputs: Tensor) -> Tensor:
    require_finite(outputs, "The outputs of the model")
    return outputs


def _spread_evenly(total: int, most: int) -> Int[Tensor, " positions"]:
    """At most ``most`` of ``total`` positions: one in each of as many equal stretches, at a fixed random place.

    Without the random place, a step of whole rows would pick patches of one column alone.
    """
    count = min(total, most)
    places = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ((torch.arange(count) + places) * total / count).long().clamp(max=total - 1)
