"""PPT and Zero-TPrune against loops over the tokens written from their papers' rules."""

from dataclasses import replace
from math import sqrt
from statistics import pvariance, variance

import pytest
import torch
from hypothesis import given, strategies as st

from insides import make_inside
from loops import Vector, attention_of, cosine, mean_of_heads, naive_cls_attention
from redi.reduction import DROPPED, PROGRESSIVE, Inside, Progressive
from redi.reduction.peers import tome
from redi.reduction.ranking import RANKING, ppt, retained, thrice_equal, zero_tprune
from redi.reduction.schedule import check_schedule

COUNTS = [(2, 1), (9, 8), (9, 5), (25, 20), (41, 24)]

counts = pytest.mark.parametrize(("n", "count"), COUNTS)
prefixes = pytest.mark.parametrize("prefix", [1, 5])
rankings = pytest.mark.parametrize("reducer", RANKING.values(), ids=RANKING)


def joined_heads(heads: list[list[Vector]], token: int) -> Vector:
    return [entry for head in heads for entry in head[token]]


def naive_scores(inside: Inside, image: int) -> Vector:
    """PPT, after ATS: S_i = a_i |v_i| / sum_j a_j |v_j|."""
    values = inside.value[image].double().tolist()
    raw = [
        attention * sqrt(sum(x * x for x in joined_heads(values, token)))
        for token, attention in enumerate(naive_cls_attention(inside, image), start=inside.prefix)
    ]
    return [score / sum(raw) for score in raw]


@prefixes
@counts
def test_ppt_prunes_the_images_whose_scores_vary_and_merges_the_others(n: int, count: int, prefix: int) -> None:
    inside = make_inside(n, prefix)
    scores = [naive_scores(inside, image) for image in range(3)]
    variances = [variance(image) for image in scores]
    threshold = sum(sorted(variances)[:2]) / 2  # two of three images are pruned
    result, merged = ppt(inside, count, threshold), tome(inside, count)
    pruned = 0
    for image in range(3):
        if variances[image] < threshold:
            assert torch.equal(result.tokens[image], merged.tokens[image])
            assert torch.equal(result.positions[image], merged.positions[image])
            assert torch.equal(result.source[image], merged.source[image])
            continue
        pruned += 1
        keep = sorted(torch.tensor(scores[image]).argsort(descending=True)[:count].tolist())
        assert result.positions[image].tolist() == keep
        assert torch.equal(result.tokens[image], inside.patches[image, keep])
        assert result.source[image].tolist() == [keep.index(i) if i in keep else DROPPED for i in range(n)]
    assert pruned == 2


def test_ppt_at_its_released_setting() -> None:
    # Fifty of 196 tokens at blocks 4, 7 and 10; of 96 at most half.
    assert thrice_equal(196, 12, 100 / 196) == (196,) * 3 + (146,) * 3 + (96,) * 3 + (48,) * 3
    assert PROGRESSIVE["ppt"].proportional


def naive_importance(attention: list[list[Vector]], left: list[int], prefix: int, rounds: int) -> dict[int, float]:
    """Zero-TPrune, Algorithm 1 and EIR with VHF: tokens vote, heads are combined by the root of the mean square."""
    tokens = [*range(prefix), *left]
    everyone, chosen = [], []
    for head in attention:
        scores = {i: sqrt(len(head)) if i == 0 else 1.0 for i in tokens}
        for _ in range(rounds):
            voted = {i: sum(head[j][i] * scores[j] for j in tokens) for i in tokens}
            scores = {i: vote / sum(voted.values()) for i, vote in voted.items()}
        mean = sum(scores[i] for i in left) / len(left)
        own = [scores[i] / mean for i in left]
        everyone.append(own)
        if 0.01 <= pvariance(own) <= 0.7:
            chosen.append(own)
    heads = chosen or everyone
    squares = mean_of_heads([[score * score for score in own] for own in heads])
    return dict(zip(left, map(sqrt, squares), strict=True))


