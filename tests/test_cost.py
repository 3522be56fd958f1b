"""Eq. blockcompute and Table 3."""

import pytest

from redi.cost import block_cost, cost_table
from redi.errors import InvalidInput
from redi.reduction import Budget


def test_block_cost_counts_every_product_of_a_vit_block() -> None:
    tokens, width = 201, 768
    projections = 4 * tokens * width * width
    mlp = tokens * width * (4 * width) + tokens * (4 * width) * width
    products = tokens * width * tokens + tokens * tokens * width
    assert block_cost(tokens, width) == projections + mlp + products


def test_table_3_of_the_paper() -> None:
    rows = cost_table()
    assert [(row.dense, row.reduced) for row in rows[:4]] == [(196, 98), (196, 102), (201, 107), (201**2, 107**2)]
    assert [f"{row.reduction:.1f}" for row in rows] == ["50.0", "48.0", "46.8", "71.7", "47.8"]
    assert f"{rows[-1].reduced:.3f}" == "0.522"


def test_keeping_everything_saves_nothing() -> None:
    assert [row.reduction for row in cost_table(budget=Budget(keep=1, merge=0))] == [0.0] * 5


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="positive"):
        block_cost(0, 768)
    with pytest.raises(InvalidInput, match="patches must be positive"):
        cost_table(patches=0)
    with pytest.raises(InvalidInput, match="prefix at least 0"):
        cost_table(prefix=-2)


@pytest.mark.parametrize("budget", [Budget(cells=99), Budget(cells=10), Budget(keep=0.99, merge=0.0)])
def test_a_budget_that_makes_more_tokens_than_patches_is_refused(budget: Budget) -> None:
    with pytest.raises(InvalidInput, match=r"would make [\d,]+ tokens of 196 patches: lower keep or cells"):
        cost_table(budget=budget)
    assert not budget.fits(196, (14, 14))


def test_cells_that_are_not_used_are_no_obstacle() -> None:
    everything = Budget(keep=0.5, merge=0.5, cells=99)
    everything.require_fits(196, (14, 14))
    assert cost_table(budget=everything)


def test_more_cells_than_rows_are_refused() -> None:
    Budget(keep=0.1, merge=0.1, cells=4).require_fits(4 * 49, (4, 49))
    with pytest.raises(InvalidInput, match="cells=5 does not fit a grid of 4x49 patches: use at most 4"):
        Budget(keep=0.1, merge=0.1, cells=5).require_fits(4 * 49, (4, 49))
