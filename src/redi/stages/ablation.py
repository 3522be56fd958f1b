"""Vocabularies other than the run's own, with their corpus counts and the words of the validation images.

All codebooks share the passes: each k-means pass over the corpus updates every codebook, one more pass counts the
words of all of them, and one pass over the four views assigns words with all of them. A codebook of two passes is
the codebook of five passes after its second pass.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from redi.centroids import dot_products
from redi.images.loader import Batch
from redi.rows import Codebook
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.stages.codebooks import Book, gather_start, kmeans_pass
from redi.stages.features import corpus_pass, patch_features
from redi.stages.score import DENSE_PASS, scored_images
from redi.stages.tfidf import corpus_tensors
from redi.tfidf import CorpusStatistics
from redi.vocabulary import Vocabulary, start_patches


def make_codebooks(run: Run, codebooks: Sequence[Codebook]) -> None:
    """Make ``ablation/<name>/{vocabulary,tfidf,words}`` for every codebook that is missing."""
    numbers = run.ranks.share(lambda: [number for number, book in enumerate(codebooks) if not _done(run, book)])
    missing = [codebooks[number] for number in numbers]
    if missing:
        _fit(run, missing)
        _count(run, missing)
        _assign(run, missing)
    run.ranks.wait()


def embedding_words(run: Run) -> str:
    """The name of the artefact with the words of input embeddings, which merging by visual word uses."""
    return _artefact(_embedding_codebook(run), "vocabulary")


def make_embedding_words(run: Run) -> str:
    """Fit the words of input embeddings if they are missing, without running a block. Return the artefact's name."""
    codebook, name = _embedding_codebook(run), embedding_words(run)
    if not run.ranks.share(partial(run.current, name, _key(run, codebook, "train"))):
        _fit(run, [codebook], embedding=True)
    return name


def _embedding_codebook(run: Run) -> Codebook:
    settings = run.config.vocabulary
    return Codebook(settings.n_words, settings.n_passes, features="embedding")


def _key(run: Run, codebook: Codebook, *data: str) -> dict[str, Any]:
    """The key of an artefact. The seed draws random starts and views; words exist for the images that have scores."""
    return run.key(
        "ablation",
        *data,
        images=run.digest(DENSE_PASS) if "val" in data else "",
        codebook=codebook.name,
        decoded=run.digest("decoded"),
        cache=run.config.runtime.cache,
        seed=run.config.seed,
    )


def _artefact(codebook: Codebook, kind: str) -> str:
    return f"ablation/{codebook.name}/{kind}"


def _done(run: Run, codebook: Codebook) -> bool:
    return all(
        run.current(_artefact(codebook, kind), _key(run, codebook, *data))
        for kind, data in (("vocabulary", ("train",)), ("tfidf", ("train",)), ("words", ("train", "val")))
    )


def _features(run: Run, features: str, patches: Mapping[int, Tensor]) -> Tensor:
    """The features of a codebook. The final norm works on each token alone, so patch features are enough for it."""
    if features == "embedding":
        return patches[0]
    last = patches[run.backbone.depth]
    return last if features == "prenorm" else run.backbone.final_norm(last)


def _recipe(codebook: Codebook) -> tuple[int, str, str]:
    """Codebooks that differ only in their number of passes share a recipe and are fitted as one."""
    return codebook.n_words, codebook.features, codebook.start


def _fit(run: Run, codebooks: Sequence[Codebook], embedding: bool = False) -> None:
    passes: dict[tuple[int, str, str], int] = {}
    for codebook in codebooks:
        recipe = _recipe(codebook)
        passes[recipe] = max(passes.get(recipe, 0), codebook.n_passes)
    books = {"-".join(map(str, recipe)): _book(run, *recipe) for recipe in passes}
    stem = "embedding" if embedding else "ablation"
    key = run.key("ablation", "train", books={book.name: _key(run, book) for book in codebooks})
    gather_start(run, books, stem, key, embedding)
    for number in range(1, max(passes.values()) + 1):
        unfinished = {name: book for (name, book), n in zip(books.items(), passes.values(), strict=True) if n >= number}
        kmeans_pass(run, unfinished, f"{stem} pass {number}", {**key, "pass": number}, embedding=embedding)
        if run.ranks.is_main:
            for codebook in codebooks:
                if codebook.n_passes == number:
                    _save(run, codebook, books["-".join(map(str, _recipe(codebook)))].vocabulary)
        run.ranks.wait()


