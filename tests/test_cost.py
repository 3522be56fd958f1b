"""Eq. blockcompute and Table 3."""

import pytest

from redi.cost import ARITHMETIC, Block, Geometry, block_cost, cost_table, vit_block
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


def test_the_default_block_is_that_of_the_formula() -> None:
    for width in (1, 48, 768):
        assert vit_block(width) == vit_block(width, 4 * width)
        for tokens in (1, 107, 201):
            assert vit_block(width).cost(tokens, tokens) == block_cost(tokens, width)


def test_a_block_by_hand() -> None:
    # Width 2, an MLP of hidden width 3; attention sees 5 tokens, the MLP 4.
    projections, pairs = 4 * 5 * (2 * 2), 2 * (5 * 2 * 5)
    assert vit_block(2, 3).cost(5, 4) == projections + pairs + 4 * (2 * 3 + 3 * 2)
    assert vit_block(2, 3, gated=True).cost(5, 4) == projections + pairs + 4 * (2 * 3 + 2 * 3 + 3 * 2)


def test_a_gated_mlp_of_two_thirds_costs_the_same() -> None:
    """DINOv2-giant: width 1536, a gated MLP of 4096."""
    assert vit_block(1536, 4096, gated=True) == vit_block(1536)


def test_table_3_counts_the_given_block_and_keeps_the_number_of_the_formula() -> None:
    own, paper = cost_table(width=384, block=vit_block(384, 1536, gated=True)), cost_table(width=384)
    assert own[:-1] == paper[:-1]
    assert (own[-1].quantity, own[-1].formula) == (ARITHMETIC, paper[-1].reduced)
    assert own[-1].reduced == (16 * 107 * 384 + 2 * 107**2) / (16 * 201 * 384 + 2 * 201**2)
    assert cost_table(width=384, block=vit_block(384)) == paper


def test_a_geometry_has_the_papers_blocks_unless_it_says_otherwise() -> None:
    paper = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=3)
    assert paper.dense == 3 * block_cost(5, 8)
    own = Geometry((2, 2), prefix=1, width=8, head_dim=4, depth=3, own_block=Block(1, 10, 100))
    assert own.dense == 3 * (5 * 1 + 5 * 10 + 25 * 100)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="hidden width at least 0"):
        vit_block(768, -1)
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
