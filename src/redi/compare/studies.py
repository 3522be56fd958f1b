"""Which rows are compared: ready-made studies, and any grid a user asks for.

A study is a list of variants with a title and a reference row to compare with, beside dense.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from redi.config import MOST_WORDS, VocabularyConfig
from redi.corpus import LABEL_SOURCES, TERMS
from redi.equal import (
    Geometry,
    budget_for,
    budget_for_cost,
    budget_for_tokens,
    one_shot_cost,
    schedule_for_cost,
    schedule_for_tokens,
)
from redi.errors import ConfigError
from redi.reduction import OPERATOR, Budget, OneShot, Progressive, Schedule
from redi.run import ATTENTION_SCORES
from redi.scorers import SCORERS
from redi.variants import Catalogue, Codebook, CorpusSettings, Variant

#: Keep rates of the sweep; at 1 every reducer is dense.
SWEEP = tuple(step / 10 for step in range(1, 10))
#: Slow reducers, and two close to another: measured at one cost only.
SLOW = ("fuse", "word-merging", "atc", "token-pooling", "ats")
#: Relative costs of the equal-cost tables, beside that of the paper's operator.
COSTS = (0.65, 0.75)
#: Relative costs at which what needs no label and no dense pass is compared.
DEPLOYABLE_COSTS = (0.55, 0.65, 0.75)
#: What ``redi.accelerate`` does, and the others that need no label and no dense pass.
OWN = "protected"
DEPLOYABLE = (OWN, "tome-early", "tome", "pitome", "evit")
#: A cost so near the run's own budget's is met by that budget, whose rows exist already.
NEAR = 0.005


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    variants: list[Variant]
    reference: Variant


@dataclass(frozen=True)
class Bench:
    """What studies are made for: a backbone, the run's own budget, the reducers at hand."""

    on: Geometry
    budget: Budget
    known: Catalogue
    vocabulary: VocabularyConfig
    training_images: int

    @property
    def later(self) -> int:
        """A third of the depth: a one-shot reducer there can use the attention it has just seen."""
        return max(1, self.on.depth // 3)

    def row(self, scorer: str, labels: str = "", **changes: object) -> Variant:
        """Under the paper's operator and the run's budget unless said otherwise."""
        variant = replace(Variant(scorer, labels, budget=self.budget), **changes)  # type: ignore[arg-type]
        return self.known.check(variant)

    def budget_for(self, keep: float) -> Budget:
        return budget_for(keep, self.budget)

    @property
    def oracle(self) -> Variant:
        return self.row("redi_mass", "gt")


def scorers(bench: Bench) -> list[Study]:
    """Every score under the paper's operator: alone, and as a product for all label sources."""
    alone = [
        bench.row(name) for name in dict.fromkeys(["random", "centre", *ATTENTION_SCORES, *SCORERS])
    ]
    terms = [bench.row(term, labels) for term in TERMS for labels in LABEL_SOURCES]
    products = [
        bench.row(f"redi_{name}", labels) for name in ATTENTION_SCORES for labels in LABEL_SOURCES
    ]
    others = [
        bench.row(f"redi_{row.scorer}", "gt")
        for row in alone
        if row.scorer not in (*ATTENTION_SCORES, "random")
    ]
    title = "Scores under the paper's operator"
    return [Study("scorers", title, [*alone, *terms, *products, *others], bench.oracle)]


def reducers(bench: Bench) -> list[Study]:
    """Every reducer, leaving as many tokens as the paper's operator."""
    tokens = bench.budget.tokens(bench.on.patches)
    rows: list[Variant] = []
    for name, reducer in bench.known.reducers.items():
        if isinstance(reducer, Progressive):
            schedule = schedule_for_tokens(reducer, tokens, bench.on)
            rows.append(bench.row("", reducer=name, schedule=schedule))
        else:
            rows += [bench.row(*score, reducer=name) for score in _scores_of(reducer)]
    rows.append(bench.row(f"mass@{bench.later}", after=bench.later))
    return [Study("reducers", "Reducers at equal tokens", rows, bench.oracle)]


def costs(bench: Bench) -> list[Study]:
    """Every reducer at the cost of the paper's operator, and most of them at two more; each cost has
    its own oracle to compare with."""
    operator = _operator(bench)
    own = one_shot_cost(operator, bench.budget, 0, bench.on)
    studies = []
    for cost in (own, *COSTS):
        rows = [
            row
            for name in bench.known.reducers
            if cost == own or name not in SLOW
            for row in at_cost(bench, name, cost)
        ]
        with suppress(ConfigError):
            budget = budget_for_cost(operator, cost, bench.later, bench.on, bench.budget)
            rows.append(bench.row(f"mass@{bench.later}", after=bench.later, budget=budget))
        oracle = next((row for row in rows if row.labels == "gt"), bench.oracle)
        title = f"Reducers at a cost of {cost:.2f}"
        studies.append(Study(f"cost-{cost:.2f}", title, rows, oracle))
    return studies


def deployable(bench: Bench) -> list[Study]:
    """What needs no label and no dense pass, at equal cost: our own step and schedule, ToMe on its own
    and on our schedule, the other peers, and Top-K pruning and the paper's operator once, by the CLS
    attention of a third of the depth."""
    score, studies = f"cls_mean@{bench.later}", []
    for cost in DEPLOYABLE_COSTS:
        rows = [row for name in DEPLOYABLE for row in at_cost(bench, name, cost)]
        own = next((row for row in rows if row.reducer == OWN), None)
        if own is None:  # out of reach on a small grid
            continue
        for name in ("prune", OPERATOR):
            reducer = bench.known.reducers[name]
            assert isinstance(reducer, OneShot)
            with suppress(ConfigError):
                budget = budget_for_cost(reducer, cost, bench.later, bench.on, bench.budget)
                rows.append(bench.row(score, reducer=name, after=bench.later, budget=budget))
        title = f"No label and no dense pass, at a cost of {cost:.2f}"
        studies.append(Study(f"deployable-{cost:.2f}", title, rows, own))
    return studies


def sweep(bench: Bench) -> list[Study]:
    """Keep rates of 10 to 90 %; progressive reducers at the cost of the paper's operator there.

    One-shot reducers go by attention alone, the paper's also by the oracle; a progressive one stops
    where its shape reaches no further.
    """
    operator = _operator(bench)
    rows: list[Variant] = []
    swept = [name for name in bench.known.reducers if name not in SLOW]
    for keep, name in product(SWEEP, swept):
        budget, reducer = bench.budget_for(keep), bench.known.reducers[name]
        if isinstance(reducer, Progressive):
            cost = one_shot_cost(operator, budget, 0, bench.on)
            rows += at_cost(bench, name, cost)
        else:
            rows += [
                bench.row(*score, reducer=name, budget=budget) for score in _scores_of(reducer)[-1:]
            ]
    rows += [replace(bench.oracle, budget=bench.budget_for(keep)) for keep in SWEEP]
    return [Study("sweep", "Accuracy against cost", rows, bench.oracle)]


def ablations(bench: Bench) -> list[Study]:
    """What the paper fixes, one at a time, on the REDI score with incoming mass and the true class."""
    base, budget = bench.oracle, bench.budget
    rows = [base]
    rows += [replace(base, corpus=CorpusSettings(book)) for book in ablated_codebooks(bench)]
    rows += [replace(base, corpus=CorpusSettings(views=views)) for views in (1, 2, 3)]
    rows += [replace(base, corpus=CorpusSettings(mean_weight=weight)) for weight in (0.0, 0.5, 1.0)]
    rows += [replace(base, budget=replace(budget, spatial=weight)) for weight in (0.0, 0.1, 1.0)]
    rows += [replace(base, budget=replace(budget, cells=cells)) for cells in (1, 3, 4)]
    rows += [replace(base, budget=replace(budget, merge=share)) for share in (0.0, 0.5)]
    title = "What the paper fixes, for REDI with incoming mass [gt]"
    return [Study("ablations", title, rows, base)]


def ablated_codebooks(bench: Bench) -> list[Codebook]:
    """Vocabulary size, passes, features after the final norm, a random start; the rest as the run's.

    Sizes that the corpus cannot fill, or that 16 bits cannot hold, are left out.
    """
    own = bench.vocabulary
    base = Codebook(own.n_words, own.n_passes)
    most = min(bench.training_images * bench.on.patches, MOST_WORDS)
    sizes = [
        replace(base, n_words=int(own.n_words * by))
        for by in (1 / 8, 1 / 4, 1 / 2, 2, 4)
        if 2 <= own.n_words * by <= most
    ]
    passes = [replace(base, n_passes=count) for count in (1, 2, 5) if count != own.n_passes]
    return [*sizes, *passes, replace(base, features="postnorm"), replace(base, start="random")]


STUDIES: dict[str, Callable[[Bench], list[Study]]] = {
    "scorers": scorers,
    "reducers": reducers,
    "costs": costs,
    "deployable": deployable,
    "sweep": sweep,
    "ablations": ablations,
}


@dataclass(frozen=True)
class Request:
    """A grid of the user's own: every combination of what is named."""

    scorers: Sequence[str] = ()
    labels: Sequence[str] = ("gt",)
    reducers: Sequence[str] = (OPERATOR,)
    keeps: Sequence[float] = ()  # keep rates; a progressive reducer gets the operator's cost there
    tokens: Sequence[int] = ()  # or patch tokens after the last block
    costs: Sequence[float] = ()  # or relative costs, of any reducer
    after: Sequence[int] = (0,)  # blocks before a one-shot reducer


def grid(bench: Bench, request: Request) -> Study:
    """Rows of the request; label sources multiply only scores with a corpus term."""
    if sum(map(bool, (request.keeps, request.tokens, request.costs))) > 1:
        raise ConfigError("Give one of --keep, --tokens and --cost.")
    if any(not 0 <= after < bench.on.depth for after in request.after):
        raise ConfigError(f"--after counts blocks: 0 to {bench.on.depth - 1} here.")
    rows: list[Variant] = []
    for name in request.reducers:
        bench.row("", reducer=name)  # an unknown one is refused, with those that are known
        reducer = bench.known.reducers[name]
        scores = _asked_scores(request) if reducer.scored else [("", "")]
        if isinstance(reducer, Progressive):
            scores = scores or [("", "")]  # its own: the CLS attention of the block
            for schedule, score in product(_schedules(bench, request, reducer), scores):
                rows.append(bench.row(*score, reducer=name, schedule=schedule))
            continue
        if not scores:
            raise ConfigError(f"The reducer {name} ranks patches by a score: give --scorer.")
        for after, score in product(request.after, scores):
            rows += [
                bench.row(*score, reducer=name, after=after, budget=budget)
                for budget in _budgets(bench, request, reducer, after)
            ]
    names = "\n".join(row.name(bench.budget) for row in rows)
    digest = hashlib.sha256(names.encode()).hexdigest()[:6]
    return Study(f"grid-{digest}", "What was asked for", list(dict.fromkeys(rows)), bench.oracle)


def _asked_scores(request: Request) -> list[tuple[str, str]]:
    return [
        (scorer, labels)
        for scorer in request.scorers
        for labels in (request.labels if Variant(scorer).term else ("",))
    ]


def _schedules(bench: Bench, request: Request, reducer: Progressive) -> list[Schedule]:
    if request.tokens:
        return [schedule_for_tokens(reducer, tokens, bench.on) for tokens in request.tokens]
    budgets = [bench.budget_for(keep) for keep in request.keeps] or [bench.budget]
    costs = request.costs or [
        one_shot_cost(_operator(bench), budget, 0, bench.on) for budget in budgets
    ]
    return [schedule_for_cost(reducer, cost, bench.on) for cost in costs]


def _budgets(bench: Bench, request: Request, reducer: OneShot, after: int) -> list[Budget]:
    if request.costs:
        return [
            budget_for_cost(reducer, cost, after, bench.on, bench.budget) for cost in request.costs
        ]
    if request.tokens:
        return [
            budget_for_tokens(reducer, tokens, bench.on, bench.budget) for tokens in request.tokens
        ]
    return [bench.budget_for(keep) for keep in request.keeps] or [bench.budget]


def at_cost(bench: Bench, name: str, cost: float) -> list[Variant]:
    """The rows of one reducer at a relative cost, the paper's operator with all usual scores, others
    with attention alone; none where its shape does not reach that cost."""
    reducer = bench.known.reducers[name]
    try:
        if isinstance(reducer, Progressive):
            return [
                bench.row("", reducer=name, schedule=schedule_for_cost(reducer, cost, bench.on))
            ]
        own = one_shot_cost(reducer, bench.budget, 0, bench.on)
        near = abs(own - cost) < NEAR
        budget = bench.budget if near else budget_for_cost(reducer, cost, 0, bench.on, bench.budget)
    except ConfigError:
        return []
    scores = _scores_of(reducer) if name == OPERATOR else _scores_of(reducer)[-1:]
    return [bench.row(*score, reducer=name, budget=budget) for score in scores]


def _scores_of(reducer: OneShot) -> list[tuple[str, str]]:
    """The oracle, the same without the true label, and attention alone; nothing for a blind reducer."""
    if not reducer.scored:
        return [("", "")]
    return [("redi_mass", "gt"), ("redi_mass", "predicted"), ("mass", "")]


def _operator(bench: Bench) -> OneShot:
    operator = bench.known.reducers[OPERATOR]
    assert isinstance(operator, OneShot)
    return operator
