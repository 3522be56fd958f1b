"""Figure 2 in numbers: how often words are assigned, and what share of the score falls on them."""

from dataclasses import dataclass
from pathlib import Path

from redi import artifacts


@dataclass(frozen=True)
class Figure2:
    blocks: list[tuple[int, list[int]]]  # of each block the patches a word was assigned, most first
    frequency: list[float]  # percent of the validation patches: words of the last block, most first
    mass: list[float]  # percent of the REDI score on the same words


def figure2_shares(folder: Path) -> Figure2:
    stored, _ = artifacts.load_named(folder, "analysis/figure2")
    blocks = {
        int(name.removeprefix("frequency/block")): counts.sort(descending=True).values
        for name, counts in stored.items()
        if name.startswith("frequency/")
    }
    frequency, mass = stored["validation/frequency"].double(), stored["validation/score_mass"]
    order = frequency.argsort(descending=True, stable=True)
    return Figure2(
        [(block, counts[counts > 0].tolist()) for block, counts in sorted(blocks.items())],
        (100 * frequency[order] / frequency.sum().clamp(min=1)).tolist(),
        (100 * mass[order] / mass.sum().clamp(min=1e-12)).tolist(),
    )
