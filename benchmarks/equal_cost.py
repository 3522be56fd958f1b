"""Reducers that need no label and no dense pass, at equal cost, on a model with its own head or with a probe.

    python benchmarks/equal_cost.py --backbone CHECKPOINT --images FOLDER --classes even --out even.safetensors
    python benchmarks/equal_cost.py even.safetensors --figure equal_cost.png

The rows are those of `redi compare --study deployable`, but no run and no corpus is needed. The dense model and every
reducer classify the same images. Paired statistics then compare each row with our own. The cost of a row whose length
follows the image is the mean over these images. Its strength was found on images of the other classes, without labels.

If the head reads only the prefix, every row but dense runs its last block for the prefix alone, which does not change
its logits, and its cost counts that. So the comparison is of the reducers, not of who has this shortcut.

The first command measures. It writes after every batch, and the same command continues a file that is not complete.
Several processes can share the work: `--shard 1/2` and `--shard 2/2` take half of the images each, `--rows` and
`--cost` some of the rows. The second command puts the files together, prints the table and draws the figure.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equal_cost_report import ADAPTIVE, COLUMNS, SHIPPED, Records, Row, best_peers, draw, merge, table
from redi.attention import cls_rows, head_mean
from redi.backbone import Backbone, Watch, load_backbone
from redi.backbone.classifier import Classifier, final_feature
from redi.comparison.ground import Ground
from redi.comparison.learned import with_files
from redi.comparison.studies import DEPLOYABLE_COSTS, deployable_rows
from redi.deploy import Accelerated, Setting
from redi.deploy.second_look import look_costs, with_second_look
from redi.errors import ConfigError, RediError
from redi.images import LabelledImages, open_images
from redi.images.classes import head_classes
from redi.images.labelled import spread_evenly
from redi.images.loader import ViewDataset
from redi.probe import LinearProbe, image_feature
from redi.records import artifacts
from redi.records.deployed import OWN
from redi.reduction import Adaptive, Extent
from redi.reduction.adaptive import STRENGTHS, Curve, curve_of
from redi.rows import Catalogue, Variant
from redi.runs.config import VocabularyConfig
from redi.runs.identity import identify
from redi.stages.adaptive import lengths_at_strengths
from redi.stages.evaluate import forward, image_costs
from redi.statistics import divergence

#: A row is a reducer of the catalogue or a setting of `redi.accelerate`; with its expected cost.
Rows = Mapping[Row, tuple[Variant | Accelerated, float]]

#: Images on which strengths (of reducers whose length follows the image) and confidences (of second looks) are set.
CALIBRATION = 200


def calibration_images(backbone: Backbone, images: LabelledImages, chosen: list[int]) -> Tensor:
    """Some of the images that are not chosen, if there are any, as input of the model."""
    others = sorted(set(range(len(images.labels))) - set(chosen)) or chosen
    sample = others[:: -(-len(others) // CALIBRATION)]
    dataset = ViewDataset(images, backbone.preprocessing, four_views=False, seed=0)
    (batch,) = dataset.batches([sample], workers=0)
    return backbone.preprocessing.normalise(batch.pixels[:, 0])


def measured_catalogue(backbone: Backbone, pixels: Tensor, files: list[Path]) -> Catalogue:
    """The reducers and those of some files. What a strength costs is measured on some images."""

    @torch.inference_mode()
    def curve(name: str, reducer: Adaptive) -> Curve:
        print(f"measuring what {name} costs on {len(pixels)} images", flush=True)
        lengths = [lengths_at_strengths(backbone, reducer, backbone.embed(batch)) for batch in pixels.split(50)]
        return curve_of(reducer, torch.cat(lengths), backbone.geometry, STRENGTHS, backbone.reads_prefix)

    return with_files(Catalogue(has_cls=backbone.has_cls), files, backbone).with_curves(curve)


def rows(backbone: Backbone, catalogue: Catalogue, pixels: Tensor, names: list[str], costs: tuple[float, ...]) -> Rows:
    """The rows with some names. If there are none: all, but for our own reducer again, at the nearest schedule."""
    prefix_only = backbone.reads_prefix
    ground = Ground(backbone.geometry, Extent(), catalogue, VocabularyConfig(), 0, prefix_only=prefix_only)
    found: dict[Row, tuple[Variant | Accelerated, float]] = {}
    for cost in costs:
        with suppress(ConfigError):  # a small grid may not reach this cost, and a low cost has no second looks
            shipped = Accelerated(backbone, Setting(cost))
            found[cost, SHIPPED] = shipped, shipped.cost()
            if ADAPTIVE in names or not names:
                adaptive = with_second_look(shipped, pixels)
                found[cost, ADAPTIVE] = adaptive, adaptive.cost()
        for variant in deployable_rows(ground, cost, names):
            found[cost, variant.reducer] = variant, catalogue.cost(variant, ground.on, prefix_only)
    known = dict.fromkeys(name for _, name in found)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"No row {unknown[0]!r} at these costs: there is none, or it cannot be that cheap, or is slow."
        )
    return {row: entry for row, entry in found.items() if row[1] in (names or set(known) - {OWN})}


@torch.inference_mode()
def train_probe(backbone: Backbone, images: LabelledImages) -> LinearProbe:
    """The probe of `redi run`, on the dense features of some images."""
    dataset, features = ViewDataset(images, backbone.preprocessing, four_views=False, seed=0), []
    indices = list(range(len(images.labels)))
    for batch in dataset.batches([indices[start : start + 50] for start in indices[::50]], workers=0):
        hidden = backbone.encode(backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0])))
        features.append(final_feature(backbone, hidden, prenorm=False))
        print(f"probe: {50 * len(features)} of {len(indices)} images", flush=True)
    return LinearProbe(len(images.class_names)).fit(torch.cat(features), torch.tensor(images.labels))


def read_output(classifier: Classifier, output: Any) -> Tensor:
    """The logits of an accelerated model: of its own head, or of the probe on its full grid."""
    if classifier.probe is None:
        logits: Tensor = output.logits
        return logits
    backbone, tokens = classifier.backbone, output.last_hidden_state
    normed = tokens if backbone.family.normed_output else backbone.final_norm(tokens)
    return classifier.probe.logits(image_feature(normed, backbone.prefix, backbone.has_cls))


@torch.inference_mode()
def logits(
    classifier: Classifier, catalogue: Catalogue, pixels: Tensor, asked: Rows
) -> Iterator[tuple[Row, Tensor, Tensor]]:
    """Each row with its logits and the cost of each image, dense first.

    One-shot rows rank by the CLS attention at a third of the depth, or by incoming mass if there is no CLS token.
    """
    backbone = classifier.backbone
    after = max(1, backbone.depth // 3)
    tokens = backbone.embed(pixels)
    watch = Watch(cls_rows if backbone.has_cls else head_mean, blocks=(after - 1,))
    begun = tokens.advanced(backbone.encode(tokens, stop=after, watch=(watch,)))
    attention = watch.value(after - 1).mean(dim=1)[:, backbone.prefix :]
    same = torch.ones(len(pixels))
    yield (1.0, "dense"), classifier.logits(backbone.encode(begun, start=after)), same
    for row, (variant, cost) in asked.items():
        if isinstance(variant, Accelerated):
            yield row, read_output(classifier, variant(pixels)), look_costs(variant, pixels)
            continue
        scores = attention if variant.score.name else None
        final = forward(backbone, catalogue, variant, scores, {0: tokens, after: begun}, backbone.reads_prefix)
        costs = cost * same
        if final.lengths is not None:
            costs = image_costs(backbone.geometry, catalogue, variant, final.lengths, backbone.reads_prefix)
        yield row, final.read(classifier.logits, backbone.prefix), costs


def chosen_images(images: LabelledImages, classes: str, limit: int) -> list[int]:
    parity = {"even": 0, "odd": 1}.get(classes)
    return spread_evenly([k for k, label in enumerate(images.labels) if parity in (None, label % 2)], limit)


def measure(
    classifier: Classifier, catalogue: Catalogue, images: LabelledImages, plan: list[list[int]], asked: Rows
) -> Iterator[tuple[Tensor, Records]]:
    """Yield, batch by batch, the indices of the images and what is stored per row and image."""
    preprocessing = classifier.backbone.preprocessing
    dataset = ViewDataset(images, preprocessing, four_views=False, seed=0)
    for batch in dataset.batches(plan, workers=0):
        pixels, labels = preprocessing.normalise(batch.pixels[:, 0]), classifier.own_labels(batch.labels)
        outputs = {row: (output, costs) for row, output, costs in logits(classifier, catalogue, pixels, asked)}
        dense, _ = outputs[1.0, "dense"]
        records = {
            row: {
                "right": output.argmax(dim=1) == labels,
                "agrees": output.argmax(dim=1) == dense.argmax(dim=1),
                "divergence": divergence(dense, output),
                "cost": costs,
            }
            for row, (output, costs) in outputs.items()
        }
        yield torch.tensor(batch.indices), records


def extend(out: Path, asked: argparse.Namespace) -> None:
    """Measure what the file lacks, and write it after every batch."""
    backbone, images = load_backbone(asked.backbone), open_images(asked.images)
    training = open_images(asked.train) if asked.train else None
    if backbone.class_names is None and training is None:
        raise ConfigError(f"{asked.backbone} has no head to classify with: train a probe with --train FOLDER.")
    if backbone.head is not None and training is not None:
        raise ConfigError(f"{asked.backbone} has a head of its own: leave out --train.")
    if training is not None and training.class_names != images.class_names:
        raise ConfigError(f"{asked.train} and {asked.images} must have the same subfolders.")
    chosen, (part, parts) = chosen_images(images, asked.classes, asked.limit), asked.shard
    mine = chosen[(part - 1) * len(chosen) // parts : part * len(chosen) // parts]
    pixels = calibration_images(backbone, images, chosen)
    catalogue = measured_catalogue(backbone, pixels, asked.learned)
    wanted = rows(backbone, catalogue, pixels, asked.rows, tuple(asked.cost or DEPLOYABLE_COSTS))
    subject = {"weights": identify(backbone).weights, "images": images.fingerprint(chosen), "classes": asked.classes}
    if training is not None:
        subject["probe"] = training.fingerprint()
    extents = {
        f"{cost:g}/{name}": repr(entry[0].setting if isinstance(entry[0], Accelerated) else entry[0].extent)
        for (cost, name), entry in wanted.items()
    }
    key = {**subject, "rows": extents, "shard": [part, parts]}
    if catalogue.digests:
        key["learned"] = dict(catalogue.digests)
    tensors: dict[str, Tensor] = {}
    if out.exists():
        if not artifacts.is_current(out, key):
            raise ConfigError(f"{out} holds other rows, images or weights: name another file with --out.")
        tensors, _ = artifacts.load(out)
    done = set(tensors["images"].tolist()) if tensors else set()
    todo = [index for index in mine if index not in done]
    plan = [todo[start : start + asked.batch_size] for start in range(0, len(todo), asked.batch_size)]
    if training is not None:
        classifier = Classifier(backbone, train_probe(backbone, training))
    else:
        assert backbone.class_names is not None
        columns, _ = head_classes(images.class_names, backbone.class_names, asked.class_map)
        classifier = Classifier(backbone, columns=torch.tensor(columns))
    for indices, records in measure(classifier, catalogue, images, plan, wanted):
        new = {"images": indices} | {
            f"{cost:g}/{name}/{column}": values[column]
            for (cost, name), values in records.items()
            for column in COLUMNS
        }
        tensors = {name: torch.cat([tensors[name], values]) if tensors else values for name, values in new.items()}
        artifacts.save(out, tensors, key, subject=subject)
        print(f"{len(tensors['images'])} of {len(mine)} images", flush=True)


def show(records: Records, figure: Path | None) -> None:
    print(table(records))
    print(best_peers(records))
    if figure is not None:
        draw(records, figure)


def shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 1/2")
    return int(match[1]), int(match[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="*", type=Path, help="files of --out: print their table")
    parser.add_argument("--figure", type=Path, help="picture of Top-1 and KL against cost")
    parser.add_argument("--backbone", help="checkpoint to measure")
    parser.add_argument("--images", help="folder with one subfolder per class")
    parser.add_argument("--train", help="folder to train a probe on, for a backbone without a head")
    parser.add_argument("--class-map", type=Path, help="file of lines: subfolder, tab, class of the head")
    parser.add_argument("--classes", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--limit", type=int, default=10**9, help="largest number of images, spread evenly")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[], help="names, e.g. protected,tome")
    parser.add_argument("--learned", type=Path, action="append", default=[], help="file of redi learn; repeat for more")
    parser.add_argument("--cost", type=float, action="append", help="may be given several times")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--shard", type=shard, default=(1, 1), help="part of the images, e.g. 1/2")
    parser.add_argument("--out", type=Path, help="safetensors file for the measurements of every image")
    asked = parser.parse_args()
    if not asked.files and not (asked.backbone and asked.images and asked.out):
        parser.error("give --backbone, --images and --out to measure, or files of earlier measurements")
    try:
        if not asked.files:
            extend(asked.out, asked)
        if asked.files or asked.shard == (1, 1):
            show(merge(asked.files or [asked.out]), asked.figure)
    except RediError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
