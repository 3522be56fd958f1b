"""The score stage: every patch score of every validation image, in one pass over the four views.

The forward of the reference view gives its words, all four attention maps and the dense feature at
once; the other three views give words. Maps are kept as FP16 and read back as FP32, as in the paper.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.backbone import AttentionScores
from redi.corpus import corpus_map, tfidf_term
from redi.errors import CorpusError
from redi.loader import Batch
from redi.passes import Pass
from redi.probe import image_feature
from redi.run import ATTENTION_SCORES, SCORES, Run
from redi.score import hybrid
from redi.scorers import random_scores
from redi.stages.tfidf import tfidf_done
from redi.vocabulary import dot_products


def score_key(run: Run) -> dict[str, Any]:
    return run.key(
        "score",
        "val",
        vocabulary=run.digest("vocabulary"),
        tfidf=run.digest("tfidf"),
        codebooks=run.digest("analysis/codebooks"),
        features=run.config.probe.features,
        seed=run.config.seed,
    )


def score_done(run: Run) -> bool:
    if not tfidf_done(run):
        return False
    key = score_key(run)
    return all(run.current(name, key) for name in _outputs())


def _outputs() -> list[str]:
    return [*(f"scores/{name}" for name in SCORES), "scores/words", "scores/dense"]


def make_scores(run: Run) -> None:
    key = score_key(run)
    backbone = run.backbone
    stored = run.load("tfidf")
    term = tfidf_term({name: tensor.to(run.device) for name, tensor in stored.items()})
    centroids = run.load("vocabulary")["centroids"].to(run.device)
    figure_words = run.load("analysis/codebooks")[f"block{backbone.depth}/centroids"].to(run.device)

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels.to(run.device)
        attention = AttentionScores(backbone.depth, backbone.prefix)
        words = []
        for view in range(pixels.shape[1]):
            tokens = backbone.embed(backbone.preprocessing.normalise(pixels[:, view]))
            hidden = backbone.encode(tokens, watch=attention.watches if view == 0 else ())
            words.append(dot_products(hidden[:, backbone.prefix :], centroids).argmax(dim=-1))
            if view == 0:
                final, maps = hidden, attention.maps()
        weights = term.table[batch.labels.to(run.device)]
        tfidf = corpus_map(term, weights, torch.stack(words, dim=1), batch.views)
        maps["random"] = random_scores(run.config.seed, batch.indices, tfidf.shape[1]).to(
            run.device
        )
        maps["tfidf"] = tfidf
        for name in ATTENTION_SCORES:
            maps[f"redi_{name}"] = hybrid(tfidf, maps[name])
        normed = backbone.final_norm(final)
        tokens_read = final if run.config.probe.features == "prenorm" else normed
        rows = {f"score/{name}": maps[name].half() for name in SCORES}
        rows |= {
            "labels": batch.labels,
            "words": torch.stack(words, dim=1).to(torch.int16),
            "figure_words": dot_products(final[:, backbone.prefix :], figure_words)
            .argmax(dim=-1)
            .to(torch.int16),
            "boxes": torch.tensor([[view.box for view in views] for views in batch.views]),
            "flips": torch.tensor([[view.flip for view in views] for views in batch.views]),
            "features": image_feature(tokens_read, backbone.prefix),
        }
        if backbone.head is not None:
            rows["native_logits"] = backbone.head.classify(backbone.model, normed, backbone.prefix)
        return rows

    name = "score"
    outcome = run.passes.run(Pass(name, run.dataset(run.validation, four_views=True), step), key)
    if outcome is not None:
        if not outcome.indices:
            raise CorpusError(f"None of the images in {run.validation.name} could be decoded.")
        rows = outcome.rows
        common = {"indices": torch.tensor(outcome.indices), "labels": rows["labels"]}
        for score in SCORES:
            tensors = {"scores": rows[f"score/{score}"], "indices": common["indices"]}
            artifacts.save(run.path(f"scores/{score}"), tensors, key)
        views = {field: rows[field] for field in ("words", "figure_words", "boxes", "flips")}
        artifacts.save(run.path("scores/words"), {**common, **views}, key)
        fields: list[str] = [field for field in ("features", "native_logits") if field in rows]
        dense = {field: rows[field] for field in fields}
        artifacts.save(run.path("scores/dense"), {**common, **dense}, key, skipped=outcome.skipped)
    run.ranks.wait()
    run.passes.discard(name)
