"""The study ``early``: scores from the first blocks of the same forward, or from a glance at half the resolution.

Every row counts all of its cost: the glance, the assignment of words, the probe, the posterior's mean of the table,
the attention. It is compared at equal total cost with the reducer of ``redi.accelerate``, which needs no corpus.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from redi.comparison.ground import Ground, Study
from redi.corpus import TRUE_CLASS
from redi.early import block_of_place, early_places
from redi.errors import ConfigError
from redi.records.deployed import OWN, PEER
from redi.reduction import OPERATOR, Extent, Progressive, Reducer
from redi.reduction.schedule import Shape, early_shape
from redi.rows import NO_SCORE, Score, Variant

NAME = "early"
#: Relative costs, and the one of them at which every row is measured. Half of the blocks leave no room for less.
COSTS = (0.65, 0.75)
WHOLE_COST = 0.65
#: Label sources of the products; the true class is an oracle that shows what a better classifier could add.
SOURCES = ("predicted", "posterior", TRUE_CLASS)


def early(ground: Ground) -> list[Study]:
    """Both variants (blocks of the same forward, a glance) against ``accelerate`` and ToMe, at equal total cost.

    At the lower cost, the paper's operator has rows of attention alone, of the corpus alone and of their product, by
    the Top-1 class, the posterior and the true class; pruning and our own merging have attention and the posterior's
    product. At the higher cost our own merging has the latter two.
    """
    studies = []
    for cost in COSTS:
        rows = [*_peers(ground, cost), *_rows(ground, cost)]
        if rows and rows[0].reducer == OWN:
            title = f"REDI from early blocks or a glance, at a total cost of {cost:.2f}"
            studies.append(Study(f"{NAME}-{cost:.2f}", title, rows, rows[0]))
    return studies


def _peers(ground: Ground, cost: float) -> Iterator[Variant]:
    for name in (OWN, PEER):
        with suppress(ConfigError):  # a small grid may not reach this cost
            extent = ground.catalogue.reducers[name].extent_for_cost(cost, ground.on, ground.extent)
            yield ground.row(NO_SCORE, reducer=name, extent=extent)


def _rows(ground: Ground, cost: float) -> Iterator[Variant]:
    attention = "cls_mean" if ground.catalogue.has_cls else "mass"
    alone, product = (Score(local=attention), ""), (Score("tfidf", attention), "posterior")
    by_reducer = {OWN: [alone, product]}
    if cost == WHOLE_COST:
        corpus = (Score("tfidf"), "posterior")
        products = [(Score("tfidf", attention), source) for source in SOURCES]
        by_reducer = {OPERATOR: [alone, corpus, *products], "prune": [alone, product], **by_reducer}
    for place in early_places(ground.on.depth):
        for reducer, scores in by_reducer.items():
            for score, source in scores:
                with suppress(ConfigError):  # too little is left for the blocks after the place
                    yield row_at_cost(ground, place, reducer, score, source, cost)


def row_at_cost(ground: Ground, place: str, reducer: str, score: Score, source: str, cost: float) -> Variant:
    """A row whose score is made at a place, at a total cost; a :class:`ConfigError` if that cannot be met."""
    block = block_of_place(place)
    base = Variant(score, source, reducer, replace(ground.extent, after=block), place=place)
    left = cost - ground.catalogue.place_cost(base, ground.on)
    extent = _extent_from(ground.catalogue.reducers[reducer], block, left, ground)
    return ground.catalogue.check(replace(base, extent=extent))


def _extent_from(reducer: Reducer, block: int, cost: float, ground: Ground) -> Extent:
    """The extent of a cost that removes nothing before ``block`` blocks have run."""
    if not isinstance(reducer, Progressive):
        return reducer.extent_for_cost(cost, ground.on, replace(ground.extent, after=block))
    usual = early_shape(ground.on.depth)
    shape = Shape(max(usual.first, block), max(usual.last, block + 1))
    return replace(reducer, schedule=shape).extent_for_cost(cost, ground.on)
