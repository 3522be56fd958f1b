"""The later kin of ToMe: by hand, and against loops written from papers and released code."""

from dataclasses import replace
from itertools import product
from math import exp, fsum, hypot

import pytest
import torch
from torch.nn.functional import pad

from insides import make_inside
from loops import Expected, Vector, cosine, image_of, mean_over_heads, merged, most_similar
from redi.reduction import DROPPED, Inside, Progressive, Reduction
from redi.reduction.merging import MERGING, mame, mlerp, pitome_released, tofu
from redi.reduction.schedule import constant

COUNTS = [(3, 2), (9, 8), (9, 5), (16, 11), (16, 8), (25, 20), (25, 13)]

counts = pytest.mark.parametrize(("n", "count"), COUNTS)
steps = pytest.mark.parametrize("reducer", MERGING.values(), ids=MERGING)
prefixes = pytest.mark.parametrize("prefix", [1, 5])


def assert_as_expected(result: Reduction, expected: list[Expected]) -> None:
    for image, one in enumerate(expected):
        assert result.positions[image].tolist() == one.positions
        assert result.source[image].tolist() == one.source
        torch.testing.assert_close(result.tokens[image], torch.tensor(one.tokens), atol=1e-5, rtol=1e-5)


# PiToMe as released -------------------------------------------------------------------------------


def naive_released(
    patches: list[Vector], sizes: Vector, keys: list[Vector], count: int, at: float, matching: bool
) -> Expected:
    """``at`` is the share of the blocks before this one; ``matching`` says which of the two steps it takes."""
    n, r, margin = len(patches), len(patches) - count, 0.75 - 0.75 * at

    def elu(x: float) -> float:
        return x if x > 0 else exp(x) - 1

    energy = [fsum(elu(cosine(keys[i], keys[j]) - margin) for j in range(n) if j != i) for i in range(n)]
    order = sorted(range(n), key=lambda i: -energy[i])
    if matching:  # ToMe's step, but alternating over the energies
        edges = sorted(((*most_similar(a, order[1::2], keys), a) for a in order[0::2]), key=lambda edge: -edge[0])
        joins = {a: b for _, b, a in edges[:r]}
        protected = sorted(a for _, _, a in edges[r:])
    else:  # the paper's step: protect all but the first 2r
        order, protected = order[: 2 * r], sorted(order[2 * r :])
        joins = {a: most_similar(a, order[1::2], keys)[1] for a in order[0::2]}
    groups = [[i] for i in protected]
    groups += [[b] + [a for a in order[0::2] if joins.get(a) == b] for b in order[1::2]]
    return merged(patches, sizes, groups)


def released_loops(inside: Inside, count: int, matching: bool) -> list[Expected]:
    images = [image_of(inside, image) for image in range(len(inside.patches))]
    at = inside.block / inside.depth
    return [
        naive_released(x.patches, x.sizes, mean_over_heads(x.key, inside.prefix), count, at, matching) for x in images
    ]


@prefixes
@counts
@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_pitome_as_released_equals_the_loop(n: int, count: int, prefix: int, block: int) -> None:
    inside = make_inside(n, prefix, block)
    assert_as_expected(pitome_released(inside, count), released_loops(inside, count, matching=block < 2))


def test_the_middle_block_of_an_odd_depth_still_matches() -> None:
    inside = replace(make_inside(16, 1, block=2), depth=5)
    assert_as_expected(pitome_released(inside, 11), released_loops(inside, 11, matching=True))


@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_the_setting_for_mae_swaps_the_halves(block: int) -> None:
    inside = make_inside(25, 1, block)
    result = pitome_released(inside, 20, matching_first=False)
    assert_as_expected(result, released_loops(inside, 20, matching=block >= 2))


def test_the_released_row_has_no_proportional_attention() -> None:
    assert not MERGING["pitome-released"].proportional


# ToFu ---------------------------------------------------------------------------------------------


def naive_tofu(patches: list[Vector], keys: list[Vector], count: int, pruning: bool) -> Expected:
    """The r most similar edges of A, every second patch from the second on; those of A are dropped or fused."""
    a_set, b_set = list(range(1, len(patches), 2)), list(range(0, len(patches), 2))
    edges = sorted(((*most_similar(a, b_set, keys), a) for a in a_set), key=lambda edge: -edge[0])
    joins = {a: b for _, b, a in edges[: len(patches) - count]}
    groups = [[a] for a in a_set if a not in joins]
    if pruning:
        kept = [*(a for (a,) in groups), *b_set]
        source = [kept.index(i) if i in kept else DROPPED for i in range(len(patches))]
        return Expected([patches[i] for i in kept], kept, source)
    groups += [[b] + [a for a in a_set if joins.get(a) == b] for b in b_set]
    mean = merged(patches, [1.0] * len(patches), groups)
    for place, members in enumerate(groups):
        scale = max(hypot(*patches[i]) for i in members) / hypot(*mean.tokens[place])
        mean.tokens[place] = [scale * x for x in mean.tokens[place]]
    return mean


