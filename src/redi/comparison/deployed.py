"""What a user can deploy: the measured speed of our own reducer and of ToMe, and what our own one merges.

The rows are those of the study ``accelerate``. Their accuracy is measured like that of every other row, and the same
forward pass and readout are timed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from redi.backbone import Backbone, Classifier, Tokens
from redi.images.loader import Batch
from redi.records.deployed import MERGES, OWN, Deployed
from redi.records.setting import Setting
from redi.reduction import REDUCERS, Inside, Progressive, Reduction, Schedule
from redi.rows import DENSE_VARIANT, Catalogue, Variant
from redi.runs.environment import environment
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.speed.measure import Group, measure
from redi.speed.paths import Pixels, Scores, TimedPath
from redi.stages.classifiers import classifier_names, load_classifier
from redi.stages.evaluate import forward, tokens_and_cost

#: Images per call: a usual size of a request on a CPU, and one that fills an accelerator.
BATCH_CPU, BATCH_ACCELERATOR = 8, 64
#: Most repeats, and the seconds of timing per row beyond which there are fewer.
REPEATS, SECONDS = 15, 1.5


def time_rows(run: Run, variants: Sequence[Variant]) -> Deployed:
    """Time dense and the rows in turn, from pixels to logits. The pixels are noise: time ignores them."""
    backbone, device = run.backbone, run.device
    classifier = load_classifier(run, classifier_names(run)[0])
    paths = [timed_row(run, variant, classifier) for variant in (DENSE_VARIANT, *variants)]
    batch = BATCH_CPU if device.type == "cpu" else BATCH_ACCELERATOR
    size = backbone.preprocessing.size
    pixels = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    no_scores = pixels.new_zeros(batch, backbone.geometry.patches)
    group = Group(batch, "fp32", "eager")
    timings, _ = measure(paths, pixels, no_scores, group, repeats=REPEATS, limit=SECONDS)
    return Deployed(timings, environment(device, run.ranks.world))


def timed_row(run: Run, variant: Variant, classifier: Classifier) -> TimedPath:
    """A row as its predictions are made: embedding, the forward pass, and what the classifier reads of it."""
    backbone, catalogue = run.backbone, Catalogue()

    def logits(pixels: Pixels, _scores: Scores) -> Tensor:
        tokens = backbone.embed(pixels)
        if variant.is_dense:
            return classifier.logits(backbone.encode(tokens))
        return forward(backbone, catalogue, variant, None, {0: tokens}).read(classifier.logits, backbone.prefix)

    tokens, cost = tokens_and_cost(backbone.geometry, catalogue, variant)
    return TimedPath(variant.name(run.config.budget), False, logits, cost, tokens, variant.extent.schedule)


def shown_row(run: Run, variants: Sequence[Variant]) -> Variant:
    """Our own row whose merges the report shows: the one closest to the default cost of ``redi.accelerate``."""
    own = [variant for variant in variants if variant.reducer == OWN]
    return min(own, key=lambda row: abs(REDUCERS[OWN].cost(row.extent, run.backbone.geometry) - Setting().cost))


def record_merges(run: Run, variant: Variant) -> None:
    """Record what merges into what in each block, for the images of the explorer."""
    key = run.key("merges", "val", explorer=run.digest("analysis/explorer"), variant=asdict(variant))
    if run.ranks.share(lambda: run.current(MERGES, key)):
        return
    backbone, reducer = run.backbone, REDUCERS[variant.reducer]
    assert isinstance(reducer, Progressive)

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device)))
        block, into = merge_history(backbone, tokens, reducer, variant.extent.schedule)
        return {"block": block.to(torch.uint8), "into": into.to(torch.int16)}

    def save(outcome: Outcome) -> None:
        cost = reducer.cost(variant.extent, backbone.geometry)
        run.save(MERGES, outcome.rows, key, cost=cost, schedule=list(variant.extent.schedule))

    sample = run.load("analysis/explorer")["indices"].tolist()
    run.finish(Pass("merges", run.dataset(run.validation), step, indices=sample), key, save, all_decoded=True)


def merge_history(
    backbone: Backbone, tokens: Tokens, reducer: Progressive, schedule: Schedule
) -> tuple[Int[Tensor, "batch patches"], Int[Tensor, "batch patches"]]:
    """The history of all merges, with two numbers per patch instead of one per patch and block.

    A token is named by its first patch. When tokens merge, all names but the lowest end. For the patch of such a name
    the result holds the block (counted from 1) and the name it joined; for a patch whose name never ends, 0 and
    itself.
    """
    patch = torch.arange(tokens.patches.shape[1], device=tokens.patches.device).expand(len(tokens.patches), -1)
    token = name = into = patch  # of each patch: the place of its token, that token's name
    ended = torch.zeros_like(patch)

    def watched(inside: Inside, count: int) -> Reduction:
        nonlocal token, name, into, ended
        reduction = reducer.step(inside, count)
        token = reduction.source.gather(1, token)
        lowest = patch.new_full((len(patch), count), patch.shape[1]).scatter_reduce(1, token, patch, "amin")
        joined = lowest.gather(1, token)
        ends = (name == patch) & (joined != patch)
        ended, into = torch.where(ends, inside.block + 1, ended), torch.where(ends, joined, into)
        name = joined
        return reduction

    backbone.encode_progressively(tokens, replace(reducer, step=watched), schedule)
    return ended, into
