"""Intervals, paired tests, the correction for many of them, and how alike two maps or outputs are."""

import math
from collections.abc import Callable
from fractions import Fraction
from math import comb, log

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from redi.errors import InvalidInput
from redi.reduction import Budget, reduce
from redi.statistics import (
    Bootstrap,
    agreement,
    divergence,
    holm,
    images_needed,
    images_needed_for_mean,
    keep_overlap,
    mcnemar,
    mean_bound,
    mean_interval,
    paired_bootstrap,
    paired_bound,
    paired_interval,
    paired_mean_test,
    spearman,
    t_quantile,
    t_tail,
    wilson,
    zipf_fit,
)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    assert mcnemar(6, 0) == pytest.approx(2 / 64)
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_the_binomial_sum_and_is_symmetric(gained: int, lost: int) -> None:
    changed = gained + lost
    expected = min(1.0, 2 * sum(comb(changed, k) for k in range(min(gained, lost) + 1)) / 2**changed)
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


def test_paired_bound_by_hand() -> None:
    # Nothing changed, so q = 0.
    bound = paired_bound(0, 0, 1000) / 100
    assert bound - 1 / 2000 == pytest.approx(1.644854 * math.sqrt(bound * (1 - bound) / 1000), abs=1e-9)
    assert bound == pytest.approx(0.003627, abs=1e-6), "more than the exact 1 - 0.05^(1 / n) = 0.00299"
    # As many gained as lost: q is the larger root of 2 q^2 - (x + y - D (2 - x + y)) q - y D (1 - D) = 0.
    bound = paired_bound(10, 10, 500) / 100
    linear = 0.04 - 2 * bound
    q = (linear + math.sqrt(linear**2 + 8 * 0.02 * bound * (1 - bound))) / 4
    assert bound - 1 / 1000 == pytest.approx(1.644854 * math.sqrt((2 * q + bound - bound**2) / 500), abs=1e-8)
    assert paired_bound(7, 0, 7) == 100
    assert paired_bound(0, 30, 100) < 0, "a gain can be shown too"
    with pytest.raises(InvalidInput, match="do not fit into 3 images"):
        paired_bound(2, 2, 3)


@pytest.mark.parametrize(("images", "most"), [(10, 10), (40, 40), (400, 50)])
def test_the_true_drop_exceeds_the_paired_bound_in_at_most_five_percent_of_samples(images: int, most: int) -> None:
    """All samples with up to ``most`` lost and gained images, weighted by their probability."""
    counts = [(b, c) for b in range(most + 1) for c in range(most + 1 - b)]
    bounds = np.array([paired_bound(b, c, images) for b, c in counts])
    log_ways = np.array([math.lgamma(images + 1) - _log_factorials(b, c, images - b - c) for b, c in counts])
    lost, gained = np.array(counts).T
    worst = 0.0
    for drop in (0.001, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2):
        for share in (1e-9, 0.001, 0.005, 0.01, 0.02, 0.04, 0.1, 0.2):
            if images * (drop + 2 * share) > 0.6 * most and most < images:
                continue  # too many samples would be left out
            logs = log_ways + lost * log(drop + share) + gained * log(share)
            chances = np.exp(logs + (images - lost - gained) * log(1 - drop - 2 * share))
            assert chances.sum() == pytest.approx(1, abs=1e-3)
            worst = max(worst, float(chances[bounds < 100 * drop].sum()))
    assert 0.03 < worst <= 0.05, "honest, but not wasteful"


def _log_factorials(*counts: int) -> float:
    return sum(math.lgamma(count + 1) for count in counts)


