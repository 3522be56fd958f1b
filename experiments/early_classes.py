"""Where do early approximations come closest to `redi.accelerate`: in which classes, and if their class is right?

    python experiments/early_classes.py runs/demo

It reads what `redi compare RUN --study early` has stored, and runs no model. Every row with the corpus term and the
posterior is compared with `redi.accelerate` at the same total cost: on all images, on those whose class the probe of
the early place gets right, on the others, and by class.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from redi.probe import LinearProbe
from redi.records import artifacts
from redi.records.comparison import Comparison, read_bundle
from redi.records.results import Row
from redi.statistics import mcnemar_test

#: Images of a class, at least, for a statement about it.
ENOUGH = 10


def load(run: Path, name: str) -> dict[str, Tensor]:
    tensors, _ = artifacts.load(run / f"{name}.safetensors")
    return tensors


def right(run: Path, row: Row) -> Tensor:
    """Which images a row gets right."""
    stored = load(run, f"predictions/{row.classifier}/{row.name}")
    return stored["top5"][:, 0] == stored["labels"]


def place_right(run: Path, place: str) -> Tensor:
    """Which images the probe of an early place gets right."""
    probe, images = (load(run, f"early/{place}/{name}") for name in ("probe", "images"))
    logits = LinearProbe.fitted(probe["weight"], probe["bias"]).logits(images["features"])
    return logits.argmax(dim=1) == load(run, "predictions/probe/dense")["labels"]


def gap(row: Tensor, reference: Tensor, chosen: Tensor) -> str:
    """The difference in points of Top-1 on some images."""
    count = int(chosen.sum())
    if not count:
        return "-"
    points = 100 * (row[chosen].double().mean() - reference[chosen].double().mean()).item()
    return f"{points:+.1f} ({count}, p = {mcnemar_test(row[chosen], reference[chosen]):.1g})"


def lines(run: Path, study: Comparison, class_names: list[str]) -> Iterator[str]:
    reference = right(run, study.reference)
    labels = load(run, "predictions/probe/dense")["labels"]
    for line in study.lines:
        if not line.row.place or line.row.label_source != "posterior":
            continue
        row, known = right(run, line.row), place_right(run, line.row.place)
        cells = [line.row.title, *(gap(row, reference, part) for part in (torch.ones_like(known), known, ~known))]
        by_class = {
            label: int(row[labels == label].sum()) - int(reference[labels == label].sum())
            for label in labels.unique().tolist()
            if int((labels == label).sum()) >= ENOUGH
        }
        if not by_class:
            cells += ["-"] * 3
        else:
            order = sorted(by_class, key=lambda label: by_class[label])
            ahead, behind = (sum(sign * value > 0 for value in by_class.values()) for sign in (1, -1))
            ends = (
                ", ".join(f"{class_names[label]} {by_class[label]:+d}" for label in part)
                for part in (order[:-4:-1], order[:3])
            )
            cells += [f"{ahead} / {len(by_class) - ahead - behind} / {behind}", *ends]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="run with the study early")
    run = parser.parse_args().run
    manifest = artifacts.read_manifest(run / "tfidf.safetensors")
    if manifest is None:
        raise SystemExit(f"{run} is no folder of a run.")
    class_names = manifest["key"]["classes"]
    for study in read_bundle(run).comparisons:
        if study.study.startswith("early"):
            print(f"\n{study.title}, {study.classifier} classifier: points of Top-1 against redi.accelerate\n")
            print(
                "| row | all images | class at that place right | wrong | classes ahead/level/behind | best | worst |"
            )
            print("|---|---|---|---|---|---|---|")
            print("\n".join(lines(run, study, class_names)))


if __name__ == "__main__":
    main()
