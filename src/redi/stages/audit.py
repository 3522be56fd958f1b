"""The audit of a run: one pass over its training images, then pictures of what was found.

The pass stores the word, the attention rank and the closeness to its word of every patch, four bytes in all. Everything
else is computed from them. It is no stage of the protocol: a run is finished without it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redi import shortcuts
from redi.attention import cls_mean_of, cls_rows, head_mean, mass_of
from redi.backbone.watch import Watch
from redi.centroids import nearest_words
from redi.errors import ArtifactError, ConfigError
from redi.images.jpeg import pack, to_jpeg
from redi.images.labelled import digest_lines
from redi.images.loader import Batch
from redi.records.audit import (
    DEFINITIONS,
    FIXED_PLACE,
    PATCHES,
    PICTURES,
    UNATTENDED,
    Alike,
    AuditClass,
    AuditRecord,
    AuditWord,
    write_audit,
)
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.shortcuts import Suspects, WordUse
from redi.stages import tfidf, vocabulary
from redi.stages.classifiers import native_classes
from redi.stages.words import codebook_blocks

#: Defining words per class, further suspects, and similar classes that are recorded.
DEFINING, SUSPECTS, ALIKE = 8, 4, 3
#: Typical patches per word, and the side of their thumbnails in pixels of the reference crop.
TYPICAL, THUMBNAIL = 4, 48
#: Whole pictures of the strongest suspect, for this many classes, and their side in pixels.
SHOWN_CLASSES, SHOWN_PICTURES, SHOWN_SIDE = 40, 4, 144


def default_block(depth: int) -> int:
    """Half of the depth: its words still say what a patch shows. Words of the last block say what the image shows."""
    return max(1, round(depth / 2))


@torch.no_grad()
def audit_run(run: Run, block: int | None = None) -> AuditRecord | None:
    """Audit a run whose vocabulary and TF-IDF exist; only the main process returns the record, which it also writes."""
    if not run.ranks.share(lambda: vocabulary.STAGE.done(run) and tfidf.STAGE.done(run)):
        raise ArtifactError(f"The run in {run.folder} has no current TF-IDF yet: finish `redi run` first.")
    depth = run.backbone.depth
    block = default_block(depth) if block is None else block
    if block not in codebook_blocks(depth):
        known = ", ".join(map(str, codebook_blocks(depth)))
        raise ConfigError(f"--block must be one of {known}, the blocks that the run has words of, not {block}.")
    _read_patches(run, block)
    record, entries = _judge(run, block) if run.ranks.is_main else (None, [])
    entries = run.ranks.share(lambda: entries)
    _draw(run, block, entries)
    if record is not None:
        write_audit(run.folder, record)
    run.ranks.wait()
    return record


def _centroids(run: Run, block: int) -> Tensor:
    """The run's own vocabulary for the last block, the codebook of the block for an earlier one."""
    if block == run.backbone.depth:
        return run.load("vocabulary")["centroids"]
    return run.load("analysis/codebooks")[f"block{block}/centroids"]


def _patches_key(run: Run, block: int) -> dict[str, Any]:
    return run.key(
        "audit",
        "train",
        vocabulary=run.digest("vocabulary"),
        codebooks=run.digest("analysis/codebooks"),
        decoded=run.digest("decoded"),
        classes=list(run.training.class_names),
        block=block,
        unattended=shortcuts.UNATTENDED_PATCHES,
    )


def attention_names(has_cls: bool) -> list[str]:
    return ["mass", "cls_mean"] if has_cls else ["mass"]


