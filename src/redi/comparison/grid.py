"""The user's own grid: every combination of the scores, label sources, reducers and budgets that are named."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from redi.comparison.ground import Ground, Study
from redi.corpus import TRUE_CLASS
from redi.errors import ConfigError
from redi.reduction import OPERATOR, Extent, Reducer
from redi.rows import NO_SCORE, Score, Variant


@dataclass(frozen=True)
class Request:
    """The values that the user named on each axis of the grid."""

    scorers: Sequence[str] = ()
    labels: Sequence[str] = (TRUE_CLASS,)  # label sources
    reducers: Sequence[str] = (OPERATOR,)
    keeps: Sequence[float] = ()  # keep rates; a progressive reducer gets the operator's cost at that rate
    tokens: Sequence[int] = ()  # or patch tokens after the last block
    costs: Sequence[float] = ()  # or costs relative to dense
    after: Sequence[int] = (0,)  # number of blocks before a one-shot reducer


def grid(ground: Ground, request: Request) -> Study:
    """The rows of a request. Label sources apply only to scores with a corpus term."""
    if sum(map(bool, (request.keeps, request.tokens, request.costs))) > 1:
        raise ConfigError("Give only one of --keep, --tokens and --cost.")
    if any(not 0 <= after < ground.on.depth for after in request.after):
        raise ConfigError(f"--after is a number of blocks, here 0 to {ground.on.depth - 1}.")
    if wrong := [tokens for tokens in request.tokens if not 1 <= tokens <= ground.on.patches]:
        raise ConfigError(f"--tokens must lie in 1 to {ground.on.patches}, the number of patches, not at {wrong[0]:,}.")
    for keep in request.keeps:
        ground.extent.at_keep(keep).budget.require_fits(ground.on.patches, ground.on.grid)
    rows: list[Variant] = []
    for name in request.reducers:
        ground.row(reducer=name)  # raises for an unknown name, with a list of the known ones
        reducer = ground.catalogue.reducers[name]
        scores = _scores(request) if reducer.scored else []
        if not scores and reducer.needs_score:
            raise ConfigError(f"The reducer {name} ranks patches by a score: give --scorer.")
        scores = scores or [(NO_SCORE, "")]  # without a score, a progressive reducer uses its own relevance
        for after in request.after if reducer.follows_budget else (0,):
            extents = _extents(ground, request, reducer, after)
            rows += [ground.row(*score, reducer=name, extent=extent) for score, extent in product(scores, extents)]
    names = "\n".join(row.name(ground.extent.budget) for row in rows)
    digest = hashlib.sha256(names.encode()).hexdigest()[:6]
    return Study(f"grid-{digest}", "Your own grid", list(dict.fromkeys(rows)), ground.oracle)


def _scores(request: Request) -> list[tuple[Score, str]]:
    return [
        (score, source)
        for score in map(Score.parse, request.scorers)
        for source in (request.labels if score.term else ("",))
    ]


def _extents(ground: Ground, request: Request, reducer: Reducer, after: int) -> list[Extent]:
    base = replace(ground.extent, after=after)
    if request.tokens:
        return [reducer.extent_for_tokens(tokens, ground.on, base) for tokens in request.tokens]
    if reducer.follows_budget and not request.costs:
        return [base.at_keep(keep) for keep in request.keeps] or [base]
    costs = request.costs or [ground.operator_cost(keep) for keep in request.keeps]
    costs = costs or [ground.operator_cost()]
    return [reducer.extent_for_cost(cost, ground.on, base) for cost in costs]
