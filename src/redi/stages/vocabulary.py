"""The vocabulary stage: visual words by k-means passes over the corpus.

Figure 2's codebooks at other blocks ride on the same passes, and the classifier's features on the
first of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from redi import artifacts
from redi.analysis import figure_blocks
from redi.errors import CorpusError
from redi.loader import Batch
from redi.passes import Pass
from redi.probe import image_feature
from redi.run import Run
from redi.stages.features import (
    MAIN,
    block_of,
    cache_key,
    corpus_pass,
    feature_cache,
    patch_features,
)
from redi.vocabulary import CentroidSums, Vocabulary, start_patches


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
    books = _start(run, key)
    for number in range(1, run.config.vocabulary.n_passes + 1):
        name = f"vocabulary pass {number}"
        done = f"partial/vocabulary-after-pass-{number}"
        pass_key = {**key, "pass": number, "features": features_key(run) if number == 1 else None}
        if not run.ranks.share(partial(_pass_done, run, number, done, pass_key)):
            _one_pass(run, books, name, done, pass_key, first=number == 1)
            run.ranks.wait()
        _adopt(books, run.load(done))
        run.passes.discard(name)
    run.ranks.wait()  # the main process is about to remove what the others have just read
    if run.ranks.is_main:
        _write(run, key, books)
    run.ranks.wait()


def _pass_done(run: Run, number: int, done: str, key: artifacts.Key) -> bool:
    return run.current(done, key) and (number > 1 or features_done(run))


def _one_pass(
    run: Run,
    books: dict[str, Vocabulary],
    name: str,
    done: str,
    key: artifacts.Key,
    first: bool,
) -> None:
    """One k-means pass. The first also gives the classifier's features and fills the cache, so it is
    always made from the images."""
    backbone = run.backbone

    def step(batch: Batch, sums: Mapping[str, CentroidSums]) -> Mapping[str, Tensor]:
        hidden, patches = patch_features(run, batch, fill_cache=first)
        for book, vocabulary in books.items():
            sums[book].update(patches[block_of(run, book)], vocabulary.centroids_)
        if not first:
            return {}
        tokens = hidden if run.config.probe.features == "prenorm" else backbone.final_norm(hidden)
        return {"features": image_feature(tokens, backbone.prefix), "labels": batch.labels}

    def new_sums() -> dict[str, CentroidSums]:
        return {
            book: CentroidSums(vocabulary.n_words, backbone.width, run.device)
            for book, vocabulary in books.items()
        }

    outcome = run.passes.run(corpus_pass(run, name, step, new_sums, cached=not first), key)
    if outcome is None:
        return
    if first:
        if not outcome.indices:
            raise CorpusError(f"None of the images in {run.training.name} could be decoded.")
        rows = {**outcome.rows, "indices": torch.tensor(outcome.indices)}
        artifacts.save(run.path("features"), rows, features_key(run), skipped=outcome.skipped)
        artifacts.save(run.path("decoded"), {"indices": rows["indices"]}, features_key(run))
        cache = feature_cache(run)
        if cache is not None:
            cache.complete(cache_key(run))
    tensors = {}
    for book, vocabulary in books.items():
        vocabulary.step(outcome.sums[book])
        tensors[f"{book}/centroids"] = vocabulary.centroids_
        tensors[f"{book}/counts"] = vocabulary.counts_
        tensors[f"{book}/objective"] = torch.tensor(vocabulary.objective_, dtype=torch.float64)
        tensors[f"{book}/reseeded"] = torch.tensor(vocabulary.reseeded_)
    artifacts.save(run.path(done), tensors, key)


def _adopt(books: dict[str, Vocabulary], tensors: Mapping[str, Tensor]) -> None:
    for book, vocabulary in books.items():
        vocabulary.centroids_ = tensors[f"{book}/centroids"].to(vocabulary.centroids_.device)
        vocabulary.counts_ = tensors[f"{book}/counts"]
        vocabulary.objective_ = tensors[f"{book}/objective"].tolist()
        vocabulary.reseeded_ = tensors[f"{book}/reseeded"].tolist()


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


def _start(run: Run, key: artifacts.Key) -> dict[str, Vocabulary]:
    """Every codebook with its deterministic start: the features of at most K images."""
    blocks = figure_blocks(run.backbone.depth)
    books = {MAIN: Vocabulary(run.config.vocabulary.n_words, run.config.vocabulary.n_passes)}
    for block in blocks:
        books[f"block{block}"] = Vocabulary(
            run.config.analysis.n_words, run.config.vocabulary.n_passes
        )
    n_patches = (run.backbone.preprocessing.size // run.backbone.patch_size) ** 2
    places = {
        book: start_patches(len(run.training.labels), n_patches, vocabulary.n_words)
        for book, vocabulary in books.items()
    }
    # Figure 2's codebooks are separate from the main one: they start from the patch opposite.
    for book in books:
        if book != MAIN:
            places[book] = [
                (image, (patch + n_patches // 2) % n_patches) for image, patch in places[book]
            ]
    done = "partial/vocabulary-start"
    start_key = {**key, "pass": 0}
    if not run.ranks.share(partial(run.current, done, start_key)):
        _gather_start(run, books, places, done, start_key)
        run.ranks.wait()
    start = run.load(done)
    for book, vocabulary in books.items():
        vocabulary.centroids_ = normalize(start[book], dim=1).to(run.device)
        vocabulary.objective_, vocabulary.reseeded_ = [], []
    run.passes.discard("vocabulary start")
    return books


def _gather_start(
    run: Run,
    books: dict[str, Vocabulary],
    places: dict[str, list[tuple[int, int]]],
    done: str,
    key: artifacts.Key,
) -> None:
    """Rows: for each start image the patches that its words begin with, padded to the most of any."""
    of_image: dict[str, dict[int, list[tuple[int, int]]]] = {book: {} for book in books}
    for book, chosen in places.items():
        for word, (image, patch) in enumerate(chosen):
            of_image[book].setdefault(image, []).append((word, patch))
    most = {book: max(map(len, images.values())) for book, images in of_image.items()}
    images = sorted({image for chosen in places.values() for image, _ in chosen})

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch)
        rows = {}
        for book in books:
            features = patches[block_of(run, book)]
            rows[book] = features.new_zeros(len(batch.indices), most[book], features.shape[-1])
            for row, image in enumerate(batch.indices):
                for slot, (_, patch) in enumerate(of_image[book].get(image, [])):
                    rows[book][row, slot] = features[row, patch]
        return rows

    work = Pass("vocabulary start", run.dataset(run.training), step, indices=images)
    outcome = run.passes.run(work, key)
    if outcome is None:
        return
    if not outcome.indices:
        raise CorpusError(f"None of the images in {run.training.name} could be decoded.")
    starts = {}
    for book, vocabulary in books.items():
        # A word whose image cannot be decoded starts at zero, gets no patch and is placed anew.
        starts[book] = torch.zeros(vocabulary.n_words, outcome.rows[book].shape[-1])
        for row, image in enumerate(outcome.indices):
            for slot, (word, _) in enumerate(of_image[book].get(image, [])):
                starts[book][word] = outcome.rows[book][row, slot]
    artifacts.save(run.path(done), starts, key)