def _read_patches(run: Run, block: int) -> None:
    """The pass: words, attention and closeness of every patch of the training images."""
    key = _patches_key(run, block)
    if run.ranks.share(lambda: run.current(PATCHES, key)):
        return
    backbone, prefix = run.backbone, run.backbone.prefix
    centroids = _centroids(run, block).to(run.device)
    last = backbone.depth - 1

    def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        means, rows = Watch(head_mean, (last,)), Watch(cls_rows, (last,))
        watches = (means, rows) if backbone.has_cls else (means,)
        tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device)))
        middle = backbone.encode(tokens, stop=block, watch=watches)
        cosine, words = nearest_words(middle[:, prefix:], centroids)
        if block <= last:
            backbone.encode(tokens.advanced(middle), start=block, watch=watches)
        maps = [mass_of(means.value(last), prefix)]
        if backbone.has_cls:
            maps.append(cls_mean_of(rows.value(last), prefix))
        ranks = shortcuts.attention_rank(maps)
        sums["use"].update(words, ranks, shortcuts.attention_lift(maps), batch.labels)
        closeness = ((cosine.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return {"words": words.to(torch.int16), "ranks": ranks, "closeness": closeness, "labels": batch.labels}

    def new_sums() -> dict[str, Any]:
        return {"use": WordUse(len(run.training.class_names), len(centroids))}

    def save(outcome: Outcome) -> None:
        use = {f"use/{name}": tensor for name, tensor in outcome.sums["use"].state().items()}
        run.save(PATCHES, {**outcome.rows, **use, "indices": torch.tensor(outcome.indices)}, key)

    decoded = run.load("decoded")["indices"].tolist()
    work = Pass("audit", run.dataset(run.training), step, new_sums, decoded)
    run.finish(work, key, save)


class Entry(NamedTuple):
    """A word of a class, and what to draw of it."""

    label: int
    word: int
    images: list[int]  # with its typical patches, one each
    patches: list[int]
    whole: bool = False  # whether the pictures are shown whole


def _judge(run: Run, block: int) -> tuple[AuditRecord, list[Entry]]:
    """The record, and what to draw."""
    stored = run.load(PATCHES)
    n_classes, n_words = stored["use/images"].shape
    geometry = run.backbone.geometry
    use = WordUse(n_classes, n_words)
    use.merge_state({name.removeprefix("use/"): t for name, t in stored.items() if name.startswith("use/")})
    table = tfidf.corpus_tensors(use.corpus)["table"]
    mass = shortcuts.mass_share(use.corpus, table)
    class_images = use.corpus.class_images
    inside, outside = shortcuts.shares(use.images, class_images)
    suspects = Suspects(use, stored["words"], stored["ranks"], stored["labels"], geometry.grid)
    defining = shortcuts.defining_words(table, use.images, class_images, DEFINING)
    lift = use.mean_lift()
    suspicion = torch.zeros(n_classes, dtype=torch.float64)
    classes: list[AuditClass] = []
    entries: list[Entry] = []
    for label, name in enumerate(run.training.class_names):
        evidence, fixed = suspects.evidence(label)
        suspicion[label] = evidence.sum()
        strongest = [k for k in evidence.argsort(descending=True, stable=True).tolist() if evidence[k] > 0]
        reasons = {word: FIXED_PLACE if fixed[word] else UNATTENDED for word in strongest}
        shown = [*defining[label], *[word for word in strongest if word not in defining[label]][:SUSPECTS]]
        places = suspects.places(label, shown)
        border = shortcuts.border_share(places.counts, geometry.grid)
        listed = [
            AuditWord(
                word=word,
                tfidf=float(table[label, word]),
                mass=float(mass[label, word]),
                inside=float(inside[label, word]),
                outside=float(outside[label, word]),
                lift=float(lift[label, word]),
                rank=float(places.rank[k]),
                border=float(border[k]),
                coincidence=float(places.coincidence[k]),
                suspicion=float(evidence[word]),
                reason=reasons.get(word, ""),
                place=shortcuts.place_name(places.counts[k], geometry.grid),
            )
            for k, word in enumerate(shown)
        ]
        for word in shown:
            typical = _typical(stored, suspects.rows(label), word, reasons.get(word) == UNATTENDED)
            entries.append(Entry(label, word, *typical))
        classes.append(AuditClass(name, int(class_images[label]), float(suspicion[label]), False, listed, []))
    limit = shortcuts.flag_limit(suspicion)
    order = suspicion.argsort(descending=True, stable=True).tolist()
    classes = [
        AuditClass(own.name, own.images, own.suspicion, own.suspicion > limit, own.words, _alike(mass, label))
        for label, own in enumerate(classes)
    ]
    whole = {(label, classes[label].suspects[0].word) for label in order[:SHOWN_CLASSES] if classes[label].suspects}
    entries = [entry._replace(whole=(entry.label, entry.word) in whole) for entry in entries]
    columns, _ = native_classes(run)
    record = AuditRecord(
        classes=classes,
        order=order,
        limit=limit,
        block=block,
        depth=run.backbone.depth,
        n_words=n_words,
        grid=geometry.grid,
        attention=attention_names(run.backbone.has_cls),
        images=int(class_images.sum()),
        head=list(run.backbone.class_names or []) if columns else [],
        columns=columns,
        definitions=DEFINITIONS,
    )
    return record, entries


def _typical(stored: Mapping[str, Tensor], rows: Tensor, word: int, unattended: bool) -> tuple[list[int], list[int]]:
    """The patches of a word in a class that are closest to it, one per image, as (images, patches).

    Of a suspect for lying on unattended patches, only these are shown, where there are any.
    """
    hit = stored["words"][rows].long() == word
    if unattended:
        below = hit & shortcuts.is_unattended(stored["ranks"][rows])
        hit = below if bool(below.any()) else hit
    closeness = torch.where(hit, stored["closeness"][rows].long(), -1)
    best, patch = closeness.max(dim=1)
    order = [k for k in best.argsort(descending=True, stable=True).tolist() if best[k] >= 0][:TYPICAL]
    return [int(stored["indices"][rows[k]]) for k in order], patch[order].tolist()


def _alike(mass: Tensor, label: int) -> list[Alike]:
    overlap, terms = shortcuts.overlaps(mass, label)
    best = overlap.argsort(descending=True, stable=True)[:ALIKE].tolist()
    return [
        Alike(other, float(overlap[other]), terms[other].topk(min(3, terms.shape[1])).indices.tolist())
        for other in best
        if overlap[other] > 0
    ]


def _draw(run: Run, block: int, entries: Sequence[Entry]) -> None:
    """A strip of typical patches per entry, whole pictures of the strongest suspects, and where every word lies."""
    key = run.key(
        "audit pictures",
        "train",
        patches=run.digest(PATCHES),
        entries=digest_lines(list(map(str, entries))),
        block=block,
    )
    if run.ranks.share(lambda: run.current(PICTURES, key)):
        return
    by_image: dict[int, list[int]] = {}
    for entry in entries:
        for image, patch in zip(entry.images, entry.patches, strict=True):
            if patch not in by_image.setdefault(image, []):
                by_image[image].append(patch)
    most = max(map(len, by_image.values()), default=1)
    size, patch_size = run.backbone.preprocessing.size, run.backbone.patch_size
    side, columns = min(THUMBNAIL, size), run.backbone.geometry.grid[1]

    def cut_patches(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        cut = torch.zeros(len(batch.indices), most, 3, side, side, dtype=torch.uint8)
        for row, image in enumerate(batch.indices):
            for slot, patch in enumerate(by_image[image]):
                centre_y = (patch // columns) * patch_size + patch_size // 2
                centre_x = (patch % columns) * patch_size + patch_size // 2
                top, left = (min(max(centre - side // 2, 0), size - side) for centre in (centre_y, centre_x))
                cut[row, slot] = batch.pixels[row, 0, :, top : top + side, left : left + side]
        return {"thumbnails": cut}

    whole = sorted({image for entry in entries if entry.whole for image in entry.images[:SHOWN_PICTURES]})
    shrunk = min(SHOWN_SIDE, size)

    def cut_pictures(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        small = torch.nn.functional.interpolate(
            batch.pixels[:, 0].float(), (shrunk, shrunk), mode="bilinear", antialias=True
        )
        return {"pictures": small.round().clamp(0, 255).to(torch.uint8)}

    drawn: dict[str, Outcome] = {}
    dataset = run.dataset(run.training)
    for name, step, indices in (("patches", cut_patches, sorted(by_image)), ("pictures", cut_pictures, whole)):
        work = Pass(f"audit {name}", dataset, step, indices=indices, forwards=0)
        run.finish(work, key, lambda outcome, name=name: drawn.update({name: outcome}))  # type: ignore[misc]
    if run.ranks.is_main:
        run.save(PICTURES, _packed(run, entries, by_image, drawn), key)


def _packed(
    run: Run, entries: Sequence[Entry], by_image: Mapping[int, list[int]], drawn: Mapping[str, Outcome]
) -> dict[str, Tensor]:
    """The tensors of the pictures: a strip per entry, then the whole pictures with the places of their word."""
    stored = run.load(PATCHES)
    row_of = {image: row for row, image in enumerate(stored["indices"].tolist())}
    cut = {image: row for row, image in enumerate(drawn["patches"].indices)}
    shown = {image: row for row, image in enumerate(drawn["pictures"].indices)}
    thumbnails, pictures = drawn["patches"].rows.get("thumbnails"), drawn["pictures"].rows.get("pictures")
    files, places, whole = [], [], []
    for entry in entries:
        side = thumbnails.shape[-1] if thumbnails is not None else 1
        strip = torch.zeros(3, side, side * TYPICAL, dtype=torch.uint8)
        for slot, (image, patch) in enumerate(zip(entry.images, entry.patches, strict=True)):
            if image in cut and thumbnails is not None:
                thumbnail = thumbnails[cut[image], by_image[image].index(patch)]
                strip[:, :, slot * side : (slot + 1) * side] = thumbnail
        files.append(to_jpeg(strip))
        rows = stored["labels"] == entry.label
        counts = (stored["words"][rows].long() == entry.word).sum(dim=0)
        places.append((255 * counts / counts.max().clamp(min=1)).round().to(torch.uint8))
    for number, entry in enumerate(entries):
        for image in entry.images[:SHOWN_PICTURES] if entry.whole else ():
            if image in shown and pictures is not None:
                files.append(to_jpeg(pictures[shown[image]]))
                held = stored["words"][row_of[image]].long() == entry.word
                places.append(held.to(torch.uint8))
                whole.append(number)
    return {
        **pack(files),
        "entries": torch.tensor([[entry.label, entry.word] for entry in entries]).view(-1, 2),
        "places": torch.stack(places) if places else torch.zeros(0, run.backbone.geometry.patches, dtype=torch.uint8),
        "whole": torch.tensor(whole, dtype=torch.int64),  # the entry of each whole picture, after the strips
    }
