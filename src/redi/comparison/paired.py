"""Paired differences of many rows to one of them, with Holm's correction."""

from collections.abc import Mapping

from torch import Tensor

from redi.records.paired import Paired
from redi.statistics import holm, mcnemar_test, mean_interval, paired_bootstrap, paired_mean_test


def paired_to(values: Mapping[str, Tensor], reference: str) -> dict[str, Paired]:
    """Every row but ``reference`` minus that row. A row has one value per image: a yes or no, or a number."""
    others = [name for name in values if name != reference]
    base = values[reference]
    test = paired_mean_test if base.is_floating_point() else mcnemar_test
    p_values = holm([test(values[name], base) for name in others])
    return {name: _paired(values[name], base, p) for name, p in zip(others, p_values, strict=True)}


def _paired(first: Tensor, second: Tensor, p_value: float) -> Paired:
    if not first.is_floating_point():
        drawn = paired_bootstrap(first, second)
        return Paired(drawn.delta, drawn.interval, p_value)
    difference = 100 * (first.double() - second.double())
    return Paired(difference.mean().item(), mean_interval(difference), p_value)
