"""Predictions of every validation image: dense, under the paper's rows, and under any other variant.

The dense rows come from the score stage's forward. Reduced rows share one embedding of each image;
each is then one reduction and one pass of the frozen blocks over the shorter sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.backbone import Backbone, Tokens
from redi.classes import head_classes
from redi.corpus import FROM_CLASSIFIER
from redi.equal import Geometry, one_shot_cost, schedule_cost
from redi.errors import BackboneError
from redi.evaluate import top5
from redi.loader import Batch
from redi.passes import Pass
from redi.probe import image_feature
from redi.reduction import OneShot
from redi.run import SCORES, Run
from redi.stages.maps import ScoreMaps
from redi.stages.probe import load_probe, probe_done
from redi.stages.score import score_done
from redi.statistics import divergence
from redi.variants import DENSE, Catalogue, Variant, catalogue

#: Rows that share an embedding, and the most that a killed run loses.
GROUP = 12


def paper_rows(run: Run) -> dict[str, Variant]:
    """The rows of Tables 1 and 2 that are reduced, by name."""
    return {
        name: Variant(
            scorer=name,
            labels="gt" if name == "tfidf" or name.startswith("redi_") else "",
            budget=run.config.budget,
        )
        for name in SCORES
    }


def classifiers(run: Run) -> list[str]:
    return ["probe", "native"] if run.config.classifier == "both" else [run.config.classifier]


def native_classes(run: Run) -> tuple[list[int], str]:
    """The head's class of each folder, and how it was found."""
    names = run.backbone.class_names
    if names is None:
        raise BackboneError(
            f"{run.config.backbone} has no classifier of its own: use --classifier probe."
        )
    file = Path(run.config.class_map) if run.config.class_map else None
    return head_classes(run.training.class_names, names, file)


def score_maps(run: Run) -> ScoreMaps:
    columns = torch.tensor(native_classes(run)[0]) if "native" in classifiers(run) else None
    return ScoreMaps(run, columns)


def prediction_key(
    run: Run, maps: ScoreMaps, classifier: str, variant: Variant, user: str = ""
) -> dict[str, Any]:
    """``user`` is the digest of the file that a user's own reducer comes from."""
    if classifier == "probe":
        head: dict[str, Any] = {"probe": run.digest("probe"), "features": run.config.probe.features}
    else:
        assert maps.native_columns is not None
        head = {"native": maps.native_columns.tolist()}
    return run.key(
        "evaluate",
        "val",
        variant=variant.to_dict(),
        scores=maps.inputs(variant),
        seed=run.config.seed,
        user=user,
        **head,
    )


def prediction_name(classifier: str, row: str) -> str:
    return f"predictions/{classifier}/{row}"


def missing_rows(
    run: Run, maps: ScoreMaps, variants: Sequence[Variant], known: Catalogue
) -> list[tuple[str, Variant]]:
    """(classifier, variant) pairs whose predictions are not there or not current."""
    return [
        (classifier, variant)
        for classifier in classifiers(run)
        for variant in variants
        if not run.current(
            prediction_name(classifier, variant.name(run.config.budget)),
            prediction_key(run, maps, classifier, variant, known.digest(variant)),
        )
    ]


def evaluate_done(run: Run) -> bool:
    if not (probe_done(run) and score_done(run)):
        return False
    rows = [DENSE, *paper_rows(run).values()]
    return not missing_rows(run, score_maps(run), rows, catalogue({}, {}, {}))


def predict(run: Run) -> None:
    """The paper's rows."""
    predict_variants(run, [DENSE, *paper_rows(run).values()], catalogue({}, {}, {}))


def predict_variants(run: Run, variants: Sequence[Variant], known: Catalogue) -> None:
    """Predictions of all variants for all classifiers of the run, as far as they are missing.

    The rows of a group are in the key of its pass, so parts of a killed run count for the same rows
    only: what is lost at most is a group whose predictions were just being written.
    """
    maps = score_maps(run)
    names = [(classifier, variant) for classifier in classifiers(run) for variant in variants]
    found = run.ranks.share(
        lambda: [names.index(row) for row in missing_rows(run, maps, variants, known)]
    )
    missing = {names[number] for number in found}
    if run.ranks.is_main:
        for classifier, variant in missing:
            if not variant.reducer:
                _save_dense(run, maps, known, classifier)
    jobs = _jobs([row for row in names if row in missing and row[1].reducer])
    for at in range(0, len(jobs), GROUP):
        group = jobs[at : at + GROUP]
        # Named by content: when earlier groups are done, this one is still found under its name.
        first = group[0].variant.name(run.config.budget)
        name = f"evaluate {len(group)} rows from {first}"
        _predict_group(run, maps, known, group, name)
        run.ranks.wait()
        run.passes.discard(name)
    run.ranks.wait()


@dataclass(frozen=True)
class _Job:
    """One reduced forward, and the classifiers that read it."""

    variant: Variant
    classifiers: tuple[str, ...]


def _jobs(rows: Sequence[tuple[str, Variant]]) -> list[_Job]:
    """Classifiers share a forward unless the score itself depends on the classifier."""
    jobs: dict[tuple[Variant, str], list[str]] = {}
    for classifier, variant in rows:
        own = classifier if variant.labels in FROM_CLASSIFIER else ""
        jobs.setdefault((variant, own), []).append(classifier)
    return [_Job(variant, tuple(names)) for (variant, _), names in jobs.items()]


