"""The results of a run as typed records: what results.json holds and what tables and figures read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from redi import artifacts
from redi.cost import CostRow, cost_table
from redi.environment import environment
from redi.equal import Geometry
from redi.errors import ArtifactError
from redi.evaluate import accuracy
from redi.run import ATTENTION_SCORES, SCORES, Run
from redi.stages.evaluate import (
    classifiers,
    measure,
    native_classes,
    prediction_key,
    prediction_name,
    score_maps,
)
from redi.statistics import agreement
from redi.variants import Variant, catalogue


@dataclass(frozen=True)
class Row:
    """One line of the tables. Identity: (scorer, label source, reducer, budget, classifier), and for
    rows beyond the paper's also where the reducer works, its schedule and the corpus settings."""

    name: str
    classifier: str  # probe or native
    scorer: str  # empty for dense and for reducers that look at no score
    labels: str  # whose label the corpus term looks up: gt is an oracle; empty where there is none
    reducer: str  # empty for dense
    budget: dict[str, Any]  # of a one-shot reducer
    after: int  # blocks before a one-shot reducer
    schedule: list[int]  # patch tokens after each block, of a progressive reducer
    corpus: dict[str, Any]  # codebook, views, mean weight
    tokens: int  # sequence length after the last block, prefix included
    cost: float  # analytic, relative to dense; without making the scores
    top1: float  # percent
    top5: float
    top1_interval: tuple[float, float]  # 95 %
    delta_dense: float  # points of Top-1 against dense
    delta_interval: tuple[float, float]
    p_value: float  # exact McNemar test against dense
    images: int
    agreement: float  # percent of images whose Top-1 is that of dense, right or wrong
    divergence: float  # mean KL divergence from dense's distribution, nats

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "Row":
        """From JSON, which knows no tuples."""
        return cls(
            **{**content, **{k: tuple(content[k]) for k in ("top1_interval", "delta_interval")}}
        )


@dataclass(frozen=True)
class Results:
    rows: list[Row]
    costs: list[CostRow]
    notes: dict[str, Any]  # data, skipped images, probe and vocabulary facts
    environment: dict[str, Any]
    digests: dict[str, str]

    def row(self, name: str, classifier: str) -> Row:
        for row in self.rows:
            if (row.name, row.classifier) == (name, classifier):
                return row
        raise ArtifactError(f"There is no row {name!r} of the {classifier} classifier.")

    @property
    def classifiers(self) -> list[str]:
        return list(dict.fromkeys(row.classifier for row in self.rows))


def collect(run: Run) -> Results:
    """Read the artefacts of a finished run: the paper's rows, then whatever else was compared."""
    backbone = run.backbone
    patches = (backbone.preprocessing.size // backbone.patch_size) ** 2
    rows = [
        _read_row(run, classifier, name)
        for classifier in classifiers(run)
        for name in ("dense", *SCORES, *_further_rows(run, classifier))
    ]
    return Results(
        rows,
        cost_table(patches, backbone.prefix, backbone.width, run.config.budget),
        _notes(run),
        {**environment(run.device), "processes": run.ranks.world},
        _digests(run),
    )


def _read_row(run: Run, classifier: str, name: str) -> Row:
    """A row from its predictions and those of dense."""
    dense = run.load(prediction_name(classifier, "dense"))
    found, manifest = artifacts.load(run.path(prediction_name(classifier, name)))
    if not torch.equal(found["indices"], dense["indices"]):
        raise ArtifactError(
            f"The predictions of {name} are for other images than those of dense: some image "
            "could be read in one stage and not in the other. Run again with --strict."
        )
    notes = manifest["notes"]
    variant = Variant.from_dict(notes["variant"])
    one_shot = bool(variant.reducer) and not variant.schedule
    known = catalogue({}, {}, {})
    if not variant.reducer or variant.reducer in known.reducers:
        tokens, cost = measure(Geometry.of(run.backbone), known, variant)
    else:  # of a user's file, which is not read again
        tokens, cost = notes["tokens"], notes["cost"]
    return Row(
        name=name,
        classifier=classifier,
        scorer=variant.scorer,
        labels=variant.labels,
        reducer=variant.reducer,
        budget=asdict(variant.budget) if one_shot else {},
        after=variant.after,
        schedule=list(variant.schedule),
        corpus=asdict(variant.corpus) if variant.term else {},
        tokens=tokens,
        cost=cost,
        agreement=agreement(found["top5"][:, 0], dense["top5"][:, 0]),
        divergence=found["divergence"].double().mean().item(),
        **asdict(accuracy(found["top5"], dense["top5"], found["labels"])),
    )


def _further_rows(run: Run, classifier: str) -> list[str]:
    """Rows of the bench whose predictions were made from what the run holds now."""
    maps = score_maps(run)
    names = []
    for path in sorted((run.folder / "predictions" / classifier).glob("*.safetensors")):
        name = path.name.removesuffix(".safetensors")
        manifest = artifacts.read_manifest(path)
        if manifest is None or name in ("dense", *SCORES):
            continue
        try:
            variant = Variant.from_dict(manifest["notes"]["variant"])
            key = prediction_key(run, maps, classifier, variant, manifest["key"]["user"])
            current = run.current(prediction_name(classifier, name), key)
        except (ArtifactError, KeyError, TypeError):
            continue  # made from scores that are gone, or by another version
        if current and name == variant.name(run.config.budget):
            names.append(name)
    return names


def write_results(folder: Path, results: Results) -> Path:
    path = folder / "results.json"
    artifacts.write_text(path, json.dumps(asdict(results), indent=1) + "\n")
    return path


def read_results(folder: Path) -> Results:
    path = folder / "results.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row.read(row) for row in content.pop("rows")]
        return Results(rows, [CostRow(**cost) for cost in content.pop("costs")], **content)
    except FileNotFoundError:
        raise ArtifactError(
            f"There is no results.json in {folder}: finish `redi run` first."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}.") from None


def _notes(run: Run) -> dict[str, Any]:
    manifests = {
        name: artifacts.read_manifest(run.path(name))
        for name in ("features", "vocabulary", "probe", "scores/dense")
    }
    notes = {name: manifest["notes"] if manifest else {} for name, manifest in manifests.items()}
    return {
        "backbone": run.config.backbone,
        "train": run.config.train,
        "val": run.config.val,
        "train_images": len(run.training.labels),
        "val_images": len(run.validation.labels),
        "classes": len(run.training.class_names),
        "seed": run.config.seed,
        "size": run.backbone.preprocessing.size,
        "resize": run.backbone.preprocessing.resample.name.lower(),
        "attention_scores": list(ATTENTION_SCORES),
        "native_classes": native_classes(run)[1] if "native" in classifiers(run) else "",
        "vocabulary": {**asdict(run.config.vocabulary), **notes["vocabulary"]},
        "probe": notes["probe"],
        "skipped_train": [
            [run.training.image_name(index), reason]
            for index, reason in notes["features"].get("skipped", [])
        ],
        "skipped_val": [
            [run.validation.image_name(index), reason]
            for index, reason in notes["scores/dense"].get("skipped", [])
        ],
    }


def _digests(run: Run) -> dict[str, str]:
    names = ["vocabulary", "tfidf", "probe", *(f"scores/{score}" for score in SCORES)]
    return {**run.identity, **{name: run.digest(name) for name in names}}
