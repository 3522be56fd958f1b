"""The ready-made studies and the rows that each of them compares."""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from itertools import product

from redi.attention import ATTENTION_SCORES, scores_of
from redi.bounds import MOST_WORDS
from redi.comparison.early import NAME as EARLY, early
from redi.comparison.ground import Ground, Study
from redi.corpus import TERMS, TRUE_CLASS
from redi.errors import ConfigError
from redi.records.comparison import SCORERS_STUDY
from redi.records.deployed import OWN, PEER, STUDY as ACCELERATE
from redi.reduction import OPERATOR, Reducer
from redi.rows import MAIN_SCORE, NO_SCORE, RANDOM, Codebook, CorpusSettings, Score, Variant
from redi.scorers import SCORERS

#: Keep rates of the sweep; at 1 every reducer is dense.
SWEEP = tuple(step / 10 for step in range(1, 10))
#: Relative costs of the equal-cost tables, in addition to that of the paper's operator.
COSTS = (0.65, 0.75)
#: Relative costs at which reducers that need no label and no dense pass are compared.
DEPLOYABLE_COSTS = (0.45, 0.55, 0.65, 0.75)
#: The one of them at which slow reducers are measured too.
SLOW_COST = 0.65
#: The costs at which a report shows our own reducer beside ToMe.
ACCELERATE_COSTS = (0.55, 0.65, 0.75)
#: A cost closer than this to that of the run's own budget is measured at that budget, whose rows exist already.
NEAR = 0.005


def scorers(ground: Ground) -> list[Study]:
    """Every score under the paper's operator: alone, and as a product for all label sources that the run has."""
    attention = scores_of(ground.catalogue.has_cls)
    others = [name for name in SCORERS if name not in ATTENTION_SCORES]
    names = dict.fromkeys([RANDOM, "centre", *attention, *others])
    alone = [ground.row(Score(local=name)) for name in names]
    terms = [ground.row(Score(term), source) for term in TERMS for source in ground.label_sources]
    products = [ground.row(Score("tfidf", name), source) for name in attention for source in ground.label_sources]
    products += [ground.row(Score("tfidf", name), TRUE_CLASS) for name in names if name not in (*attention, RANDOM)]
    rows = [*alone, *terms, *products]
    return [Study(SCORERS_STUDY, "Scores under the paper's operator", rows, ground.oracle)]


def reducers(ground: Ground) -> list[Study]:
    """Every reducer at the number of tokens that the paper's operator leaves."""
    tokens = ground.operator.tokens_left(ground.extent, ground.on)
    rows: list[Variant] = []
    for name, reducer in ground.catalogue.reducers.items():
        if reducer.keeps_all:
            continue
        extent = ground.extent
        if not reducer.follows_budget:
            extent = reducer.extent_for_tokens(tokens, ground.on)
        rows += [ground.row(*score, reducer=name, extent=extent) for score in usual_scores(reducer)]
    score = Score(local="mass", block=ground.later)
    rows.append(ground.row(score, extent=replace(ground.extent, after=ground.later)))
    return [Study("reducers", "Reducers at equal tokens", rows, ground.oracle)]


def costs(ground: Ground) -> list[Study]:
    """Every reducer at the cost of the paper's operator, and all but the slow ones at two more costs.

    At each cost, rows are compared with the oracle at that cost.
    """
    own = ground.operator_cost()
    studies = []
    for cost in (own, *COSTS):
        rows = [
            row
            for name, reducer in ground.catalogue.reducers.items()
            if cost == own or not reducer.slow
            for row in rows_at_cost(ground, name, cost)
        ]
        rows += _later_rows(ground, [OPERATOR], Score(local="mass", block=ground.later), cost)
        oracle = next((row for row in rows if row.label_source == TRUE_CLASS), ground.oracle)
        studies.append(Study(f"cost-{cost:.2f}", f"Reducers at a cost of {cost:.2f}", rows, oracle))
    return studies


def deployable(ground: Ground) -> list[Study]:
    """Reducers that need no label and no dense pass, at equal cost."""
    studies = []
    for cost in DEPLOYABLE_COSTS:
        rows = deployable_rows(ground, cost)
        own = next((row for row in rows if row.reducer == OWN), None)
        if own is not None:  # a small grid may not reach this cost
            title = f"No label and no dense pass, at a cost of {cost:.2f}"
            studies.append(Study(f"deployable-{cost:.2f}", title, rows, own))
    return studies


def deployable_rows(ground: Ground, cost: float, only: Collection[str] = ()) -> list[Variant]:
    """The rows of :func:`deployable` at one cost, all or ``only`` some reducers, without those that do not reach it.

    They are all reducers that work block by block, which have a relevance of their own; slow ones at one cost only.
    Top-K pruning and the paper's operator are applied once, after a third of the depth, by the CLS attention there.
    """
    rows = [
        row
        for name, reducer in ground.catalogue.reducers.items()
        if not reducer.follows_budget and (cost == SLOW_COST or not reducer.slow) and (not only or name in only)
        for row in rows_at_cost(ground, name, cost)
    ]
    score = Score(local="cls_mean" if ground.catalogue.has_cls else "mass", block=ground.later)
    return rows + _later_rows(ground, [name for name in ("prune", OPERATOR) if not only or name in only], score, cost)


