"""The images of a run's explorer sample, read back from its records. No model is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from redi import artifacts
from redi.classes import class_titles
from redi.explained import Explained, Fate, Guess, corpus_steps, printable
from redi.reduction import Budget
from redi.run import SCORES
from redi.views import View, stored_views, to_bytes


@dataclass(frozen=True)
class Packed:
    """Many small files in one tensor of bytes."""

    content: Tensor
    offsets: list[int]

    @classmethod
    def read(cls, stored: Mapping[str, Tensor]) -> "Packed":
        return cls(stored["jpegs"], stored["offsets"].tolist())

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.content[self.offsets[number] : self.offsets[number + 1]].numpy().tobytes()


class Explorer:
    """The sample of a run; ``explain(k)`` spells out its image number k."""

    def __init__(self, folder: Path, names: Path | None = None) -> None:
        self.folder = folder
        self.stored, manifest = artifacts.load_named(folder, "analysis/explorer")
        notes = manifest["notes"]
        self.names = [printable(name) for name in notes["names"]]
        self.geometry: dict[str, Any] = notes["geometry"]
        self.grid: tuple[int, int] = tuple(self.geometry["grid"])
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

    def __len__(self) -> int:
        return len(self.indices)

    def views(self, number: int) -> tuple[View, ...]:
        return stored_views(self.stored["boxes"][number], self.stored["flips"][number])

    def fate(self, number: int, row: str) -> Fate:
        kept, _, _ = self.budget.counts(self.grid[0] * self.grid[1])
        source, positions = (
            self.stored[f"{part}/{row}"][number].long() for part in ("source", "positions")
        )
        return Fate(source, positions, kept)

    def own(self, classifier: str, label: int) -> int:
        """A class in a classifier's own numbering."""
        return label if classifier == "probe" else self.columns[label]

    def title(self, classifier: str, number: int) -> str:
        """Of a class in a classifier's own numbering."""
        if classifier == "probe":
            return self.classes[number]
        label = self._label_of.get(number)
        return self.head[number] if label is None else self.classes[label]

    def guesses(self, number: int, classifier: str, row: str) -> list[Guess]:
        best, logits = self.predictions.top5(classifier, row, number)
        return [
            Guess(self.title(classifier, place), logit)
            for place, logit in zip(best, logits, strict=True)
        ]

    def explain(self, number: int, classifier: str) -> Explained:
        label, views = self.labels[number], self.views(number)
        words = self.stored["words"][number].long()
        lookups, aligned, valid = corpus_steps(self.tfidf["table"][label], words, views)
        count = len(views)
        crops = [
            to_bytes(Image.open(BytesIO(self.crops[count * number + k])).convert("RGB"))
            for k in range(count)
        ]
        return Explained(
            name=self.names[number],
            looked_up=self.classes[label],
            labels="gt",
            grid=self.grid,
            budget=self.budget,
            crops=torch.stack(crops),
            views=views,
            words=words,
            lookups=lookups,
            aligned=aligned,
            valid=valid,
            scores={row: self.stored[f"scores/{row}"][number].float() for row in SCORES},
            fates={row: self.fate(number, row) for row in SCORES},
            guesses={row: self.guesses(number, classifier, row) for row in ("dense", *SCORES)},
        )


class Predictions:
    """Top-5 of the sample's images, and how all images of the run ended, by classifier and row."""

    def __init__(self, folder: Path, indices: Sequence[int]) -> None:
        self.folder = folder
        self.indices = indices
        self._known: dict[tuple[str, str], dict[str, Tensor]] = {}
        self._places: dict[tuple[str, str], dict[int, int]] = {}

    def all(self, classifier: str, row: str) -> dict[str, Tensor]:
        if (classifier, row) not in self._known:
            found, _ = artifacts.load_named(self.folder, f"predictions/{classifier}/{row}")
            self._known[classifier, row] = found
            order = {index: place for place, index in enumerate(found["indices"].tolist())}
            self._places[classifier, row] = order
        return self._known[classifier, row]

    def top5(self, classifier: str, row: str, number: int) -> tuple[list[int], list[float]]:
        found = self.all(classifier, row)
        place = self._places[classifier, row][self.indices[number]]
        return found["top5"][place].tolist(), found["logits"][place].tolist()


def telling_image(explorer: Explorer, classifier: str, row: str, among: Sequence[int]) -> int:
    """A rescued image, or one that stays right, whose product differs most from either factor, and
    whose attention is not all on a few patches, which would leave little to see."""
    attention = row.removeprefix("redi_")
    best, chosen = -1.0, among[0]
    for number in among:
        own = explorer.own(classifier, explorer.labels[number])
        dense, reduced = (
            explorer.predictions.top5(classifier, name, number)[0][0] for name in ("dense", row)
        )
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
