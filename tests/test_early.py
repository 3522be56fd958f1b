"""Places in a forward pass: their blocks, the pixels and maps of a glance, and what a place costs."""

import pytest
import torch

from redi.attention import ATTENTION_SCORES, AttentionScore
from redi.cost import Geometry, block_cost
from redi.early import (
    GLANCE,
    CorpusSize,
    block_of_place,
    early_blocks,
    early_places,
    enlarge,
    glance_grid,
    place_cost,
    place_title,
    require_place,
    shrink,
)
from redi.errors import ConfigError

ON = Geometry((14, 14), 5, 768, 64, 12)
SIZE = CorpusSize(words=512, block_words=256, classes=100)


@pytest.mark.parametrize(("depth", "blocks"), [(12, [3, 4, 6]), (24, [6, 8, 12]), (3, [1, 2]), (2, [1]), (1, [])])
def test_the_blocks_are_a_quarter_a_third_and_half_of_the_depth(depth: int, blocks: list[int]) -> None:
    assert early_blocks(depth) == blocks
    assert [block_of_place(place) for place in early_places(depth)] == [*blocks, 0]


def test_places_have_titles() -> None:
    assert place_title("block4") == "of block 4"
    assert place_title(GLANCE) == "of a glance"


@pytest.mark.parametrize("place", ["block0", "block", "blockx", "glances"])
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="A place is glance or block"):
        require_place(place)


def test_a_glance_has_half_of_the_rows_and_columns() -> None:
    assert glance_grid((14, 14)) == (7, 7)
    assert glance_grid((5, 8)) == (3, 4)
    assert shrink(torch.zeros(2, 3, 40, 64), (5, 8)).shape == (2, 3, 24, 32)


def test_a_shrunken_plane_stays_a_plane() -> None:
    """Resizing without aliasing keeps what is linear, away from the edges."""
    plane = torch.linspace(0, 1, 32).expand(1, 3, 32, 32)
    small = shrink(plane, (4, 4))[0, 0, 8]
    steps = small.diff()[4:-4]
    torch.testing.assert_close(steps, torch.full_like(steps, 2 / 31), rtol=1e-3, atol=0)


def test_an_enlarged_map_interpolates_between_the_centres_of_patches() -> None:
    """Along a line of two patches: their centres lie at 0.5 and 1.5 of four new patches' 0.25, 0.75, 1.25, 1.75."""
    maps = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    line = torch.tensor([0.0, 0.25, 0.75, 1.0])
    torch.testing.assert_close(enlarge(maps, (4, 4)), line.repeat(4)[None])
    full = torch.rand(2, 16)
    assert enlarge(full, (4, 4)) is full


def test_the_cost_of_a_block_by_hand() -> None:
    words, probe, mean = 196 * 256 * 768, 100 * 768, 100 * 256
    assert place_cost(ON, "block4", SIZE, False, "", "cls_mean") == 201 * 768
    assert place_cost(ON, "block4", SIZE, False, "", "mass") == 201**2 * 768
    assert place_cost(ON, "block4", SIZE, True, "gt", "") == words
    assert place_cost(ON, "block4", SIZE, True, "predicted", "") == words + probe
    assert place_cost(ON, "block4", SIZE, True, "posterior", "cls_mean") == words + probe + mean + 201 * 768


@pytest.mark.parametrize(
    ("needs_cls", "every_query", "queries"), [(True, False, 1), (False, False, 201), (True, True, 201)]
)
def test_a_new_attention_score_is_billed_for_the_queries_that_it_declares(
    monkeypatch: pytest.MonkeyPatch, needs_cls: bool, every_query: bool, queries: int
) -> None:
    toy = AttentionScore(
        "Toy", "toy", lambda means, rows, prefix: rows[:, 0, prefix:], needs_cls=needs_cls, every_query=every_query
    )
    monkeypatch.setitem(ATTENTION_SCORES, "toy", toy)
    assert place_cost(ON, "block4", SIZE, False, "", "toy") == queries * 201 * 768


def test_the_cost_of_a_glance_counts_its_forward() -> None:
    forward = 12 * block_cost(5 + 49, 768)
    assert place_cost(ON, GLANCE, SIZE, False, "", "cls_mean") == forward + 54 * 768
    assert place_cost(ON, GLANCE, SIZE, True, "predicted", "") == forward + 49 * 512 * 768 + 100 * 768
