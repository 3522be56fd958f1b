"""The score map of any variant, put together from artefacts of the run: no model, no image."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi.corpus import FROM_CLASSIFIER, TERMS, CorpusTerm, corpus_map, word_weights
from redi.run import SCORES, Run
from redi.score import hybrid
from redi.stages.probe import load_probe
from redi.variants import CorpusSettings, Variant
from redi.views import View, stored_views

#: Images whose views are aligned at once.
ALIGN_IMAGES = 1024

Maps = Float[Tensor, "images patches"]


class ScoreMaps:
    """Maps of the run's validation images, in the order of its predictions, made once and kept.

    As in the paper a map is rounded to FP16 and read back as FP32.
    """

    def __init__(self, run: Run, native_columns: Tensor | None) -> None:
        self.run = run
        self.native_columns = native_columns
        self._corpus: dict[tuple[Any, ...], Maps] = {}
        self._logits: dict[str, Tensor] = {}
        self._views: list[tuple[View, ...]] = []

    def map(self, variant: Variant, classifier: str) -> Maps | None:
        """None for a variant that looks at no scores."""
        if not variant.scorer:
            return None
        if self._is_stored(variant):
            return self._stored(variant.scorer)
        if not variant.term:
            return self._stored(variant.local)
        corpus = self._corpus_map(variant, classifier)
        if not variant.local:
            return corpus.half().float()
        return hybrid(corpus, self._stored(variant.local)).half().float()

    def inputs(self, variant: Variant) -> Any:
        """Digests of everything the map is made from, for the key of its predictions."""
        run = self.run
        if not variant.scorer:
            return run.digest("scores/dense")
        if self._is_stored(variant):
            return run.digest(f"scores/{variant.scorer}")
        inputs = {"local": run.digest(f"scores/{variant.local}")} if variant.local else {}
        if variant.term:
            statistics, words = corpus_artefacts(variant.corpus)
            inputs |= {"statistics": run.digest(statistics), "words": run.digest(words)}
        if variant.labels in FROM_CLASSIFIER:
            inputs["dense"] = run.digest("scores/dense")
        return inputs

    def dense_logits(self, classifier: str) -> Float[Tensor, "images classes"]:
        """Of the dense pass, in the classifier's own numbering."""
        if classifier not in self._logits:
            dense = self.run.load("scores/dense")
            if classifier == "probe":
                features = dense["features"].to(self.run.device)
                self._logits[classifier] = load_probe(self.run).logits(features).cpu()
            else:
                self._logits[classifier] = dense["native_logits"]
        return self._logits[classifier]

    def _is_stored(self, variant: Variant) -> bool:
        own = variant.corpus == CorpusSettings()
        return variant.scorer in SCORES and variant.labels in ("", "gt") and own

    def _stored(self, name: str) -> Maps:
        return self.run.load(f"scores/{name}")["scores"].float()

    def _corpus_map(self, variant: Variant, classifier: str) -> Maps:
        asked = classifier if variant.labels in FROM_CLASSIFIER else ""
        memory = (variant.term, variant.labels, asked, variant.corpus)
        if memory not in self._corpus:
            self._corpus[memory] = self._make_corpus_map(variant, asked)
        return self._corpus[memory]

    def _make_corpus_map(self, variant: Variant, classifier: str) -> Maps:
        statistics, words_name = corpus_artefacts(variant.corpus)
        term: CorpusTerm = TERMS[variant.term](self.run.load(statistics))
        dense = self.run.load("scores/dense")
        weights = word_weights(
            term,
            variant.labels,
            dense["labels"],
            self._probabilities(classifier) if classifier else None,
            dense["indices"].tolist(),
            self.run.config.seed,
        )
        words = self.run.load(words_name)["words"][:, : variant.corpus.views]
        views = [image[: variant.corpus.views] for image in self._all_views()]
        parts = []
        for at in range(0, len(words), ALIGN_IMAGES):
            chunk = slice(at, at + ALIGN_IMAGES)
            some = None if weights is None else weights[chunk]
            parts.append(
                corpus_map(term, some, words[chunk], views[chunk], variant.corpus.mean_weight)
            )
        return torch.cat(parts)

    def _probabilities(self, classifier: str) -> Float[Tensor, "images classes"]:
        """Over the run's classes: a head may know more."""
        logits = self.dense_logits(classifier)
        if classifier == "native":
            assert self.native_columns is not None
            logits = logits[:, self.native_columns]
        return logits.softmax(dim=1)

    def _all_views(self) -> list[tuple[View, ...]]:
        if not self._views:
            stored = self.run.load("scores/words")
            images = zip(stored["boxes"], stored["flips"], strict=True)
            self._views = [stored_views(boxes, flips) for boxes, flips in images]
        return self._views


def corpus_artefacts(settings: CorpusSettings) -> tuple[str, str]:
    """Names of the corpus counts and of the validation images' words."""
    if settings.codebook is None:
        return "tfidf", "scores/words"
    folder = f"ablation/{settings.codebook.name}"
    return f"{folder}/tfidf", f"{folder}/words"
