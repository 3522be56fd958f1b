"""The corpus stages: visual words (k-means passes) and the TF-IDF table (one more pass).

One forward of an image serves everything at once: the vocabulary, figure 2's codebooks at other
blocks, and in the first pass the classifier's feature.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.analysis import TypicalPatches, WordCounts, figure_blocks
from redi.errors import CorpusError
from redi.loader import Batch
from redi.passes import Pass
from redi.probe import image_feature
from redi.run import Run
from redi.tfidf import CorpusStatistics
from redi.vocabulary import CentroidSums, Vocabulary, start_patches

#: The codebook of TF-IDF; the others, "block3" and so on, are figure 2's.
MAIN = "main"


def vocabulary_key(run: Run) -> dict[str, Any]:
    settings = run.config
    return run.key(
        "vocabulary",
        "train",
        n_words=settings.vocabulary.n_words,
        n_passes=settings.vocabulary.n_passes,
        analysis_words=settings.analysis.n_words,
        features=settings.probe.features,
    )


def vocabulary_done(run: Run) -> bool:
    key = vocabulary_key(run)
    return all(run.current(name, key) for name in ("features", "analysis/codebooks", "vocabulary"))


def fit_vocabulary(run: Run) -> None:
    """Vocabulary, figure 2's codebooks and the classifier's features: ``n_passes`` corpus passes."""
    key = vocabulary_key(run)
    books = _start(run, key)
    for number in range(1, run.config.vocabulary.n_passes + 1):
        name = f"vocabulary pass {number}"
        done = f"partial/vocabulary-after-pass-{number}"
        pass_key = {**key, "pass": number}
        if not run.current(done, pass_key):
            _one_pass(run, books, name, done, pass_key, with_features=number == 1)
            run.ranks.wait()
        _adopt(books, run.load(done))
        run.passes.discard(name)
    if run.ranks.is_main:
        _write(run, key, books)
    run.ranks.wait()


def _one_pass(
    run: Run,
    books: dict[str, Vocabulary],
    name: str,
    done: str,
    key: artifacts.Key,
    with_features: bool,
) -> None:
    backbone = run.backbone

    def step(batch: Batch, sums: Mapping[str, CentroidSums]) -> Mapping[str, Tensor]:
        hidden, patches = _patch_features(run, batch)
        for book, vocabulary in books.items():
            sums[book].update(patches[_block_of(book)], vocabulary.centroids_)
        if not with_features:
            return {}
        tokens = hidden if run.config.probe.features == "prenorm" else backbone.final_norm(hidden)
        return {"features": image_feature(tokens, backbone.prefix), "labels": batch.labels}

    def new_sums() -> dict[str, CentroidSums]:
        return {
            book: CentroidSums(vocabulary.n_words, backbone.width, run.device)
            for book, vocabulary in books.items()
        }

    outcome = run.passes.run(Pass(name, run.dataset(run.training), step, new_sums), key)
    if outcome is None:
        return
    if with_features:
        if not outcome.indices:
            raise CorpusError(f"None of the images in {run.training.name} could be decoded.")
        artifacts.save(
            run.path("features"), outcome.rows, vocabulary_key(run), skipped=outcome.skipped
        )
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
    if not run.current(done, start_key):
        _gather_start(run, books, places, done, start_key)
        run.ranks.wait()
    start = run.load(done)
    for book, vocabulary in books.items():
        vocabulary.centroids_ = torch.nn.functional.normalize(start[book], dim=1).to(run.device)
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
        _, patches = _patch_features(run, batch)
        rows = {}
        for book in books:
            features = patches[_block_of(book)]
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
        _, patches = _patch_features(run, batch)
        features = patches[_block_of(MAIN)]
        similarity, words = (features @ centroids.T).max(dim=-1)
        sums["corpus"].update(words, batch.labels)
        cosine = similarity / torch.linalg.vector_norm(features, dim=-1).clamp(min=1e-12)
        sums["typical"].update(torch.tensor(batch.indices), words, cosine)
        for book, words_of_block in books.items():
            sums[book].update((patches[_block_of(book)] @ words_of_block.T).argmax(dim=-1))
        return {}

    def new_sums() -> dict[str, Any]:
        return {
            "corpus": CorpusStatistics(len(run.training.class_names), len(centroids)),
            "typical": TypicalPatches(len(centroids), run.config.analysis.typical),
            **{book: WordCounts(len(words)) for book, words in books.items()},
        }

    name = "tfidf"
    outcome = run.passes.run(Pass(name, run.dataset(run.training), step, new_sums), key)
    if outcome is not None:
        corpus: CorpusStatistics = outcome.sums["corpus"]
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
                "table": corpus.table(),
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


def _patch_features(run: Run, batch: Batch) -> tuple[Tensor, dict[int | None, Tensor]]:
    """Final tokens, and patch features after figure 2's blocks and (None) after the last."""
    backbone = run.backbone
    pixels = backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device))
    tokens = backbone.embed(pixels)
    found: dict[int | None, Tensor] = {}
    hidden, at = tokens.sequence, 0
    for block in figure_blocks(backbone.depth):
        hidden = backbone.encode(tokens.advanced(hidden), start=at, stop=block)
        found[block] = hidden[:, backbone.prefix :]
        at = block
    found[None] = found[backbone.depth]
    return hidden, found


def _block_of(book: str) -> int | None:
    return None if book == MAIN else int(book.removeprefix("block"))
