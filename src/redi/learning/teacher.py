"""The dense model as the teacher: what is read from a sequence, and how far it is from dense.

If a head reads nothing but the prefix, the output is its logits and the distance is the KL divergence. Otherwise it is
the feature of the linear probe, with every token weighted by its size, and the distance is 1 - cosine. Training masks
tokens by their size, so masked ones do not count.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from redi.backbone import Backbone
from redi.checks import require_finite
from redi.runs.progress import track
from redi.statistics import divergence

Output = Float[Tensor, "batch values"]


@dataclass(frozen=True)
class Teacher:
    """Reads the outputs of one backbone."""

    backbone: Backbone

    @property
    def prefix_only(self) -> bool:
        """Whether the output is made of the logits of a head that reads the prefix alone."""
        return self.backbone.reads_prefix

    @property
    def measure(self) -> str:
        return "KL from dense" if self.prefix_only else "1 - cosine to dense"

    def read(self, short: Any) -> Output:
        """The output of a shortened sequence: its hidden states and the sizes of its patch tokens."""
        if self.prefix_only:
            return self.backbone.classify(short.hidden)
        normed = self.backbone.final_norm(short.hidden)
        patches = normed[:, self.backbone.prefix :]
        weights = (short.sizes / short.sizes.sum(dim=1, keepdim=True)).to(patches.dtype)
        mean = normalize((weights[..., None] * patches).sum(dim=1), dim=-1)
        if not self.backbone.has_cls:
            return mean
        return normalize(normalize(normed[:, 0], dim=-1) + mean, dim=-1)

    def distance(self, dense: Output, output: Output) -> Float[Tensor, " batch"]:
        return divergence(dense, output) if self.prefix_only else 1 - (dense * output).sum(dim=1)

    @torch.inference_mode()
    def dense(self, pixels: UInt8[Tensor, "images channels height width"], batch: int) -> Output:
        """The dense outputs of all images."""
        backbone, outputs = self.backbone, []
        with track("dense outputs", len(pixels)) as advance:
            for chunk in pixels.split(batch):
                tokens = backbone.embed(backbone.preprocessing.normalise(chunk.to(backbone.device)))
                hidden = backbone.encode(tokens)
                sizes = hidden.new_ones(len(hidden), hidden.shape[1] - backbone.prefix)
                outputs.append(self.read(_Dense(hidden, sizes)).cpu())
                advance(len(chunk))
        values = torch.cat(outputs)
        require_finite(values, "The dense outputs")
        return values


@dataclass(frozen=True)
class _Dense:
    hidden: Tensor
    sizes: Tensor
