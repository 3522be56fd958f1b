"""Which blocks remove how much, found on unlabelled images.

Every backbone has its own places where tokens may go. The search moves the shares of a schedule, at one
cost, against the divergence from the dense output; other images say whether it was worth it.
"""

from dataclasses import dataclass

from redi.deploy.model import Accelerated
from redi.deploy.readout import Logits, Pixels, Readout
from redi.deploy.setting import Setting
from redi.errors import ConfigError
from redi.progress import say
from redi.reduction.schedule import early_shares
from redi.statistics import divergence

#: Where the schedule is calibrated: low enough that it matters which blocks remove.
CALIBRATION_COST = 0.55
#: What a block's share is multiplied with in each sweep over the blocks; later sweeps refine.
SWEEPS = ((2.0, 0.5), (1.4, 0.7))
#: A block that removes nothing starts from this share, and a smaller one is none.
LEAST = 0.01

Shares = tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """What was found, and how far from dense it stays: mean KL divergence, nats."""

    shares: Shares  # to be used: the calibrated ones if they are better on other images too
    cost: float
    trials: int
    seen: tuple[float, float]  # on the images of the search: calibrated, default schedule
    unseen: tuple[float, float]  # on others: calibrated, default schedule

    @property
    def kept(self) -> bool:
        return self.unseen[0] < self.unseen[1]


def calibrate(
    dense: Accelerated,
    readout: Readout,
    images: Pixels,
    others: Pixels,
    cost: float = CALIBRATION_COST,
) -> Calibration:
    """Coordinate descent: a block at a time gets more or less of the removal.

    What is minimised is the mean over images of the root of the divergence, which few images with a
    large one do not rule. No label is looked at.
    """
    wanted = readout.logits(dense, images)
    default = early_shares(dense.backbone.depth)
    say(f"  calibrating the schedule on {len(wanted)} images, cost {cost:g}")
    shares, trials = _descend(dense, readout, images, wanted, cost)
    others_wanted = readout.logits(dense, others)

    def mean(tried: Shares, pixels: Pixels, target: Logits) -> float:
        found = readout.logits(_with(dense, tried, cost), pixels)
        return divergence(target, found).mean().item()

    seen = mean(shares, images, wanted), mean(default, images, wanted)
    unseen = mean(shares, others, others_wanted), mean(default, others, others_wanted)
    found = Calibration(shares, cost, trials, seen, unseen)
    return found if found.kept else Calibration(default, cost, trials, seen, unseen)


def _descend(
    dense: Accelerated, readout: Readout, images: Pixels, wanted: Logits, cost: float
) -> tuple[Shares, int]:
    known: dict[tuple[int, ...], float] = {}

    def loss(shares: Shares) -> float:
        """Infinite where the shares cannot reach the cost."""
        try:
            model = _with(dense, shares, cost)
        except ConfigError:
            return float("inf")
        schedule = model.schedule(model.grid)
        if schedule not in known:
            found = readout.logits(model, images)
            known[schedule] = divergence(wanted, found).sqrt().mean().item()
        return known[schedule]

    best = early_shares(dense.backbone.depth)
    lowest = loss(best)
    for number, factors in enumerate(SWEEPS):
        for block in range(dense.backbone.depth - dense.prefix_only):
            for factor in factors:
                moved = _moved(best, block, factor)
                if (strayed := loss(moved)) < lowest:
                    best, lowest = moved, strayed
                    break
        say(f"  sweep {number + 1}: {len(known)} trials, {lowest:.4f}")
    return best, len(known)


def _moved(shares: Shares, block: int, factor: float) -> Shares:
    changed = list(shares)
    changed[block] = max(changed[block], LEAST) * factor
    if changed[block] < LEAST:
        changed[block] = 0.0
    total = sum(changed)
    return tuple(share / total for share in changed)


def _with(dense: Accelerated, shares: Shares, cost: float) -> Accelerated:
    return Accelerated(dense.backbone, Setting(cost, shares))
