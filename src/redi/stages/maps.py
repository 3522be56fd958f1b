"""The score map of any variant, made from the artefacts of a run without a model or an image."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from redi.backbone import Classifier
from redi.backbone.classifier import PROBE
from redi.corpus import LABEL_SOURCES, TERMS, Evidence, corpus_map, view_maps
from redi.early import enlarge
from redi.rows import CorpusSettings, Variant
from redi.runs.folder import Run
from redi.score import hybrid, minmax
from redi.stages.classifiers import load_classifier
from redi.stages.early import early_attention, early_inputs, early_probabilities, early_words
from redi.stages.score import DENSE_PASS, WORDS, factor_name
from redi.stages.text import text_inputs, text_probabilities
from redi.stages.tfidf import early_tfidf
from redi.views import View, stored_views

#: Number of images whose views are aligned at once.
ALIGN_IMAGES = 1024

Maps = Float[Tensor, "images patches"]


class ScoreMaps:
    """Score maps of the run's validation images, in the order of its predictions. Each is made once and kept.

    As in the paper, a map is rounded to FP16 and read back as FP32. It is rounded once: a product multiplies the
    unrounded corpus map with the unrounded local map, whatever the label source.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._classifiers: dict[str, Classifier] = {}
        self._corpus: dict[tuple[Any, ...], Maps] = {}
        self._logits: dict[str, Tensor] = {}
        self._views: list[tuple[View, ...]] = []

    def map(self, variant: Variant, classifier: str) -> Maps | None:
        """The score map of a variant, or None if the variant uses no score."""
        score = variant.score
        if not score.name:
            return None
        if variant.place:
            return self._of_place(variant)
        if variant.is_paper_score or not score.term:
            return self._stored(score.name)
        corpus = self.corpus_map(variant, classifier)
        if not score.local:
            return corpus.half().float()
        factor = self.run.load(factor_name(score.local_name))["map"]
        return hybrid(corpus, factor).half().float()

    def inputs(self, variant: Variant) -> Any:
        """Digests of everything that the map is made from, for the key of its predictions."""
        run, score = self.run, variant.score
        if not score.name:
            return run.digest(DENSE_PASS)
        if variant.place:
            return early_inputs(run, variant.place)
        if variant.is_paper_score:
            return run.digest(f"scores/{score.name}")
        if not score.term:
            return {"local": run.digest(f"scores/{score.local_name}")}
        inputs = {"factor": run.digest(factor_name(score.local_name))} if score.local else {}
        statistics, words = corpus_artefacts(variant.corpus)
        inputs |= {"statistics": run.digest(statistics), "words": run.digest(words)}
        if uses_classifier(variant):
            inputs["dense"] = run.digest(DENSE_PASS)
        if uses_text(variant):
            inputs |= text_inputs(run)
        return inputs

    def classifier(self, name: str) -> Classifier:
        if name not in self._classifiers:
            self._classifiers[name] = load_classifier(self.run, name)
        return self._classifiers[name]

    def dense_logits(self, classifier: str) -> Float[Tensor, "images outputs"]:
        """Logits of the dense pass, in the classifier's own numbering."""
        if classifier not in self._logits:
            dense = self.run.load(DENSE_PASS)
            if classifier == PROBE:
                probe = self.classifier(classifier).probe
                assert probe is not None
                logits = probe.logits(dense["features"].to(self.run.device)).cpu()
            else:
                logits = dense["native_logits"]
            self._logits[classifier] = logits
        return self._logits[classifier]

    def corpus_map(self, variant: Variant, classifier: str) -> Maps:
        """The corpus term alone, before it is rounded."""
        score_classifier = classifier if uses_classifier(variant) else ""
        identity = (variant.score.term, variant.label_source, score_classifier, variant.corpus, variant.place)
        if identity not in self._corpus:
            self._corpus[identity] = self._make_corpus_map(variant, score_classifier)
        return self._corpus[identity]

    def _of_place(self, variant: Variant) -> Maps:
        """The map of a row whose words, class and attention come from one place of a forward pass."""
        score = variant.score
        local = early_attention(self.run, variant.place, score.local) if score.local else None
        if not score.term:
            assert local is not None
            return local.half().float()
        corpus = self.corpus_map(variant, "")
        return (corpus if local is None else hybrid(corpus, local)).half().float()

    def _stored(self, name: str) -> Maps:
        return self.run.load(f"scores/{name}")["scores"].float()

    def _make_corpus_map(self, variant: Variant, classifier: str) -> Maps:
        statistics, words_name = corpus_artefacts(variant.corpus)
        place = variant.place
        term = TERMS[variant.score.term].make(self.run.load(early_tfidf(place) if place else statistics))
        dense = self.run.load(DENSE_PASS)
        probabilities = self._probabilities(classifier) if classifier else None
        if place:
            probabilities = early_probabilities(self.run, place)
        text = text_probabilities(self.run) if uses_text(variant) else None
        evidence = Evidence(dense["labels"], probabilities, dense["indices"].tolist(), self.run.config.seed, text)
        weights = LABEL_SOURCES[variant.label_source].weigh(term, evidence)
        if place:
            maps = view_maps(term, weights, early_words(self.run, place)[:, None])[:, 0]
            return minmax(enlarge(maps, self.run.backbone.geometry.grid))
        words = self.run.load(words_name)["words"][:, : variant.corpus.views]
        views = [image[: variant.corpus.views] for image in self._all_views()]
        parts = []
        for at in range(0, len(words), ALIGN_IMAGES):
            chunk = slice(at, at + ALIGN_IMAGES)
            chunk_weights = None if weights is None else weights[chunk]
            parts.append(corpus_map(term, chunk_weights, words[chunk], views[chunk], variant.corpus.mean_weight))
        return torch.cat(parts)

    def _probabilities(self, classifier: str) -> Float[Tensor, "images classes"]:
        logits = self.dense_logits(classifier)
        return self.classifier(classifier).of_data(logits).softmax(dim=1)

    def _all_views(self) -> list[tuple[View, ...]]:
        if not self._views:
            stored = self.run.load(WORDS)
            images = zip(stored["boxes"], stored["flips"], strict=True)
            self._views = [stored_views(boxes, flips) for boxes, flips in images]
        return self._views


def uses_classifier(variant: Variant) -> bool:
    """Whether the score itself depends on the classifier of the row."""
    source = LABEL_SOURCES.get(variant.label_source)
    return source is not None and source.uses_classifier and not variant.place


def uses_text(variant: Variant) -> bool:
    """Whether the score depends on the embeddings of the class names."""
    source = LABEL_SOURCES.get(variant.label_source)
    return source is not None and source.uses_text


def corpus_artefacts(settings: CorpusSettings) -> tuple[str, str]:
    """Names of the corpus counts and of the validation images' words."""
    if settings.codebook is None:
        return "tfidf", WORDS
    folder = f"ablation/{settings.codebook.name}"
    return f"{folder}/tfidf", f"{folder}/words"
