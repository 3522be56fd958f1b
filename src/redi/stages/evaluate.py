"""The evaluation stage: dense and reduced predictions of every validation image.

The dense rows come from the score stage's forward. The reduced rows share one embedding of each
image; each is then one reduction and one pass of the frozen blocks over the shorter sequence.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi import artifacts
from redi.classes import head_classes
from redi.errors import BackboneError, ImageError
from redi.evaluate import top5
from redi.loader import Batch
from redi.passes import Pass
from redi.probe import image_feature
from redi.reduction import reduce
from redi.run import SCORES, Run
from redi.stages.probe import load_probe, probe_done
from redi.stages.score import score_done


def classifiers(run: Run) -> list[str]:
    return ["probe", "native"] if run.config.classifier == "both" else [run.config.classifier]


def native_classes(run: Run) -> tuple[list[int], str]:
    """The head's class of each folder, and how it was found."""
    names = run.backbone.class_names
    if names is None:
        raise BackboneError(
            f"{run.config.backbone} has no classifier of its own: use --classifier probe."
        )
    file = Path(run.config.class_map) if run.config.class_map else None
    return head_classes(run.training.class_names, names, file)


def prediction_key(run: Run, classifier: str, row: str) -> dict[str, Any]:
    reducer = {} if row == "dense" else {"budget": asdict(run.config.budget)}
    scores = run.digest("scores/dense" if row == "dense" else f"scores/{row}")
    if classifier == "probe":
        head: dict[str, Any] = {"probe": run.digest("probe"), "features": run.config.probe.features}
    else:
        classes, _ = native_classes(run)
        head = {"native": classes}
    return run.key("evaluate", "val", row=row, scores=scores, **head, **reducer)


def prediction_name(classifier: str, row: str) -> str:
    return f"predictions/{classifier}/{row}"


def missing_rows(run: Run) -> list[tuple[str, str]]:
    """(classifier, row) pairs whose predictions are not there or not current."""
    return [
        (classifier, row)
        for classifier in classifiers(run)
        for row in ("dense", *SCORES)
        if not run.current(prediction_name(classifier, row), prediction_key(run, classifier, row))
    ]


def evaluate_done(run: Run) -> bool:
    return probe_done(run) and score_done(run) and not missing_rows(run)


def predict(run: Run) -> None:
    missing = run.ranks.share(lambda: missing_rows(run))
    keys = {
        (name, row): prediction_key(run, name, row)
        for name in classifiers(run)
        for row in ("dense", *SCORES)
    }
    columns = torch.tensor(native_classes(run)[0]) if "native" in classifiers(run) else None

    if run.ranks.is_main:
        dense = run.load("scores/dense")
        for classifier, row in missing:
            if row != "dense":
                continue
            if classifier == "probe":
                logits = load_probe(run).logits(dense["features"].to(run.device))
            else:
                logits = dense["native_logits"]
            _save(
                run,
                classifier,
                row,
                keys,
                _rows(logits),
                dense["labels"],
                dense["indices"],
                columns,
            )
    lacking = {name for name, row in missing if row != "dense"}
    unfinished = [name for name in classifiers(run) if name in lacking]
    if unfinished:
        _predict_reduced(run, unfinished, keys, columns)
    run.ranks.wait()
    run.passes.discard("evaluate")


def _predict_reduced(
    run: Run,
    unfinished: list[str],
    keys: Mapping[tuple[str, str], artifacts.Key],
    columns: Tensor | None,
) -> None:
    """Every score, for the classifiers that lack one: which is missing may change from run to run,
    and parts of a killed run must still fit."""
    backbone = run.backbone
    probe = load_probe(run) if "probe" in unfinished else None
    stored = {row: run.load(f"scores/{row}") for row in SCORES}
    scored = stored["random"]["indices"].tolist()
    place = {index: at for at, index in enumerate(scored)}

    def step(batch: Batch, _sums: Mapping[str, Any]) -> Mapping[str, Tensor]:
        at = torch.tensor([place[index] for index in batch.indices])
        pixels = batch.pixels[:, 0].to(run.device)
        tokens = backbone.embed(backbone.preprocessing.normalise(pixels))
        found = {"labels": batch.labels}
        for row in SCORES:
            scores = stored[row]["scores"][at].float().to(run.device)
            reduction = reduce(tokens.patches, scores, run.config.budget, tokens.grid)
            hidden = backbone.encode(tokens.reduced(reduction))
            normed = backbone.final_norm(hidden)
            if probe is not None:
                read = hidden if run.config.probe.features == "prenorm" else normed
                feature = image_feature(read, backbone.prefix)
                found |= _named(f"probe/{row}", _rows(probe.logits(feature)))
            if "native" in unfinished:
                assert backbone.head is not None
                logits = backbone.head.classify(backbone.model, normed, backbone.prefix)
                found |= _named(f"native/{row}", _rows(logits))
        return found

    rows = [(classifier, row) for classifier in unfinished for row in SCORES]
    key = run.key("evaluate", "val", rows={"/".join(pair): keys[pair] for pair in rows})
    work = Pass("evaluate", run.dataset(run.validation), step, indices=scored)
    outcome = run.passes.run(work, key)
    if outcome is None:
        return
    if outcome.skipped:
        raise ImageError(
            f"{outcome.skipped[0][1]} It could be decoded when its scores were made: restore the file, "
            f"delete {run.folder / 'partial'} and run again."
        )
    for classifier, row in rows:
        best = {name: outcome.rows[f"{classifier}/{row}/{name}"] for name in ("top5", "logits")}
        indices = torch.tensor(outcome.indices)
        _save(run, classifier, row, keys, best, outcome.rows["labels"], indices, columns)


def _rows(logits: Tensor) -> dict[str, Tensor]:
    classes, values = top5(logits)
    return {"top5": classes, "logits": values}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _save(
    run: Run,
    classifier: str,
    row: str,
    keys: Mapping[tuple[str, str], artifacts.Key],
    best: Mapping[str, Tensor],
    labels: Tensor,
    indices: Tensor,
    columns: Tensor | None,
) -> None:
    """Labels are stored in the classifier's own numbering, so that Top-5 compares directly."""
    if classifier == "native":
        assert columns is not None
        labels = columns[labels]
    artifacts.save(
        run.path(prediction_name(classifier, row)),
        {**best, "labels": labels, "indices": indices},
        keys[classifier, row],
    )
