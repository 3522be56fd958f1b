"""What the report's page holds: records of a run as JSON, arrays as base64. No model is run."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi.evaluate import hits
from redi.explained import corpus_steps
from redi.records import Results
from redi.report.compare import curves_of, line_style
from redi.report.explorer import Explorer, Packed, load, telling_image
from redi.report.tables import MAIN_ROW, TITLES
from redi.run import SCORES
from redi.stages.analysis import THUMBNAIL, choose_sample

#: Bytes of pictures beyond which a page shows fewer images than the sample holds.
PICTURE_BYTES = 7_000_000
#: Classes named with a word, and words with a class.
MOST_NAMED = 8
#: Stands for a patch that a view does not cover, where maps are stored in 8 bits.
OUTSIDE = 255


def content(folder: Path, results: Results, explorer: Explorer) -> dict[str, Any]:
    shown = shown_images(explorer, results.classifiers[0])
    labels = sorted({explorer.labels[number] for number in shown})
    return {
        "grid": explorer.grid,
        "geometry": explorer.geometry,
        "budget": vars(explorer.budget),
        "main": MAIN_ROW,
        "hero": explorer.indices[telling_image(explorer, results.classifiers[0], MAIN_ROW, shown)],
        "rows": [{"name": row, "title": TITLES[row] + _mark(results, row)} for row in SCORES],
        "classifiers": results.classifiers,
        "classes": explorer.classes,
        "titles": {name: _titles(explorer, name, shown) for name in results.classifiers},
        "images": [_image(explorer, number, results.classifiers) for number in shown],
        "factors": {
            label: {part: _half(explorer.tfidf[part][label]) for part in ("contrast", "support")}
            for label in labels
        },
        **_words(folder, explorer.tfidf),
        "figure2": _figure2(load(folder, "analysis/figure2")[0]),
        "curves": [
            {
                "classifier": name,
                "dense": results.row("dense", name).top1,
                "lines": _lines(results, name),
            }
            for name in results.classifiers
            if curves_of(results, name)
        ],
    }


def shown_images(explorer: Explorer, classifier: str) -> list[int]:
    """The sample, or as much of it as fits, again by what happened to its images."""
    total = len(explorer.crops.content) * 3 / 4  # the mirror image is drawn from its original
    if total <= PICTURE_BYTES:
        return list(range(len(explorer)))
    room = max(int(len(explorer) * PICTURE_BYTES / total), 4)
    truth = torch.tensor([explorer.own(classifier, label) for label in explorer.labels])
    right = [
        torch.tensor([explorer.predictions.top5(classifier, row, k)[0] for k in range(len(truth))])
        for row in ("dense", MAIN_ROW)
    ]
    dense, reduced = (hits(best, truth)[0] for best in right)
    return choose_sample(dense, reduced, torch.arange(len(truth)), room)


def kinds(explorer: Explorer, classifier: str) -> dict[str, int]:
    """How many images of the whole run ended how, dense against the main row."""
    parts = [explorer.predictions.all(classifier, row) for row in ("dense", MAIN_ROW)]
    dense, reduced = (hits(part["top5"], part["labels"])[0] for part in parts)
    return {
        "rescued": int((~dense & reduced).sum()),
        "lost": int((dense & ~reduced).sum()),
        "both wrong": int((~dense & ~reduced).sum()),
        "both right": int((dense & reduced).sum()),
    }


def _mark(results: Results, row: str) -> str:
    labels = results.row(row, results.classifiers[0]).labels
    return f" [{labels}]" if labels else ""


def _titles(explorer: Explorer, classifier: str, shown: Sequence[int]) -> dict[int, str]:
    """Of the classes that appear in some Top-5, in the classifier's own numbering."""
    numbers = {
        place
        for number in shown
        for row in ("dense", *SCORES)
        for place in explorer.predictions.top5(classifier, row, number)[0]
    }
    return {place: explorer.title(classifier, place) for place in sorted(numbers)}


