"""The analysis stage: what figures and report need, so that no model has to run again for them.

Figure 2's counts; the merge destinations, roles and views of a sample of validation images, chosen by
what happened to them; and a strip of the most typical patches of every visual word.
"""

from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from redi import artifacts
from redi.equal import Geometry
from redi.evaluate import hits
from redi.loader import Batch
from redi.passes import Pass
from redi.reduction import reduce
from redi.run import MAIN_ROW, SCORES, Run
from redi.stages.evaluate import classifiers, evaluate_done, native_classes, prediction_name

#: Side of a thumbnail of a typical patch, in pixels of the reference crop: the patch and half of
#: its neighbours, so that one sees what it is part of.
THUMBNAIL = 32


def analysis_key(run: Run) -> dict[str, Any]:
    first = classifiers(run)[0]
    return run.key(
        "analysis",
        "train",
        "val",
        words=run.digest("analysis/words"),
        scores=run.digest(f"scores/{MAIN_ROW}"),
        dense=run.digest(prediction_name(first, "dense")),
        reduced=run.digest(prediction_name(first, MAIN_ROW)),
        sample=run.config.analysis.sample,
        budget=asdict(run.config.budget),
        columns=_columns(run),
    )


def _columns(run: Run) -> list[int]:
    """The head's class of each folder, where the head is evaluated."""
    return native_classes(run)[0] if "native" in classifiers(run) else []


def analysis_done(run: Run) -> bool:
    if not evaluate_done(run):
        return False
    key = analysis_key(run)
    return all(run.current(f"analysis/{name}", key) for name in ("figure2", "typical", "explorer"))


def analyse(run: Run) -> None:
    key = analysis_key(run)
    if run.ranks.is_main:
        artifacts.save(run.path("analysis/figure2"), figure2(run), key)
    _explorer(run, key)
    _typical(run, key)
    run.ranks.wait()


def figure2(run: Run) -> dict[str, Tensor]:
    """Left: training frequency of each word by block. Right: validation frequency and REDI score mass
    of the last block's words, from figure 2's own codebook of that block."""
    words = run.load("analysis/words")
    figures = {name: tensor for name, tensor in words.items() if name.startswith("frequency/")}
    assigned = run.load("scores/words")["figure_words"].long().flatten()
    score = run.load(f"scores/{MAIN_ROW}")["scores"].double().flatten()
    n_words = run.config.analysis.n_words
    figures["validation/frequency"] = torch.bincount(assigned, minlength=n_words)
    figures["validation/score_mass"] = torch.bincount(assigned, weights=score, minlength=n_words)
    return figures


