"""The score stage: every patch score of every validation image, in one pass over the four views.

The forward pass over the reference view gives its words, all attention maps and the dense feature. The other three
views give only words. Each score map is computed in FP32 and rounded once, when it is stored as FP16; it is read back
as FP32, as in the paper. The maps that a product multiplies are not rounded before, so they are stored in FP32 too,
with their range before the min-max normalisation.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redi.backbone import AttentionScores
from redi.backbone.classifier import final_feature
from redi.centroids import nearest_words
from redi.corpus import corpus_map, tfidf_term
from redi.images.loader import Batch
from redi.records import artifacts
from redi.rows import RANDOM, Score
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.score import hybrid, minmax
from redi.scorers import random_scores
from redi.stages.stage import Stage
from redi.views import N_VIEWS

#: Artefacts of the validation images besides their scores: visual words with views and closeness, the dense pass.
WORDS, DENSE_PASS = "validation/words", "validation/dense"


def factors(run: Run) -> list[str]:
    """Names of the run's scores that can be multiplied with a corpus term."""
    return [RANDOM, *run.attention_scores]


def factor_name(name: str) -> str:
    """The artefact with the unrounded map of a local score, a factor of products, and its ``range`` before N."""
    return f"validation/factors/{name}"


def score_key(run: Run) -> dict[str, Any]:
    return run.key(
        "score",
        "val",
        vocabulary=run.digest("vocabulary"),
        tfidf=run.digest("tfidf"),
        codebooks=run.digest("analysis/codebooks"),
        features=run.config.probe.features,
        seed=run.config.seed,
        factors=[*factors(run), "range"],
        closeness="mean cosine of the reference view",
    )


def score_artefacts(run: Run) -> dict[str, artifacts.Key]:
    names = [*(f"scores/{name}" for name in run.scores), *map(factor_name, factors(run)), WORDS, DENSE_PASS]
    return dict.fromkeys(names, score_key(run))


def scored_images(run: Run) -> list[int]:
    """Indices of the validation images that could be decoded."""
    indices: list[int] = run.load(DENSE_PASS)["indices"].tolist()
    return indices


def make_scores(run: Run) -> None:
    backbone, key = run.backbone, score_key(run)
    stored = run.load("tfidf")
    term = tfidf_term({name: tensor.to(run.device) for name, tensor in stored.items()})
    centroids = run.load("vocabulary")["centroids"].to(run.device)
    figure_words = run.load("analysis/codebooks")[f"block{backbone.depth}/centroids"].to(run.device)

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels.to(run.device)
        attention = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls)
        words = []
        for view in range(pixels.shape[1]):
            tokens = backbone.embed(backbone.preprocessing.normalise(pixels[:, view]))
            hidden = backbone.encode(tokens, watch=attention.watches if view == 0 else ())
            cosine, nearest = nearest_words(hidden[:, backbone.prefix :], centroids)
            words.append(nearest)
            if view == 0:
                final, raw, closeness = hidden, attention.raw_maps(), cosine.mean(dim=1)
        weights = term.table[batch.labels.to(run.device)]
        tfidf = corpus_map(term, weights, torch.stack(words, dim=1), batch.views)
        raw[RANDOM] = random_scores(run.config.seed, batch.indices, tfidf.shape[1]).to(run.device)
        maps = {"tfidf": tfidf, **{name: minmax(values) for name, values in raw.items()}}
        for name in run.attention_scores:
            maps[Score("tfidf", name).name] = hybrid(tfidf, maps[name])
        rows = {f"score/{name}": maps[name].half() for name in run.scores}
        rows |= {f"factor/{name}": maps[name] for name in factors(run)}
        rows |= {f"range/{name}": torch.stack(raw[name].aminmax(dim=1), dim=1) for name in factors(run)}
        rows |= {
            "labels": batch.labels,
            "words": torch.stack(words, dim=1).to(torch.int16),
            "figure_words": nearest_words(final[:, backbone.prefix :], figure_words)[1].to(torch.int16),
            "closeness": closeness,
            "boxes": torch.tensor([[view.box for view in views] for views in batch.views]),
            "flips": torch.tensor([[view.flip for view in views] for views in batch.views]),
            "features": final_feature(backbone, final, run.config.probe.prenorm),
        }
        if backbone.head is not None:
            rows["native_logits"] = backbone.classify(final)
        return rows

    work = Pass("score", run.dataset(run.validation, four_views=True), step, forwards=N_VIEWS)
    run.finish(work, key, lambda outcome: _save(run, key, outcome))


def _save(run: Run, key: artifacts.Key, outcome: Outcome) -> None:
    rows = outcome.rows
    common = {"indices": torch.tensor(outcome.indices), "labels": rows["labels"]}
    for name in run.scores:
        tensors = {"scores": rows[f"score/{name}"], "indices": common["indices"]}
        run.save(f"scores/{name}", tensors, key)
    for name in factors(run):
        run.save(factor_name(name), {"map": rows[f"factor/{name}"], "range": rows[f"range/{name}"]}, key)
    views = {field: rows[field] for field in ("words", "figure_words", "closeness", "boxes", "flips")}
    run.save(WORDS, {**common, **views}, key)
    dense = {name: tensor for name, tensor in rows.items() if name in ("features", "native_logits")}
    run.save(DENSE_PASS, {**common, **dense}, key, skipped=outcome.skipped)


STAGE = Stage(
    name="score",
    artefacts=score_artefacts,
    work=make_scores,
    passes=lambda run: f"4 views of {len(run.validation.labels)} validation images",
    forwards=lambda run: N_VIEWS * len(run.validation.labels),
)
