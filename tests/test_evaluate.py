"""Accuracy, intervals and the paired test."""

from fractions import Fraction
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redi.evaluate import accuracy, mcnemar, paired_interval, top5, wilson


def test_accuracy_by_hand() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    dense = torch.tensor([[0, 1], [0, 1], [2, 0], [0, 1]])  # right: 0, 2; in Top-5: 0, 1, 2
    reduced = torch.tensor([[0, 1], [1, 0], [0, 1], [3, 1]])  # right: 0, 1, 3
    result = accuracy(reduced, dense, labels)
    assert (result.top1, result.top5, result.delta_dense) == (75.0, 75.0, 25.0)
    assert result.images == 4
    assert result.p_value == 1.0  # two gained, one lost: 2 x (1 + 3) / 8
    assert accuracy(dense, dense, labels).top5 == 75.0


def test_top5_is_ordered_and_shorter_where_there_are_fewer_classes() -> None:
    classes, logits = top5(torch.tensor([[0.1, 0.9, 0.5]]))
    assert classes.tolist() == [[1, 2, 0]]
    assert logits[0].tolist() == pytest.approx([0.9, 0.5, 0.1])
    assert top5(torch.rand(2, 9))[0].shape == (2, 5)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    assert mcnemar(6, 0) == pytest.approx(2 / 64)
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_the_binomial_sum_and_is_symmetric(gained: int, lost: int) -> None:
    changed = gained + lost
    expected = min(
        1.0, 2 * sum(comb(changed, k) for k in range(min(gained, lost) + 1)) / 2**changed
    )
    assert mcnemar(gained, lost) == pytest.approx(expected)
    assert mcnemar(gained, lost) == mcnemar(lost, gained)


@pytest.mark.parametrize("gained", [951, 970, 990])
def test_the_approximation_for_many_images_agrees_with_the_exact_test(gained: int) -> None:
    exact = Fraction(2 * sum(comb(2001, k) for k in range(gained + 1)), 2**2001)
    assert mcnemar(gained, 2001 - gained) == pytest.approx(float(exact), rel=5e-3)


def test_wilson_by_hand() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((49.02, 94.33), abs=0.01)
    assert wilson(0, 10)[0] == pytest.approx(0, abs=1e-9)
    assert wilson(10, 10)[1] == pytest.approx(100, abs=1e-9)


def test_paired_interval_by_hand() -> None:
    # b = 12, c = 5 of 100: 0.07 +- 1.96 sqrt(0.17 - 0.0049) / 10
    assert paired_interval(12, 5, 100) == pytest.approx((-0.964, 14.964), abs=0.01)
    assert paired_interval(0, 0, 50) == (0.0, 0.0)
