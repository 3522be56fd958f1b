"""The results of a run as typed records: what results.json holds and what tables and figures read."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from redi import __version__, artifacts
from redi.cost import CostRow, cost_table
from redi.errors import ArtifactError
from redi.evaluate import accuracy
from redi.run import ATTENTION_SCORES, SCORES, Run
from redi.stages.evaluate import classifiers, native_classes, prediction_name


@dataclass(frozen=True)
class Row:
    """One line of the tables. Identity: (scorer, label source, reducer, budget, classifier)."""

    name: str
    classifier: str  # probe or native
    scorer: str  # empty for dense
    labels: str  # whose label the corpus term looks up: gt, or empty where there is none
    reducer: str  # keep-merge-compress, or empty for dense
    budget: dict[str, Any]
    tokens: int  # sequence length, prefix included
    top1: float  # percent
    top5: float
    top1_interval: tuple[float, float]  # 95 %
    delta_dense: float  # points of Top-1 against dense
    delta_interval: tuple[float, float]
    p_value: float  # exact McNemar test against dense
    images: int


@dataclass(frozen=True)
class Results:
    rows: list[Row]
    costs: list[CostRow]
    notes: dict[str, Any]  # data, skipped images, probe and vocabulary facts
    environment: dict[str, Any]
    digests: dict[str, str]

    def row(self, name: str, classifier: str) -> Row:
        return next(row for row in self.rows if (row.name, row.classifier) == (name, classifier))

    @property
    def classifiers(self) -> list[str]:
        return list(dict.fromkeys(row.classifier for row in self.rows))


def collect(run: Run) -> Results:
    """Read the artefacts of a finished run; no model is needed."""
    budget = run.config.budget
    backbone = run.backbone
    patches = (backbone.preprocessing.size // backbone.patch_size) ** 2
    rows = []
    for classifier in classifiers(run):
        dense = run.load(prediction_name(classifier, "dense"))
        for name in ("dense", *SCORES):
            found = run.load(prediction_name(classifier, name))
            if not torch.equal(found["indices"], dense["indices"]):
                raise ArtifactError(
                    f"The predictions of {name} are for other images than those of dense: some image "
                    "could be read in one stage and not in the other. Run again with --strict."
                )
            result = accuracy(found["top5"], dense["top5"], found["labels"])
            reduced = name != "dense"
            rows.append(
                Row(
                    name=name,
                    classifier=classifier,
                    scorer=name if reduced else "",
                    labels="gt" if name == "tfidf" or name.startswith("redi_") else "",
                    reducer="keep-merge-compress" if reduced else "",
                    budget=asdict(budget) if reduced else {},
                    tokens=backbone.prefix + (budget.tokens(patches) if reduced else patches),
                    **asdict(result),
                )
            )
    return Results(
        rows,
        cost_table(patches, backbone.prefix, backbone.width, budget),
        _notes(run),
        _environment(run),
        _digests(run),
    )


def write_results(folder: Path, results: Results) -> Path:
    path = folder / "results.json"
    artifacts.write_text(path, json.dumps(asdict(results), indent=1) + "\n")
    return path


def read_results(folder: Path) -> Results:
    path = folder / "results.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            Row(**{**row, **{k: tuple(row[k]) for k in ("top1_interval", "delta_interval")}})
            for row in content.pop("rows")
        ]
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
        "attention_scores": list(ATTENTION_SCORES),
        "native_classes": native_classes(run)[1] if "native" in classifiers(run) else "",
        "vocabulary": notes["vocabulary"],
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


def _environment(run: Run) -> dict[str, Any]:
    return {
        "redi": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(run.device),
        "processes": run.ranks.world,
    }


def _digests(run: Run) -> dict[str, str]:
    names = ["vocabulary", "tfidf", "probe", *(f"scores/{score}" for score in SCORES)]
    return {**run.identity, **{name: run.digest(name) for name in names}}
