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
