"""The TF-IDF stage: one more pass over the corpus, with the final vocabulary."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.analysis import TypicalPatches, WordCounts
from redi.loader import Batch
from redi.run import Run
from redi.stages.features import MAIN, block_of, corpus_pass, patch_features
from redi.stages.vocabulary import vocabulary_done
from redi.tfidf import CorpusStatistics
from redi.vocabulary import dot_products


def tfidf_key(run: Run) -> dict[str, Any]:
    return run.key(
        "tfidf",
        "train",
        vocabulary=run.digest("vocabulary"),
        codebooks=run.digest("analysis/codebooks"),
        typical=run.config.analysis.typical,
        classes=list(run.training.class_names),
    )


def tfidf_done(run: Run) -> bool:
    if not vocabulary_done(run):
        return False
    key = tfidf_key(run)
    return all(run.current(name, key) for name in ("analysis/words", "tfidf"))


def build_table(run: Run) -> None:
    """The TF-IDF table, figure 2's word frequencies and each word's most typical patches: one pass."""
    key = tfidf_key(run)
    centroids = run.load("vocabulary")["centroids"].to(run.device)
    codebooks = run.load("analysis/codebooks")
    books = {
        name.split("/")[0]: tensor.to(run.device)
        for name, tensor in codebooks.items()
        if name.endswith("/centroids")
    }

    def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        _, patches = patch_features(run, batch)
        features = patches[block_of(run, MAIN)]
        similarity, words = dot_products(features, centroids).max(dim=-1)
        sums["corpus"].update(words, batch.labels)
        cosine = similarity / torch.linalg.vector_norm(features, dim=-1).clamp(min=1e-12)
        sums["typical"].update(torch.tensor(batch.indices), words, cosine)
        for book, words_of_block in books.items():
            found = dot_products(patches[block_of(run, book)], words_of_block).argmax(dim=-1)
            sums[book].update(found)
        return {}

    def new_sums() -> dict[str, Any]:
        return {
            "corpus": CorpusStatistics(len(run.training.class_names), len(centroids)),
            "typical": TypicalPatches(len(centroids), run.config.analysis.typical),
            **{book: WordCounts(len(words)) for book, words in books.items()},
        }

    name = "tfidf"
    outcome = run.passes.run(corpus_pass(run, name, step, new_sums), key)
    if outcome is not None:
        corpus: CorpusStatistics = outcome.sums["corpus"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run itself has named the classes without images
            table = corpus.table()
        words = {f"frequency/{book}": outcome.sums[book].counts for book in books}
        typical = outcome.sums["typical"].state()
        artifacts.save(
            run.path("analysis/words"),
            {**words, **{f"typical/{field}": tensor for field, tensor in typical.items()}},
            key,
        )
        artifacts.save(
            run.path("tfidf"),
            {
                "table": table,
                "contrast": corpus.contrast(),
                "support": corpus.support(),
                "idf": corpus.idf(),
                **corpus.state(),
            },
            key,
            skipped=outcome.skipped,
        )
    run.ranks.wait()
    run.passes.discard(name)
