"""Incoming mass, CLS mean, CLS max, rollout."""

import pytest
import torch
from torch import Tensor

from redi.attention import cls_max, cls_mean, incoming_mass, rollout
from redi.errors import InvalidInput
from redi.score import minmax


def random_attention(seed: int, batch: int = 2, heads: int = 3, tokens: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(batch, heads, tokens, tokens, generator=generator)).softmax(-1)


def test_by_hand_with_two_heads_one_prefix_token_and_two_patches() -> None:
    first = [[0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.6, 0.2, 0.2]]
    second = [[0.4, 0.1, 0.5], [0.3, 0.3, 0.4], [0.0, 0.9, 0.1]]
    attention = torch.tensor([[first, second]])
    # columns 1 and 2: means 2.8/6 and 1.6/6; CLS rows: means .3, .4; maxima .5, .5
    assert incoming_mass(attention, 1).tolist() == [[pytest.approx(1.0), 0.0]]
    assert cls_mean(attention, 1).tolist() == [[0.0, pytest.approx(1.0)]]
    assert cls_max(attention, 1).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("prefix", [1, 2, 5])
def test_equal_naive_loops(prefix: int) -> None:
    attention = random_attention(0)
    batch, heads, tokens, _ = attention.shape
    mass, mean, maximum = torch.zeros(3, batch, tokens - prefix)
    for image in range(batch):
        for patch in range(tokens - prefix):
            column = [
                attention[image, head, query, prefix + patch].item() for head in range(heads) for query in range(tokens)
            ]
            row = [attention[image, head, 0, prefix + patch].item() for head in range(heads)]
            mass[image, patch] = sum(column) / (heads * tokens)
            mean[image, patch] = sum(row) / heads
            maximum[image, patch] = max(row)
    torch.testing.assert_close(incoming_mass(attention, prefix), minmax(mass))
    torch.testing.assert_close(cls_mean(attention, prefix), minmax(mean))
    torch.testing.assert_close(cls_max(attention, prefix), minmax(maximum))


def full_rollout(attentions: list[Tensor], prefix: int) -> Tensor:
    """Abnar and Zuidema with full matrices in float64: last x ... x first, row 0."""
    tokens = attentions[0].shape[-1]
    product = torch.eye(tokens, dtype=torch.float64)
    for attention in attentions:
        transition = attention.double().mean(1) + torch.eye(tokens, dtype=torch.float64)
        transition = transition / transition.sum(-1, keepdim=True)
        product = transition @ product
    return minmax(product[:, 0, prefix:])


@pytest.mark.parametrize("depth", [1, 2, 12])
def test_rollout_equals_the_full_matrix_product(depth: int) -> None:
    attentions = [random_attention(seed) for seed in range(depth)]
    expected = full_rollout(attentions, 2).float()
    torch.testing.assert_close(rollout(attentions, 2), expected, atol=1e-6, rtol=1e-5)
    averaged = [attention.mean(1) for attention in attentions]
    torch.testing.assert_close(rollout(averaged, 2), expected, atol=1e-6, rtol=1e-5)


def test_rollout_normalises_rows_that_do_not_sum_to_one() -> None:
    attentions = [2.5 * random_attention(seed) for seed in range(3)]
    expected = full_rollout(attentions, 1).float()
    torch.testing.assert_close(rollout(attentions, 1), expected, atol=1e-6, rtol=1e-5)


def test_rollout_depends_on_the_order_of_the_blocks() -> None:
    attentions = [random_attention(seed) for seed in range(3)]
    assert not torch.allclose(rollout(attentions, 1), rollout(attentions[::-1], 1), atol=1e-3)


def test_rollout_of_one_block_by_hand() -> None:
    # (A + I) / 2 in row 0: patch columns .3/2 and .5/2, which N maps to 0 and 1.
    attention = torch.tensor([[[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    assert rollout([attention], 1).tolist() == [[0.0, pytest.approx(1.0)]]


def test_permuting_patches_permutes_every_score() -> None:
    attentions = [random_attention(seed) for seed in range(3)]
    order = torch.cat([torch.arange(2), 2 + torch.randperm(7)])
    shuffled = [attention[:, :, order][..., order] for attention in attentions]
    patches = order[2:] - 2
    for score in (incoming_mass, cls_mean, cls_max):
        torch.testing.assert_close(score(shuffled[0], 2), score(attentions[0], 2)[:, patches])
    torch.testing.assert_close(rollout(shuffled, 2), rollout(attentions, 2)[:, patches])


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="prefix counts"):
        incoming_mass(random_attention(0), 9)
    with pytest.raises(InvalidInput, match="square"):
        cls_mean(torch.rand(1, 2, 4, 5), 1)
    for score in (incoming_mass, cls_mean, cls_max):
        with pytest.raises(InvalidInput, match=r"\[batch heads tokens tokens\]"):
            score(torch.rand(2, 4, 4), 1)
        with pytest.raises(InvalidInput, match="floating point"):
            score(torch.ones(1, 2, 4, 4, dtype=torch.int64), 1)
    with pytest.raises(InvalidInput, match="same images and tokens"):
        rollout([torch.rand(2, 4, 4), torch.rand(1, 4, 4)], 1)
    with pytest.raises(InvalidInput, match="Attention must be"):
        rollout([torch.rand(1, 1, 2, 4, 4)], 1)
    with pytest.raises(InvalidInput, match="at least one block"):
        rollout([], 1)
