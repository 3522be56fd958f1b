"""The image feature of the paper and the linear classifier.

The classifier is trained once on features of the dense path and applied unchanged to features of the reduced path.
"""

from dataclasses import dataclass, field
from math import ceil, inf, isfinite

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, normalize

from redi.checks import require_axes, require_finite, require_float, require_range
from redi.errors import CorpusError, InvalidInput


def image_feature(
    normed: Float[Tensor, "batch tokens dim"], prefix: int, has_cls: bool = True
) -> Float[Tensor, "batch dim"]:
    """Sec. "Problem setting": the unit mean of the unit CLS token and the unit patch mean.

    ``normed`` is the sequence after the final norm, or before it with ``--features prenorm``. Tokens 1 .. prefix-1
    (registers, distillation) are left out. The patch mean is unweighted: over 196 tokens (dense) or 102 (the
    paper's). A backbone without a CLS token, which the paper does not have, gives the unit patch mean alone.
    """
    require_axes(normed, "batch tokens dim", "The final tokens")
    if not has_cls <= prefix < normed.shape[1]:
        raise InvalidInput(f"prefix must be {int(has_cls)} to {normed.shape[1] - 1}, not {prefix}.")
    patch_mean = normalize(normed[:, prefix:].mean(dim=1), dim=-1)
    if not has_cls:
        return patch_mean
    cls = normalize(normed[:, 0], dim=-1)
    return normalize((cls + patch_mean) / 2, dim=-1)


@dataclass(eq=False)
class LinearProbe:
    """Softmax regression with the paper's recipe: AdamW, cosine decay, no label smoothing.

    The paper's 20 epochs of batch 4096 are 6,260 steps on ImageNet-1K. On a small set 20 epochs would be a few
    dozen steps, so at least ``min_steps`` are taken; ``steps_`` is the number taken. The weights start at zero: the
    problem is convex, so the start does not matter and needs no seed. The seed orders the batches.
    """

    n_classes: int
    epochs: int = 20
    batch_size: int = 4096
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    min_steps: int = 2000
    seed: int = 0
    weight_: Tensor = field(init=False, repr=False)
    bias_: Tensor = field(init=False, repr=False)
    steps_: int = field(init=False, default=0)
    loss_: float = field(init=False, default=float("nan"))

    def fit(self, features: Float[Tensor, "images dim"], labels: Int[Tensor, " images"]) -> "LinearProbe":
        """Train from zero weights; this also works under ``no_grad`` and ``inference_mode``."""
        if features.ndim == 2 and len(features) == 0:
            raise CorpusError("The probe has no training images: pass the features of at least one.")
        require_axes(features, "images dim", "Features")
        require_axes(labels, "images", "Labels")
        if len(features) != len(labels):
            raise InvalidInput(f"There are {len(features)} features but {len(labels)} labels.")
        require_float(features, "Features")
        require_finite(features, "Features")
        require_range(labels, self.n_classes, "Labels")
        if self.batch_size < 1 or max(self.epochs, self.min_steps) < 1:
            raise InvalidInput("The probe needs a positive batch size and at least one step.")
        if not (0 < self.learning_rate < inf and 0 <= self.weight_decay < inf):
            raise InvalidInput(
                f"The probe needs a positive learning rate and a weight decay of 0 or more, not {self.learning_rate:g} "
                f"and {self.weight_decay:g}."
            )
        with torch.inference_mode(False), torch.enable_grad():
            if features.is_inference():
                features = features.clone()
            self._descend(features.float(), labels.to(features.device).long())
        return self

    def _descend(self, features: Tensor, labels: Tensor) -> None:
        images, width = features.shape
        per_epoch = ceil(images / self.batch_size)
        self.steps_ = max(self.epochs * per_epoch, self.min_steps)
        weight = torch.zeros(self.n_classes, width, device=features.device, requires_grad=True)
        bias = torch.zeros(self.n_classes, device=features.device, requires_grad=True)
        optimiser = torch.optim.AdamW([weight, bias], lr=self.learning_rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=self.steps_)
        generator = torch.Generator().manual_seed(self.seed)
        batches: list[Tensor] = []
        for _ in range(self.steps_):
            if not batches:
                order = torch.randperm(images, generator=generator).to(features.device)
                batches = list(order.split(self.batch_size))
            batch = batches.pop()
            loss = cross_entropy(linear(features[batch], weight, bias), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        self.loss_ = loss.item()
        self.weight_, self.bias_ = weight.detach(), bias.detach()
        if not (isfinite(self.loss_) and bool(self.weight_.isfinite().all()) and bool(self.bias_.isfinite().all())):
            raise InvalidInput(
                f"The probe diverged at a learning rate of {self.learning_rate:g} and a weight decay of "
                f"{self.weight_decay:g}: lower them."
            )

    @classmethod
    def fitted(cls, weight: Float[Tensor, "classes dim"], bias: Float[Tensor, " classes"]) -> "LinearProbe":
        """A probe with weights from an earlier fit."""
        probe = cls(len(weight))
        probe.weight_, probe.bias_ = weight, bias
        return probe

    def logits(self, features: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Logits of a fitted probe."""
        return linear(features, self.weight_, self.bias_)
