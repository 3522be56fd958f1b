"""DiffRate: its published rates, and its step against a loop written from the paper and the released code."""

from dataclasses import replace
from itertools import pairwise
from math import fsum

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from insides import make_inside
from loops import Vector, cosine, naive_cls_attention
from redi.backbone import Backbone
from redi.reduction import DROPPED, PROGRESSIVE, Inside, Progressive, Reduction
from redi.reduction.diffrate import BUDGETS, DiffRate
from redi.reduction.diffrate_rates import PUBLISHED
from redi.reduction.schedule import check_schedule

RATES = DiffRate()


def naive_step(
    inside: Inside, image: int, count: int, pruned: int
) -> tuple[list[Vector], list[int], list[int], Vector]:
    """Tokens, positions, sources and sizes of one image."""
    relevance = naive_cls_attention(inside, image)
    patches, sizes = inside.patches[image].double().tolist(), inside.sizes[image].tolist()
    order = sorted(range(len(patches)), key=lambda i: -relevance[i])
    left = order[: len(order) - pruned]  # prune the tail
    keep, merging = left[:count], left[count:]
    groups: list[list[int]] = [[i] for i in keep]
    grown = [sizes[i] for i in keep]
    for i in merging:
        similarity, place = max((cosine(patches[i], patches[j]), -place) for place, j in enumerate(keep))
        groups[-place].append(i)
        grown[-place] += max(similarity, 0) * sizes[i]
    tokens = [[fsum(patches[i][axis] for i in group) / len(group) for axis in range(5)] for group in groups]
    source = [DROPPED] * len(patches)
    for place, group in enumerate(groups):
        for i in group:
            source[i] = place
    return tokens, keep, source, grown


