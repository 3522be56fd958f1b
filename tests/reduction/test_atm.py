"""ATM: by hand, against a loop over tokens, and its thresholds."""

from dataclasses import replace
from math import exp, fsum, inf

import pytest
import torch
from torch.nn.functional import pad
from torch.utils.flop_counter import FlopCounterMode

from insides import make_inside
from loops import Vector, cosine
from redi.reduction import ADAPTIVE, DROPPED, Inside
from redi.reduction.atm import atm, thresholds


def naive(
    patches: list[Vector], sizes: Vector, keys: list[Vector], threshold: float, by_size: bool
) -> tuple[list[Vector], list[int], list[int]]:
    """Tokens, positions and sources of one image without padding, from the rules of the paper."""
    everyone = list(range(len(patches)))
    if by_size:  # small tokens propose to large ones; sorting is stable
        order = sorted(everyone, key=lambda i: sizes[i])
        a_set, b_set = order[: len(order) // 2], order[len(order) // 2 :]
    else:  # alternate, beginning with CLS, which is in A and does not merge
        a_set, b_set = everyone[1::2], everyone[0::2]
    joins: dict[int, int] = {}
    for a in a_set:
        similarities = [cosine(keys[a], keys[b]) for b in b_set]
        if max(similarities) >= threshold:
            joins[a] = b_set[similarities.index(max(similarities))]
    kept = [i for i in everyone if i not in joins]
    tokens = []
    for i in kept:
        members = [i, *(a for a, b in joins.items() if b == i)]
        weight = fsum(sizes[m] for m in members)
        tokens.append([fsum(sizes[m] * patches[m][axis] for m in members) / weight for axis in range(len(patches[0]))])
    return tokens, kept, [kept.index(joins.get(i, i)) for i in everyone]


def with_padding(inside: Inside, lengths: list[int]) -> Inside:
    """The same block, but only the first tokens of each image are real."""
    real = torch.arange(inside.sizes.shape[1]) < torch.tensor(lengths)[:, None]
    sizes = inside.sizes * real
    return replace(inside, sizes=sizes, bias=pad(sizes.log(), (inside.prefix, 0))[:, None, None])


@pytest.mark.parametrize("prefix", [1, 5])
@pytest.mark.parametrize("block", [0, 3])  # of 4: neighbours, then small with large
@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.6, 2.0])
@pytest.mark.parametrize("lengths", [[9, 9, 9], [16, 11, 2], [25, 1, 24], [1, 1, 1]])
def test_atm_equals_a_loop_over_the_real_tokens(prefix: int, block: int, threshold: float, lengths: list[int]) -> None:
    inside = with_padding(make_inside(max(lengths), prefix, block), lengths)
    result = atm(inside, threshold)
    keys = inside.key[:, :, prefix:].mean(dim=1).double()
    left = []
    for image, length in enumerate(lengths):
        tokens, positions, source = naive(
            inside.patches[image, :length].tolist(),
            inside.sizes[image, :length].tolist(),
            keys[image, :length].tolist(),
            threshold,
            by_size=block == 3,
        )
        left.append(len(tokens))
        torch.testing.assert_close(result.tokens[image, : len(tokens)], torch.tensor(tokens), atol=1e-5, rtol=1e-4)
        assert result.positions[image, : len(tokens)].tolist() == positions
        assert result.source[image].tolist() == source + [DROPPED] * (max(lengths) - length)
    assert result.tokens.shape[1] == max(left), "as long as the longest image"


def test_atm_by_hand() -> None:
    """Tokens 0 and 2 are in B. Token 1 is like token 0, token 3 like none."""
    inside = make_inside(4, 1, batch=1)
    directions = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0, 1]])
    keys = pad(directions, (0, 3))[None, None].expand(1, 4, 4, 6)
    inside = replace(
        inside,
        key=torch.cat([inside.key[:, :, :1], keys], dim=2),
        patches=torch.tensor([[[1.0], [4.0], [5.0], [7.0]]]),
        sizes=torch.tensor([[2.0, 1.0, 1.0, 1.0]]),
    )
    result = atm(inside, 0.9)
    assert result.tokens[0, :, 0].tolist() == [2.0, 5.0, 7.0]
    assert result.positions.tolist() == [[0, 2, 3]]
    assert result.source.tolist() == [[0, 0, 1, 2]]


def test_two_large_tokens_never_merge_in_the_last_blocks() -> None:
    """All keys are alike, so everything in A merges. By neighbours this joins tokens 0 and 1, by size it does not."""
    inside = make_inside(4, 1, block=3, batch=1)
    inside = replace(inside, key=torch.ones_like(inside.key), sizes=torch.tensor([[9.0, 8.0, 1.0, 2.0]]))
    assert atm(inside, 0.9, split=2.0).source.tolist() == [[0, 0, 1, 0]]
    assert atm(inside, 0.9).source.tolist() == [[0, 1, 1, 1]]


def test_tokens_in_half_precision_are_merged_in_fp32() -> None:
    inside = make_inside(25, 1)
    half = replace(inside, patches=inside.patches.bfloat16())
    wanted = atm(replace(half, patches=half.patches.float()), 0.3)
    assert atm(half, 0.3).tokens.dtype == torch.bfloat16
    assert torch.equal(atm(half, 0.3).tokens, wanted.tokens.bfloat16())


def test_thresholds_are_those_of_the_formula() -> None:
    assert thresholds(12, 0.0) == (inf,) * 12
    for strength in (0.2, 0.4):
        alpha, beta = 1 - 0.21 * strength, 0.06 * strength
        wanted = [max(alpha - (exp(beta * (block - 1)) - 1), 0.8) for block in range(1, 13)]
        assert wanted[0] > wanted[-1]
        assert thresholds(12, strength) == pytest.approx(wanted)
    assert thresholds(12, 1.0) == (0.8,) * 12, "the lowest everywhere"
    assert thresholds(24, 0.2)[::2] == pytest.approx(thresholds(12, 0.2)), "a deeper model falls as far"


@pytest.mark.parametrize("n", [16, 25])
@pytest.mark.parametrize("block", [0, 3])
def test_a_step_costs_the_products_that_are_counted(n: int, block: int) -> None:
    inside = make_inside(n, 1, block, batch=1)
    with FlopCounterMode(display=False) as counter:
        after = atm(inside, 0.6).tokens.shape[1]
    assert n // 2 < after < n
    assert ADAPTIVE["atm"].products(n, after, 5, 6) == counter.get_total_flops() // 2