@prefixes
@pytest.mark.parametrize(("n", "count"), [(2, 1), *COUNTS])
@pytest.mark.parametrize("block", [0, 2, 3])
def test_tofu_equals_the_loop(n: int, count: int, prefix: int, block: int) -> None:
    inside = make_inside(n, prefix, block)
    images = [image_of(inside, image) for image in range(3)]
    loops = [naive_tofu(x.patches, mean_over_heads(x.key, prefix), count, pruning=block <= 2) for x in images]
    assert_as_expected(tofu(inside, count), loops)


def test_mlerp_has_the_direction_of_the_mean_and_the_length_of_the_longest() -> None:
    patches = torch.tensor([[[3.0, 0], [0, 4], [5, 12], [1, 1]]])
    mean = Reduction(torch.tensor([[[1.5, 2.0], [5, 12]]]), torch.tensor([[0, 2]]), torch.tensor([[0, 0, 1, DROPPED]]))
    result = mlerp(patches, mean)
    torch.testing.assert_close(result.tokens, torch.tensor([[[2.4, 3.2], [5.0, 12]]]))
    opposite = mean._replace(tokens=torch.zeros(1, 2, 2))
    assert torch.equal(mlerp(patches, opposite).tokens, torch.zeros(1, 2, 2)), "a mean of zero stays zero"


# MaMe ---------------------------------------------------------------------------------------------


def naive_mame(patches: list[Vector], sizes: Vector, keys: list[Vector], count: int) -> Expected:
    """Every token of A whose best similarity reaches tau is divided among all of B that reach it."""
    n = len(patches)
    a_set, b_set = list(range(1, n, 2)), list(range(0, n, 2))
    best = {a: most_similar(a, b_set, keys) for a in a_set}
    tau = sorted((similarity for similarity, _ in best.values()), reverse=True)[n - count - 1]
    merging = [a for a in a_set if best[a][0] >= tau]
    kept = [*(a for a in a_set if a not in merging), *b_set]
    totals = {b: sizes[b] for b in b_set}
    sums = {b: [sizes[b] * x for x in patches[b]] for b in b_set}
    for a in merging:
        near = {b: max(cosine(keys[a], keys[b]), 1e-8) for b in b_set if cosine(keys[a], keys[b]) >= tau}
        for b, similarity in near.items():
            share = sizes[a] * similarity / fsum(near.values())
            totals[b] += share
            sums[b] = [x + share * y for x, y in zip(sums[b], patches[a], strict=True)]
    tokens = [[x / totals[i] for x in sums[i]] if i in totals else patches[i] for i in kept]
    source = [kept.index(best[i][1]) if i in merging else kept.index(i) for i in range(n)]
    return Expected(tokens, kept, source)


@prefixes
@pytest.mark.parametrize(("n", "count"), [(2, 1), *COUNTS])
def test_mame_equals_the_loop(n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    images = [image_of(inside, image) for image in range(3)]
    loops = [naive_mame(x.patches, x.sizes, mean_over_heads(x.key, prefix), count) for x in images]
    assert_as_expected(mame(inside, count), loops)


def test_mame_divides_a_token_among_all_that_reach_the_threshold() -> None:
    keys = torch.tensor([[1.0, 0], [1, 1], [0, 1], [-1, -2], [-1, 0]])  # of A, 1 is as near to 0 as to 2
    inside = replace(
        make_inside(5, 1, batch=1),
        patches=torch.tensor([[[2.0], [6], [4], [1], [9]]]),
        sizes=torch.tensor([[1.0, 2, 3, 1, 1]]),
        key=pad(keys, (0, 4, 1, 0)).expand(1, 4, 6, 6),
    )
    result = mame(inside, 4)
    torch.testing.assert_close(result.tokens.flatten(), torch.tensor([1, (2 + 6) / 2, (3 * 4 + 6) / 4, 9]))
    assert result.positions.tolist() == [[3, 0, 2, 4]]


def test_mame_merges_in_the_first_eight_of_twelve_blocks() -> None:
    schedule = MERGING["mame"].schedule(196, 12, 0.2)
    assert schedule[:8] == constant(196, 8, 0.2)
    assert set(schedule[8:]) == {schedule[7]}
    assert MERGING["mame"].schedule(9, 1, 1.0) == (5,)


# All of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 3])
@steps
def test_half_precision_tokens_are_merged_in_fp32(reducer: Progressive, block: int) -> None:
    inside = make_inside(25, 1, block)
    rough = replace(inside, patches=inside.patches.bfloat16())
    result = reducer.step(rough, 13)
    expected = reducer.step(replace(rough, patches=rough.patches.float()), 13)
    assert result.tokens.dtype == torch.bfloat16
    torch.testing.assert_close(result.tokens, expected.tokens.bfloat16(), atol=0, rtol=0.01)


@pytest.mark.parametrize("block", [0, 3])
@steps
def test_who_lends_a_token_its_position_went_into_it_and_a_token_alone_is_unchanged(
    reducer: Progressive, block: int
) -> None:
    inside = make_inside(25, 5, block)
    result = reducer.step(inside, 19)
    assert torch.equal(result.source.gather(1, result.positions), torch.arange(19).expand(3, -1))
    for image, place in product(range(3), range(19)):
        if int((result.source[image] == place).sum()) == 1 and reducer is not MERGING["mame"]:
            assert torch.equal(result.tokens[image, place], inside.patches[image, result.positions[image, place]])
