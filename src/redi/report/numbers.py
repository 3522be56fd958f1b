"""Differences, intervals and p-values as texts of a table."""


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
