"""The analysis stage: it records what the figures and the report need, so that they need no model.

It records the counts of Figure 2, a sample of validation images with their views, roles and merge destinations, and
a strip of the most typical patches of every visual word. Images are sampled by whether dense and reduced are right.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from redi.evaluate import choose_sample, hits
from redi.images.jpeg import pack, to_jpeg
from redi.images.loader import Batch
from redi.records import artifacts
from redi.records.words import MASS_ROWS, WordNotes
from redi.reduction import reduce
from redi.rows import DENSE, MAIN_ROW
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.stages.classifiers import classifier_names, native_classes
from redi.stages.evaluate import block_key, prediction_name
from redi.stages.score import WORDS, factor_name, factors
from redi.stages.stage import Stage
from redi.statistics import spearman, zipf_fit

#: Side of the thumbnail of a typical patch, in pixels of the reference crop: the patch and half of its neighbours.
THUMBNAIL = 32


def analysis_key(run: Run) -> dict[str, Any]:
    first = classifier_names(run)[0]
    return run.key(
        "analysis",
        "train",
        "val",
        words=run.digest("analysis/words"),
        scores={row: run.digest(f"scores/{row}") for row in run.scores},
        factors={name: run.digest(factor_name(name)) for name in factors(run)},
        dense=run.digest(prediction_name(first, DENSE)),
        reduced=run.digest(prediction_name(first, MAIN_ROW)),
        sample=run.config.analysis.sample,
        budget=asdict(run.config.budget),
        columns=native_classes(run)[0],
        **block_key(run),
    )


def analyse(run: Run) -> None:
    key = analysis_key(run)
    if run.ranks.is_main:
        tensors = figure2(run)
        run.save("analysis/figure2", tensors, key, **asdict(word_notes(tensors)))
    _explorer(run, key)
    _typical(run, key)


def figure2(run: Run) -> dict[str, Tensor]:
    """The counts of Figure 2.

    Left: training frequency of each word, per block. Right: validation frequency and REDI score mass of the last
    block's words, from Figure 2's own codebook of that block. A patch of a reference crop counts once, and adds its
    stored score to the mass of its word. The mass of TF-IDF alone is recorded too.
    """
    words = run.load("analysis/words")
    figures = {name: tensor for name, tensor in words.items() if name.startswith("frequency/")}
    assigned = run.load(WORDS)["figure_words"].long().flatten()
    n_words = run.config.analysis.n_words
    figures["validation/frequency"] = torch.bincount(assigned, minlength=n_words)
    for row in MASS_ROWS:
        score = run.load(f"scores/{row}")["scores"].double().flatten()
        figures[f"validation/mass/{row}"] = torch.bincount(assigned, weights=score, minlength=n_words)
    return figures


def word_notes(figures: Mapping[str, Tensor]) -> WordNotes:
    """Zipf's law of each block's words, and how far the frequency of a word determines its score mass."""
    frequency = figures["validation/frequency"]
    occurs = frequency > 0
    return WordNotes(
        zipf={
            name.removeprefix("frequency/"): zipf_fit(counts)
            for name, counts in sorted(figures.items())  # safetensors loads in any order
            if name.startswith("frequency/")
        },
        spearman={
            row: spearman(frequency[occurs][None].double(), figures[f"validation/mass/{row}"][occurs][None]).item()
            for row in MASS_ROWS
        },
    )


def _explorer(run: Run, key: artifacts.Key) -> None:
    """Record a sample of images: views, words, scores with their ranges and where patches go under each score.

    The names of images and classes are in the notes.
    """
    first = classifier_names(run)[0]
    dense, reduced = (run.load(prediction_name(first, row)) for row in (DENSE, MAIN_ROW))
    correct = [hits(part["top5"], part["labels"])[0] for part in (dense, reduced)]
    sample = choose_sample(correct[0], correct[1], dense["indices"], run.config.analysis.sample)
    place = {index: at for at, index in enumerate(dense["indices"].tolist())}
    stored = {row: run.load(f"scores/{row}")["scores"] for row in run.scores}
    ranges = {name: run.load(factor_name(name))["range"] for name in factors(run)}
    words = run.load(WORDS)
    backbone = run.backbone

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        at = torch.tensor([place[index] for index in batch.indices])
        pixels = backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device))
        tokens = backbone.embed(pixels)
        rows: dict[str, Tensor] = {"crops": batch.pixels}
        rows |= {field: words[field][at] for field in ("labels", "words", "boxes", "flips")}
        rows |= {f"range/{name}": values[at] for name, values in ranges.items()}
        for row in run.scores:
            scores = rows[f"scores/{row}"] = stored[row][at]
            reduction = reduce(tokens.patches, scores.float(), run.config.budget, tokens.grid)
            rows[f"source/{row}"] = reduction.source.to(torch.int16)
            rows[f"positions/{row}"] = reduction.positions.to(torch.int16)
        return rows

    def save(outcome: Outcome) -> None:
        rows, (columns, _) = outcome.rows, native_classes(run)
        rows |= pack([to_jpeg(crop) for image in rows.pop("crops") for crop in image])
        rows["indices"] = torch.tensor(outcome.indices)
        run.save(
            "analysis/explorer",
            rows,
            key,
            names=[run.validation.image_name(index) for index in outcome.indices],
            classes=list(run.training.class_names),
            head=list(backbone.class_names or []) if columns else [],
            columns=columns,
            geometry=asdict(backbone.geometry),
            budget=asdict(run.config.budget),
        )

    dataset = run.dataset(run.validation, four_views=True)
    run.finish(Pass("explorer", dataset, step, indices=sample, forwards=0), key, save)


def _typical(run: Run, key: artifacts.Key) -> None:
    """One JPEG strip per word: its typical patches side by side, cut from training images."""
    words = run.load("analysis/words")
    image_of, patch_of = words["typical/image"], words["typical/patch"]
    by_image: dict[int, list[int]] = {}  # patches to cut
    for image, patch in zip(image_of.flatten().tolist(), patch_of.flatten().tolist(), strict=True):
        if image >= 0 and patch not in by_image.setdefault(image, []):
            by_image[image].append(patch)
    most = max(map(len, by_image.values()))
    size, patch_size = run.backbone.preprocessing.size, run.backbone.patch_size
    side = min(THUMBNAIL, size)
    columns = run.backbone.geometry.grid[1]

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        cut = torch.zeros(len(batch.indices), most, 3, side, side, dtype=torch.uint8)
        for row, image in enumerate(batch.indices):
            for slot, patch in enumerate(by_image[image]):
                centre_y = (patch // columns) * patch_size + patch_size // 2
                centre_x = (patch % columns) * patch_size + patch_size // 2
                top = min(max(centre_y - side // 2, 0), size - side)
                left = min(max(centre_x - side // 2, 0), size - side)
                cut[row, slot] = batch.pixels[row, 0, :, top : top + side, left : left + side]
        return {"thumbnails": cut}

    def save(outcome: Outcome) -> None:
        row_of = {image: row for row, image in enumerate(outcome.indices)}
        strips = []
        for images, patches in zip(image_of.tolist(), patch_of.tolist(), strict=True):
            strip = torch.zeros(3, side, side * len(images), dtype=torch.uint8)
            for slot, (image, patch) in enumerate(zip(images, patches, strict=True)):
                if image in row_of:
                    thumbnails = outcome.rows["thumbnails"][row_of[image]]
                    thumbnail = thumbnails[by_image[image].index(patch)]
                    strip[:, :, slot * side : (slot + 1) * side] = thumbnail
            strips.append(to_jpeg(strip))
        run.save("analysis/typical", pack(strips), key)

    work = Pass("typical patches", run.dataset(run.training), step, indices=sorted(by_image), forwards=0)
    run.finish(work, key, save)


STAGE = Stage(
    name="analysis",
    artefacts=lambda run: dict.fromkeys(
        (f"analysis/{name}" for name in ("figure2", "typical", "explorer")), analysis_key(run)
    ),
    work=analyse,
    passes=lambda run: "no forward",
)
