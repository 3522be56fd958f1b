"""The difference of two rows in one measure, on the same images."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paired:
    """A row minus another one, in percent points.

    A share of images has a paired bootstrap and an exact McNemar test, a mean over images an interval and a paired
    test by Student's t. The p-value is corrected by Holm's method over the rows that are compared with the same one.
    """

    delta: float
    interval: tuple[float, float]  # 95 %
    p_value: float
