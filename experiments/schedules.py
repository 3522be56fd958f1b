"""How the removed tokens should be spread over the blocks, by the cost.

    python experiments/schedules.py --backbone CHECKPOINT --images FOLDER [--costs 0.55 0.65] [--shapes first=3]

A shape is the default of the depth with some of first, last, start and hold changed; "default" changes nothing. The
last row has DiffRate's published rates for DeiT-T with our step. All rows have the same step and the last-block
shortcut.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

from common import arguments, development, show
from redi.deploy import Setting
from redi.errors import RediError
from redi.reduction import Progressive, Schedule
from redi.reduction.diffrate import DiffRate
from redi.reduction.protected import OURS
from redi.reduction.schedule import Shape, early_shape

#: The second is close to the former default, whose power did not depend on the cost (blocks 3 to 11, power 1.2).
SHAPES = ["default", "start=0,hold=0.2", "start=0", "hold=0.5", "first=3"]


def rates(patches: int, depth: int, strength: float) -> Schedule:
    """DiffRate's for DeiT-T; our step can at most halve the tokens, theirs leaves two after the last block."""
    counts = [patches]
    for count in DiffRate("DeiT-T").schedule(patches, depth, strength):
        counts.append(max(count, -(-counts[-1] // 2)))
    return tuple(counts[1:])


class DiffRates(Setting):
    """Our step on DiffRate's rates."""

    @cached_property
    def reducer(self) -> Progressive:
        return replace(OURS["protected"], schedule=rates)


def parse(text: str, depth: int) -> Shape:
    """Such as ``first=3,hold=0.5``."""
    given: dict[str, Any] = {}
    for name, value in (part.split("=") for part in text.split(",") if part != "default"):
        given[name] = int(value) if name in ("first", "last") else float(value)
    return replace(early_shape(depth), **given)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.45, 0.55, 0.65, 0.75])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    options = parser.parse_args()
    ground = development(options.backbone, options.images, options.limit, options.classes)
    for cost in options.costs:
        rows = []
        for name in [*options.shapes, "DiffRate's rates"]:
            try:
                shape = None if "rates" in name else parse(name, ground.backbone.depth)
                rows.append(ground.row(name, Setting(cost, shape) if shape else DiffRates(cost)))
            except RediError as error:
                print(f"{name} has no row at {cost:g}: {error}")
        print(f"\nCost {cost:g}, {len(ground.pixels)} images\n\n{show(rows)}", flush=True)


if __name__ == "__main__":
    main()
