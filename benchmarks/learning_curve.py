"""From how many images on does learning pay?

    python benchmarks/learning_curve.py 250=odd-250.safetensors 1000=odd-1000.safetensors --figure learning-curve.png

It reads files of `benchmarks/equal_cost.py --learned FILE --classes odd`, each of reducers that were learned from the
given number of images, and puts them together as a table and a picture. Other rows of the files, which do not learn,
are drawn as lines.
"""

import argparse
from pathlib import Path

from equal_cost_report import DENSE, Records, costs_of, merge, row_title
from redi.report.saving import new_figure, save_figure


def read(text: str) -> tuple[int, Records]:
    count, _, file = text.partition("=")
    return int(count), merge([Path(file)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="+", type=read, help="IMAGES=FILE")
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    kl: dict[tuple[float, str], dict[int, float]] = {}
    for count, records in sorted(asked.files, key=lambda entry: entry[0]):
        for row, record in records.items():
            if row != DENSE:
                kl.setdefault(row, {})[count] = record["divergence"].double().mean().item()
    counts = sorted({count for values in kl.values() for count in values})
    print(f"| row | cost | {' | '.join(f'{count:,}' for count in counts)} |")
    print(f"|{'---|' * (2 + len(counts))}")
    for (cost, name), values in kl.items():
        cells = [f"{values[count]:.4f}" if count in values else "-" for count in counts]
        print(f"| {row_title(name)} | {cost:g} | {' | '.join(cells)} |")
    if asked.figure:
        costs = sorted({cost for _, records in asked.files for cost in costs_of(records)})
        figure = new_figure(figsize=(5 * len(costs), 3.6), layout="constrained")
        for axes, cost in zip(figure.subplots(1, len(costs), squeeze=False)[0], costs, strict=True):
            for number, (at, name) in enumerate(kl):
                values = kl[at, name]
                if at == cost and len(set(values.values())) > 1:
                    axes.plot(
                        list(values), list(values.values()), marker="o", color=f"C{number}", label=row_title(name)
                    )
                elif at == cost:
                    level = next(iter(values.values()))
                    axes.axhline(level, color=f"C{number}", linestyle="--", linewidth=1, label=row_title(name))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(counts, [f"{count:,}" for count in counts])
            axes.minorticks_off()
            axes.set_xlabel("images to learn from, without labels")
            axes.set_ylabel("KL from dense, nats")
            axes.set_title(f"cost {cost:g}", fontsize=10)
            axes.legend(frameon=False, fontsize=8)
        save_figure(figure, asked.figure, dpi=150)


if __name__ == "__main__":
    main()