def _save(run: Run, codebook: Codebook, vocabulary: Vocabulary) -> None:
    tensors = {"centroids": vocabulary.centroids_, "counts": vocabulary.counts_}
    notes = {"objective": vocabulary.objective_, "reseeded": vocabulary.reseeded_}
    run.save(_artefact(codebook, "vocabulary"), tensors, _key(run, codebook, "train"), **notes)


def _book(run: Run, n_words: int, features: str, start: str) -> Book:
    n_patches = run.backbone.geometry.patches
    n_images = len(run.training.labels)
    places = start_patches(n_images, n_patches, n_words)
    if start == "random":
        patches = Random(run.config.seed).sample(range(n_images * n_patches), n_words)
        places = [divmod(patch, n_patches) for patch in patches]
    return Book(Vocabulary(n_words), partial(_features, run, features), places)


def _centroids(run: Run, codebooks: Sequence[Codebook]) -> dict[str, tuple[str, Tensor]]:
    """Map the name of each codebook to its (features, centroids)."""
    return {
        book.name: (book.features, run.load(_artefact(book, "vocabulary"))["centroids"].to(run.device))
        for book in codebooks
    }


def _count(run: Run, codebooks: Sequence[Codebook]) -> None:
    centroids = _centroids(run, codebooks)

    def step(batch: Batch, sums: Mapping[str, CorpusStatistics]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch)
        for name, (features, words) in centroids.items():
            assigned = dot_products(_features(run, features, patches), words).argmax(dim=-1)
            sums[name].update(assigned, batch.labels)
        return {}

    def new_sums() -> dict[str, CorpusStatistics]:
        classes = len(run.training.class_names)
        return {name: CorpusStatistics(classes, len(words)) for name, (_, words) in centroids.items()}

    key = run.key("ablation", "train", books=[_key(run, book) for book in codebooks], what="count")

    def save(outcome: Outcome) -> None:
        for codebook in codebooks:
            tensors = corpus_tensors(outcome.sums[codebook.name])
            run.save(_artefact(codebook, "tfidf"), tensors, _key(run, codebook, "train"))

    run.finish(corpus_pass(run, "ablation counts", step, new_sums), key, save)


def _assign(run: Run, codebooks: Sequence[Codebook]) -> None:
    backbone, centroids = run.backbone, _centroids(run, codebooks)

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels.to(run.device)
        words: dict[str, list[Tensor]] = {name: [] for name in centroids}
        for view in range(pixels.shape[1]):
            tokens = backbone.embed(backbone.preprocessing.normalise(pixels[:, view]))
            patches = {backbone.depth: backbone.encode(tokens)[:, backbone.prefix :]}
            for name, (features, book) in centroids.items():
                assigned = dot_products(_features(run, features, patches), book).argmax(dim=-1)
                words[name].append(assigned.to(torch.int16))
        return {name: torch.stack(views, dim=1) for name, views in words.items()}

    key = run.key("ablation", "train", "val", books=[_key(run, book) for book in codebooks], what="words")

    def save(outcome: Outcome) -> None:
        indices = torch.tensor(outcome.indices)
        for codebook in codebooks:
            tensors = {"words": outcome.rows[codebook.name], "indices": indices}
            run.save(_artefact(codebook, "words"), tensors, _key(run, codebook, "train", "val"))

    dataset = run.dataset(run.validation, four_views=True)
    work = Pass("ablation words", dataset, step, indices=scored_images(run))
    run.finish(work, key, save, all_decoded=True)