def naive_zero_tprune(inside: Inside, image: int, count: int) -> list[int]:
    """The patches that are kept: stages I', S and I."""
    prefix, n = inside.prefix, inside.patches.shape[1]
    attention, keys = attention_of(inside, image), inside.key[image].double().tolist()
    first = naive_importance(attention, list(range(prefix, prefix + n)), prefix, rounds=1)
    order = sorted(first, key=lambda i: first[i])
    less, more = order[: n // 2], order[n // 2 :]
    closest = {i: max(cosine(joined_heads(keys, i), joined_heads(keys, j)) for j in more) for i in less}
    similar = min(round(0.05 * n), n - count)
    alike = sorted(less, key=lambda i: -closest[i])[:similar]
    importance = naive_importance(attention, sorted(set(order) - set(alike)), prefix, rounds=10)
    return sorted(i - prefix for i in sorted(importance, key=lambda i: -importance[i])[:count])


@prefixes
@counts
def test_zero_tprune_equals_the_loop(n: int, count: int, prefix: int) -> None:
    inside = replace(make_inside(n, prefix), bias=None)
    result = zero_tprune(inside, count)
    for image in range(3):
        keep = naive_zero_tprune(inside, image, count)
        assert result.positions[image].tolist() == keep
        assert torch.equal(result.tokens[image], inside.patches[image, keep])
        assert result.source[image].tolist() == [keep.index(i) if i in keep else DROPPED for i in range(n)]


def test_a_head_whose_votes_all_go_to_one_token_does_not_count() -> None:
    inside = replace(make_inside(9, 1), bias=None)  # too few tokens for the similarity stage
    parts = {name: getattr(inside, name)[:, :1].clone() for name in ("query", "key", "value")}
    one_head = replace(inside, **parts)
    worst = [({*range(9)} - {*kept}).pop() for kept in zero_tprune(one_head, 8).positions.tolist()]
    wrong = torch.zeros_like(one_head.key)
    wrong[torch.arange(3), :, [1 + patch for patch in worst]] = 9.0
    both = replace(
        inside,
        query=torch.cat([one_head.query, torch.ones_like(wrong)], dim=1),
        key=torch.cat([one_head.key, wrong], dim=1),
        value=torch.cat([one_head.value, wrong], dim=1),
    )
    assert torch.equal(zero_tprune(both, 5).positions, zero_tprune(one_head, 5).positions)


@rankings
def test_an_image_does_not_depend_on_the_others_of_its_batch(reducer: Progressive) -> None:
    inside = make_inside(25, 5, batch=4)
    result = reducer.step(inside, 14)
    for image in range(4):
        alone = replace(
            inside,
            **{
                name: getattr(inside, name)[image : image + 1]
                for name in ("patches", "sizes", "query", "key", "value", "bias")
            },
        )
        single = reducer.step(alone, 14)
        torch.testing.assert_close(single.tokens[0], result.tokens[image])
        assert torch.equal(single.positions[0], result.positions[image])
        assert torch.equal(single.source[0], result.source[image])


@rankings
def test_tokens_of_half_precision_stay_in_it(reducer: Progressive) -> None:
    inside = make_inside(25, 1)
    names = ("patches", "query", "key", "value", "bias")
    rough = replace(inside, **{name: getattr(inside, name).bfloat16() for name in names})
    assert reducer.step(rough, 14).tokens.dtype == torch.bfloat16


@given(patches=st.integers(1, 300), depth=st.integers(1, 40), strength=st.floats(0, 1))
def test_every_schedule_is_one_and_strength_zero_removes_nothing(patches: int, depth: int, strength: float) -> None:
    check_schedule(thrice_equal(patches, depth, strength), patches, depth, halving=True)
    check_schedule(retained(patches, depth, strength), patches, depth)
    for schedule in (thrice_equal, retained):
        assert schedule(patches, depth, 0.0) == (patches,) * depth


def test_zero_tprune_prunes_in_five_blocks_and_most_in_the_ninth() -> None:
    schedule = (196, *retained(196, 12, 0.3))
    removed = {block: schedule[block - 1] - schedule[block] for block in range(1, 13)}
    assert [block for block, number in removed.items() if number] == [1, 3, 6, 9, 11]
    assert removed[1] == round(0.9 * 0.05 * 196)
    shares = [removed[block] / schedule[block - 1] for block in (1, 3, 6, 9)]
    assert shares == sorted(shares)
