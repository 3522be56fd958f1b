"""Whose attention should be relevance where there is no CLS token?

    python experiments/relevance.py --backbone CHECKPOINT --images FOLDER [--costs 0.55 0.65] [--task dense]

On a backbone that has a CLS token, the rows are: CLS attention, the attention of the mean query of all tokens, the mean
attention that a token receives, and equal relevance for all tokens. All have the same shape of the schedule and the
same cost, which counts the rows of attention that a relevance needs.
"""

from dataclasses import replace
from functools import cached_property

import torch

from common import arguments, development, show
from redi.deploy import Setting
from redi.reduction import Inside, Progressive, Reduction
from redi.reduction.relevance import RELEVANCES


class Equal(Setting):
    """Every token is equally relevant."""

    @cached_property
    def reducer(self) -> Progressive:
        usual = super().reducer

        def step(inside: Inside, count: int) -> Reduction:
            return usual.step(replace(inside, scores=torch.ones_like(inside.sizes)), count)

        return replace(usual, step=step)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.55, 0.65, 0.75])
    parser.add_argument("--task", choices=("classify", "dense"), default="classify")
    parser.add_argument("--whole-classes", action="store_true", help="all images of fewer classes; without a head")
    options = parser.parse_args()
    ground = development(options.backbone, options.images, options.limit, options.classes, options.whole_classes)
    print(f"Dense: {ground.row('dense', Setting(1.0)).top1} % Top-1")
    for cost in options.costs:
        rows = [ground.row(name, Setting(cost, relevance=name, task=options.task)) for name in RELEVANCES]
        rows.append(ground.row("equal", Equal(cost, task=options.task)))
        print(f"\nCost {cost:g}, {len(ground.pixels)} images\n\n{show(rows)}", flush=True)


if __name__ == "__main__":
    main()
