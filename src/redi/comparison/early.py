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
from redi.reduction import OPERATOR, Extent, Progressive
from redi.reduction.schedule import Shape, early_shape
from redi.rows import NO_SCORE, Score, Variant

NAME = "early"
#: Relative costs, and the one of them at which every row is measured. Half of the blocks leave no room for less.
COSTS = (0.65, 0.75)
WHOLE_COST = 0.65
#: Label sources of the products; the true class is an oracle that shows what a better classifier could add.
SOURCES = ("predicted", "posterior", TRUE_CLASS)


def early(ground: Ground) -> list[Study]:
    """Both variants (blocks of the same forward, a glance), ``accelerate`` and ToMe, at equal total cost.

    The reference of the paired tests is ``accelerate``; ``redi compare --against ToMe`` takes ToMe instead.

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
                row = Variant(score, source, reducer, replace(ground.extent, after=block_of_place(place)), place=place)
                with suppress(ConfigError):  # too little is left for the blocks after the place
                    row = replace(row, extent=extent_at_cost(ground, row, cost))
                    yield ground.catalogue.check(row)


def extent_at_cost(ground: Ground, row: Variant, cost: float) -> Extent:
    """The extent that gives a row with a place its total cost; a :class:`ConfigError` if that cannot be met.

    It removes nothing before the score exists. Our own merging starts in the block after it, so with a glance in the
    first block.
    """
    reducer, block = ground.catalogue.reducers[row.reducer], block_of_place(row.place)
    left = cost - ground.catalogue.place_cost(row, ground.on)
    if not isinstance(reducer, Progressive):
        return reducer.extent_for_cost(left, ground.on, replace(ground.extent, after=block))
    shape = Shape(block, max(early_shape(ground.on.depth).last, block + 1))
    return replace(reducer, schedule=shape).extent_for_cost(left, ground.on)