def accelerate(ground: Ground) -> list[Study]:
    """The part of :func:`deployable` that a report opens with: our own reducer beside ToMe."""
    studies = []
    for cost in ACCELERATE_COSTS:
        rows = [row for name in (OWN, PEER) for row in rows_at_cost(ground, name, cost)]
        if rows and rows[0].reducer == OWN:
            title = f"redi.accelerate beside ToMe, at a cost of {cost:.2f}"
            studies.append(Study(f"{ACCELERATE}-{cost:.2f}", title, rows, rows[0]))
    return studies


def sweep(ground: Ground) -> list[Study]:
    """Keep rates of 10 to 90 %; progressive reducers run at the cost of the paper's operator at each rate.

    One-shot reducers rank patches by attention alone, the paper's operator also by the oracle. A progressive reducer
    has no row at a cost that its shape does not reach, and a small grid none at a rate that would not shorten it.
    """
    rows: list[Variant] = []
    for keep, (name, reducer) in product(SWEEP, ground.catalogue.reducers.items()):
        if reducer.slow:
            continue
        if reducer.follows_budget:
            score = usual_scores(reducer)[-1]
            rows.append(ground.row(*score, reducer=name, extent=ground.extent.at_keep(keep)))
        else:
            rows += rows_at_cost(ground, name, ground.operator_cost(keep))
    rows += [replace(ground.oracle, extent=ground.extent.at_keep(keep)) for keep in SWEEP]
    return [Study("sweep", "Accuracy against cost", list(filter(ground.fits, rows)), ground.oracle)]


def ablations(ground: Ground) -> list[Study]:
    """What the paper fixes, changed one at a time, for the REDI score with incoming mass and the true class."""
    base, budget = ground.oracle, ground.extent.budget
    budgets = [replace(budget, spatial=weight) for weight in (0.0, 0.1, 1.0)]
    budgets += [replace(budget, cells=cells) for cells in (1, 3, 4)]
    budgets += [replace(budget, merge=share) for share in (0.0, 0.5)]
    corpora = [CorpusSettings(book) for book in ablated_codebooks(ground)]
    corpora += [CorpusSettings(views=views) for views in (1, 2, 3)]
    corpora += [CorpusSettings(mean_weight=weight) for weight in (0.0, 0.5, 1.0)]
    rows = [base, *(replace(base, corpus=corpus) for corpus in corpora)]
    rows += [replace(base, extent=replace(ground.extent, budget=changed)) for changed in budgets]
    rows = list(filter(ground.fits, rows))
    return [Study("ablations", "What the paper fixes, for REDI with incoming mass [gt]", rows, base)]


def ablated_codebooks(ground: Ground) -> list[Codebook]:
    """Codebooks that differ from the run's own in size, passes, features (postnorm) or start (random).

    Sizes that the corpus cannot fill, or that 16 bits cannot hold, are left out.
    """
    own = ground.vocabulary
    base = Codebook(own.n_words, own.n_passes)
    most = min(ground.training_images * ground.on.patches, MOST_WORDS)
    sizes = [
        replace(base, n_words=int(own.n_words * by))
        for by in (1 / 8, 1 / 4, 1 / 2, 2, 4)
        if 2 <= own.n_words * by <= most
    ]
    passes = [replace(base, n_passes=count) for count in (1, 2, 5) if count != own.n_passes]
    return [*sizes, *passes, replace(base, features="postnorm"), replace(base, start="random")]


STUDIES: dict[str, Callable[[Ground], list[Study]]] = {
    SCORERS_STUDY: scorers,
    "reducers": reducers,
    "costs": costs,
    ACCELERATE: accelerate,
    "deployable": deployable,
    EARLY: early,
    "sweep": sweep,
    "ablations": ablations,
}


def rows_at_cost(ground: Ground, name: str, cost: float) -> list[Variant]:
    """The rows of one reducer at a relative cost; none if its shape does not reach that cost.

    The paper's operator is measured with all usual scores, other reducers with attention alone.
    """
    reducer, extent = ground.catalogue.reducers[name], ground.extent
    near = reducer.follows_budget and abs(reducer.cost(extent, ground.on, ground.prefix_only) - cost) < NEAR
    if not near:
        try:
            extent = reducer.extent_for_cost(cost, ground.on, extent, ground.prefix_only)
        except ConfigError:
            return []
    scores = usual_scores(reducer) if name == OPERATOR else usual_scores(reducer)[-1:]
    return [ground.row(*score, reducer=name, extent=extent) for score in scores]


def usual_scores(reducer: Reducer) -> list[tuple[Score, str]]:
    """The oracle, the same score with the predicted label, and attention alone; no score if none is needed."""
    if not reducer.needs_score:
        return [(NO_SCORE, "")]
    return [(MAIN_SCORE, TRUE_CLASS), (MAIN_SCORE, "predicted"), (Score(local="mass"), "")]


def _later_rows(ground: Ground, names: list[str], score: Score, cost: float) -> list[Variant]:
    """Rows of the one-shot reducers that reach the cost when applied after a third of the blocks."""
    rows = []
    for name in names:
        with suppress(ConfigError):
            base = replace(ground.extent, after=ground.later)
            extent = ground.catalogue.reducers[name].extent_for_cost(cost, ground.on, base, ground.prefix_only)
            rows.append(ground.row(score, reducer=name, extent=extent))
    return rows