def test_images_needed_are_the_fewest_for_which_the_bound_holds() -> None:
    fewest = images_needed(0, 0, 1.0)
    assert fewest is not None
    assert paired_bound(0, 0, fewest) <= 1 < paired_bound(0, 0, fewest - 1)
    several = images_needed(0.02, 0.01, 3.0)
    assert several is not None
    several -= several % 100  # whole images
    assert paired_bound(several // 50, several // 100, several) > 3
    assert paired_bound((several + 100) // 50, (several + 100) // 100, several + 100) <= 3
    assert images_needed(0.02, 0.01, 1.0) is None
    assert images_needed(0, 0, 0) is None
    assert images_needed(1, 0, 100) == 1, "everything may be lost"


@pytest.mark.parametrize(("freedom", "quantile"), [(5, 2.01505), (7, 1.89458), (10, 1.81246), (30, 1.69726)])
def test_the_quantile_of_t_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)
    assert t_quantile(10**6) == pytest.approx(1.644854, abs=1e-5)


def test_the_bound_of_a_mean_by_hand() -> None:
    # Mean 3, variance (4 + 1 + 0 + 1 + 4 + 0) / 5 = 2: 3 + 2.01505 sqrt(2 / 6).
    assert mean_bound(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 3.0])) == pytest.approx(4.16339, abs=1e-4)
    assert mean_bound(torch.full((9,), 0.25)) == 0.25
    with pytest.raises(InvalidInput, match="at least two images"):
        mean_bound(torch.ones(1))


def test_the_true_mean_exceeds_its_bound_in_about_five_percent_of_samples() -> None:
    """Shares of changed patches: most images lose a few percent, some lose much."""
    losses = torch.from_numpy(np.random.default_rng(0).beta(1, 12, size=(2000, 200)))
    too_low = sum(mean_bound(sample) < 1 / 13 for sample in losses)
    assert 0.03 < too_low / 2000 < 0.075


def test_images_needed_for_a_mean_are_the_fewest_for_which_the_bound_holds() -> None:
    def bound(images: int) -> float:
        return 3.0 + t_quantile(images - 1) * 2.0 / math.sqrt(images)

    for allowed in (3.1, 3.5, 4.0):
        fewest = images_needed_for_mean(3.0, 2.0, allowed)
        assert fewest is not None
        assert bound(fewest) <= allowed < bound(fewest - 1)
    assert images_needed_for_mean(3.0, 0.0, 4.0) == 2
    assert images_needed_for_mean(4.0, 0.0, 4.0) is None


def outcomes(gained: int, lost: int, right: int, wrong: int) -> tuple[Tensor, Tensor]:
    """Two rows of which the first alone, the second alone, both or none are right."""
    first = [True] * gained + [False] * lost + [True] * right + [False] * wrong
    second = [False] * gained + [True] * lost + [True] * right + [False] * wrong
    return torch.tensor(first), torch.tensor(second)


@pytest.mark.parametrize("images", [3, 6, 10])
def test_the_paired_mean_test_rejects_a_true_null_as_seldom_as_it_says(images: int) -> None:
    """With the normal quantile these rates were 18.7, 10.5 and 7.7 %."""
    drawn = torch.randn(2000, images, generator=torch.Generator().manual_seed(images))
    zero = torch.zeros(images)
    rejected = sum(paired_mean_test(sample, zero) < 0.05 for sample in drawn)
    assert 0.035 <= rejected / 2000 <= 0.065
    for sample in drawn[:50]:
        low, high = mean_interval(sample)
        assert (low <= 0 <= high) == (paired_mean_test(sample, zero) >= 0.05), "the interval and the test decide alike"


@pytest.mark.parametrize(
    ("freedom", "t", "p"),
    [(1, 12.7062, 0.05), (2, 4.30265, 0.05), (9, 3.249836, 0.01), (2499, 1.96093, 0.05), (10**6, 1.959966, 0.05)],
)
def test_the_tail_of_students_t_is_that_of_the_tables(freedom: int, t: float, p: float) -> None:
    assert t_tail(t, freedom) == pytest.approx(p, rel=1e-4)


@given(st.floats(0, 1e6), st.integers(1, 10**5))
def test_the_tail_of_students_t_has_its_closed_forms_and_falls(t: float, freedom: int) -> None:
    assert t_tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert t_tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
    assert 0 <= t_tail(t + 0.1, freedom) <= t_tail(t, freedom) <= 1


def test_a_far_tail_is_exact() -> None:
    """1 - t / sqrt(2 + t^2) is 1 / t^2 for a large t."""
    assert t_tail(1e8, 2) == pytest.approx(1e-16, rel=1e-9)
    assert t_tail(0.0, 5) == 1


