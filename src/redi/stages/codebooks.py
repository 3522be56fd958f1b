"""Several codebooks fitted side by side: one forward of an image serves all of them.

A k-means pass and the gathering of the start are the same for the vocabulary of TF-IDF, for figure 2's
codebooks and for those of ablations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from redi import artifacts
from redi.errors import CorpusError
from redi.loader import Batch
from redi.passes import Outcome, Pass
from redi.run import Run
from redi.stages.features import corpus_pass, patch_features
from redi.vocabulary import CentroidSums, Vocabulary


@dataclass(frozen=True)
class Book:
    """A codebook on its way: which features it is made of and which patches its words start from."""

    vocabulary: Vocabulary
    read: Callable[[Mapping[int, Tensor]], Tensor]  # from patch features by block
    places: list[tuple[int, int]]  # (image, patch) of each word's start


Books = Mapping[str, Book]


def gather_start(
    run: Run, books: Books, stem: str, key: artifacts.Key, embedding: bool = False
) -> None:
    """Give every codebook its deterministic start: the features of at most K images."""
    done = f"partial/{stem}-start"
    start_key = {**key, "pass": 0}
    if not run.ranks.share(partial(run.current, done, start_key)):
        _gather(run, books, f"{stem} start", done, start_key, embedding)
        run.ranks.wait()
    start = run.load(done)
    for name, book in books.items():
        book.vocabulary.centroids_ = normalize(start[name], dim=1).to(run.device)
        book.vocabulary.objective_, book.vocabulary.reseeded_ = [], []
    run.passes.discard(f"{stem} start")


def kmeans_pass(
    run: Run,
    books: Books,
    name: str,
    done: str,
    key: artifacts.Key,
    rows: Callable[[Tensor, Batch], Mapping[str, Tensor]] | None = None,
    embedding: bool = False,
) -> Outcome | None:
    """One pass; its centroids go to ``done``. What else shall be taken from the final tokens of each
    image, ``rows`` says: such a pass is made from the images, fills the cache and gives its outcome."""
    first = rows is not None

    def step(batch: Batch, sums: Mapping[str, CentroidSums]) -> Mapping[str, Tensor]:
        hidden, patches = patch_features(run, batch, first, embedding)
        for book_name, book in books.items():
            sums[book_name].update(book.read(patches), book.vocabulary.centroids_)
        return rows(hidden, batch) if rows is not None else {}

    def new_sums() -> dict[str, CentroidSums]:
        return {
            book_name: CentroidSums(book.vocabulary.n_words, run.backbone.width, run.device)
            for book_name, book in books.items()
        }

    outcome = run.passes.run(corpus_pass(run, name, step, new_sums, first, embedding), key)
    if outcome is None:
        return None
    if first and not outcome.indices:
        raise CorpusError(f"None of the images in {run.training.name} could be decoded.")
    tensors = {}
    for book_name, book in books.items():
        vocabulary = book.vocabulary
        vocabulary.step(outcome.sums[book_name])
        tensors[f"{book_name}/centroids"] = vocabulary.centroids_
        tensors[f"{book_name}/counts"] = vocabulary.counts_
        tensors[f"{book_name}/objective"] = torch.tensor(vocabulary.objective_, dtype=torch.float64)
        tensors[f"{book_name}/reseeded"] = torch.tensor(vocabulary.reseeded_)
    artifacts.save(run.path(done), tensors, key)
    return outcome


def adopt(books: Books, tensors: Mapping[str, Tensor]) -> None:
    """What a finished pass left, on every process and in a continued run."""
    for name, book in books.items():
        vocabulary = book.vocabulary
        vocabulary.centroids_ = tensors[f"{name}/centroids"].to(vocabulary.centroids_.device)
        vocabulary.counts_ = tensors[f"{name}/counts"]
        vocabulary.objective_ = tensors[f"{name}/objective"].tolist()
        vocabulary.reseeded_ = tensors[f"{name}/reseeded"].tolist()


def _gather(
    run: Run, books: Books, name: str, done: str, key: artifacts.Key, embedding: bool
) -> None:
    """Rows: for each start image the patches that its words begin with, padded to the most of any."""
    of_image: dict[str, dict[int, list[tuple[int, int]]]] = {book: {} for book in books}
    for book_name, book in books.items():
        for word, (image, patch) in enumerate(book.places):
            of_image[book_name].setdefault(image, []).append((word, patch))
    most = {book: max(map(len, images.values())) for book, images in of_image.items()}
    images = sorted({image for book in books.values() for image, _ in book.places})

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch, embedding=embedding)
        rows = {}
        for book_name, book in books.items():
            features = book.read(patches)
            rows[book_name] = features.new_zeros(
                len(batch.indices), most[book_name], features.shape[-1]
            )
            for row, image in enumerate(batch.indices):
                for slot, (_, patch) in enumerate(of_image[book_name].get(image, [])):
                    rows[book_name][row, slot] = features[row, patch]
        return rows

    outcome = run.passes.run(Pass(name, run.dataset(run.training), step, indices=images), key)
    if outcome is None:
        return
    if not outcome.indices:
        raise CorpusError(f"None of the images in {run.training.name} could be decoded.")
    starts = {}
    for book_name, book in books.items():
        # A word whose image cannot be decoded starts at zero, gets no patch and is placed anew.
        start = torch.zeros(book.vocabulary.n_words, outcome.rows[book_name].shape[-1])
        for row, image in enumerate(outcome.indices):
            for slot, (word, _) in enumerate(of_image[book_name].get(image, [])):
                start[word] = outcome.rows[book_name][row, slot]
        starts[book_name] = start
    artifacts.save(run.path(done), starts, key)
