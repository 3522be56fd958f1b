"""The results of a run, read from its artefacts: the paper's rows, then the rows of comparisons."""

from dataclasses import asdict

import torch

from redi.cost import cost_table
from redi.errors import ArtifactError, RediError
from redi.evaluate import accuracy
from redi.images import LabelledImages
from redi.records import artifacts
from redi.records.reading import build
from redi.records.results import Notes, ProbeNotes, Results, Row, VocabularyNotes
from redi.rows import DENSE, Variant
from redi.runs.environment import environment
from redi.runs.folder import Run
from redi.stages.classifiers import classifier_names, native_classes
from redi.stages.early import early_top1
from redi.stages.evaluate import prediction_key, prediction_name, rounded_means
from redi.stages.maps import ScoreMaps
from redi.stages.score import DENSE_PASS
from redi.stages.text import zero_shot_top1
from redi.statistics import agreement


def collect(run: Run) -> Results:
    """The results of a finished run."""
    geometry = run.backbone.geometry
    rows = [
        _read_row(run, classifier, name)
        for classifier in classifier_names(run)
        for name in (DENSE, *run.scores, *_further_rows(run, classifier))
    ]
    return Results(
        rows,
        cost_table(geometry.patches, geometry.prefix, geometry.width, run.config.budget, geometry.block),
        _notes(run),
        environment(run.device, run.ranks.world),
        _digests(run),
    )


def _read_row(run: Run, classifier: str, name: str) -> Row:
    """Make a row from its predictions and the dense predictions."""
    dense = run.load(prediction_name(classifier, DENSE))
    stored, manifest = artifacts.load(run.path(prediction_name(classifier, name)))
    if not torch.equal(stored["indices"], dense["indices"]):
        raise ArtifactError(
            f"The predictions of {name} and of dense are for different images: an image could be read in one stage "
            "but not in the other. Run again with --strict."
        )
    notes = manifest["notes"]
    variant: Variant = build(Variant, notes["variant"])
    extent = variant.extent
    return Row(
        name=name,
        classifier=classifier,
        scorer=variant.score.name,
        label_source=variant.label_source,
        reducer=variant.reducer,
        budget=extent.budget if extent.is_budget and not variant.is_dense else None,
        after=extent.after,
        schedule=rounded_means(stored["lengths"]) if "lengths" in stored else list(extent.schedule),
        corpus=variant.corpus if variant.score.term else None,
        place=variant.place,
        tokens=notes["tokens"],
        cost=notes["cost"],
        agreement=agreement(stored["top5"][:, 0], dense["top5"][:, 0]),
        divergence=stored["divergence"].double().mean().item(),
        **asdict(accuracy(stored["top5"], dense["top5"], stored["labels"])),
    )


def _further_rows(run: Run, classifier: str) -> list[str]:
    """Names of the rows of comparisons whose predictions are still current."""
    maps = ScoreMaps(run)
    names = []
    for path in sorted((run.folder / "predictions" / classifier).glob("*.safetensors")):
        name = path.name.removesuffix(".safetensors")
        manifest = artifacts.read_manifest(path)
        if manifest is None or name in (DENSE, *run.scores):
            continue
        try:
            variant = build(Variant, manifest["notes"]["variant"])
            key = prediction_key(run, maps, classifier, variant, manifest["key"]["user"])
            current = run.current(prediction_name(classifier, name), key)
        except (RediError, KeyError, TypeError):
            continue  # made from scores that no longer exist, or by another version
        if current and name == variant.name(run.config.budget):
            names.append(name)
    return names


def _notes(run: Run) -> Notes:
    def notes(name: str) -> dict[str, object]:
        manifest = artifacts.read_manifest(run.path(name))
        assert manifest is not None
        content: dict[str, object] = manifest["notes"]
        return content

    def skipped(name: str, images: LabelledImages) -> list[tuple[str, str]]:
        entries = build(list[tuple[int, str]], notes(name)["skipped"])
        return [(images.image_name(index), reason) for index, reason in entries]

    config = run.config
    return Notes(
        backbone=config.backbone,
        train=config.train,
        val=config.val,
        train_images=len(run.training.labels),
        val_images=len(run.validation.labels),
        classes=len(run.training.class_names),
        limit=config.limit,
        seed=config.seed,
        size=run.backbone.preprocessing.size,
        resize=run.backbone.preprocessing.resample.name.lower(),
        budget=config.budget,
        attention_scores=run.attention_scores,
        native_classes=native_classes(run)[1],
        vocabulary=build(VocabularyNotes, {**asdict(config.vocabulary), **notes("vocabulary")}),
        probe=build(ProbeNotes, notes("probe")),
        skipped_train=skipped("features", run.training),
        skipped_val=skipped(DENSE_PASS, run.validation),
        zero_shot=zero_shot_top1(run),
        early_top1=early_top1(run) or None,
    )


def _digests(run: Run) -> dict[str, str]:
    names = ["vocabulary", "tfidf", "probe", *(f"scores/{score}" for score in run.scores)]
    return {**run.identity, **{name: run.digest(name) for name in names}}
