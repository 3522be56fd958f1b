"""Eq. norm01 and Eq. hybrid."""

import pytest
import torch
from hypothesis import given, strategies as st

from redi.errors import InvalidInput
from redi.score import hybrid, minmax

maps = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40)


def naive_minmax(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    if not high - low > 1e-8:
        return [0.0] * len(values)
    return [(value - low) / (high - low + 1e-8) for value in values]


def test_minmax_by_hand() -> None:
    values = torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0]])
    expected = torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(minmax(values), expected)


def test_range_at_or_below_1e8_counts_as_constant() -> None:
    assert minmax(torch.tensor([0.0, 1e-8])).tolist() == [0.0, 0.0]
    assert minmax(torch.tensor([0.0, 3e-8]))[1].item() == pytest.approx(0.75)


@given(maps)
def test_minmax_equals_the_equation(values: list[float]) -> None:
    result = minmax(torch.tensor(values, dtype=torch.float64))
    assert result.tolist() == pytest.approx(naive_minmax(values))


@given(maps, st.floats(0.1, 50), st.floats(-50, 50))
def test_minmax_ignores_scale_and_shift(values: list[float], scale: float, shift: float) -> None:
    exact = torch.tensor(values, dtype=torch.float64)
    if exact.max() - exact.min() < 1e-3:
        return
    torch.testing.assert_close(minmax(exact * scale + shift), minmax(exact), atol=1e-4, rtol=0)


def test_hybrid_by_hand() -> None:
    corpus = torch.tensor([[0.0, 2.0, 4.0, 4.0]])  # N: 0, .5, 1, 1
    attention = torch.tensor([[9.0, 9.0, 5.0, 7.0]])  # N: 1, 1, 0, .5
    torch.testing.assert_close(hybrid(corpus, attention), torch.tensor([[0.0, 1.0, 0.0, 1.0]]))


@given(st.integers(0, 10_000))
def test_hybrid_is_symmetric_and_commutes_with_permutation(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    corpus, attention = torch.rand(2, 3, 20, generator=generator)
    order = torch.randperm(20, generator=generator)
    score = hybrid(corpus, attention)
    torch.testing.assert_close(score, hybrid(attention, corpus))
    torch.testing.assert_close(score[:, order], hybrid(corpus[:, order], attention[:, order]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_maps_that_are_not_finite_are_refused(bad: float) -> None:
    values = torch.tensor([[1.0, bad, 2.0]])
    with pytest.raises(InvalidInput, match="1 of 3 values are not"):
        minmax(values)
    with pytest.raises(InvalidInput, match="finite"):
        hybrid(torch.ones(1, 3), values)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "values",
    [torch.zeros(2, 0), torch.ones(2, 3, dtype=torch.bool), torch.arange(4), torch.tensor(1.0)],
    ids=["empty", "bool", "integer", "scalar"],
)
def test_maps_that_are_no_maps_are_refused(values: torch.Tensor) -> None:
    with pytest.raises(InvalidInput, match="A map must"):
        minmax(values)


@pytest.mark.usefixtures("unchecked")
def test_maps_of_different_shape_are_refused() -> None:
    with pytest.raises(InvalidInput, match="same shape"):
        hybrid(torch.rand(2, 9), torch.rand(2, 16))
