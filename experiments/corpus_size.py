"""How does the gain of the corpus term grow with the images per class, and with the accuracy of the class?

    python experiments/corpus_size.py --backbone CHECKPOINT --images VAL --train TRAIN [--sizes 1 2 4] [--classes all]

Attention alone (incoming mass) ranks the patches for the paper's operator, then its product with the TF-IDF of a corpus
with so many images per class. The class is the true one, the dense classifier's Top-1, or its posterior. Below, it is
the true one for a share of the images and a random other one for the rest. The classifier is the checkpoint's own head,
or a probe on the largest corpus, and never changes. The corpus term has one view here, not four, so that an image takes
one dense forward.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common import BATCH, PARITY, arguments, mean_and_error
from redi.backbone import Backbone, Classifier, load_backbone
from redi.backbone.classifier import final_feature
from redi.corpus import other_labels
from redi.images import LabelledImages, open_images
from redi.images.labelled import spread_evenly
from redi.images.loader import Batch, ViewDataset
from redi.probe import LinearProbe
from redi.reduction import reduce
from redi.score import hybrid, minmax
from redi.scorers import SCORERS, Dense
from redi.statistics import divergence, paired_bootstrap
from redi.tfidf import CorpusStatistics, weigh_words
from redi.vocabulary import N_WORDS, Vocabulary

ACCURACIES = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Seen:
    """What a dense pass gives: patch features, incoming mass, the probe's features, the labels."""

    patches: Tensor
    mass: Tensor
    features: Tensor
    labels: Tensor


def batches(backbone: Backbone, folder: LabelledImages, chosen: list[int]) -> Iterator[Batch]:
    plan = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
    return iter(ViewDataset(folder, backbone.preprocessing, four_views=False, seed=0).batches(plan, workers=0))


@torch.inference_mode()
def look(backbone: Backbone, batch: Batch) -> tuple[Tensor, Seen]:
    tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0]))
    capture: dict[str, Tensor] = {}
    hidden = backbone.encode(tokens, capture={backbone.depth - 1: capture})
    patches = hidden[:, backbone.prefix :]
    assert tokens.grid is not None
    dense = Dense(
        **capture,  # type: ignore[arg-type]
        patches=patches,
        prefix=backbone.prefix,
        grid=tokens.grid,
        indices=batch.indices,
        seed=0,
        has_cls=backbone.has_cls,
    )
    mass = minmax(SCORERS["mass"](dense))
    return hidden, Seen(patches.half(), mass, final_feature(backbone, hidden, prenorm=False), batch.labels)


def first_per_class(labels: Tensor, count: int) -> Tensor:
    """Indices of the first images of each class."""
    chosen, taken = [], Counter[int]()
    for index, label in enumerate(labels.tolist()):
        taken[label] += 1
        if taken[label] <= count:
            chosen.append(index)
    return torch.tensor(chosen)


def table_of(seen: Seen, size: int, classes: int) -> tuple[Vocabulary, Tensor]:
    """The vocabulary and the TF-IDF table of a corpus with ``size`` images per class."""
    chosen = first_per_class(seen.labels, size)
    parts = [seen.patches[index].float() for index in chosen.split(BATCH)]
    words = min(N_WORDS, len(chosen) * seen.patches.shape[1])
    vocabulary, corpus = Vocabulary(words).fit(parts), CorpusStatistics(classes, words)
    for part, index in zip(parts, chosen.split(BATCH), strict=True):
        corpus.update(vocabulary.assign(part), seen.labels[index])
    return vocabulary, corpus.table()


@torch.inference_mode()
def reduced_logits(
    backbone: Backbone, classifier: Classifier, folder: LabelledImages, chosen: list[int], scores: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The logits of the paper's operator under every score."""
    parts: dict[str, list[Tensor]] = {name: [] for name in scores}
    at = 0
    for batch in batches(backbone, folder, chosen):
        tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0]))
        for name, values in scores.items():
            reduction = reduce(tokens.patches, values[at : at + len(batch.indices)], grid=tokens.grid)
            parts[name].append(classifier.of_data(classifier.logits(backbone.encode(tokens.reduced(reduction)))))
        at += len(batch.indices)
    return {name: torch.cat(logits) for name, logits in parts.items()}


def make_classifier(backbone: Backbone, corpus: Seen, classes: int) -> Classifier:
    if backbone.head is not None and len(backbone.class_names or []) == classes:
        return Classifier(backbone)
    return Classifier(backbone, LinearProbe(classes).fit(corpus.features, corpus.labels))


def stacked(parts: list[Seen]) -> Seen:
    names = ("patches", "mass", "features", "labels")
    return Seen(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--train", help="folder of the corpus; default: train beside --images")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4], help="images per class")
    options = parser.parse_args()
    backbone = load_backbone(options.backbone)
    training = open_images(options.train or str(Path(options.images).parent / "train"))
    validation, classes = open_images(options.images), len(training.class_names)
    if validation.class_names != training.class_names:
        parser.error("--images and --train must have the same classes.")

    kept = first_per_class(torch.tensor(training.labels), max(options.sizes)).tolist()
    corpus = stacked([look(backbone, batch)[1] for batch in batches(backbone, training, kept)])
    classifier = make_classifier(backbone, corpus, classes)
    chosen = [k for k, label in enumerate(validation.labels) if PARITY.get(options.classes) in (None, label % 2)]
    chosen = spread_evenly(chosen, options.limit)
    looked = [look(backbone, batch) for batch in batches(backbone, validation, chosen)]
    images = stacked([seen for _, seen in looked])
    with torch.inference_mode():
        dense = torch.cat([classifier.of_data(classifier.logits(hidden)) for hidden, _ in looked])

    scores = {"attention alone": images.mass}
    others = other_labels(images.labels, classes, chosen, seed=0)
    for size in options.sizes:
        vocabulary, table = table_of(corpus, size, classes)
        words = torch.cat([vocabulary.assign(part.float()) for part in images.patches.split(BATCH)])
        weights = {
            "true class": table[images.labels],
            "Top-1": table[dense.argmax(dim=1)],
            "posterior": dense.softmax(dim=1) @ table,
        }
        if size == max(options.sizes):
            draw = torch.rand(len(chosen), generator=torch.Generator().manual_seed(0))
            for share in ACCURACIES:
                weights[f"right in {share:.0%}"] = table[torch.where(draw < share, images.labels, others)]
        for name, weight in weights.items():
            scores[f"{size} per class, {name}"] = hybrid(weigh_words(weight, words), images.mass)

    logits = reduced_logits(backbone, classifier, validation, chosen, scores)
    right = {name: values.argmax(dim=1) == images.labels for name, values in logits.items()}
    base = right["attention alone"]
    dense_top1 = 100 * (dense.argmax(dim=1) == images.labels).double().mean()
    print(f"{len(chosen)} images, dense {dense_top1:.1f} % Top-1, {classifier.name} classifier\n")
    print("| corpus, class | Top-1 | gain over attention alone (95 %) | KL (standard error) |\n|---|---|---|---|")
    for name, values in logits.items():
        kl, error = mean_and_error(divergence(dense, values))
        gain = paired_bootstrap(right[name], base)
        shown = f"{gain.delta:+.1f} ({gain.interval[0]:+.1f} to {gain.interval[1]:+.1f})"
        print(f"| {name} | {100 * right[name].double().mean():.1f} | {shown} | {kl:.3f} ({error:.3f}) |")


if __name__ == "__main__":
    main()
