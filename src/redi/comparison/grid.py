"""The user's own grid: every combination of the scores, label sources, reducers and budgets that are named.

Rows of equal cost make a study of their own, with their own reference row, so that paired tests and Holm's correction
never mix costs.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated

from redi import bounds
from redi.comparison.ground import Ground, Study
from redi.corpus import TRUE_CLASS
from redi.errors import ConfigError
from redi.reduction import OPERATOR, Extent, Reducer
from redi.rows import MAIN_SCORE, NO_SCORE, Score, Variant

#: The longest name of a study.
LONGEST_NAME = 80


@dataclass(frozen=True)
class Request:
    """The values that the user named on each axis of the grid."""

    scorers: Sequence[str] = ()
    labels: Sequence[str] = (TRUE_CLASS,)  # label sources
    reducers: Sequence[str] = (OPERATOR,)
    # Keep rates; a progressive reducer gets the operator's cost at that rate.
    keeps: Annotated[Sequence[float], bounds.FRACTION] = ()
    tokens: Annotated[Sequence[int], bounds.TOKENS] = ()  # or patch tokens after the last block
    costs: Annotated[Sequence[float], bounds.COST] = ()  # or costs relative to dense
    after: Annotated[Sequence[int], bounds.BLOCKS] = (0,)  # number of blocks before a one-shot reducer
    name: str = ""  # of the study, in the titles of its tables


@dataclass(frozen=True)
class _Size:
    """One budget of the grid; the run's own if nothing is given."""

    keep: float | None = None
    tokens: int | None = None
    cost: float | None = None
    after: int = 0  # blocks before the one-shot rows; at a given cost, rows with any number are compared

    @property
    def name(self) -> str:
        """A part of a file name."""
        parts = {"cost": self.cost, "tokens": self.tokens, "keep": self.keep, "after": self.after or None}
        return "".join(f"-{axis}-{value:g}" for axis, value in parts.items() if value is not None)

    @property
    def title(self) -> str:
        parts = [f"at a cost of {self.cost:g}"] if self.cost is not None else []
        parts += [f"at {self.tokens} patch tokens"] if self.tokens is not None else []
        parts += [f"at a keep rate of {self.keep:g}"] if self.keep is not None else []
        parts += [f"after block {self.after}"] if self.after else []
        return ", ".join(parts)

    def extent(self, ground: Ground, reducer: Reducer, after: int) -> Extent:
        base = replace(ground.extent, after=after)
        if self.tokens is not None:
            return reducer.extent_for_tokens(self.tokens, ground.on, base)
        if reducer.follows_budget and self.cost is None:
            return base if self.keep is None else base.at_keep(self.keep)
        cost = ground.operator_cost(self.keep) if self.cost is None else self.cost
        return reducer.extent_for_cost(cost, ground.on, base)


def grid(ground: Ground, request: Request) -> list[Study]:
    """The rows of a request, in one study per budget. Label sources apply only to scores with a corpus term."""
    _check(ground, request)
    sizes = [_Size(keep=keep) for keep in request.keeps]
    sizes += [_Size(tokens=tokens) for tokens in request.tokens]
    sizes += [_Size(cost=cost) for cost in request.costs]
    groups: dict[_Size, list[Variant]] = {}
    for size, name in product(sizes or [_Size()], request.reducers):
        ground.row(reducer=name)  # raises for an unknown name, with a list of the known ones
        reducer = ground.catalogue.reducers[name]
        scores = _scores(request) if reducer.scored else []
        if not scores and reducer.needs_score:
            raise ConfigError(f"The reducer {name} ranks patches by a score: give --scorer.")
        scores = scores or [(NO_SCORE, "")]  # without a score, a progressive reducer uses its own relevance
        for after in request.after if reducer.follows_budget else (0,):
            try:
                extent = size.extent(ground, reducer, after)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
            rows = groups.setdefault(size if size.cost is not None else replace(size, after=after), [])
            rows += [ground.row(*score, reducer=name, extent=extent) for score in scores]
    return [_study(ground, request, size, rows) for size, rows in groups.items()]


def _check(ground: Ground, request: Request) -> None:
    if sum(map(bool, (request.keeps, request.tokens, request.costs))) > 1:
        raise ConfigError("Give only one of --keep, --tokens and --cost.")
    if any(not 0 <= after < ground.on.depth for after in request.after):
        raise ConfigError(f"--after is a number of blocks, here 0 to {ground.on.depth - 1}.")
    if wrong := [tokens for tokens in request.tokens if not 1 <= tokens <= ground.on.patches]:
        raise ConfigError(f"--tokens must lie in 1 to {ground.on.patches}, the number of patches, not at {wrong[0]:,}.")
    for keep in request.keeps:
        ground.extent.at_keep(keep).budget.require_fits(ground.on.patches, ground.on.grid)
    if not request.name.isprintable() or len(request.name) > LONGEST_NAME:
        raise ConfigError(f"--name must be one line of at most {LONGEST_NAME} printable characters.")


def _study(ground: Ground, request: Request, size: _Size, rows: list[Variant]) -> Study:
    """The study of one budget. Its reference is the oracle under the paper's operator at that budget.

    If the operator cannot meet a cost, the first row is the reference.
    """
    try:
        extent = size.extent(ground, ground.operator, size.after)
        reference = ground.row(MAIN_SCORE, TRUE_CLASS, extent=extent)
    except ConfigError:
        reference = rows[0]
    rows = list(dict.fromkeys([*rows, reference]))
    name = request.name.strip()
    if name:
        study = f"own-{_slug(name)}{size.name}"
    else:
        names = "\n".join(row.name(ground.extent.budget) for row in rows)
        study = f"grid-{_digest(names)}"
        name = " with ".join(filter(None, (", ".join(request.scorers), ", ".join(request.reducers))))
    return Study(study, f"{name} ({size.title})" if size.title else name, rows, reference)


def _slug(text: str) -> str:
    """A part of a file name. Texts that differ in more than capitals have different ones."""
    slug = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    return slug if slug.replace("-", " ") == text.lower() else f"{slug}-{_digest(text)}".strip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _scores(request: Request) -> list[tuple[Score, str]]:
    return [
        (score, source)
        for score in map(Score.parse, request.scorers)
        for source in (request.labels if score.term else ("",))
    ]