@pytest.mark.parametrize("prefix", [1, 5])
@pytest.mark.parametrize("block", [0, 2, 3])
@pytest.mark.parametrize(("n", "count"), [(2, 1), (9, 8), (16, 11), (25, 20), (25, 3)])
def test_a_step_equals_the_loop(n: int, count: int, block: int, prefix: int) -> None:
    inside = make_inside(n, prefix, block)
    result = RATES.step(inside, count)
    pruned = RATES.pruned(block, inside.depth, n, count)
    assert result.sizes is not None
    for image in range(3):
        tokens, positions, source, sizes = naive_step(inside, image, count, pruned)
        assert result.positions[image].tolist() == positions
        assert result.source[image].tolist() == source
        assert source.count(DROPPED) == pruned
        torch.testing.assert_close(result.tokens[image], torch.tensor(tokens), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(result.sizes[image], torch.tensor(sizes), atol=1e-5, rtol=1e-5)


def test_a_step_by_hand() -> None:
    # Scores rank the patches 2, 0, 3, 1. In block 3 of DeiT-T at 0.6 GFLOPs, 7 of 20 are pruned: here one of two.
    inside = replace(
        make_inside(4, 1, batch=1),
        patches=torch.tensor([[[3.0, 0.0], [0.0, 9.0], [0.0, 2.0], [3.0, 4.0]]]),
        sizes=torch.tensor([[1.0, 1.0, 1.0, 2.0]]),
        scores=torch.tensor([[0.3, 0.1, 0.4, 0.2]]),
        block=2,
        depth=12,
    )
    assert RATES.pruned(2, 12, 4, 2) == 1
    result = RATES.step(inside, 2)
    assert result.positions.tolist() == [[2, 0]]
    assert result.source.tolist() == [[1, DROPPED, 0, 0]], "cos 4/5 with patch 2, 3/5 with patch 0"
    assert result.tokens.tolist() == [[[1.5, 3.0], [3.0, 0.0]]], "the mean does not weigh sizes"
    torch.testing.assert_close(result.sizes, torch.tensor([[1 + 2 * 4 / 5, 1.0]]))


@pytest.mark.parametrize("model", PUBLISHED)
def test_at_a_published_budget_every_block_prunes_and_merges_as_published(model: str) -> None:
    rates = DiffRate(model)
    budgets = sorted(PUBLISHED[model], reverse=True)
    for k, gflops in enumerate(budgets, start=1):
        pruning, merging = PUBLISHED[model][gflops]
        depth, patches = len(pruning), pruning[0] - 1
        schedule = rates.schedule(patches, depth, k / (len(budgets) + 1))
        left = patches
        for block, (after_pruning, after_merging) in enumerate(zip(pruning, merging, strict=True)):
            pruned = max(left - (after_pruning - 1), 0)
            after = min(left - pruned, after_merging - 1)
            assert schedule[block] == after
            if after < left and (model, gflops, block) != ("DeiT-T", 0.7, 1):
                assert rates.pruned(block, depth, left, after) == pruned
            left = after
    # One step is ambiguous: block 2 of DeiT-T goes from 196 to 195 patches by pruning at 0.7 GFLOPs and by merging
    # at 0.8 and 0.9. It merges here.
    assert DiffRate("DeiT-T").pruned(1, 12, 196, 195) == 0


def test_the_default_rates_are_those_of_the_nearest_depth() -> None:
    for depth, model in ((1, "DeiT-T"), (12, "DeiT-T"), (16, "DeiT-T"), (18, "MAE-L"), (24, "MAE-L"), (40, "MAE-H")):
        assert RATES.budgets(depth) is BUDGETS[model]
    assert PROGRESSIVE["diffrate"].schedule(196, 12, 5 / 6)[-2:] == (36, 2)


@given(patches=st.integers(1, 300), depth=st.integers(1, 40), strength=st.floats(0, 1))
def test_every_schedule_is_one_and_strength_zero_removes_nothing(patches: int, depth: int, strength: float) -> None:
    check_schedule(RATES.schedule(patches, depth, strength), patches, depth)
    assert RATES.schedule(patches, depth, 0.0) == (patches,) * depth
    for before, after in pairwise((patches, *RATES.schedule(patches, depth, strength))):
        for block in range(depth):
            assert 0 <= RATES.pruned(block, depth, before, after) <= before - after


def test_more_strength_leaves_fewer_tokens_in_all() -> None:
    totals = [sum(RATES.schedule(196, 12, step / 400)) for step in range(401)]
    assert totals == sorted(totals, reverse=True)


def test_rates_of_other_depths_keep_the_shape() -> None:
    # Of six blocks, the first removes nothing and the last leaves as few as in the published schedule.
    six, twelve = RATES.schedule(196, 6, 0.5), RATES.schedule(196, 12, 0.5)
    assert (six[0], six[-1]) == (196, 2)
    assert six[4] == twelve[10]
    assert RATES.schedule(392, 12, 0.5) == tuple(2 * count for count in twelve)


def test_tokens_of_half_precision_are_merged_in_fp32() -> None:
    inside = make_inside(25, 1, 2)
    rough = replace(inside, patches=inside.patches.bfloat16())
    result = RATES.step(rough, 13)
    expected = RATES.step(replace(rough, patches=rough.patches.float()), 13)
    assert result.tokens.dtype == torch.bfloat16
    assert torch.equal(result.tokens, expected.tokens.bfloat16())


def test_sizes_of_a_reducer_are_those_of_the_next_blocks_attention(dinov3: Backbone, pixels: Tensor) -> None:
    own = 0.5 + torch.rand(3, 30)
    insides: list[Inside] = []

    def step(inside: Inside, count: int) -> Reduction:
        insides.append(inside)
        reduction = RATES.step(inside, count)
        return reduction._replace(sizes=own) if len(insides) == 1 else reduction

    reducer = Progressive(step, RATES.schedule)
    result = dinov3.encode_progressively(dinov3.embed(pixels), reducer, (30, 30, 20))
    first, second = insides
    assert first.bias is None
    assert torch.equal(second.sizes, own)
    assert second.bias is not None
    torch.testing.assert_close(second.bias[:, 0, 0, dinov3.prefix :], own.log())
    assert not torch.equal(result.sizes, result.sizes.round()), "DiffRate's own, weighed by similarity"
