"""Scores that the run itself did not make, all from one dense pass over the reference crops."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from redi.backbone import Tokens
from redi.errors import BackboneError
from redi.images.loader import Batch
from redi.records import artifacts
from redi.rows import SCORES, Catalogue, Score
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.score import minmax
from redi.scorers import Dense
from redi.stages.score import DENSE_PASS, factor_name, scored_images


def scorer_key(run: Run, catalogue: Catalogue, score: Score) -> dict[str, Any]:
    return run.key(
        "scorer",
        "val",
        scorer=score.local,
        block=score.block or run.backbone.depth,
        user=catalogue.digests.get(score.local, ""),
        seed=run.config.seed,
        images=run.digest(DENSE_PASS),
    )


def make_scorer_maps(run: Run, catalogue: Catalogue, scores: Sequence[Score]) -> None:
    """Make ``scores/<name>`` and its unrounded map for every missing local score, e.g. ``col_l2`` or ``mass@4``."""
    depth = run.backbone.depth
    for score in scores:
        if (score.block or depth) > depth:
            raise BackboneError(f"{score.name} names a block that does not exist: this backbone has {depth} blocks.")
    keys = {score: scorer_key(run, catalogue, score) for score in scores if score.name not in SCORES}
    missing = run.ranks.share(lambda: [score for score, key in keys.items() if not _done(run, score, key)])
    if missing:
        _make(run, catalogue, {score: keys[score] for score in missing})


def dense_of(run: Run, tokens: Tokens, capture: Mapping[str, Any], batch: Batch) -> Dense:
    """The input of a scorer: tokens after a block, with the queries, keys and values that it captured."""
    assert tokens.grid is not None
    return Dense(
        **capture,
        patches=tokens.patches,
        prefix=run.backbone.prefix,
        grid=tokens.grid,
        indices=batch.indices,
        seed=run.config.seed,
        has_cls=run.backbone.has_cls,
    )


def _artefact(score: Score) -> str:
    return f"scores/{score.name}"


def _done(run: Run, score: Score, key: artifacts.Key) -> bool:
    return all(run.current(name, key) for name in (_artefact(score), factor_name(score.name)))


def _make(run: Run, catalogue: Catalogue, keys: Mapping[Score, artifacts.Key]) -> None:
    backbone = run.backbone
    by_block: dict[int, list[Score]] = {}
    for score in keys:
        by_block.setdefault(score.block or backbone.depth, []).append(score)

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels[:, 0].to(run.device)
        tokens = backbone.embed(backbone.preprocessing.normalise(pixels))
        maps, at = {}, 0
        for block in sorted(by_block):
            capture: dict[str, Any] = {}
            hidden = backbone.encode(tokens, start=at, stop=block, capture={block - 1: capture})
            tokens, at = tokens.advanced(hidden), block
            dense = dense_of(run, tokens, capture, batch)
            for score in by_block[block]:
                maps[score.name] = minmax(catalogue.scorers[score.local](dense))
        return maps

    def save(outcome: Outcome) -> None:
        indices = torch.tensor(outcome.indices)
        for score, score_key in keys.items():
            factor = outcome.rows[score.name]
            run.save(factor_name(score.name), {"map": factor}, score_key)
            run.save(_artefact(score), {"scores": factor.half(), "indices": indices}, score_key)

    key = run.key("scorers", "val", rows="fp32", scorers={score.name: key for score, key in keys.items()})
    work = Pass("scorers", run.dataset(run.validation), step, indices=scored_images(run))
    run.finish(work, key, save, all_decoded=True)