def test_bootstrap_by_hand() -> None:
    # Every resample is the sample: d* = d, which is never |d| away from itself unless d is 0.
    assert paired_bootstrap(*outcomes(3, 0, 0, 0), 99) == Bootstrap(100.0, (100.0, 100.0), 0.01)
    assert paired_bootstrap(*outcomes(0, 3, 0, 0), 99) == Bootstrap(-100.0, (-100.0, -100.0), 0.01)
    assert paired_bootstrap(*outcomes(0, 0, 2, 1), 99) == Bootstrap(0.0, (0.0, 0.0), 1.0)
    # One gained of two: d* is 0, 50, 100 with chance 1/4, 1/2, 1/4, and the outer two are 50 away.
    result = paired_bootstrap(*outcomes(1, 0, 1, 0))
    assert (result.delta, result.interval) == (50.0, (0.0, 100.0))
    assert result.p_value == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("counts", [(9, 3, 20, 8), (4, 5, 1, 0), (0, 6, 30, 4), (2, 2, 3, 3)])
def test_bootstrap_equals_resampling_the_images(counts: tuple[int, int, int, int]) -> None:
    first, second = outcomes(*counts)
    images = len(first)
    draws = torch.randint(images, (20_000, images), generator=torch.Generator().manual_seed(1))
    resampled = first[draws].sum(1) - second[draws].sum(1)
    net = counts[0] - counts[1]
    result = paired_bootstrap(first, second, 20_000)
    assert result.delta == pytest.approx(100 * net / images)
    expected = resampled.double().quantile(torch.tensor([0.025, 0.975]).double()) * 100 / images
    assert result.interval == pytest.approx(expected.tolist(), abs=1.01 * 100 / images)
    share = ((resampled - net).abs() >= abs(net)).double().mean().item()
    assert result.p_value == pytest.approx(share, abs=0.015)  # 3 sigma of the two estimates


def test_bootstrap_of_many_images_agrees_with_the_formulas() -> None:
    result = paired_bootstrap(*outcomes(310, 250, 3000, 1440))
    assert result.interval == pytest.approx(paired_interval(310, 250, 5000), abs=0.05)
    assert result.p_value == pytest.approx(mcnemar(310, 250), rel=0.25)


def test_bootstrap_knows_only_the_seed_and_the_paired_counts() -> None:
    first, second = outcomes(9, 3, 20, 8)
    result = paired_bootstrap(first, second, seed=5)
    order = torch.randperm(len(first))
    assert paired_bootstrap(first[order], second[order], seed=5) == result
    assert paired_bootstrap(*outcomes(9, 3, 0, 28), seed=5) == result
    assert paired_bootstrap(first, second, seed=6) != result
    swapped = paired_bootstrap(second, first, seed=5)
    assert swapped.delta == -result.delta
    assert swapped.p_value == pytest.approx(result.p_value, abs=0.02)


def test_holm_by_hand() -> None:
    assert holm([]) == []
    assert holm([0.04]) == [0.04]
    # 4 x .005, 3 x .01, 2 x .03, then 1 x .04 is raised to the .06 before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


#: Multiples of a power of two: their small multiples are exact, so both sides compare the same.
DYADIC = st.integers(0, 256).map(lambda count: count / 256)


@given(st.lists(DYADIC, max_size=7), DYADIC.filter(lambda alpha: alpha < 1))
def test_holm_rejects_what_the_step_down_procedure_rejects(values: list[float], a: float) -> None:
    rejected = set()
    left = sorted(range(len(values)), key=lambda test: values[test])
    while left and values[left[0]] * len(left) <= a:
        rejected.add(left.pop(0))
    adjusted = holm(values)
    assert {test for test, value in enumerate(adjusted) if value <= a} == rejected
    assert all(before <= after <= 1 for before, after in zip(values, adjusted, strict=True))
    assert holm(values[::-1]) == adjusted[::-1]


def naive_spearman(first: list[float], second: list[float]) -> float:
    def ranks(values: list[float]) -> list[float]:
        """The average of the places that a value takes among the sorted ones."""
        places = sorted(values)
        return [
            sum(place for place, other in enumerate(places, 1) if other == value) / places.count(value)
            for value in values
        ]

    r, s = ranks(first), ranks(second)
    mean = (len(first) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(r, s, strict=True))
    spread = sum((x - mean) ** 2 for x in r) * sum((y - mean) ** 2 for y in s)
    return covariance / math.sqrt(spread) if spread else 0.0


