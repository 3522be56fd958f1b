"""The TF-IDF stage: one more pass over the corpus, with the final vocabulary and the codebooks of single blocks."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redi.centroids import dot_products, nearest_words
from redi.early import block_place, early_blocks
from redi.images.loader import Batch
from redi.records import artifacts
from redi.runs.folder import Run
from redi.runs.passes import Outcome
from redi.stages.features import MAIN, block_of, corpus_pass, patch_features
from redi.stages.stage import Stage
from redi.stages.words import TypicalPatches, figure_blocks
from redi.tfidf import CorpusStatistics


def tfidf_key(run: Run) -> dict[str, Any]:
    return run.key(
        "tfidf",
        "train",
        vocabulary=run.digest("vocabulary"),
        codebooks=run.digest("analysis/codebooks"),
        typical=run.config.analysis.typical,
        classes=list(run.training.class_names),
    )


def build_table(run: Run) -> None:
    """Make the TF-IDF tables, the word frequencies of Figure 2 and each word's most typical patches in one pass."""
    key = tfidf_key(run)
    centroids = run.load("vocabulary")["centroids"].to(run.device)
    codebooks = run.load("analysis/codebooks")
    books = {
        name.split("/")[0]: tensor.to(run.device) for name, tensor in codebooks.items() if name.endswith("/centroids")
    }

    def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch)
        features = patches[block_of(run, MAIN)]
        cosine, words = nearest_words(features, centroids)
        sums["corpus"].update(words, batch.labels)
        sums["typical"].update(torch.tensor(batch.indices), words, cosine)
        for book, words_of_block in books.items():
            assigned = dot_products(patches[block_of(run, book)], words_of_block).argmax(dim=-1)
            sums[book].update(assigned, batch.labels)
        return {}

    def new_sums() -> dict[str, Any]:
        classes = len(run.training.class_names)
        return {
            "corpus": CorpusStatistics(classes, len(centroids)),
            "typical": TypicalPatches(len(centroids), run.config.analysis.typical),
            **{book: CorpusStatistics(classes, len(words)) for book, words in books.items()},
        }

    def save(outcome: Outcome) -> None:
        figures = map(block_place, figure_blocks(run.backbone.depth))
        frequency = {f"frequency/{book}": outcome.sums[book].word_counts.sum(dim=0) for book in figures}
        typical = {f"typical/{name}": t for name, t in outcome.sums["typical"].state().items()}
        run.save("analysis/words", {**frequency, **typical}, key)
        for place in _early_places(run):
            run.save(early_tfidf(place), corpus_tensors(outcome.sums[place]), key)
        run.save("tfidf", corpus_tensors(outcome.sums["corpus"]), key, skipped=outcome.skipped)

    run.finish(corpus_pass(run, "tfidf", step, new_sums), key, save)


def corpus_tensors(corpus: CorpusStatistics) -> dict[str, Tensor]:
    """The counts of a corpus, and the table with its factors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has already warned about classes without images
        table = corpus.table()
    factors = {"contrast": corpus.contrast(), "support": corpus.support(), "idf": corpus.idf()}
    return {"table": table, **factors, **corpus.state()}


def tfidf_artefacts(run: Run) -> dict[str, artifacts.Key]:
    names = ["analysis/words", *map(early_tfidf, _early_places(run)), "tfidf"]
    return dict.fromkeys(names, tfidf_key(run))


def early_tfidf(place: str) -> str:
    """The artefact with the TF-IDF table of a place in the forward pass (see :mod:`redi.early`)."""
    return f"early/{place}/tfidf"


def _early_places(run: Run) -> list[str]:
    return [block_place(block) for block in early_blocks(run.backbone.depth)]


STAGE = Stage(
    name="tfidf",
    artefacts=tfidf_artefacts,
    work=build_table,
    passes=lambda run: f"1 pass over {len(run.training.labels)} training images",
    forwards=lambda run: len(run.training.labels) if run.config.runtime.cache == "none" else 0,
)
