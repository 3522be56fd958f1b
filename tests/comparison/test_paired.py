"""Paired differences to one row: by hand, with Holm's correction, and without a test for the row itself."""

import pytest
import torch

from redi.comparison.paired import paired_to
from redi.statistics import holm, mcnemar, paired_mean_test


def test_shares_of_images_have_mcnemar_tests() -> None:
    base = torch.tensor([True] * 5 + [False] * 15)
    better, worse = base.clone(), base.clone()
    better[5:13] = True
    worse[:2] = False
    paired = paired_to({"better": better, "base": base, "worse": worse}, "base")
    assert set(paired) == {"better", "worse"}
    assert paired["better"].delta == pytest.approx(40)
    assert paired["worse"].delta == pytest.approx(-10)
    p_values = [paired[name].p_value for name in ("better", "worse")]
    assert p_values == pytest.approx(holm([mcnemar(8, 0), mcnemar(0, 2)]))


def test_means_over_images_have_t_tests_and_are_in_percent_points() -> None:
    base = torch.tensor([0.1, 0.2, 0.3, 0.4])
    paired = paired_to({"base": base, "other": base + torch.tensor([0.1, 0.3, 0.1, 0.3])}, "base")
    assert paired["other"].delta == pytest.approx(20, abs=1e-4)
    # sd = 0.11547 and t = 3.18245 at three degrees of freedom, so the interval is 20 +- 3.18245 * 11.547 / 2.
    assert paired["other"].interval == pytest.approx((20 - 18.374, 20 + 18.374), abs=1e-2)
    assert paired["other"].p_value == paired_mean_test(base + torch.tensor([0.1, 0.3, 0.1, 0.3]), base)


def test_a_row_that_equals_the_reference_differs_by_nothing() -> None:
    values = torch.rand(9)
    (paired,) = paired_to({"a": values, "b": values.clone()}, "a").values()
    assert (paired.delta, paired.interval, paired.p_value) == (0, (0, 0), 1)