def maps(seed: int, levels: int, images: int = 12, patches: int = 20) -> tuple[Tensor, Tensor]:
    """Related score maps with many ties; one of an image is constant."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(levels, (images, patches), generator=generator)
    second = first + torch.randint(levels, (images, patches), generator=generator)
    second[-1] = 3
    return first / 8, second / 8


def test_spearman_by_hand() -> None:
    first = torch.tensor([[1.0, 2, 3, 4], [0, 0, 1, 1], [5, 5, 5, 5], [1, 2, 3, 4]])
    second = torch.tensor([[1.0, 3, 2, 4], [0, 1, 2, 3], [1, 2, 3, 4], [4, 3, 2, 1]])
    # 1 - 6 x 2 / (4 x 15); ranks 1.5 1.5 3.5 3.5 of 1 2 3 4: 4 / sqrt(4 x 5); constant; reversed
    assert spearman(first, second).tolist() == pytest.approx([0.8, 2 / math.sqrt(5), 0, -1])


@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_spearman_equals_naive_average_ranks(levels: int) -> None:
    first, second = maps(0, levels)
    expected = [naive_spearman(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    assert expected[-1] == 0
    assert spearman(first, second).tolist() == pytest.approx(expected, abs=1e-6)


def test_spearman_sees_only_the_order() -> None:
    first, second = maps(1, 5)
    result = spearman(first, second)
    order = torch.randperm(first.shape[1])
    assert torch.equal(spearman(first[:, order], second[:, order]), result)
    assert torch.equal(spearman(second, first), result)
    assert torch.equal(spearman(first**3 + 2, second.bfloat16()), result)
    assert torch.equal(spearman(-first, second), -result)
    assert torch.equal(spearman(first, first), torch.ones(len(first)))
    columns = first.T.contiguous().T  # the same numbers, laid out column by column
    assert torch.equal(spearman(columns, second), result)


def test_keep_overlap_by_hand() -> None:
    first = torch.tensor([[3.0, 1, 2, 0], [0, 0, 0, 0], [1, 2, 0, 0]])
    second = torch.tensor([[0.0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 1, 2]])
    # {0, 2} and {3, 2}; a tie keeps {0, 1}, against {1, 3}; nothing in common
    assert keep_overlap(first, second, 2).tolist() == [0.5, 0.5, 0.0]
    assert keep_overlap(first, second, 4).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("keep", [1, 7, 12, 16])
def test_keep_overlap_counts_what_the_operator_keeps(keep: int) -> None:
    first, second = maps(2, 3, patches=16)
    patches = torch.randn(len(first), 16, 4)
    budget = Budget(keep=keep / 16, merge=0)
    kept = [reduce(patches, scores, budget).positions[:, :keep].tolist() for scores in (first, second)]
    expected = [len(set(a) & set(b)) / keep for a, b in zip(*kept, strict=True)]
    assert keep_overlap(first, second, keep).tolist() == pytest.approx(expected)
    assert torch.equal(keep_overlap(second**3, first, keep), keep_overlap(first, second, keep))


def test_agreement_by_hand_whatever_the_classes_are_called() -> None:
    first, second = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 2, 1])
    assert agreement(first, second) == 50.0
    names = torch.tensor([7, 3, 5])
    assert agreement(names[second], names[first]) == 50.0


def test_divergence_by_hand() -> None:
    dense = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    # 1/2 ln 2 + 1/2 ln 2/3, and the other way round 1/4 ln 1/2 + 3/4 ln 3/2
    expected = [0.5 * math.log(4 / 3), 0.75 * math.log(3) - math.log(2)]
    assert divergence(dense, dense.flip(0)).tolist() == pytest.approx(expected)
    assert divergence(dense, dense).tolist() == [0, 0]


def naive_divergence(dense: list[float], reduced: list[float]) -> float:
    p, q = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in (dense, reduced))
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_divergence_equals_a_naive_loop_and_ignores_a_shift_of_the_logits() -> None:
    dense, reduced = 4 * torch.randn(2, 6, 11)
    result = divergence(dense, reduced)
    pairs = zip(dense.tolist(), reduced.tolist(), strict=True)
    assert result.tolist() == pytest.approx([naive_divergence(p, q) for p, q in pairs], rel=1e-4)
    torch.testing.assert_close(divergence(dense + 50, reduced - 20), result, rtol=1e-4, atol=1e-5)
    classes = torch.randperm(11)
    torch.testing.assert_close(divergence(dense[:, classes], reduced[:, classes]), result)


def test_divergence_of_almost_equal_logits_is_not_negative_and_coarse_logits_are_fp32() -> None:
    dense = 5 * torch.randn(200, 1000)
    assert divergence(dense, dense + 1e-5 * torch.randn_like(dense)).min() >= 0
    coarse = dense.bfloat16(), dense.flip(0).bfloat16()
    assert torch.equal(divergence(*coarse), divergence(coarse[0].float(), coarse[1].float()))


RIGHT, SCORES = torch.ones(4, dtype=torch.bool), torch.arange(8.0).view(2, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_bootstrap(RIGHT, RIGHT[:3]), "same shape"),
        (lambda: paired_bootstrap(RIGHT, RIGHT.int()), "must be boolean"),
        (lambda: paired_bootstrap(RIGHT[:0], RIGHT[:0]), "empty"),
        (lambda: paired_bootstrap(RIGHT, RIGHT, resamples=0), "at least 1"),
        (lambda: holm([0.5, float("nan")]), "between 0 and 1"),
        (lambda: holm([1.5]), "between 0 and 1"),
        (lambda: spearman(SCORES[0], SCORES[0]), "images patches"),
        (lambda: spearman(SCORES, SCORES / 0), "finite"),
        (lambda: spearman(SCORES.long(), SCORES), "floating point"),
        (lambda: keep_overlap(SCORES, SCORES[:1], 2), "same shape"),
        (lambda: keep_overlap(SCORES, SCORES, 0), "1 to 4"),
        (lambda: keep_overlap(SCORES, SCORES, 5), "1 to 4"),
        (lambda: agreement(torch.zeros(4, 5).long(), torch.zeros(4, 5).long()), "images"),
        (lambda: agreement(torch.zeros(4).long(), torch.zeros(1).long()), "same shape"),
        (lambda: divergence(SCORES, SCORES[:1]), "same shape"),
        (lambda: divergence(SCORES, SCORES / 0), "finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_zipf_by_hand() -> None:
    """12 / rank is Zipf's law itself; words that do not occur have no rank."""
    fit = zipf_fit(torch.tensor([4, 0, 12, 3, 6, 0]))
    assert fit.words == 4
    assert [fit.slope, fit.r2] == pytest.approx([-1, 1])
    # Counts of 4, 4 and 1: the slope of log count on log 1, log 2, log 3, and the share that it explains.
    x, y = [0, log(2), log(3)], [log(4), log(4), 0]
    centred = [(a - sum(x) / 3, b - sum(y) / 3) for a, b in zip(x, y, strict=True)]
    slope = sum(a * b for a, b in centred) / sum(a * a for a, _ in centred)
    left = sum((b - slope * a) ** 2 for a, b in centred) / sum(b * b for _, b in centred)
    fit = zipf_fit(torch.tensor([4, 1, 4]))
    assert [fit.slope, fit.r2] == pytest.approx([slope, 1 - left])


def test_zipf_does_not_depend_on_the_order_of_the_words_or_the_number_of_patches() -> None:
    counts = torch.randint(0, 1000, (512,))
    fit = zipf_fit(counts)
    for other in (counts.flip(0), counts * 7):
        assert zipf_fit(other).slope == pytest.approx(fit.slope)
        assert zipf_fit(other).r2 == pytest.approx(fit.r2)


@pytest.mark.parametrize("counts", [[], [0, 0], [5, 0], [3, 3, 3]])
def test_zipf_without_anything_to_fit_is_flat(counts: list[int]) -> None:
    fit = zipf_fit(torch.tensor(counts, dtype=torch.int64))
    assert (fit.slope, fit.r2, fit.words) == (0, 0, sum(count > 0 for count in counts))
