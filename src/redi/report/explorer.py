"""The images of a run's explorer sample, read back from its records. No model is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from redi.attention import ATTENTION_SCORES
from redi.budget import Budget
from redi.corpus import TRUE_CLASS
from redi.cost import Geometry
from redi.errors import ArtifactError, printable
from redi.images.classes import class_titles
from redi.images.jpeg import Packed, from_jpeg
from redi.records import artifacts
from redi.records.deployed import MERGES
from redi.records.explained import Explained, Fate, Guess, corpus_steps
from redi.records.reading import build
from redi.rows import DENSE, Score, paper_scores
from redi.views import View, stored_views


class Explorer:
    """The explorer sample of a run. ``explain(k)`` gives every step for image number k of the sample."""

    def __init__(self, folder: Path, names: Path | None = None) -> None:
        self.folder = folder
        self.stored, manifest = artifacts.load_named(folder, "analysis/explorer")
        if "range/mass" not in self.stored:
            raise ArtifactError(f"{folder} was made by an earlier version of redi: use `redi run` again to update it.")
        notes = manifest["notes"]
        self.names = [printable(name) for name in notes["names"]]
        self.geometry: Geometry = build(Geometry, notes["geometry"])
        self.grid = self.geometry.grid
        self.budget = Budget(**notes["budget"])
        self.head: list[str] = notes["head"]
        self.columns: list[int] = notes["columns"]
        self._label_of = {column: label for label, column in enumerate(self.columns)}
        self.classes = class_titles(notes["classes"], self.head, self.columns, names)
        self.indices: list[int] = self.stored["indices"].tolist()
        self.labels: list[int] = self.stored["labels"].tolist()
        self.crops = Packed.read(self.stored)
        self.tfidf = artifacts.load_named(folder, "tfidf")[0]
        self.predictions = Predictions(folder, self.indices)
        self.merges = _merges(folder, manifest["digest"])
        self.attention = [name for name in ATTENTION_SCORES if f"range/{name}" in self.stored]
        self.rows = [score.name for score in paper_scores(self.attention)]

    def __len__(self) -> int:
        return len(self.indices)

    def views(self, number: int) -> tuple[View, ...]:
        return stored_views(self.stored["boxes"][number], self.stored["flips"][number])

    def fate(self, number: int, row: str) -> Fate:
        kept, _, _ = self.budget.counts(self.grid[0] * self.grid[1])
        source, positions = (self.stored[f"{part}/{row}"][number].long() for part in ("source", "positions"))
        return Fate(source, positions, kept)

    def own(self, classifier: str, label: int) -> int:
        """The number of a class of the data in a classifier's own numbering."""
        return label if classifier == "probe" else self.columns[label]

    def title(self, classifier: str, number: int) -> str:
        """The title of a class that is given in a classifier's own numbering."""
        if classifier == "probe":
            return self.classes[number]
        label = self._label_of.get(number)
        return self.head[number] if label is None else self.classes[label]

    def guesses(self, number: int, classifier: str, row: str) -> list[Guess]:
        best, logits = self.predictions.top5(classifier, row, number)
        return [Guess(self.title(classifier, place), logit) for place, logit in zip(best, logits, strict=True)]

    def explain(self, number: int, classifier: str) -> Explained:
        label, views = self.labels[number], self.views(number)
        words = self.stored["words"][number].long()
        lookups, aligned, valid = corpus_steps(self.tfidf["table"][label], words, views)
        count = len(views)
        crops = [from_jpeg(self.crops[count * number + k]) for k in range(count)]
        return Explained(
            name=self.names[number],
            looked_up=self.classes[label],
            label_source=TRUE_CLASS,
            grid=self.grid,
            budget=self.budget,
            crops=torch.stack(crops),
            views=views,
            words=words,
            lookups=lookups,
            aligned=aligned,
            valid=valid,
            scores={row: self.stored[f"scores/{row}"][number].float() for row in self.rows},
            fates={row: self.fate(number, row) for row in self.rows},
            guesses={row: self.guesses(number, classifier, row) for row in (DENSE, *self.rows)},
        )


@dataclass(frozen=True)
class Merges:
    """What ``redi.accelerate`` merges in the images of the sample, block by block."""

    #: For each patch whose token joined another: the block, counted from 1, and the first patch of that token. Else 0.
    block: UInt8[Tensor, "images patches"]
    into: Int[Tensor, "images patches"]
    notes: dict[str, Any]  # cost and schedule


def _merges(folder: Path, explorer: str) -> Merges | None:
    """The merges that `redi compare` recorded for the images of this explorer; None if there are none."""
    if not (folder / f"{MERGES}.safetensors").exists():
        return None
    stored, manifest = artifacts.load_named(folder, MERGES)
    if manifest["key"]["explorer"] != explorer:  # of another sample
        return None
    return Merges(stored["block"], stored["into"], manifest["notes"])


class Predictions:
    """Predictions by classifier and row: the Top-5 of the sample's images, and those of all images."""

    def __init__(self, folder: Path, indices: Sequence[int]) -> None:
        self.folder = folder
        self.indices = indices
        self._loaded: dict[tuple[str, str], dict[str, Tensor]] = {}
        self._places: dict[tuple[str, str], dict[int, int]] = {}

    def all(self, classifier: str, row: str) -> dict[str, Tensor]:
        if (classifier, row) not in self._loaded:
            stored, _ = artifacts.load_named(self.folder, f"predictions/{classifier}/{row}")
            self._loaded[classifier, row] = stored
            order = {index: place for place, index in enumerate(stored["indices"].tolist())}
            self._places[classifier, row] = order
        return self._loaded[classifier, row]

    def top5(self, classifier: str, row: str, number: int) -> tuple[list[int], list[float]]:
        stored = self.all(classifier, row)
        place = self._places[classifier, row][self.indices[number]]
        return stored["top5"][place].tolist(), stored["logits"][place].tolist()


def telling_image(explorer: Explorer, classifier: str, row: str, among: Sequence[int]) -> int:
    """The most telling image: predicted correctly, preferably rescued, with a product unlike either factor.

    Its attention should not lie on a few patches alone, because that leaves little to see.
    """
    attention = Score.parse(row).local
    best, chosen = -1.0, among[0]
    for number in among:
        own = explorer.own(classifier, explorer.labels[number])
        dense, reduced = (explorer.predictions.top5(classifier, name, number)[0][0] for name in (DENSE, row))
        rescue = float(dense != own)
        kept = [_kept(explorer, number, name) for name in (row, "tfidf", attention)]
        difference = min(len(kept[0] - other) for other in kept[1:]) / len(kept[0])
        spread = explorer.stored[f"scores/{attention}"][number].float().mean().item()
        interest = (reduced == own) * (1 + 0.5 * rescue + difference) * min(spread, 0.2)
        if interest > best:
            best, chosen = interest, number
    return chosen


def _kept(explorer: Explorer, number: int, row: str) -> set[int]:
    fate = explorer.fate(number, row)
    return set(fate.positions[: fate.kept].tolist())
