"""The data of the report's page: records of a run as JSON, arrays as base64. No model is run."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi.evaluate import choose_sample, hits
from redi.images.jpeg import Packed, from_jpeg, to_jpeg
from redi.records import artifacts
from redi.records.results import Results
from redi.report.curves import curves_of, line_style
from redi.report.explorer import Explorer, Merges, telling_image
from redi.report.figures import Figure2, figure2_shares
from redi.rows import DENSE, MAIN_ROW, Score
from redi.views import MEAN_WEIGHT

#: Number of characters of images and words beyond which a page shows fewer images than the sample holds.
PAGE_CHARACTERS = 14_000_000
#: Number of characters of thumbnails beyond which a word shows fewer of them.
STRIP_CHARACTERS = 5_000_000
#: Most classes shown per word, and most words shown per class.
MOST_NAMED = 8


def content(
    folder: Path,
    results: Results,
    explorer: Explorer,
    page_characters: int = PAGE_CHARACTERS,
    strip_characters: int = STRIP_CHARACTERS,
) -> dict[str, Any]:
    """The page's data; images and thumbnails are left out beyond the given numbers of characters."""
    classifiers, first = results.classifiers, results.classifiers[0]
    words = _words(folder, explorer.tfidf, strip_characters)
    images = [_image(explorer, number, classifiers) for number in range(len(explorer))]
    shown = fitting(explorer, images, first, page_characters - len(json.dumps(words)))
    return {
        "grid": explorer.grid,
        "geometry": {"prefix": explorer.geometry.prefix, **asdict(explorer.geometry.block)},
        "budget": vars(explorer.budget),
        "main": MAIN_ROW,
        "mean_weight": MEAN_WEIGHT,
        "merges": None if explorer.merges is None else explorer.merges.notes,
        "hero": explorer.indices[telling_image(explorer, first, MAIN_ROW, shown)],
        "rows": [_score(results, row) for row in results.scores],
        "classifiers": classifiers,
        "classes": explorer.classes,
        "titles": {name: _titles(explorer, name, shown) for name in classifiers},
        "images": [images[number] for number in shown],
        "factors": _factors(explorer, shown),
        **words,
        "figure2": _figure2(figure2_shares(folder)),
        "curves": [
            {"classifier": name, "dense": results.row(DENSE, name).top1, "lines": _lines(results, name)}
            for name in classifiers
            if curves_of(results, name)
        ],
    }


def fitting(explorer: Explorer, images: Sequence[Mapping[str, Any]], classifier: str, room: int) -> list[int]:
    """Numbers of the images that fit into ``room`` characters: all of the sample, or a choice by outcome."""
    total = sum(len(json.dumps(image)) for image in images)
    if total <= room:
        return list(range(len(images)))
    truth = torch.tensor([explorer.own(classifier, label) for label in explorer.labels])
    predicted = [
        torch.tensor([explorer.predictions.top5(classifier, row, k)[0] for k in range(len(truth))])
        for row in (DENSE, MAIN_ROW)
    ]
    dense, reduced = (hits(best, truth)[0] for best in predicted)
    count = max(int(len(images) * room / total), 4)
    return choose_sample(dense, reduced, torch.arange(len(truth)), count)


def kinds(explorer: Explorer, classifier: str) -> dict[str, int]:
    """The number of images of the whole run per outcome, dense against the main row."""
    parts = [explorer.predictions.all(classifier, row) for row in (DENSE, MAIN_ROW)]
    dense, reduced = (hits(part["top5"], part["labels"])[0] for part in parts)
    return {
        "rescued": int((~dense & reduced).sum()),
        "lost": int((dense & ~reduced).sum()),
        "both wrong": int((~dense & ~reduced).sum()),
        "both right": int((dense & reduced).sum()),
    }


def _score(results: Results, name: str) -> dict[str, str]:
    """A score and the attention score that the page shows beside it."""
    score = Score.parse(name)
    attention = score.local if score.local in results.notes.attention_scores else "mass"
    return {"name": name, "title": results.row(name, results.classifiers[0]).title, "attention": attention}


def _titles(explorer: Explorer, classifier: str, shown: Sequence[int]) -> dict[int, str]:
    """Titles of the classes in any Top-5 that is shown, in the classifier's own numbering."""
    numbers = {
        place
        for number in shown
        for row in (DENSE, *explorer.rows)
        for place in explorer.predictions.top5(classifier, row, number)[0]
    }
    return {place: explorer.title(classifier, place) for place in sorted(numbers)}


