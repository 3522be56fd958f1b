"""Scores that the run itself did not make: one dense pass over the reference crops for all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.errors import BackboneError, InvalidInput
from redi.loader import Batch
from redi.passes import Pass
from redi.plugins import one_line
from redi.run import SCORES, Run
from redi.score import minmax
from redi.scorers import Dense
from redi.variants import Catalogue, split_block


def scorer_key(run: Run, catalogue: Catalogue, name: str) -> dict[str, Any]:
    scorer, block = split_block(name)
    return run.key(
        "scorer",
        "val",
        scorer=scorer,
        block=block or run.backbone.depth,
        user=catalogue.digests.get(scorer, ""),
        seed=run.config.seed,
        images=run.digest("scores/dense"),
    )


def make_scorer_maps(run: Run, catalogue: Catalogue, names: Sequence[str]) -> None:
    """``scores/<name>`` of every named scorer that is not there yet, e.g. ``col_l2`` or ``mass@4``."""
    depth = run.backbone.depth
    for name in names:
        if (split_block(name)[1] or depth) > depth:
            raise BackboneError(f"{name}: this backbone has {depth} blocks.")
    keys = {name: scorer_key(run, catalogue, name) for name in names if name not in SCORES}
    missing = run.ranks.share(
        lambda: [name for name, key in keys.items() if not run.current(f"scores/{name}", key)]
    )
    if missing:
        _make(run, catalogue, missing, keys)
    run.ranks.wait()
    run.passes.discard("scorers")


def _make(
    run: Run, catalogue: Catalogue, names: list[str], keys: Mapping[str, artifacts.Key]
) -> None:
    backbone = run.backbone
    scored = run.load("scores/dense")["indices"].tolist()
    by_block: dict[int, list[tuple[str, str]]] = {}
    for name in names:
        scorer, block = split_block(name)
        by_block.setdefault(block or backbone.depth, []).append((name, scorer))

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels[:, 0].to(run.device)
        tokens = backbone.embed(backbone.preprocessing.normalise(pixels))
        found, at = {}, 0
        for block in sorted(by_block):
            capture: dict[str, Any] = {}
            hidden = backbone.encode(tokens, start=at, stop=block, capture={block - 1: capture})
            tokens, at = tokens.advanced(hidden), block
            assert tokens.grid is not None
            dense = Dense(
                **capture,
                patches=tokens.patches,
                prefix=backbone.prefix,
                grid=tokens.grid,
                indices=batch.indices,
                seed=run.config.seed,
            )
            for name, scorer in by_block[block]:
                found[name] = scores_of(catalogue, scorer, dense).half()
        return found

    key = run.key("scorers", "val", scorers={name: keys[name] for name in names})
    work = Pass("scorers", run.dataset(run.validation), step, indices=scored)
    outcome = run.passes.run(work, key)
    if outcome is None:
        return
    run.require_decoded(outcome.skipped)
    for name in names:
        tensors = {"scores": outcome.rows[name], "indices": torch.tensor(outcome.indices)}
        artifacts.save(run.path(f"scores/{name}"), tensors, keys[name])


def scores_of(catalogue: Catalogue, scorer: str, dense: Dense) -> Tensor:
    """Normalised; what a user's function does wrong is said in one line."""
    if scorer not in catalogue.digests:
        return minmax(catalogue.scorers[scorer](dense))
    try:
        values = catalogue.scorers[scorer](dense)
        if not isinstance(values, Tensor) or values.shape != dense.patches.shape[:2]:
            shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InvalidInput(f"it must give {list(dense.patches.shape[:2])} scores, not {shape}")
        return minmax(values.float())
    except Exception as error:  # whatever the user's function raises
        raise InvalidInput(f"The scorer {scorer!r} failed: {one_line(error)}") from error
