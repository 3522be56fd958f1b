"""What the places of :mod:`redi.early` give: a probe, a TF-IDF table, and the words and attention of the images.

The codebooks and the tables of the early blocks come from the passes of the run itself. A glance uses the run's own
vocabulary, with counts of the corpus at half resolution. The probes learn from one more corpus pass, of half a forward
at most and a glance, and one pass over the validation images makes everything that their scores need. All of it is
what the reduced forward would compute itself, and its cost is counted there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from redi.attention import ATTENTION_SCORES, scores_of
from redi.backbone import Backbone, Tokens
from redi.backbone.classifier import final_feature
from redi.centroids import nearest_words
from redi.early import GLANCE, block_of_place, early_places, enlarge, shrink
from redi.images.loader import Batch
from redi.probe import LinearProbe, image_feature
from redi.records import artifacts
from redi.runs.folder import Run
from redi.runs.passes import Outcome, Pass
from redi.runs.progress import say
from redi.score import minmax
from redi.scorers import SCORERS
from redi.stages.score import DENSE_PASS, scored_images
from redi.stages.scorers import dense_of
from redi.stages.tfidf import corpus_tensors, early_tfidf
from redi.tfidf import CorpusStatistics


def make_early(run: Run, places: Sequence[str]) -> None:
    """Make what is missing at the places: ``early/<place>/{probe,images}``, and the TF-IDF table of a glance."""
    learned = {place: _learned(run, place) for place in places}
    missing = run.ranks.share(lambda: [place for place in places if not _is_current(run, learned[place])])
    if missing:
        _learn(run, missing)
    seen = {place: {_images(place): _images_key(run, place)} for place in places}
    missing = run.ranks.share(lambda: [place for place in places if not _is_current(run, seen[place])])
    if missing:
        _look(run, missing)


def early_inputs(run: Run, place: str) -> dict[str, Any]:
    """All that the maps of a place are made from, for the key of predictions: digests, and the keys behind them."""
    digests = {name: run.digest(name) for name in (early_tfidf(place), _probe(place), _images(place))}
    return {"digests": digests, "learned": _learned(run, place), "images": _images_key(run, place)}


def early_words(run: Run, place: str) -> Int[Tensor, "images patches"]:
    """The visual words of the validation images at a place; those of a glance on its smaller grid."""
    return run.load(_images(place))["words"]


def early_attention(run: Run, place: str, name: str) -> Float[Tensor, "images patches"]:
    """An attention score of the validation images at a place, on the full grid."""
    return run.load(_images(place))[f"attention/{name}"]


def early_probabilities(run: Run, place: str) -> Float[Tensor, "images classes"]:
    """The posterior of the probe at a place for the validation images; no label of theirs is read."""
    stored = run.load(_probe(place))
    probe = LinearProbe.fitted(stored["weight"], stored["bias"])
    return probe.logits(run.load(_images(place))["features"]).softmax(dim=1)


def early_top1(run: Run) -> dict[str, float]:
    """Percent of the validation images that the probe of each place gets right; empty if none was made."""
    top1 = {}
    for place in early_places(run.backbone.depth):
        names = {**_learned(run, place), _images(place): _images_key(run, place)}
        if _is_current(run, names):
            right = early_probabilities(run, place).argmax(dim=1) == run.load(DENSE_PASS)["labels"]
            top1[place] = 100 * right.double().mean().item()
    return top1


def _probe(place: str) -> str:
    return f"early/{place}/probe"


def _images(place: str) -> str:
    return f"early/{place}/images"


def _learned(run: Run, place: str) -> dict[str, artifacts.Key]:
    """The artefacts that are learned from the corpus, with their keys. The tables of blocks are the run's own."""
    key = run.key(
        "early",
        "train",
        place=place,
        words=run.digest(_codebook(place)[0]),
        decoded=run.digest("decoded"),
        settings=asdict(run.config.probe),
        seed=run.config.seed,
        classes=list(run.training.class_names),
    )
    names = [_probe(place), early_tfidf(place)] if place == GLANCE else [_probe(place)]
    return dict.fromkeys(names, key)


def _images_key(run: Run, place: str) -> artifacts.Key:
    return run.key(
        "early images",
        "val",
        place=place,
        words=run.digest(_codebook(place)[0]),
        images=run.digest(DENSE_PASS),
        features=run.config.probe.features,
        attention=list(_attention_scores(run)),
    )


def _is_current(run: Run, written: Mapping[str, artifacts.Key]) -> bool:
    return all(run.current(name, key) for name, key in written.items())


def _codebook(place: str) -> tuple[str, str]:
    """The artefact and the tensor that hold the words of a place."""
    return ("vocabulary", "centroids") if place == GLANCE else ("analysis/codebooks", f"{place}/centroids")


def _centroids(run: Run, place: str) -> Tensor:
    artefact, tensor = _codebook(place)
    return run.load(artefact)[tensor].to(run.device)


