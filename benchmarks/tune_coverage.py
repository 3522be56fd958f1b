"""How often `redi tune` recommends a setting that truly loses more than allowed.

    python benchmarks/tune_coverage.py

Each tuning draws images whose decisions flip at ten costs and lets the rule of `redi tune` choose among them. The true
drops are known here. An image that is lost or gained at one cost is so at all lower ones.
"""

from dataclasses import replace

import numpy as np

from redi.deploy.tune import choose
from redi.records.timing import Spread
from redi.records.tuning import COSTS, MAX_DROP, Point
from redi.statistics import paired_bound

TRUE_DROPS = (1.02, 1.25, 2.0)  # points at the lowest cost
IMAGES = (400, 1000, 4000)
TUNINGS = 1000
FASTER = Spread(1.1, 1.2, 1.3)
#: The share of images that are gained at the lowest and at the highest cost.
GAINED = (0.02, 0.001)


def true_drops(lowest: float, gradual: bool) -> list[float]:
    """The true drop at each cost: rising towards the lowest cost, or the same everywhere."""
    steps = np.linspace(1, 0, len(COSTS)) if gradual else np.ones(len(COSTS))
    return [float(step) * lowest for step in steps]


def draw(drops: list[float], images: int, random: np.random.Generator) -> list[Point]:
    """The points that one tuning measures."""
    points, place = [], random.random(images)
    for cost, drop, gained in zip(COSTS, drops, np.linspace(*GAINED, len(COSTS)), strict=True):
        lost, won = int((place < gained + drop / 100).sum()), int((place > 1 - gained).sum())
        measured = 100 * (lost - won) / images
        points.append(Point(cost, (), FASTER, None, 100.0, 0.0, measured, paired_bound(lost, won, images), None))
    return points


def shares(true_drop: float, images: int, tunings: int, gradual: bool = False) -> tuple[float, float, float]:
    """The share of tunings that recommend too much by the bound or by the measured drop, or anything by the bound."""
    random, drops = np.random.default_rng(0), true_drops(true_drop, gradual)
    counts = np.zeros(3)
    for _ in range(tunings):
        points = draw(drops, images, random)
        wrong, recommended = judge(points, drops)
        naive, _ = judge([replace(point, drop_bound=point.drop) for point in points], drops)
        counts += wrong, naive, recommended
    wrong_share, naive_share, recommended_share = (counts / tunings).tolist()
    return wrong_share, naive_share, recommended_share


def judge(points: list[Point], drops: list[float]) -> tuple[bool, bool]:
    """Whether a setting is recommended that truly loses too much, and whether any is."""
    chosen, bound = choose(points, MAX_DROP)
    assert chosen is not None
    recommended = bound <= MAX_DROP
    return recommended and drops[chosen] > MAX_DROP, recommended


def main() -> None:
    print(f"tolerance {MAX_DROP:g} points, {TUNINGS} tunings per line, {len(COSTS)} costs")
    print("| true drop | images | too much, by the bound | too much, by the measured drop | any, by the bound |")
    print("|---|---|---|---|---|")
    for gradual in (False, True):
        for true_drop in TRUE_DROPS:
            for images in IMAGES:
                cells = " | ".join(f"{100 * share:.1f} %" for share in shares(true_drop, images, TUNINGS, gradual))
                title = f"rising to {true_drop:g}" if gradual else f"{true_drop:g} at every cost"
                print(f"| {title} | {images} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
