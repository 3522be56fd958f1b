"""The paper's diagnostics across backbones (Sec. Discussion): several backbones on the same data.

Dense against attention alone against the hybrid, with the checkpoint's own head and with an adapted
classifier, which here is the linear probe of every run. Each backbone is an ordinary run in a folder
of its own, so a diagnosis that was killed goes on where it was, and everything that works on a run
works on its parts. The paper says of its own numbers that they are diagnostic, because the classifier
protocol differs from the main one; the same holds here.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from redi import artifacts
from redi.backbone import load_backbone
from redi.classes import head_classes
from redi.config import RunConfig
from redi.distributed import choose_device, join_ranks
from redi.errors import ConfigError
from redi.evaluate import Accuracy, accuracy
from redi.images import open_images
from redi.pipeline import execute
from redi.progress import say
from redi.records import Results
from redi.run import ATTENTION_SCORES
from redi.stages.evaluate import prediction_name
from redi.statistics import holm


@dataclass(frozen=True)
class DiagnosisRow:
    """One backbone, classifier and attention score. Percent and points of Top-1."""

    backbone: str  # the name of its folder
    classifier: str  # native or probe
    score: str  # the attention score
    images: int
    tokens: tuple[int, int]  # dense, reduced; prefix included
    dense: float
    attention: float  # the attention score alone
    attention_delta: float  # against dense
    attention_p: float  # exact McNemar tests, corrected by Holm's method over the table
    hybrid: float  # its product with TF-IDF of the true class
    hybrid_delta: float
    hybrid_interval: tuple[float, float]  # 95 % of the difference from dense
    hybrid_p: float
    gain: float  # hybrid against attention alone, paired
    gain_interval: tuple[float, float]
    gain_p: float


@dataclass(frozen=True)
class Diagnosis:
    rows: list[DiagnosisRow]
    backbones: dict[str, str]  # the name or folder of each checkpoint, by the folder of its run
    data: dict[str, str | int]


def diagnose(base: RunConfig, backbones: Sequence[str], dry_run: bool = False) -> Diagnosis | None:
    """Run what is missing for every backbone, then collect. ``base`` holds all other settings.

    ``base.classifier`` is ``both`` (the native head wherever a checkpoint has one) or ``probe``.
    """
    runs = plan(base, backbones)
    found: dict[str, Results] = {}
    with join_ranks(choose_device(base.runtime.device)) as ranks:
        for name, config in runs.items():
            if ranks.is_main:
                heads = "native head and probe" if config.classifier == "both" else "probe"
                say(f"{name}: {heads}")
            results = execute(config, dry_run=dry_run)
            if results is not None:
                found[name] = results
    if len(found) < len(runs):  # a dry run, or not the main process
        return None
    diagnosis = collect(runs, found)
    text = json.dumps(asdict(diagnosis), indent=1) + "\n"
    artifacts.write_text(Path(base.out).expanduser() / "diagnose.json", text)
    return diagnosis


def plan(base: RunConfig, backbones: Sequence[str]) -> dict[str, RunConfig]:
    """The run of each backbone by the name of its folder; what cannot work is said before any work."""
    if not backbones:
        raise ConfigError("--backbone is missing: name one or more.")
    if base.classifier not in ("both", "probe"):
        raise ConfigError(f"classifier must be both or probe, not {base.classifier!r}.")
    runs: dict[str, RunConfig] = {}
    for backbone in backbones:
        name = folder_name(backbone)
        if name in runs:
            raise ConfigError(f"Two of the backbones are called {name}: rename one's folder.")
        out = str(Path(base.out) / name) if base.out else ""
        config = replace(base, backbone=backbone, out=out).checked()
        runs[name] = replace(config, classifier=_classifier(config))
    return runs


def folder_name(backbone: str) -> str:
    """The last part of a Hub name or a path, as the name of a folder."""
    last = Path(backbone.removeprefix("timm:")).name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "backbone"


def _classifier(config: RunConfig) -> str:
    """``both`` where the checkpoint has a head, which must then fit the folders of the data."""
    model = load_backbone(config.backbone, config.revision or None)
    names = (model.at_size(config.size) if config.size else model).class_names
    if config.classifier == "probe" or names is None:
        return "probe"
    file = Path(config.class_map) if config.class_map else None
    try:
        head_classes(open_images(config.train).class_names, names, file)
    except ConfigError as error:
        raise ConfigError(f"{config.backbone}: {error}") from None
    return "both"


def collect(runs: dict[str, RunConfig], found: dict[str, Results]) -> Diagnosis:
    rows = [
        _row(name, Path(runs[name].out).expanduser(), results, classifier, score)
        for name, results in found.items()
        for classifier in sorted(results.classifiers)  # native before probe
        for score in ATTENTION_SCORES
    ]
    attention, hybrid, gain = (
        holm([getattr(row, field) for row in rows])
        for field in ("attention_p", "hybrid_p", "gain_p")
    )
    rows = [
        replace(row, attention_p=attention[at], hybrid_p=hybrid[at], gain_p=gain[at])
        for at, row in enumerate(rows)
    ]
    notes = next(iter(found.values())).notes
    fields = ("train", "val", "train_images", "val_images", "classes", "seed", "size")
    return Diagnosis(
        rows,
        {name: config.backbone for name, config in runs.items()},
        {field: notes[field] for field in fields},
    )


def _row(name: str, folder: Path, results: Results, classifier: str, score: str) -> DiagnosisRow:
    dense = results.row("dense", classifier)
    alone = results.row(score, classifier)
    hybrid = results.row(f"redi_{score}", classifier)
    gain = _paired(folder, classifier, f"redi_{score}", score)
    return DiagnosisRow(
        backbone=name,
        classifier=classifier,
        score=score,
        images=dense.images,
        tokens=(dense.tokens, hybrid.tokens),
        dense=dense.top1,
        attention=alone.top1,
        attention_delta=alone.delta_dense,
        attention_p=alone.p_value,
        hybrid=hybrid.top1,
        hybrid_delta=hybrid.delta_dense,
        hybrid_interval=hybrid.delta_interval,
        hybrid_p=hybrid.p_value,
        gain=gain.delta_dense,
        gain_interval=gain.delta_interval,
        gain_p=gain.p_value,
    )


def _paired(folder: Path, classifier: str, row: str, reference: str) -> Accuracy:
    """Of a row against another than dense, from the predictions of the run."""
    one, other = (
        artifacts.load(folder / f"{prediction_name(classifier, each)}.safetensors")[0]
        for each in (row, reference)
    )
    return accuracy(one["top5"], other["top5"], one["labels"])