def _attention_scores(run: Run) -> list[str]:
    """Attention scores that one block gives."""
    return [name for name in scores_of(run.backbone.has_cls) if not ATTENTION_SCORES[name].every_block]


def _visit(
    backbone: Backbone, pixels: Tensor, places: Sequence[str], watched: bool = False
) -> Iterator[tuple[str, Tokens, dict[str, Any]]]:
    """Yield (place, its tokens, queries, keys and values of its last block if ``watched``), all from one forward."""
    pixels = backbone.preprocessing.normalise(pixels)
    start = tokens = backbone.embed(pixels)
    at = 0
    for place in sorted((place for place in places if place != GLANCE), key=block_of_place):
        block = block_of_place(place)
        capture: dict[str, Any] = {}
        hidden = backbone.encode(tokens, start=at, stop=block, capture={block - 1: capture} if watched else None)
        tokens, at = tokens.advanced(hidden), block
        yield place, tokens, capture
    if GLANCE in places:
        assert start.grid is not None
        small = backbone.embed(shrink(pixels, start.grid))
        capture = {}
        last = {backbone.depth - 1: capture} if watched else None
        yield GLANCE, small.advanced(backbone.encode(small, capture=last)), capture


def _feature(run: Run, place: str, tokens: Tokens) -> Tensor:
    """What the probe of a place reads. The final norm was not made for the tokens of an early block."""
    backbone = run.backbone
    if place == GLANCE:
        return final_feature(backbone, tokens.sequence, run.config.probe.prenorm)
    return image_feature(tokens.sequence, backbone.prefix, backbone.has_cls)


def _learn(run: Run, places: Sequence[str]) -> None:
    """One corpus pass: the features of every place, and the words of a glance."""
    glance = _centroids(run, GLANCE) if GLANCE in places else None
    classes = len(run.training.class_names)

    def step(batch: Batch, sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        rows = {"labels": batch.labels}
        for place, tokens, _ in _visit(run.backbone, batch.pixels[:, 0].to(run.device), places):
            rows[place] = _feature(run, place, tokens)
            if place == GLANCE and glance is not None:
                sums[GLANCE].update(nearest_words(tokens.patches, glance)[1], batch.labels)
        return rows

    def new_sums() -> dict[str, Any]:
        return {} if glance is None else {GLANCE: CorpusStatistics(classes, len(glance))}

    def save(outcome: Outcome) -> None:
        recipe = asdict(run.config.probe)
        recipe.pop("features")
        for place in places:
            say(f"  training the probe of {place} on {len(outcome.indices)} features")
            probe = LinearProbe(classes, **recipe, seed=run.config.seed)
            probe.fit(outcome.rows[place].to(run.device), outcome.rows["labels"].to(run.device))
            key = _learned(run, place)[_probe(place)]
            if place == GLANCE:
                run.save(early_tfidf(place), corpus_tensors(outcome.sums[GLANCE]), key)
            run.save(_probe(place), {"weight": probe.weight_.cpu(), "bias": probe.bias_.cpu()}, key, steps=probe.steps_)

    key = run.key("early", "train", places=[_learned(run, place) for place in places])
    decoded = run.load("decoded")["indices"].tolist()
    work = Pass("early corpus", run.dataset(run.training), step, new_sums, decoded, forwards=_forwards(run, places))
    run.finish(work, key, save, all_decoded=True)


def _look(run: Run, places: Sequence[str]) -> None:
    """One pass over the reference crops of the validation images: words, features and attention at every place."""
    backbone = run.backbone
    centroids = {place: _centroids(run, place) for place in places}
    grid = backbone.geometry.grid

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        rows = {}
        for place, tokens, capture in _visit(backbone, batch.pixels[:, 0].to(run.device), places, watched=True):
            dense = dense_of(run, tokens, capture, batch)
            rows[f"{place}/words"] = nearest_words(tokens.patches, centroids[place])[1].to(torch.int16)
            rows[f"{place}/features"] = _feature(run, place, tokens)
            for name in _attention_scores(run):
                rows[f"{place}/attention/{name}"] = minmax(enlarge(SCORERS[name](dense), grid))
        return rows

    def save(outcome: Outcome) -> None:
        for place in places:
            own = {
                name.removeprefix(f"{place}/"): rows
                for name, rows in outcome.rows.items()
                if name.startswith(f"{place}/")
            }
            run.save(_images(place), {**own, "indices": torch.tensor(outcome.indices)}, _images_key(run, place))

    key = run.key("early images", "val", places=[_images_key(run, place) for place in places])
    indices, forwards = scored_images(run), _forwards(run, places)
    work = Pass("early images", run.dataset(run.validation), step, indices=indices, forwards=forwards)
    run.finish(work, key, save, all_decoded=True)


def _forwards(run: Run, places: Sequence[str]) -> float:
    """Dense forwards that a visit of the places takes; a glance has a quarter of the patches."""
    return max(map(block_of_place, places)) / run.backbone.depth + (GLANCE in places) / 4
