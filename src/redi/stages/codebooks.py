"""Several codebooks fitted side by side: one forward pass per image serves all of them.

The TF-IDF vocabulary, the codebooks of single blocks and those of the ablations share this code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from redi.centroids import CentroidSums
from redi.errors import CorpusError
from redi.images.loader import Batch
from redi.records import artifacts
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.stages.features import corpus_pass, patch_features
from redi.vocabulary import Vocabulary


@dataclass(frozen=True)
class Book:
    """A codebook that is being fitted: its features and the patches that its words start from."""

    vocabulary: Vocabulary
    read: Callable[[Mapping[int, Tensor]], Tensor]  # its features, from the patch features of each block
    places: list[tuple[int, int]]  # (image, patch) of each word's start


Books = Mapping[str, Book]


@dataclass(frozen=True)
class Extras:
    """What a pass keeps of the final tokens of each image, in addition to the sums of the codebooks."""

    rows: Callable[[Tensor, Batch], Mapping[str, Tensor]]
    save: Callable[[Outcome], None]
    artefacts: Mapping[str, artifacts.Key]  # names that ``save`` writes, with their keys


def gather_start(run: Run, books: Books, stem: str, key: artifacts.Key, embedding: bool = False) -> None:
    """Give every codebook its deterministic start: the features of at most K images."""
    name = f"partial/{stem}-start"
    start_key = {**key, "pass": 0}
    if not run.ranks.share(partial(run.current, name, start_key)):
        _gather(run, books, f"{stem} start", name, start_key, embedding)
    start = run.load(name)
    for book_name, book in books.items():
        book.vocabulary.centroids_ = normalize(start[book_name], dim=1).to(run.device)
        book.vocabulary.objective_, book.vocabulary.reseeded_ = [], []


def kmeans_pass(
    run: Run, books: Books, name: str, key: artifacts.Key, extras: Extras | None = None, embedding: bool = False
) -> None:
    """Run one k-means pass unless an earlier run has finished it, and give its centroids to the books.

    A pass with ``extras`` reads the images and fills the cache.
    """
    first = extras is not None
    after = f"partial/after-{name.replace(' ', '-')}"
    written = {after: key, **(extras.artefacts if extras else {})}

    def step(batch: Batch, sums: Mapping[str, CentroidSums]) -> Mapping[str, Tensor]:
        hidden, patches = patch_features(run, batch, first, embedding)
        for book_name, book in books.items():
            sums[book_name].update(book.read(patches), book.vocabulary.centroids_)
        return extras.rows(hidden, batch) if extras else {}

    def new_sums() -> dict[str, CentroidSums]:
        return {
            book_name: CentroidSums(book.vocabulary.n_words, run.backbone.width, run.device)
            for book_name, book in books.items()
        }

    def save(outcome: Outcome) -> None:
        tensors = {}
        for book_name, book in books.items():
            vocabulary = book.vocabulary
            vocabulary.step(outcome.sums[book_name])
            tensors[f"{book_name}/centroids"] = vocabulary.centroids_
            tensors[f"{book_name}/counts"] = vocabulary.counts_
            tensors[f"{book_name}/objective"] = torch.tensor(vocabulary.objective_, dtype=torch.float64)
            tensors[f"{book_name}/reseeded"] = torch.tensor(vocabulary.reseeded_)
        if extras:
            extras.save(outcome)
        run.save(after, tensors, key)

    if not run.ranks.share(lambda: all(run.current(*entry) for entry in written.items())):
        run.finish(corpus_pass(run, name, step, new_sums, first, embedding), key, save)
    _adopt(books, run.load(after))
    run.ranks.wait()  # until every process has read it


def _adopt(books: Books, tensors: Mapping[str, Tensor]) -> None:
    """Load the state after a finished pass into the books, on every process and in a continued run."""
    for name, book in books.items():
        vocabulary = book.vocabulary
        vocabulary.centroids_ = tensors[f"{name}/centroids"].to(vocabulary.centroids_.device)
        vocabulary.counts_ = tensors[f"{name}/counts"]
        vocabulary.objective_ = tensors[f"{name}/objective"].tolist()
        vocabulary.reseeded_ = tensors[f"{name}/reseeded"].tolist()


def _gather(run: Run, books: Books, name: str, artefact: str, key: artifacts.Key, embedding: bool) -> None:
    """Save the features that the words start from. Each image has a row of them, padded to equal length."""
    by_image: dict[str, dict[int, list[tuple[int, int]]]] = {book: {} for book in books}
    for book_name, book in books.items():
        for word, (image, patch) in enumerate(book.places):
            by_image[book_name].setdefault(image, []).append((word, patch))
    most = {book: max(map(len, images.values())) for book, images in by_image.items()}
    images = sorted({image for book in books.values() for image, _ in book.places})

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch, embedding=embedding)
        rows = {}
        for book_name, book in books.items():
            features = book.read(patches)
            rows[book_name] = features.new_zeros(len(batch.indices), most[book_name], features.shape[-1])
            for row, image in enumerate(batch.indices):
                for slot, (_, patch) in enumerate(by_image[book_name].get(image, [])):
                    rows[book_name][row, slot] = features[row, patch]
        return rows

    def save(outcome: Outcome) -> None:
        if not outcome.indices:
            raise CorpusError(f"None of the images in {run.training.name} could be decoded.")
        starts = {}
        for book_name, book in books.items():
            # A word whose image cannot be decoded starts at zero, gets no patch and is reseeded.
            start = torch.zeros(book.vocabulary.n_words, outcome.rows[book_name].shape[-1])
            for row, image in enumerate(outcome.indices):
                for slot, (word, _) in enumerate(by_image[book_name].get(image, [])):
                    start[word] = outcome.rows[book_name][row, slot]
            starts[book_name] = start
        run.save(artefact, starts, key)

    run.finish(Pass(name, run.dataset(run.training), step, indices=images), key, save)
