"""Differences, intervals, p-values and speeds as texts."""

from redi.records.timing import Spread, Timing


def signed(value: float) -> str:
    """With a sign; a difference that rounds to zero is +0, never -0."""
    return f"{round(value, 1) + 0.0:+.1f}"


def interval(value: tuple[float, float]) -> str:
    return f"{signed(value[0])} {signed(value[1])}"


def p_text(value: float) -> str:
    """One digit. Below 1e-99 the distribution that a test assumes means nothing, and p may underflow to 0."""
    if value < 1e-99:
        return "<1e-99"
    return f"{value:.1g}"


def speed_of(timing: Timing | None) -> Spread | None:
    """The speed-up of a row with its quartiles; None if it was not measured."""
    if timing is None or timing.speedup is None or timing.speedup_low is None or timing.speedup_high is None:
        return None
    return Spread(timing.speedup_low, timing.speedup, timing.speedup_high)


def against_dense(speedup: Spread) -> str:
    """A speed-up as a sentence says it, with its quartiles: faster only if they exclude 1."""
    low, median, high = speedup
    quartiles = f"{low:.2f} to {high:.2f}"
    if low > 1:
        return f"{median:.2f} times as fast as dense ({quartiles})"
    if high < 1:
        return f"slower than dense ({median:.2f} times as fast, {quartiles})"
    return f"about as fast as dense ({median:.2f} times, {quartiles})"
