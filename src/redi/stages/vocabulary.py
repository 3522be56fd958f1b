"""The vocabulary stage: visual words by k-means passes over the corpus.

The codebooks of other blocks (Figure 2, the study ``early``) share these passes. The first pass also gives the
classifier's features.
"""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from redi.backbone.classifier import final_feature
from redi.images.loader import Batch
from redi.records import artifacts
from redi.runs.folder import Run
from redi.runs.passes import Outcome
from redi.stages.codebooks import Book, Books, Extras, gather_start, kmeans_pass
from redi.stages.features import MAIN, cache_key, feature_cache
from redi.stages.stage import Stage
from redi.stages.words import codebook_blocks
from redi.vocabulary import Vocabulary, start_patches


def vocabulary_key(run: Run) -> dict[str, Any]:
    settings = run.config
    return run.key(
        "vocabulary",
        "train",
        n_words=settings.vocabulary.n_words,
        n_passes=settings.vocabulary.n_passes,
        analysis_words=settings.analysis.n_words,
        blocks=codebook_blocks(run.backbone.depth),
        cache=settings.runtime.cache,
    )


def features_key(run: Run) -> dict[str, Any]:
    """The classifier's features do not depend on the vocabulary whose pass they share."""
    return run.key("features", "train", features=run.config.probe.features)


def fit_vocabulary(run: Run) -> None:
    """Make the vocabulary, the codebooks of other blocks and the classifier's features in ``n_passes`` passes."""
    key = vocabulary_key(run)
    cache = feature_cache(run)
    if cache is not None and run.ranks.is_main and cache.prepare():
        run.passes.discard(_pass_name(1))  # the files with its features no longer exist
    run.ranks.wait()
    books = _books(run)
    gather_start(run, books, "vocabulary", key)
    digests = {"digests": True} if cache else {}  # the parts of the first pass hold those of the cache
    _first_pass(run, books, {**key, "pass": 1, "features": features_key(run), **digests})
    for number in range(2, run.config.vocabulary.n_passes + 1):
        kmeans_pass(run, books, _pass_name(number), {**key, "pass": number})
    if run.ranks.is_main:
        _write(run, key, {name: book.vocabulary for name, book in books.items()})
    run.ranks.wait()


def _pass_name(number: int) -> str:
    return f"vocabulary pass {number}"


def _first_pass(run: Run, books: Books, key: artifacts.Key) -> None:
    """The first pass also gives the classifier's features and fills the cache."""
    backbone, cache = run.backbone, feature_cache(run)

    def rows(hidden: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        feature = final_feature(backbone, hidden, run.config.probe.prenorm)
        digests = {"digests": cache.digests(batch.indices)} if cache else {}
        return {"features": feature, "labels": batch.labels, **digests}

    def save(outcome: Outcome) -> None:
        indices = torch.tensor(outcome.indices)
        digests = outcome.rows.pop("digests", None)
        features = {**outcome.rows, "indices": indices}
        run.save("features", features, features_key(run), skipped=outcome.skipped)
        run.save("decoded", {"indices": indices}, features_key(run))
        if cache is not None and digests is not None:
            cache.complete(cache_key(run), indices, digests)

    written = dict.fromkeys(("features", "decoded"), features_key(run))
    kmeans_pass(run, books, _pass_name(1), key, Extras(rows, save, written))


def _books(run: Run) -> dict[str, Book]:
    """The main codebook and those of single blocks, which are separate: they start from the opposite patches."""
    depth, settings = run.backbone.depth, run.config
    n_patches = run.backbone.geometry.patches
    places = partial(start_patches, len(run.training.labels), n_patches)
    main = Vocabulary(settings.vocabulary.n_words, settings.vocabulary.n_passes)
    books = {MAIN: Book(main, itemgetter(depth), places(main.n_words))}
    for block in codebook_blocks(depth):
        vocabulary = Vocabulary(settings.analysis.n_words, settings.vocabulary.n_passes)
        opposite = [(image, (patch + n_patches // 2) % n_patches) for image, patch in places(vocabulary.n_words)]
        books[f"block{block}"] = Book(vocabulary, itemgetter(block), opposite)
    return books


def _write(run: Run, key: artifacts.Key, books: dict[str, Vocabulary]) -> None:
    figures = {
        f"{book}/{field}": tensor
        for book, vocabulary in books.items()
        if book != MAIN
        for field, tensor in (("centroids", vocabulary.centroids_), ("counts", vocabulary.counts_))
    }
    run.save("analysis/codebooks", figures, key)
    main = books[MAIN]
    tensors = {"centroids": main.centroids_, "counts": main.counts_}
    run.save("vocabulary", tensors, key, objective=main.objective_, reseeded=main.reseeded_)
    for file in (run.folder / "partial").glob("*vocabulary-*.safetensors"):
        file.unlink()


def vocabulary_artefacts(run: Run) -> dict[str, artifacts.Key]:
    books = dict.fromkeys(("analysis/codebooks", "vocabulary"), vocabulary_key(run))
    return {**books, **dict.fromkeys(("features", "decoded"), features_key(run))}


def _forwards(run: Run) -> float:
    """The first pass encodes every image; with a cache, the later ones do not. The words start from some images."""
    settings, images = run.config.vocabulary, len(run.training.labels)
    passes = settings.n_passes if run.config.runtime.cache == "none" else 1
    return passes * images + min(settings.n_words, images)


STAGE = Stage(
    name="vocabulary",
    artefacts=vocabulary_artefacts,
    work=fit_vocabulary,
    passes=lambda run: f"{run.config.vocabulary.n_passes} passes over {len(run.training.labels)} training images",
    forwards=_forwards,
)
