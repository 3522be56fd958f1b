"""How far every progressive reducer is from dense, at one cost and on a few images.

python experiments/peers.py --backbone CHECKPOINT --images FOLDER --cost 0.55
"""

import common
from redi.errors import ConfigError
from redi.reduction import PROGRESSIVE


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--cost", type=float, default=0.65)
    asked = parser.parse_args()
    ground = common.development(asked.backbone, asked.images, asked.limit, asked.classes)
    rows = []
    for name, reducer in PROGRESSIVE.items():
        if reducer.slow:
            continue
        try:
            rows.append(ground.row(name, reducer, asked.cost))
        except ConfigError as error:
            print(f"{name} has no row: {error}")
    print(common.show(rows))


if __name__ == "__main__":
    main()
