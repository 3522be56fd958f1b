"""The vocabulary stage: visual words by k-means passes over the corpus.

Figure 2's codebooks at other blocks ride on the same passes, and the classifier's features on the
first of them.
"""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.analysis import figure_blocks
from redi.loader import Batch
from redi.probe import image_feature
from redi.run import Run
from redi.stages.codebooks import Book, Books, adopt, gather_start, kmeans_pass
from redi.stages.features import MAIN, cache_key, feature_cache
from redi.vocabulary import Vocabulary, start_patches


def vocabulary_key(run: Run) -> dict[str, Any]:
    settings = run.config
    return run.key(
        "vocabulary",
        "train",
        n_words=settings.vocabulary.n_words,
        n_passes=settings.vocabulary.n_passes,
        analysis_words=settings.analysis.n_words,
        cache=settings.runtime.cache,
    )


def features_key(run: Run) -> dict[str, Any]:
    """The classifier's features depend on nothing of the vocabulary whose pass they ride on."""
    return run.key("features", "train", features=run.config.probe.features)


def features_done(run: Run) -> bool:
    key = features_key(run)
    return all(run.current(name, key) for name in ("features", "decoded"))


def vocabulary_done(run: Run) -> bool:
    key = vocabulary_key(run)
    books = all(run.current(name, key) for name in ("analysis/codebooks", "vocabulary"))
    return books and features_done(run)


def fit_vocabulary(run: Run) -> None:
    """Vocabulary, figure 2's codebooks and the classifier's features: ``n_passes`` corpus passes."""
    key = vocabulary_key(run)
    cache = feature_cache(run)
    if cache is not None and run.ranks.is_main and cache.prepare():
        run.passes.discard("vocabulary pass 1")  # its features were in files that are gone
    run.ranks.wait()
    books = _books(run)
    gather_start(run, books, "vocabulary", key)
    for number in range(1, run.config.vocabulary.n_passes + 1):
        name = f"vocabulary pass {number}"
        done = f"partial/vocabulary-after-pass-{number}"
        pass_key = {**key, "pass": number, "features": features_key(run) if number == 1 else None}
        if not run.ranks.share(partial(_pass_done, run, number, done, pass_key)):
            if number == 1:
                _first_pass(run, books, name, done, pass_key)
            else:
                kmeans_pass(run, books, name, done, pass_key)
            run.ranks.wait()
        adopt(books, run.load(done))
        run.passes.discard(name)
    run.ranks.wait()  # the main process is about to remove what the others have just read
    if run.ranks.is_main:
        _write(run, key, {name: book.vocabulary for name, book in books.items()})
    run.ranks.wait()


def _pass_done(run: Run, number: int, done: str, key: artifacts.Key) -> bool:
    return run.current(done, key) and (number > 1 or features_done(run))


def _first_pass(run: Run, books: Books, name: str, done: str, key: artifacts.Key) -> None:
    """The first pass also gives the classifier's features and fills the cache."""
    backbone = run.backbone

    def rows(hidden: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        tokens = hidden if run.config.probe.features == "prenorm" else backbone.final_norm(hidden)
        return {"features": image_feature(tokens, backbone.prefix), "labels": batch.labels}

    outcome = kmeans_pass(run, books, name, done, key, rows)
    if outcome is None:
        return
    found = {**outcome.rows, "indices": torch.tensor(outcome.indices)}
    artifacts.save(run.path("features"), found, features_key(run), skipped=outcome.skipped)
    artifacts.save(run.path("decoded"), {"indices": found["indices"]}, features_key(run))
    cache = feature_cache(run)
    if cache is not None:
        cache.complete(cache_key(run))


def _books(run: Run) -> dict[str, Book]:
    """The main codebook and figure 2's, which are separate: they start from the patch opposite."""
    depth, settings = run.backbone.depth, run.config
    n_patches = (run.backbone.preprocessing.size // run.backbone.patch_size) ** 2
    places = partial(start_patches, len(run.training.labels), n_patches)
    main = Vocabulary(settings.vocabulary.n_words, settings.vocabulary.n_passes)
    books = {MAIN: Book(main, itemgetter(depth), places(main.n_words))}
    for block in figure_blocks(depth):
        vocabulary = Vocabulary(settings.analysis.n_words, settings.vocabulary.n_passes)
        opposite = [
            (image, (patch + n_patches // 2) % n_patches)
            for image, patch in places(vocabulary.n_words)
        ]
        books[f"block{block}"] = Book(vocabulary, itemgetter(block), opposite)
    return books


def _write(run: Run, key: artifacts.Key, books: dict[str, Vocabulary]) -> None:
    figures = {
        f"{book}/{field}": tensor
        for book, vocabulary in books.items()
        if book != MAIN
        for field, tensor in (("centroids", vocabulary.centroids_), ("counts", vocabulary.counts_))
    }
    artifacts.save(run.path("analysis/codebooks"), figures, key)
    main = books[MAIN]
    artifacts.save(
        run.path("vocabulary"),
        {"centroids": main.centroids_, "counts": main.counts_},
        key,
        objective=main.objective_,
        reseeded=main.reseeded_,
    )
    for file in (run.folder / "partial").glob("vocabulary-*.safetensors"):
        file.unlink()
