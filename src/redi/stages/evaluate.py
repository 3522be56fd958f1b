"""Predictions for every validation image: dense, for the paper's rows, and for any other variant.

Dense rows come from the forward pass of the score stage. Reduced rows share one embedding per image; each row is
one reduction and one pass of the frozen blocks over the shorter sequence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.backbone import Backbone, Tokens
from redi.cost import Geometry
from redi.evaluate import top5
from redi.images.loader import Batch
from redi.records import artifacts
from redi.reduction import Adaptive, Progressive
from redi.reduction.result import dropped_last, read_counted
from redi.rows import DENSE_VARIANT, Catalogue, Variant, paper_rows
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.stages.classifiers import classifier_key, classifier_names
from redi.stages.maps import ScoreMaps, uses_classifier
from redi.stages.score import DENSE_PASS, scored_images
from redi.stages.stage import Stage
from redi.statistics import divergence

#: Number of rows that share an embedding. A killed run loses at most this many rows.
GROUP = 12


def prediction_name(classifier: str, row: str) -> str:
    return f"predictions/{classifier}/{row}"


def prediction_key(run: Run, maps: ScoreMaps, classifier: str, variant: Variant, user: str = "") -> dict[str, Any]:
    """The key of a row's predictions. ``user`` is the digest of the file with the user's own reducer."""
    return run.key(
        "evaluate",
        "val",
        variant=asdict(variant),
        scores=maps.inputs(variant),
        seed=run.config.seed,
        user=user,
        **classifier_key(run, classifier),
        **block_key(run),
    )


def block_key(run: Run) -> dict[str, Any]:
    """The part of a key for artefacts that hold costs: the products of a block, if not those of Eq. blockcompute."""
    block = run.backbone.geometry.own_block
    return {} if block is None else {"block": asdict(block)}


def predictions(
    run: Run, maps: ScoreMaps, variants: Sequence[Variant], catalogue: Catalogue
) -> dict[tuple[str, Variant], tuple[str, artifacts.Key]]:
    """The name and key of the predictions of each variant, for all classifiers of the run."""
    return {
        (classifier, variant): (
            prediction_name(classifier, variant.name(run.config.budget)),
            prediction_key(run, maps, classifier, variant, catalogue.digest(variant)),
        )
        for classifier in classifier_names(run)
        for variant in variants
    }


def missing_rows(
    run: Run, maps: ScoreMaps, variants: Sequence[Variant], catalogue: Catalogue
) -> list[tuple[str, Variant]]:
    """(classifier, variant) pairs whose predictions are missing or not current."""
    rows = predictions(run, maps, variants, catalogue)
    return [row for row, (name, key) in rows.items() if not run.current(name, key)]


def paper_variants(run: Run) -> list[Variant]:
    return [DENSE_VARIANT, *paper_rows(run.config.budget, run.attention_scores).values()]


def predict_variants(run: Run, variants: Sequence[Variant], catalogue: Catalogue, group_size: int = GROUP) -> None:
    """Make the predictions that are missing, for all classifiers of the run.

    The key of a group's pass holds its rows, so a continued run uses the parts of a killed one only for the same
    rows. At most one group is lost, the one whose predictions were being written.
    """
    maps = ScoreMaps(run)
    rows = [(name, variant) for name in classifier_names(run) for variant in variants]
    numbers = run.ranks.share(lambda: [rows.index(row) for row in missing_rows(run, maps, variants, catalogue)])
    missing = [rows[number] for number in sorted(numbers)]
    if run.ranks.is_main:
        for classifier, variant in missing:
            if variant.is_dense:
                _save_dense(run, maps, classifier)
    jobs = _jobs([row for row in missing if not row[1].is_dense])
    for at in range(0, len(jobs), group_size):
        _predict_group(run, maps, catalogue, jobs[at : at + group_size])
    run.ranks.wait()


@dataclass(frozen=True)
class _Job:
    """One reduced forward pass, and the classifiers that read its output."""

    variant: Variant
    classifiers: tuple[str, ...]


def _jobs(rows: Sequence[tuple[str, Variant]]) -> list[_Job]:
    """The forward passes that the rows need. Classifiers share one unless the score depends on the classifier."""
    jobs: dict[tuple[Variant, str], list[str]] = {}
    for classifier, variant in rows:
        own = classifier if uses_classifier(variant) else ""
        jobs.setdefault((variant, own), []).append(classifier)
    return [_Job(variant, tuple(names)) for (variant, _), names in jobs.items()]


def _predict_group(run: Run, maps: ScoreMaps, catalogue: Catalogue, jobs: Sequence[_Job]) -> None:
    backbone = run.backbone
    # Named by content, so that the name stays the same when earlier groups are done.
    first = jobs[0].variant.name(run.config.budget)
    name = f"evaluate {len(jobs)} rows from {first}"
    dense = {name: maps.dense_logits(name) for job in jobs for name in job.classifiers}
    scores = [maps.map(job.variant, job.classifiers[0]) for job in jobs]
    scored = scored_images(run)
    place = {index: at for at, index in enumerate(scored)}

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        at = torch.tensor([place[index] for index in batch.indices])
        pixels = batch.pixels[:, 0].to(run.device)
        begun = {0: backbone.embed(backbone.preprocessing.normalise(pixels))}
        rows = {"labels": batch.labels}
        for job, stored in zip(jobs, scores, strict=True):
            batch_scores = None if stored is None else stored[at].to(run.device)
            final = forward(backbone, catalogue, job.variant, batch_scores, begun)
            for classifier in job.classifiers:
                logits = final.read(maps.classifier(classifier).logits, backbone.prefix).cpu()
                prefix = prediction_name(classifier, job.variant.name(run.config.budget))
                for field, tensor in _record(logits, dense[classifier][at]).items():
                    rows[f"{prefix}/{field}"] = tensor
                if final.lengths is not None:
                    rows[f"{prefix}/lengths"] = final.lengths.cpu()
        return rows

    keys = {row: key for row, (_, key) in predictions(run, maps, [job.variant for job in jobs], catalogue).items()}
    rows = [(classifier, job.variant) for job in jobs for classifier in job.classifiers]
    key = run.key("evaluate", "val", rows=[[row[0], keys[row]] for row in rows])

    def save(outcome: Outcome) -> None:
        for classifier, variant in rows:
            prefix = f"{prediction_name(classifier, variant.name(run.config.budget))}/"
            record = {
                field.removeprefix(prefix): tensor for field, tensor in outcome.rows.items() if field.startswith(prefix)
            }
            record |= {"labels": outcome.rows["labels"], "indices": torch.tensor(outcome.indices)}
            _save(run, maps, catalogue, classifier, variant, record)

    forwards, title = _forwards(run, catalogue, [job.variant for job in jobs]), _title(run, catalogue, jobs)
    work = Pass(name, run.dataset(run.validation), step, indices=scored, title=title, forwards=forwards)
    run.finish(work, key, save, all_decoded=True)


def _title(run: Run, catalogue: Catalogue, jobs: Sequence[_Job]) -> str:
    """The rows of a group in words: the first one and the number of the others."""
    first, more = jobs[0].variant, len(jobs) - 1
    _, cost = tokens_and_cost(run.backbone.geometry, catalogue, first)
    others = f" and {more} more row{'s' * (more > 1)}" if more else ""
    return f"evaluate {first.title} at cost {cost:.2f}{others}"


class Final(NamedTuple):
    """The final sequence of a reduced variant, before the final norm.

    A reducer that works block by block is read as an accelerated model is: on the full grid, restored by residual
    unmerge (copies, if lengths differ by image). A one-shot reducer is read as in the paper: on its tokens.
    """

    hidden: Tensor
    counted: Tensor | None = None  # the patches of each image that were not dropped, if some were
    lengths: Tensor | None = None  # patch tokens after each block, if they differ by image

    def read(self, readout: Callable[[Tensor], Tensor], prefix: int) -> Tensor:
        return read_counted(readout, self.hidden, prefix, self.counted)


def forward(
    backbone: Backbone,
    catalogue: Catalogue,
    variant: Variant,
    scores: Tensor | None,
    begun: dict[int, Tokens],
    prefix_only: bool = False,
) -> Final:
    """Run a reduced variant. With ``prefix_only`` the last block works for the prefix alone, which is all that is left.

    ``begun`` maps numbers of blocks to the dense tokens after them. It starts with block 0 and grows, so that variants
    that reduce after the same block share the dense blocks before it.
    """
    after = variant.extent.after
    if after not in begun:
        begun[after] = begun[0].advanced(backbone.encode(begun[0], stop=after))
    reducer = catalogue.reducers[variant.reducer]
    if isinstance(reducer, Adaptive):
        varied = reducer.shorten(backbone, begun[after], variant.extent, scores, prefix_only)
        if prefix_only:
            return Final(varied.hidden, lengths=varied.lengths)
        return Final(*dropped_last(varied.full(backbone.prefix), varied.source, backbone.prefix), varied.lengths)
    if isinstance(reducer, Progressive) and not prefix_only:
        short = backbone.encode_progressively(begun[after], reducer, variant.extent.schedule, scores, residual=True)
        return Final(*dropped_last(short.full(backbone.prefix), short.source, backbone.prefix))
    return Final(reducer.apply(backbone, begun[after], variant.extent, scores, prefix_only))


def _save_dense(run: Run, maps: ScoreMaps, classifier: str) -> None:
    stored = run.load(DENSE_PASS)
    logits = maps.dense_logits(classifier)
    record = {**_record(logits, logits), "labels": stored["labels"], "indices": stored["indices"]}
    _save(run, maps, Catalogue(), classifier, DENSE_VARIANT, record)


def _record(logits: Tensor, dense: Tensor) -> dict[str, Tensor]:
    """What is stored per image: enough for any later test without another forward pass."""
    classes, values = top5(logits)
    return {"top5": classes, "logits": values, "divergence": divergence(dense, logits)}


def _save(
    run: Run, maps: ScoreMaps, catalogue: Catalogue, classifier: str, variant: Variant, record: Mapping[str, Tensor]
) -> None:
    """Save predictions, with labels in the classifier's own numbering, which Top-5 uses too.

    The cost of an adaptive reducer is the mean over these images, not over those that its strength was found on.
    """
    on = run.backbone.geometry
    if "lengths" in record:
        tokens = on.prefix + rounded_means(record["lengths"])[-1]
        cost = image_costs(on, catalogue, variant, record["lengths"]).mean().item()
    else:
        tokens, cost = tokens_and_cost(on, catalogue, variant)
    labels = maps.classifier(classifier).own_labels(record["labels"])
    run.save(
        prediction_name(classifier, variant.name(run.config.budget)),
        {**record, "labels": labels},
        prediction_key(run, maps, classifier, variant, catalogue.digest(variant)),
        variant=asdict(variant),
        tokens=tokens,
        cost=cost,
    )


def tokens_and_cost(
    on: Geometry, catalogue: Catalogue, variant: Variant, prefix_only: bool = False
) -> tuple[int, float]:
    """Return (tokens after the last block, prefix included; analytic cost relative to dense)."""
    if variant.is_dense:
        return on.prefix + on.patches, 1.0
    reducer = catalogue.reducers[variant.reducer]
    return on.prefix + reducer.tokens_left(variant.extent, on), catalogue.cost(variant, on, prefix_only)


def image_costs(
    on: Geometry,
    catalogue: Catalogue,
    variant: Variant,
    lengths: Int[Tensor, "images depth"],
    prefix_only: bool = False,
) -> Float[Tensor, " images"]:
    """The cost of each image in an adaptive variant, from its patch tokens after each block."""
    reducer = catalogue.reducers[variant.reducer]
    assert isinstance(reducer, Adaptive)
    return reducer.image_costs(lengths, variant.extent.strength or 0.0, on, prefix_only)


def rounded_means(lengths: Int[Tensor, "images depth"]) -> list[int]:
    """Mean patch tokens after each block, rounded."""
    return [round(mean) for mean in lengths.double().mean(dim=0).tolist()]


def _forwards(run: Run, catalogue: Catalogue, variants: Iterable[Variant]) -> float:
    """Dense forwards that an image takes for some reduced variants."""
    return sum(tokens_and_cost(run.backbone.geometry, catalogue, variant)[1] for variant in variants)


STAGE = Stage(
    name="evaluate",
    artefacts=lambda run: dict(predictions(run, ScoreMaps(run), paper_variants(run), Catalogue()).values()),
    work=lambda run: predict_variants(run, paper_variants(run), Catalogue()),
    passes=lambda run: f"{len(run.scores)} reduced forward passes over {len(run.validation.labels)} validation images",
    forwards=lambda run: _forwards(run, Catalogue(), paper_variants(run)[1:]) * len(run.validation.labels),
)
