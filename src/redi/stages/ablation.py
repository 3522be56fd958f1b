"""Vocabularies other than the run's own, with their corpus counts and the validation images' words.

All of them share their passes: one k-means pass over the corpus moves every codebook on, one pass
counts with all of them, and one pass over the four views assigns words with all of them. A codebook of
two passes is what one of five passes was after its second.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.loader import Batch
from redi.passes import Pass
from redi.run import Run
from redi.stages.codebooks import Book, adopt, gather_start, kmeans_pass
from redi.stages.features import corpus_pass, patch_features
from redi.tfidf import CorpusStatistics
from redi.variants import Codebook
from redi.vocabulary import Vocabulary, dot_products, start_patches


def make_codebooks(run: Run, codebooks: Sequence[Codebook]) -> None:
    """``ablation/<name>/{vocabulary,tfidf,words}`` of each codebook that is not there yet."""
    missing = run.ranks.share(
        lambda: [number for number, book in enumerate(codebooks) if not _done(run, book)]
    )
    wanted = [codebooks[number] for number in missing]
    if wanted:
        _fit(run, wanted)
        _count(run, wanted)
        _assign(run, wanted)
    run.ranks.wait()


def embedding_words(run: Run) -> str:
    """Name of the artefact with words of input embeddings, for merging by visual word."""
    return _artefact(_embedding_codebook(run), "vocabulary")


def make_embedding_words(run: Run) -> str:
    """Fit them where they are not there yet: no block is run. The artefact's name."""
    codebook, name = _embedding_codebook(run), embedding_words(run)
    if not run.ranks.share(partial(run.current, name, _key(run, codebook, "train"))):
        _fit(run, [codebook], embedding=True)
    return name


def _embedding_codebook(run: Run) -> Codebook:
    settings = run.config.vocabulary
    return Codebook(settings.n_words, settings.n_passes, features="embedding")


def _key(run: Run, codebook: Codebook, *data: str) -> dict[str, Any]:
    """The seed draws a random start and the views; words are those of the images that have scores."""
    return run.key(
        "ablation",
        *data,
        images=run.digest("scores/dense") if "val" in data else "",
        codebook=codebook.name,
        decoded=run.digest("decoded"),
        cache=run.config.runtime.cache,
        seed=run.config.seed,
    )


def _artefact(codebook: Codebook, what: str) -> str:
    return f"ablation/{codebook.name}/{what}"


def _done(run: Run, codebook: Codebook) -> bool:
    return all(
        run.current(_artefact(codebook, what), _key(run, codebook, *data))
        for what, data in (
            ("vocabulary", ("train",)),
            ("tfidf", ("train",)),
            ("words", ("train", "val")),
        )
    )


def _features(run: Run, features: str, patches: Mapping[int, Tensor]) -> Tensor:
    """The final norm works on each token alone, so patch features are all it needs."""
    if features == "embedding":
        return patches[0]
    last = patches[run.backbone.depth]
    return last if features == "prenorm" else run.backbone.final_norm(last)


def _line(codebook: Codebook) -> tuple[int, str, str]:
    """Codebooks that differ only in their passes are stations of one line."""
    return codebook.n_words, codebook.features, codebook.start


def _fit(run: Run, codebooks: Sequence[Codebook], embedding: bool = False) -> None:
    passes: dict[tuple[int, str, str], int] = {}
    for codebook in codebooks:
        line = _line(codebook)
        passes[line] = max(passes.get(line, 0), codebook.n_passes)
    books = {"-".join(map(str, line)): _book(run, *line) for line in passes}
    stem = "embedding" if embedding else "ablation"
    key = run.key("ablation", "train", books={book.name: _key(run, book) for book in codebooks})
    gather_start(run, books, stem, key, embedding)
    for number in range(1, max(passes.values()) + 1):
        going = {
            name: book
            for (name, book), line in zip(books.items(), passes, strict=True)
            if passes[line] >= number
        }
        name, done = f"{stem} pass {number}", f"partial/{stem}-after-pass-{number}"
        pass_key = {**key, "pass": number}
        if not run.ranks.share(partial(run.current, done, pass_key)):
            kmeans_pass(run, going, name, done, pass_key, embedding=embedding)
            run.ranks.wait()
        adopt(going, run.load(done))
        run.passes.discard(name)
        if run.ranks.is_main:
            for codebook in codebooks:
                if codebook.n_passes == number:
                    _save(run, codebook, books["-".join(map(str, _line(codebook)))].vocabulary)
        run.ranks.wait()