def _image(explorer: Explorer, number: int, classifiers: Sequence[str]) -> dict[str, Any]:
    label, views = explorer.labels[number], explorer.views(number)
    words = explorer.stored["words"][number].long()
    lookups, aligned, valid = corpus_steps(explorer.tfidf["table"][label], words, views)
    levels = (aligned * 254).round().to(torch.uint8)
    top5 = {
        classifier: {
            row: [
                [place, round(logit, 3)]
                for place, logit in zip(
                    *explorer.predictions.top5(classifier, row, number), strict=True
                )
            ]
            for row in ("dense", *SCORES)
        }
        for classifier in classifiers
    }
    crops = [explorer.crops[len(views) * number + k] for k in range(len(views))]
    return {
        "index": explorer.indices[number],
        "name": explorer.names[number],
        "label": label,
        "truth": {name: explorer.own(name, label) for name in classifiers},
        # The second view mirrors the first, so its picture is not stored.
        "crops": ["" if k == 1 else _base64(crop) for k, crop in enumerate(crops)],
        "words": _short(words),
        "lookups": _bytes((lookups * 254).round().to(torch.uint8)),
        "aligned": _bytes(torch.where(valid, levels, OUTSIDE)),
        "scores": {row: _half(explorer.stored[f"scores/{row}"][number]) for row in SCORES},
        "destinations": {row: _destinations(explorer, number, row) for row in SCORES},
        "top5": top5,
    }


def _destinations(explorer: Explorer, number: int, row: str) -> str:
    """For merged patches the kept patch they go into; for all others themselves."""
    going = torch.arange(len(explorer.fate(number, row).source))
    for patch, kept in explorer.fate(number, row).destinations.items():
        going[patch] = kept
    return _short(going)


def _words(folder: Path, tfidf: Mapping[str, Tensor]) -> dict[str, Any]:
    strips = Packed.read(load(folder, "analysis/typical")[0])
    typical = load(folder, "analysis/words")[0]["typical/image"].shape[1]
    table = tfidf["table"]
    return {
        "vocabulary": {
            "frequency": tfidf["word_counts"].sum(dim=0).tolist(),
            "df": tfidf["document_frequency"].tolist(),
            "idf": _rounded(tfidf["idf"]),
            "classes": _best(table.T),
            "strips": [_base64(strips[k]) for k in range(len(strips))],
            "strip": [typical * THUMBNAIL, THUMBNAIL],
        },
        "class_words": _best(table),
    }


def _best(table: Tensor) -> list[list[tuple[int, float]]]:
    """For each row its highest columns and their values, zeros left out."""
    values, places = table.topk(min(MOST_NAMED, table.shape[1]), dim=1)
    return [
        [(place, round(value, 4)) for place, value in zip(*pair, strict=True) if value > 0]
        for pair in zip(places.tolist(), values.tolist(), strict=True)
    ]


def _figure2(stored: Mapping[str, Tensor]) -> dict[str, Any]:
    blocks = sorted(
        (int(name.removeprefix("frequency/block")), counts)
        for name, counts in stored.items()
        if name.startswith("frequency/")
    )
    frequency, mass = stored["validation/frequency"].double(), stored["validation/score_mass"]
    order = frequency.argsort(descending=True, stable=True)
    return {
        "blocks": [
            {"block": block, "counts": [n for n in sorted(counts.tolist(), reverse=True) if n]}
            for block, counts in blocks
        ],
        "frequency": _rounded(100 * frequency[order] / frequency.sum().clamp(min=1)),
        "mass": _rounded(100 * mass[order] / mass.sum().clamp(min=1e-12)),
    }


def _lines(results: Results, classifier: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "style": line_style(rows[0]),
            "points": [
                [round(row.cost, 4), row.top1, row.tokens, *row.top1_interval] for row in rows
            ],
        }
        for name, rows in sorted(curves_of(results, classifier).items())
    ]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(values: Tensor) -> str:
    return _base64(values.to(torch.uint8).contiguous().numpy().tobytes())


def _short(values: Tensor) -> str:
    return _base64(values.to(torch.int16).contiguous().numpy().astype("<i2").tobytes())


def _half(values: Tensor) -> str:
    return _base64(values.half().contiguous().numpy().astype("<f2").tobytes())