def _predict_group(
    run: Run, maps: ScoreMaps, known: Catalogue, jobs: Sequence[_Job], name: str
) -> None:
    backbone = run.backbone
    probe = load_probe(run) if any("probe" in job.classifiers for job in jobs) else None
    dense = {name: maps.dense_logits(name) for job in jobs for name in job.classifiers}
    scores = [maps.map(job.variant, job.classifiers[0]) for job in jobs]
    scored = run.load("scores/dense")["indices"].tolist()
    place = {index: at for at, index in enumerate(scored)}

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        at = torch.tensor([place[index] for index in batch.indices])
        pixels = batch.pixels[:, 0].to(run.device)
        begun = {0: backbone.embed(backbone.preprocessing.normalise(pixels))}
        found = {"labels": batch.labels}
        for job, stored in zip(jobs, scores, strict=True):
            row = job.variant.name(run.config.budget)
            given = None if stored is None else stored[at].to(run.device)
            hidden = forward(backbone, known, job.variant, given, begun)
            normed = backbone.final_norm(hidden)
            for classifier in job.classifiers:
                if classifier == "probe":
                    assert probe is not None
                    read = hidden if run.config.probe.features == "prenorm" else normed
                    logits = probe.logits(image_feature(read, backbone.prefix))
                else:
                    assert backbone.head is not None
                    logits = backbone.head.classify(backbone.model, normed, backbone.prefix)
                for field, tensor in _record(logits.cpu(), dense[classifier][at]).items():
                    found[f"{classifier}/{row}/{field}"] = tensor
        return found

    keys = {
        (job.variant, classifier): prediction_key(
            run, maps, classifier, job.variant, known.digest(job.variant)
        )
        for job in jobs
        for classifier in job.classifiers
    }
    key = run.key("evaluate", "val", rows=[[name, row_key] for (_, name), row_key in keys.items()])
    outcome = run.passes.run(Pass(name, run.dataset(run.validation), step, indices=scored), key)
    if outcome is None:
        return
    run.require_decoded(outcome.skipped)
    for (variant, classifier), row_key in keys.items():
        prefix = f"{classifier}/{variant.name(run.config.budget)}/"
        record = {
            field.removeprefix(prefix): tensor
            for field, tensor in outcome.rows.items()
            if field.startswith(prefix)
        }
        record |= {"labels": outcome.rows["labels"], "indices": torch.tensor(outcome.indices)}
        _save(run, maps, known, classifier, variant, record, row_key)


def forward(
    backbone: Backbone,
    known: Catalogue,
    variant: Variant,
    scores: Tensor | None,
    begun: dict[int, Tokens],
) -> Tensor:
    """The final sequence, before the norm, of a reduced variant.

    ``begun`` holds the dense tokens after some blocks, block 0 at least, and is added to: variants
    that start from the same block share it.
    """
    tokens = begun[0]
    reducer = known.reducers[variant.reducer]
    if not isinstance(reducer, OneShot):
        return backbone.encode_progressively(tokens, reducer, variant.schedule, scores).hidden
    if variant.after not in begun:
        hidden = backbone.encode(tokens, stop=variant.after)
        begun[variant.after] = tokens.advanced(hidden)
    tokens = begun[variant.after]
    if scores is None:
        scores = tokens.patches.new_zeros(tokens.patches.shape[:2])
    assert tokens.grid is not None
    reduction = reducer.reduce(tokens.patches, scores, variant.budget, tokens.grid)
    return backbone.encode(tokens.reduced(reduction), start=variant.after)


def _save_dense(run: Run, maps: ScoreMaps, known: Catalogue, classifier: str) -> None:
    stored = run.load("scores/dense")
    logits = maps.dense_logits(classifier)
    record = {
        **_record(logits, logits),
        "labels": stored["labels"],
        "indices": stored["indices"],
    }
    key = prediction_key(run, maps, classifier, DENSE)
    _save(run, maps, known, classifier, DENSE, record, key)


def _record(logits: Tensor, dense: Tensor) -> dict[str, Tensor]:
    """What is kept of an image: enough for any later test, without running it again."""
    classes, values = top5(logits)
    return {"top5": classes, "logits": values, "divergence": divergence(dense, logits)}


def _save(
    run: Run,
    maps: ScoreMaps,
    known: Catalogue,
    classifier: str,
    variant: Variant,
    record: Mapping[str, Tensor],
    key: artifacts.Key,
) -> None:
    """Labels are stored in the classifier's own numbering, so that Top-5 compares directly."""
    labels = record["labels"]
    if classifier == "native":
        assert maps.native_columns is not None
        labels = maps.native_columns[labels]
    tokens, cost = measure(Geometry.of(run.backbone), known, variant)
    artifacts.save(
        run.path(prediction_name(classifier, variant.name(run.config.budget))),
        {**record, "labels": labels},
        key,
        variant=asdict(variant),
        tokens=tokens,
        cost=cost,
    )


def measure(on: Geometry, known: Catalogue, variant: Variant) -> tuple[int, float]:
    """(tokens after the last block, prefix included; analytic cost relative to dense)."""
    if not variant.reducer:
        return on.prefix + on.patches, 1.0
    reducer = known.reducers[variant.reducer]
    if isinstance(reducer, OneShot):
        left = reducer.tokens(variant.budget, on.grid)
        return on.prefix + left, one_shot_cost(reducer, variant.budget, variant.after, on)
    return on.prefix + variant.schedule[-1], schedule_cost(reducer, variant.schedule, on)