def _save(run: Run, codebook: Codebook, vocabulary: Vocabulary) -> None:
    artifacts.save(
        run.path(_artefact(codebook, "vocabulary")),
        {"centroids": vocabulary.centroids_, "counts": vocabulary.counts_},
        _key(run, codebook, "train"),
        objective=vocabulary.objective_,
        reseeded=vocabulary.reseeded_,
    )


def _book(run: Run, n_words: int, features: str, start: str) -> Book:
    n_patches = (run.backbone.preprocessing.size // run.backbone.patch_size) ** 2
    n_images = len(run.training.labels)
    places = start_patches(n_images, n_patches, n_words)
    if start == "random":
        drawn = Random(run.config.seed).sample(range(n_images * n_patches), n_words)
        places = [divmod(patch, n_patches) for patch in drawn]
    return Book(Vocabulary(n_words), partial(_features, run, features), places)


def _centroids(run: Run, codebooks: Sequence[Codebook]) -> dict[str, tuple[str, Tensor]]:
    """(features, centroids) of each codebook, by name."""
    return {
        book.name: (
            book.features,
            run.load(_artefact(book, "vocabulary"))["centroids"].to(run.device),
        )
        for book in codebooks
    }


def _count(run: Run, codebooks: Sequence[Codebook]) -> None:
    centroids = _centroids(run, codebooks)

    def step(batch: Batch, sums: Mapping[str, CorpusStatistics]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch)
        for name, (features, words) in centroids.items():
            found = dot_products(_features(run, features, patches), words).argmax(dim=-1)
            sums[name].update(found, batch.labels)
        return {}

    def new_sums() -> dict[str, CorpusStatistics]:
        classes = len(run.training.class_names)
        return {
            name: CorpusStatistics(classes, len(words)) for name, (_, words) in centroids.items()
        }

    key = run.key("ablation", "train", books=[_key(run, book) for book in codebooks], what="count")
    outcome = run.passes.run(corpus_pass(run, "ablation counts", step, new_sums), key)
    if outcome is not None:
        for codebook in codebooks:
            corpus: CorpusStatistics = outcome.sums[codebook.name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself has named the empty classes
                tensors = {"table": corpus.table(), "idf": corpus.idf(), **corpus.state()}
            key = _key(run, codebook, "train")
            artifacts.save(run.path(_artefact(codebook, "tfidf")), tensors, key)
    run.ranks.wait()
    run.passes.discard("ablation counts")


def _assign(run: Run, codebooks: Sequence[Codebook]) -> None:
    backbone, centroids = run.backbone, _centroids(run, codebooks)
    scored = run.load("scores/dense")["indices"].tolist()

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        pixels = batch.pixels.to(run.device)
        words: dict[str, list[Tensor]] = {name: [] for name in centroids}
        for view in range(pixels.shape[1]):
            tokens = backbone.embed(backbone.preprocessing.normalise(pixels[:, view]))
            patches = {backbone.depth: backbone.encode(tokens)[:, backbone.prefix :]}
            for name, (features, book) in centroids.items():
                found = dot_products(_features(run, features, patches), book).argmax(dim=-1)
                words[name].append(found.to(torch.int16))
        return {name: torch.stack(found, dim=1) for name, found in words.items()}

    key = run.key(
        "ablation", "train", "val", books=[_key(run, book) for book in codebooks], what="words"
    )
    dataset = run.dataset(run.validation, four_views=True)
    outcome = run.passes.run(Pass("ablation words", dataset, step, indices=scored), key)
    if outcome is not None:
        run.require_decoded(outcome.skipped)
        for codebook in codebooks:
            tensors = {
                "words": outcome.rows[codebook.name],
                "indices": torch.tensor(outcome.indices),
            }
            key = _key(run, codebook, "train", "val")
            artifacts.save(run.path(_artefact(codebook, "words")), tensors, key)
    run.ranks.wait()
    run.passes.discard("ablation words")
