"""What the study of retrieval stores of an image, all from one dense pass and one short pass per reduced row.

The gallery is labelled, a query is not. The side of the queries never sees a label: its batches give theirs away
before anything is computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from redi.attention import ATTENTION_SCORES
from redi.backbone import AttentionScores, Backbone
from redi.centroids import nearest_words
from redi.corpus import LABEL_SOURCES, TRUE_CLASS, CorpusTerm, Evidence, corpus_map, tfidf_term
from redi.errors import InvalidInput
from redi.images import LabelledImages
from redi.images.labelled import digest_lines
from redi.images.loader import Batch
from redi.records.retrieval import GALLERY_LABELS, NO_LABELS
from redi.retrieval import best_patches, merged_patches
from redi.rows import MAIN_SCORE, RANDOM, Catalogue, Score, Variant
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.score import hybrid, minmax
from redi.scorers import random_scores
from redi.stages.classifiers import classifier_key, classifier_names, load_classifier
from redi.stages.evaluate import Final, forward, tokens_and_cost
from redi.views import View

#: Vectors per image of the patch index; a small grid has fewer.
SIZES = (1, 2, 4, 8, 16, 32)
#: The chooser that merges patches instead of choosing some.
MERGED = "merged"

Maps = Float[Tensor, "batch patches"]


@dataclass(frozen=True)
class Seen:
    """What the dense pass over the reference crops of a batch tells about their patches."""

    term: CorpusTerm
    idf: Float[Tensor, " words"]
    words: Int[Tensor, "batch patches"]
    views: Sequence[tuple[View, ...]]
    attention: Mapping[str, Maps]  # attention scores by name
    probabilities: Float[Tensor, "batch classes"]
    labels: Int[Tensor, " batch"] | None  # None on the side of the queries
    indices: Sequence[int]
    seed: int

    def map(self, score: Score, label_source: str = "") -> Maps:
        """The map of a score, rounded as everywhere. The corpus term has one view: the reference crop."""
        local = self._local(score.local) if score.local else None
        if not score.term:
            assert local is not None
            return local.half().float()
        corpus = self._corpus(label_source)
        return (corpus if local is None else hybrid(corpus, local)).half().float()

    def _local(self, name: str) -> Maps:
        if name == RANDOM:
            return minmax(random_scores(self.seed, list(self.indices), self.words.shape[1]).to(self.words.device))
        return self.attention[name]

    def _corpus(self, label_source: str) -> Maps:
        source = LABEL_SOURCES[label_source]
        if source.uses_truth and self.labels is None:
            raise InvalidInput("The label of a query is not known to the search.")
        labels = self.words.new_zeros(len(self.words)).long() if self.labels is None else self.labels
        evidence = Evidence(labels, self.probabilities, self.indices, self.seed)
        return corpus_map(self.term, source.weigh(self.term, evidence), self.words[:, None], self.views)


@dataclass(frozen=True)
class Chooser:
    """How an image is reduced to a few vectors: by a map of its patches, or by merging them if there is none."""

    title: str
    map: Callable[[Seen], Maps] | None
    labels: str = NO_LABELS
    of_query: str = ""  # the chooser of a query, if its own needs labels


#: Choosers of the patch index by name.
CHOOSERS: dict[str, Chooser] = {
    RANDOM: Chooser("Random", lambda seen: seen.map(Score(local=RANDOM))),
    "mass": Chooser("Incoming mass", lambda seen: seen.map(Score(local="mass"))),
    "idf": Chooser("idf of the words", lambda seen: seen.idf[seen.words]),
    "tfidf~none": Chooser("TF-IDF [none]", lambda seen: seen.map(Score("tfidf"), "none")),
    "redi_mass~none": Chooser("REDI, mass [none]", lambda seen: seen.map(MAIN_SCORE, "none")),
    "tfidf~gallery": Chooser(
        "TF-IDF [gallery's class]", lambda seen: seen.map(Score("tfidf"), TRUE_CLASS), GALLERY_LABELS, "tfidf~none"
    ),
    MERGED: Chooser("Merged (k-means)", None),
}


@dataclass(frozen=True)
class Side:
    """The gallery or the queries: images, and what is stored of each of them."""

    name: str
    part: str  # train or val
    images: LabelledImages
    indices: list[int]
    variants: list[Variant]
    choosers: list[str]
    labelled: bool
    seed: int  # of random patches; the two sides must not draw the same places

    @property
    def features(self) -> str:
        """The artefact with the features of every row, [images kinds dim]: CLS (if there is one), patch mean."""
        return f"retrieval/{self.name}-features"

    @property
    def patches(self) -> str:
        """The artefact with the vectors that every chooser takes, the best first."""
        return f"retrieval/{self.name}-patches"


def index_sizes(patches: int) -> list[int]:
    return [size for size in SIZES if size <= patches]


def stored_vectors(stored: Float[Tensor, "images stored dim"], chooser: str, sizes: Sequence[int], size: int) -> Tensor:
    """``size`` vectors of each image from what is stored of a chooser: every size of merging has vectors of its own."""
    if chooser != MERGED:
        return stored[:, :size]
    start = sum(other for other in sizes if other < size)
    return stored[:, start : start + size]


def limited(labels: Sequence[int], indices: Sequence[int], most: int) -> list[int]:
    """At most about ``most`` images: the first ones of each class, as many of each, and at least one."""
    if len(indices) <= most:
        return list(indices)
    share = max(1, most // len({labels[index] for index in indices}))
    taken: dict[int, int] = {}
    chosen = []
    for index in indices:
        taken[labels[index]] = taken.get(labels[index], 0) + 1
        if taken[labels[index]] <= share:
            chosen.append(index)
    return chosen


def image_features(backbone: Backbone, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch kinds dim"]:
    """Unit CLS, if there is one, and unit patch mean, both after the final norm."""
    normed = backbone.final_norm(hidden)
    mean = normed[:, backbone.prefix :].mean(dim=1)
    kinds = [normed[:, 0], mean] if backbone.has_cls else [mean]
    return normalize(torch.stack(kinds, dim=1), dim=-1)


@dataclass(frozen=True)
class _Step:
    """The work on a batch of one side."""

    run: Run
    side: Side
    catalogue: Catalogue

    @cached_property
    def _corpus(self) -> tuple[CorpusTerm, Tensor, Tensor]:
        stored = {name: tensor.to(self.run.device) for name, tensor in self.run.load("tfidf").items()}
        centroids = self.run.load("vocabulary")["centroids"].to(self.run.device)
        return tfidf_term(stored), stored["idf"], centroids

    def __call__(self, batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        run, side, backbone = self.run, self.side, self.run.backbone
        tokens = backbone.embed(backbone.preprocessing.normalise(batch.pixels[:, 0].to(run.device)))
        used = [MAIN_SCORE.local, *(variant.score.local for variant in side.variants)]  # choosers use the main score's
        names = dict.fromkeys(name for name in used if name in ATTENTION_SCORES)
        attention = AttentionScores(backbone.depth, backbone.prefix, backbone.has_cls, names)
        hidden = backbone.encode(tokens, watch=attention.watches)
        seen = self._seen(batch, hidden, attention)
        rows, begun = {}, {0: tokens}
        for variant in side.variants:
            final = Final(hidden)
            if not variant.is_dense:
                scores = seen.map(variant.score, variant.label_source) if variant.score.name else None
                final = forward(backbone, self.catalogue, variant, scores, begun)
            features = final.read(lambda tokens: image_features(backbone, tokens), backbone.prefix)
            rows[f"{side.features}/{variant.name(run.config.budget)}"] = features.half()
        patches = normalize(backbone.final_norm(hidden)[:, backbone.prefix :], dim=-1)
        sizes = index_sizes(patches.shape[1])
        for name in side.choosers:
            patch_map = CHOOSERS[name].map
            if patch_map is None:
                vectors = torch.cat([merged_patches(patches, size) for size in sizes], dim=1)
            else:
                vectors = best_patches(patches, patch_map(seen), max(sizes))
            rows[f"{side.patches}/{name}"] = vectors.half()
        return rows

    def _seen(self, batch: Batch, hidden: Tensor, attention: AttentionScores) -> Seen:
        run, backbone = self.run, self.run.backbone
        term, idf, centroids = self._corpus
        _, words = nearest_words(hidden[:, backbone.prefix :], centroids)
        classifier = self._classifier
        return Seen(
            term,
            idf,
            words,
            batch.views,
            attention.maps(),
            classifier.of_data(classifier.logits(hidden)).softmax(dim=1),
            batch.labels.to(run.device) if self.side.labelled else None,
            batch.indices,
            self.side.seed,
        )

    @cached_property
    def _classifier(self) -> Any:
        return load_classifier(self.run, classifier_names(self.run)[0])


def side_key(run: Run, side: Side) -> dict[str, Any]:
    return run.key(
        "retrieval",
        side.part,
        vocabulary=run.digest("vocabulary"),
        tfidf=run.digest("tfidf"),
        variants=[asdict(variant) for variant in side.variants],
        choosers=side.choosers,
        sizes=index_sizes(run.backbone.geometry.patches),
        images=digest_lines(list(map(str, side.indices))),
        seed=side.seed,
        **classifier_key(run, classifier_names(run)[0]),
    )


def embed_side(run: Run, side: Side, catalogue: Catalogue) -> None:
    """Make the features and the patch vectors of one side, if they are missing."""
    key = side_key(run, side)
    names = (side.features, side.patches)
    if run.ranks.share(lambda: all(run.current(name, key) for name in names)):
        return

    def save(outcome: Outcome) -> None:
        for name in names:
            prefix = f"{name}/"
            rows = {k.removeprefix(prefix): rows for k, rows in outcome.rows.items() if k.startswith(prefix)}
            run.save(name, rows, key)

    forwards = sum(tokens_and_cost(run.backbone.geometry, catalogue, variant)[1] for variant in side.variants)
    work = Pass(
        f"retrieval {side.name}",
        run.dataset(side.images),
        _Step(run, side, catalogue),
        indices=side.indices,
        forwards=forwards,
    )
    run.finish(work, key, save, all_decoded=True)
