"""The study ``localisation``: how well the map of each score finds the object, for images whose mask is known.

The true class is given by the protocol itself ("GT-known"), so a row that looks it up is no oracle here. The maps are
those of the run: four views of every validation image. No forward pass is needed.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from redi.comparison.paired import paired_to
from redi.corpus import TRUE_CLASS
from redi.errors import ConfigError
from redi.images.masks import shares_of
from redi.localisation import (
    THRESHOLDS,
    best_threshold,
    ceiling_iou,
    held_out_iou,
    pointing_game,
    rank_map,
    threshold_iou,
)
from redi.records.localisation import MASKS, Localisation, LocalisationLine, write_localisation
from redi.records.outputs import PICTURES
from redi.records.results import Results
from redi.reduction import Extent
from redi.rows import RANDOM, Score, Variant, marked_title
from redi.runs.environment import environment
from redi.runs.folder import Run
from redi.scorers import centre_prior
from redi.stages.classifiers import classifier_names
from redi.stages.maps import ScoreMaps
from redi.stages.score import WORDS, scored_images
from redi.views import stored_views

#: Label sources that are compared: with the class, without it, and with a wrong one.
SOURCES = (TRUE_CLASS, "predicted", "posterior", "none", "other")
#: The score that others are compared with.
REFERENCE = "mass"
CENTRE = "centre"


def own_masks(folder: Path) -> Path:
    """Where a run with pictures of its own has their masks."""
    return folder / PICTURES / MASKS


def find_masks(folder: Path, masks: Path | None) -> Path:
    """The folder of the masks: the named one or the run's own."""
    if masks is None and not own_masks(folder).is_dir():
        raise ConfigError(
            "The study localisation needs masks of the objects, and this run has none: name their folder with --masks "
            "(paths as those of the validation images, .png, every value but 0 is the object)."
        )
    masks = own_masks(folder) if masks is None else masks.expanduser()
    if not masks.is_dir():
        raise ConfigError(f"--masks {masks} is not a folder.")
    return masks


def localisation_rows(attention: list[str]) -> list[tuple[Score, str]]:
    """Scores with their label sources: two controls, attention alone, TF-IDF, and products."""
    alone = [Score(local=name) for name in (RANDOM, CENTRE, *attention)]
    corpus = [(score, source) for score in (Score("tfidf"), Score("tfidf", REFERENCE)) for source in SOURCES]
    others = [(Score("tfidf", name), TRUE_CLASS) for name in attention if name != REFERENCE]
    return [*((score, "") for score in alone), *corpus, *others]


def object_shares(run: Run, masks: Path) -> Tensor:
    """The share of each patch that is object, for all images that the run has scored."""
    stored = run.load(WORDS)
    crops = zip(stored["boxes"][:, :1], stored["flips"][:, :1], strict=True)
    views = [stored_views(box, flip)[0] for box, flip in crops]
    names = [run.validation.image_name(index) for index in scored_images(run)]
    return shares_of(masks, names, views, run.backbone.preprocessing, run.backbone.geometry.grid)


def summarise_localisation(run: Run, results: Results, masks: Path) -> None:
    """Measure all maps and write localisation.json."""
    shares = object_shares(run, masks)
    visible = shares.sum(dim=1) > 0
    if int(visible.sum()) < 2:
        raise ConfigError(f"The masks in {masks} show an object in fewer than two images.")
    shares = shares[visible]
    half = torch.arange(len(shares)) % 2
    hits: dict[str, Tensor] = {}
    overlaps: dict[str, Tensor] = {}
    held_out: dict[str, Tensor] = {}
    ranked: dict[str, Tensor] = {}
    classifier = classifier_names(run)[0]
    budget = run.config.budget
    rows = {Variant(*row, extent=Extent(budget)).name(budget): row for row in localisation_rows(run.attention_scores)}
    for name, scores in zip(rows, _maps(run, list(rows.values()), classifier), strict=True):
        hits[name] = pointing_game(scores[visible], shares)
        overlaps[name] = threshold_iou(scores[visible], shares)
        held_out[name], _ = held_out_iou(overlaps[name], half)
        ranked[name], _ = held_out_iou(threshold_iou(rank_map(scores[visible]), shares), half)
    pointing, overlap = paired_to(hits, REFERENCE), paired_to(held_out, REFERENCE)
    lines = []
    for name, (score, source) in rows.items():
        best, mean = best_threshold(overlaps[name]), overlaps[name].double().mean(dim=0)
        lines.append(
            LocalisationLine(
                row=name,
                title=marked_title(score, source),
                label_source=source,
                pointing=100 * hits[name].double().mean().item(),
                iou=100 * held_out[name].double().mean().item(),
                ranked_iou=100 * ranked[name].double().mean().item(),
                best_iou=100 * mean[best].item(),
                threshold=THRESHOLDS[best],
                curve=(100 * mean).tolist(),
                pointing_to_reference=pointing.get(name),
                iou_to_reference=overlap.get(name),
            )
        )
    record = Localisation(
        lines=lines,
        reference=Score(local=REFERENCE).title,
        ceiling=100 * ceiling_iou(shares).double().mean().item(),
        whole=100 * shares.double().mean().item(),
        thresholds=list(THRESHOLDS),
        classifier=classifier,
        images=len(shares),
        left_out=int((~visible).sum()),
        masks=masks.name,
        digests=results.digests,
        environment=environment(run.device, run.ranks.world),
    )
    write_localisation(run.folder, record)


def _maps(run: Run, rows: list[tuple[Score, str]], classifier: str) -> Iterator[Tensor]:
    maps, images = ScoreMaps(run), len(scored_images(run))
    for score, source in rows:
        if score.local == CENTRE:  # it depends on no image, so the run need not have made it
            yield centre_prior(run.backbone.geometry.grid).expand(images, -1)
            continue
        made = maps.map(Variant(score, source), classifier)
        assert made is not None
        yield made