def _image(explorer: Explorer, number: int, classifiers: Sequence[str]) -> dict[str, Any]:
    label, views = explorer.labels[number], explorer.views(number)
    top5 = {
        classifier: {
            row: [
                [place, round(logit, 3)]
                for place, logit in zip(*explorer.predictions.top5(classifier, row, number), strict=True)
            ]
            for row in (DENSE, *explorer.rows)
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
        "words": _short(explorer.stored["words"][number]),
        "views": [[*view.box, int(view.flip)] for view in views],
        "ranges": {name: explorer.stored[f"range/{name}"][number].tolist() for name in explorer.attention},
        "scores": {row: _half(explorer.stored[f"scores/{row}"][number]) for row in explorer.rows},
        "destinations": {row: _destinations(explorer, number, row) for row in explorer.rows},
        "top5": top5,
        "merges": explorer.merges and _merges(explorer.merges, number),
    }


def _merges(merges: Merges, number: int) -> dict[str, str]:
    return {"block": _bytes(merges.block[number]), "into": _short(merges.into[number])}


def _factors(explorer: Explorer, shown: Sequence[int]) -> dict[int, dict[str, str]]:
    """Per class: the words that its shown images have, and the factors and TF-IDF of these words."""
    factors = {}
    for label in sorted({explorer.labels[number] for number in shown}):
        numbers = [number for number in shown if explorer.labels[number] == label]
        words = explorer.stored["words"][numbers].long().unique()
        parts = ("contrast", "support", "table")
        factors[label] = {
            "words": _short(words),
            **{part: _float(explorer.tfidf[part][label, words]) for part in parts},
        }
    return factors


def _destinations(explorer: Explorer, number: int, row: str) -> str:
    """The destination of each patch: the kept patch for a merged one, the patch itself for all others."""
    fate = explorer.fate(number, row)
    destinations = torch.arange(len(fate.source))
    for patch, kept in fate.destinations.items():
        destinations[patch] = kept
    return _short(destinations)


def _words(folder: Path, tfidf: Mapping[str, Tensor], characters: int) -> dict[str, Any]:
    packed = Packed.read(artifacts.load_named(folder, "analysis/typical")[0])
    table = tfidf["table"]
    strips = [packed[k] for k in range(len(packed))]
    allowed = characters / max(4 / 3 * sum(map(len, strips)), 1)
    side, width = from_jpeg(strips[0]).shape[1:]
    if allowed < 1:
        width = max(int(allowed * width / side), 1) * side
        strips = [to_jpeg(from_jpeg(strip)[:, :, :width]) for strip in strips]
    return {
        "vocabulary": {
            "frequency": tfidf["word_counts"].sum(dim=0).tolist(),
            "df": tfidf["document_frequency"].tolist(),
            "idf": [round(value, 4) for value in tfidf["idf"].tolist()],
            "classes": _best(table.T),
            "strips": [_base64(strip) for strip in strips],
            "strip": [width, side],
        },
        "class_words": _best(table),
    }


def _best(table: Tensor) -> list[list[tuple[int, float]]]:
    """The highest columns of each row with their values, zeros left out."""
    values, places = table.topk(min(MOST_NAMED, table.shape[1]), dim=1)
    return [
        [(place, round(value, 4)) for place, value in zip(*pair, strict=True) if value > 0]
        for pair in zip(places.tolist(), values.tolist(), strict=True)
    ]


def _figure2(figure2: Figure2) -> dict[str, Any]:
    return {
        "blocks": [{"block": block, "counts": counts} for block, counts in figure2.blocks],
        "frequency": [round(share, 4) for share in figure2.frequency],
        "mass": [round(share, 4) for share in figure2.mass],
    }


def _lines(results: Results, classifier: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "style": line_style(rows[0]),
            "points": [[round(row.cost, 4), row.top1, row.tokens, *row.top1_interval] for row in rows],
        }
        for name, rows in sorted(curves_of(results, classifier).items())
    ]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(values: Tensor) -> str:
    return _base64(values.to(torch.uint8).contiguous().numpy().tobytes())


def _short(values: Tensor) -> str:
    return _base64(values.to(torch.int16).contiguous().numpy().astype("<i2").tobytes())


def _float(values: Tensor) -> str:
    return _base64(values.float().contiguous().numpy().astype("<f4").tobytes())


def _half(values: Tensor) -> str:
    return _base64(values.half().contiguous().numpy().astype("<f2").tobytes())