def choose_sample(
    dense_right: Tensor, reduced_right: Tensor, indices: Tensor, size: int
) -> list[int]:
    """Images by what happened to them: as many rescued, lost, both wrong and both right, and more of
    the others where one kind has too few. Within a kind they are spread evenly over the index order.
    """
    kinds = [
        indices[~dense_right & reduced_right],
        indices[dense_right & ~reduced_right],
        indices[~dense_right & ~reduced_right],
        indices[dense_right & reduced_right],
    ]
    room, chosen = size, []
    # The smallest kind first, so that what it leaves over goes to the others.
    smallest = sorted(kinds, key=len)
    for remaining, kind in zip(range(len(kinds), 0, -1), smallest, strict=True):
        take = min(len(kind), -(-room // remaining))
        places = [at * len(kind) // take for at in range(take)]
        chosen += kind[places].tolist()
        room -= take
    return sorted(chosen)


def _explorer(run: Run, key: artifacts.Key) -> None:
    """Of every image of the sample: its four views and their words, its scores, and where each of its
    patches goes under every score. Names of images and classes are in the notes."""
    first = classifiers(run)[0]
    dense, reduced = (run.load(prediction_name(first, row)) for row in ("dense", MAIN_ROW))
    right = [hits(part["top5"], part["labels"])[0] for part in (dense, reduced)]
    sample = choose_sample(right[0], right[1], dense["indices"], run.config.analysis.sample)
    place = {index: at for at, index in enumerate(dense["indices"].tolist())}
    stored = {row: run.load(f"scores/{row}")["scores"] for row in SCORES}
    words = run.load("scores/words")
    backbone = run.backbone

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        at = torch.tensor([place[index] for index in batch.indices])
        pixels = backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device))
        tokens = backbone.embed(pixels)
        rows: dict[str, Tensor] = {"crops": batch.pixels}
        rows |= {field: words[field][at] for field in ("labels", "words", "boxes", "flips")}
        for row in SCORES:
            scores = rows[f"scores/{row}"] = stored[row][at]
            reduction = reduce(tokens.patches, scores.float(), run.config.budget, tokens.grid)
            rows[f"source/{row}"] = reduction.source.to(torch.int16)
            rows[f"positions/{row}"] = reduction.positions.to(torch.int16)
        return rows

    dataset = run.dataset(run.validation, four_views=True)
    outcome = run.passes.run(Pass("explorer", dataset, step, indices=sample), key)
    if outcome is not None:
        rows = outcome.rows
        pictures = [to_jpeg(crop) for image in rows.pop("crops") for crop in image]
        packed, offsets = _pack(pictures)
        rows |= {"jpegs": packed, "offsets": offsets, "indices": torch.tensor(outcome.indices)}
        artifacts.save(
            run.path("analysis/explorer"),
            rows,
            key,
            names=[run.validation.image_name(index) for index in outcome.indices],
            classes=list(run.training.class_names),
            head=list(backbone.class_names or []) if _columns(run) else [],
            columns=_columns(run),
            geometry=asdict(Geometry.of(backbone)),
            budget=asdict(run.config.budget),
        )
    run.ranks.wait()
    run.passes.discard("explorer")


def _typical(run: Run, key: artifacts.Key) -> None:
    """One JPEG strip a word, its typical patches side by side; cut from training images."""
    words = run.load("analysis/words")
    image_of, patch_of = words["typical/image"], words["typical/patch"]
    wanted: dict[int, list[int]] = {}
    for image, patch in zip(image_of.flatten().tolist(), patch_of.flatten().tolist(), strict=True):
        if image >= 0 and patch not in wanted.setdefault(image, []):
            wanted[image].append(patch)
    most = max(map(len, wanted.values()))
    size, patch_size = run.backbone.preprocessing.size, run.backbone.patch_size
    side = min(THUMBNAIL, size)
    columns = size // patch_size

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        cut = torch.zeros(len(batch.indices), most, 3, side, side, dtype=torch.uint8)
        for row, image in enumerate(batch.indices):
            for slot, patch in enumerate(wanted[image]):
                centre_y = (patch // columns) * patch_size + patch_size // 2
                centre_x = (patch % columns) * patch_size + patch_size // 2
                top = min(max(centre_y - side // 2, 0), size - side)
                left = min(max(centre_x - side // 2, 0), size - side)
                cut[row, slot] = batch.pixels[row, 0, :, top : top + side, left : left + side]
        return {"thumbnails": cut}

    work = Pass("typical patches", run.dataset(run.training), step, indices=sorted(wanted))
    outcome = run.passes.run(work, key)
    if outcome is not None:
        row_of = {image: row for row, image in enumerate(outcome.indices)}
        strips = []
        for images, patches in zip(image_of.tolist(), patch_of.tolist(), strict=True):
            strip = torch.zeros(3, side, side * len(images), dtype=torch.uint8)
            for slot, (image, patch) in enumerate(zip(images, patches, strict=True)):
                if image in row_of:
                    thumbnail = outcome.rows["thumbnails"][
                        row_of[image], wanted[image].index(patch)
                    ]
                    strip[:, :, slot * side : (slot + 1) * side] = thumbnail
            strips.append(to_jpeg(strip))
        packed, offsets = _pack(strips)
        artifacts.save(run.path("analysis/typical"), {"jpegs": packed, "offsets": offsets}, key)
    run.ranks.wait()
    run.passes.discard("typical patches")


def to_jpeg(pixels: Tensor) -> bytes:
    """A uint8 picture [3, height, width] as JPEG."""
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    file = BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def _pack(files: list[bytes]) -> tuple[Tensor, Tensor]:
    """Many small files as one tensor of bytes and the places where each begins and the last ends."""
    lengths = torch.tensor([0, *map(len, files)])
    return torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8), lengths.cumsum(0)
