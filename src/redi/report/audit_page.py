"""The page of ``redi audit``: suspicious classes first, then one view per class, from records alone."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from redi.errors import ArtifactError
from redi.images.jpeg import Packed, from_jpeg, to_jpeg
from redi.records import artifacts
from redi.records.audit import COMMAND, PICTURES, AuditRecord, read_audit
from redi.records.outputs import require_no_link, require_run
from redi.report.assemble import assemble, base64_text, inline_json
from redi.report.audit import audit_verdict, class_sentence, titles_of, word_sentence

NAME = "audit.html"
SCRIPTS = ("data", "theme", "audit")
#: Bytes of strips beyond which those of less suspicious classes are shown at half their size.
STRIP_BYTES = 8_000_000
#: Classes in the list at the top: all that are flagged, and at least this many with some evidence.
LISTED = 12


def build_audit_page(folder: Path, names: Path | None = None) -> Path:
    """Write RUN/report/audit.html from the records of ``redi audit``."""
    require_run(folder)
    path = folder / "report" / NAME
    require_no_link(path.parent)
    record = read_audit(folder)
    titles = titles_of(record, names)
    stored = artifacts.load_named(folder, PICTURES)[0]
    data = page_data(record, titles, stored)
    slots = {
        "title": escape(f"Audit of {folder.name}"),
        "heading": escape(audit_verdict(record, titles)),
        "facts": _facts(record),
        "limit": escape(f"{record.limit:.1f}"),
        "block": escape(f"{record.block} of {record.depth}"),
        "report_link": '<a href="index.html">Report</a>' if (path.parent / "index.html").exists() else "",
        "definitions": "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in record.definitions.items()
        ),
        "data": inline_json(data),
    }
    artifacts.write_bytes(path, assemble("audit", ["style", "audit"], SCRIPTS, slots))
    return path


def page_data(
    record: AuditRecord, titles: Sequence[str], stored: Mapping[str, Tensor], strip_bytes: int = STRIP_BYTES
) -> dict[str, Any]:
    """What the page's script shows."""
    packed = Packed.read(stored)
    entries = {(label, word): k for k, (label, word) in enumerate(stored["entries"].tolist())}
    shown = {(label, word.word) for label, own in enumerate(record.classes) for word in own.words}
    if not shown <= set(entries):
        raise ArtifactError(f"{PICTURES} does not belong to this audit.json: use `{COMMAND}` again.")
    strips = _strips(record, packed, entries, strip_bytes)
    whole: dict[int, list[int]] = {}
    for number, entry in enumerate(stored["whole"].tolist(), len(entries)):
        whole.setdefault(entry, []).append(number)
    classes = []
    for label, own in enumerate(record.classes):
        strongest = entries[label, own.suspects[0].word] if own.suspects else -1
        classes.append(
            {
                "title": titles[label],
                "images": own.images,
                "suspicion": round(own.suspicion, 2),
                "flagged": own.flagged,
                "sentence": class_sentence(own, record.limit),
                "words": [
                    {
                        "word": word.word,
                        "mass": round(word.mass, 4),
                        "inside": round(word.inside, 3),
                        "outside": round(word.outside, 3),
                        "rank": round(word.rank, 3),
                        "lift": round(word.lift, 2),
                        "border": round(word.border, 3),
                        "tfidf": round(word.tfidf, 3),
                        "suspicion": round(word.suspicion, 2),
                        "reason": word.reason,
                        "sentence": word_sentence(word),
                        "strip": strips[entries[label, word.word]],
                        "places": _bytes(stored["places"][entries[label, word.word]]),
                    }
                    for word in own.words
                ],
                "alike": [
                    {"label": alike.label, "overlap": round(alike.overlap, 3), "words": alike.words}
                    for alike in own.alike
                ],
                "pictures": [
                    {"jpeg": base64_text(packed[number]), "held": _bytes(stored["places"][number])}
                    for number in whole.get(strongest, [])
                ],
            }
        )
    evident = sum(record.classes[label].suspicion > 0 for label in record.order)
    listed = max(len(record.flagged), min(LISTED, evident))
    return {"grid": record.grid, "order": record.order, "listed": listed, "limit": record.limit, "classes": classes}


def _strips(
    record: AuditRecord, packed: Packed, entries: Mapping[tuple[int, int], int], strip_bytes: int
) -> dict[int, str]:
    """The strips of all entries. Once the most suspicious classes have filled the budget, the others are made small."""
    strips, used = {}, 0
    for label in record.order:
        for word in record.classes[label].words:
            number = entries[label, word.word]
            strip = packed[number]
            used += len(strip)
            strips[number] = base64_text(strip if used <= strip_bytes else _half(strip))
    return strips


def _half(strip: bytes) -> bytes:
    pixels = from_jpeg(strip)
    small = interpolate(pixels[None].float(), scale_factor=0.5, mode="bilinear", antialias=True)[0]
    return to_jpeg(small.round().clamp(0, 255).to(torch.uint8))


def _bytes(values: Tensor) -> str:
    return base64_text(values.to(torch.uint8).contiguous().numpy().tobytes())


def _facts(record: AuditRecord) -> str:
    attention = {"mass": "incoming mass", "cls_mean": "CLS"}
    facts = {
        "Audited": f"{record.images:,} training images, {len(record.classes):,} classes",
        "Words": f"{record.n_words} of block {record.block} of {record.depth}",
        "Attention": f"last block: {' and '.join(attention.get(name, name) for name in record.attention)}",
        "Limit": f"{record.limit:.1f}",
        "Labels": "of training images only",
    }
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
