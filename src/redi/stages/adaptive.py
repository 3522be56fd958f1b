"""What the strengths of an adaptive reducer cost, measured on training images without their labels."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from redi.backbone import Backbone, Tokens
from redi.images.loader import Batch
from redi.reduction import Adaptive
from redi.reduction.adaptive import STRENGTHS, Curve, Point, curve_of
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass

#: Number of images, spread evenly over the training images.
IMAGES = 64


def strength_curve(run: Run, planned: bool, digests: Mapping[str, str], name: str, reducer: Adaptive) -> Curve:
    """Measure a reducer, or load what was measured. For a plan, which may not compute, guess if nothing is stored.

    ``digests`` are those of the files that reducers come from.
    """
    on = run.backbone.geometry
    images = range(0, len(run.training.labels), -(-len(run.training.labels) // IMAGES))
    key = run.key(
        "adaptive",
        "train",
        images=len(images),
        thresholds=[list(map(str, reducer.thresholds(on.depth, strength))) for strength in STRENGTHS],
        **({"learned": digests[name]} if name in digests else {}),
    )
    artefact = f"adaptive/{name}"
    if not run.ranks.share(lambda: run.current(artefact, key)):
        if planned:
            return Point(0.0, 1.0, on.patches), Point(1.0, 0.0, 1.0)
        _measure(run, name, key, reducer, images)
    return curve_of(reducer, run.load(artefact)["lengths"], on, STRENGTHS)


def lengths_at_strengths(backbone: Backbone, reducer: Adaptive, tokens: Tokens) -> Int[Tensor, "batch strengths depth"]:
    """The patch tokens of each image after each block, at each of ``STRENGTHS``."""
    passes = [backbone.encode_adaptively(tokens, reducer, strength) for strength in STRENGTHS]
    return torch.stack([varied.lengths for varied in passes], dim=1)


def _measure(run: Run, name: str, key: dict[str, Any], reducer: Adaptive, images: range) -> None:
    backbone = run.backbone

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device)))
        return {"lengths": lengths_at_strengths(backbone, reducer, tokens).cpu()}

    def save(outcome: Outcome) -> None:
        run.save(f"adaptive/{name}", outcome.rows, key)

    work = Pass(f"costs of {name}", run.dataset(run.training), step, indices=images, forwards=0.7 * len(STRENGTHS))
    run.finish(work, key, save)
