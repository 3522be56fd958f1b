"""The paper's diagnostics across backbones (Sec. Discussion): several backbones on the same data.

Dense is compared with attention alone and with the hybrid, by the checkpoint's own head and by an adapted
classifier, which here is the linear probe of every run. Each backbone is an ordinary run in its own folder, so a
diagnosis that was stopped continues where it was, and every command for runs works on these runs too. The paper
calls its own numbers diagnostic, because the classifier protocol differs from the main one; the same holds here.
"""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from redi.backbone import load_backbone
from redi.errors import ConfigError
from redi.evaluate import Accuracy, accuracy
from redi.images import open_images
from redi.images.classes import head_classes
from redi.pipeline import execute
from redi.records import artifacts
from redi.records.diagnosis import FILE, FILES, KEYS, TABLE, Diagnosis, DiagnosisRow
from redi.records.outputs import require_apart, require_file, require_own_runs
from redi.records.reading import write_record
from redi.records.results import Data, Results
from redi.rows import DENSE, Score
from redi.runs.config import RunConfig
from redi.runs.distributed import choose_device, join_ranks
from redi.runs.places import run_data
from redi.runs.progress import say
from redi.stages.evaluate import prediction_name
from redi.statistics import holm


def diagnose(base: RunConfig, backbones: Sequence[str], dry_run: bool = False) -> Diagnosis | None:
    """Run what is missing for every backbone, then collect the results. ``base`` holds all other settings.

    ``base.classifier`` is ``both`` (the probe, and the native head if there is one) or ``probe``.
    """
    runs = plan(base, backbones)
    results: dict[str, Results] = {}
    with join_ranks(choose_device(base.runtime.device)) as ranks:
        for name, config in runs.items():
            if ranks.is_main:
                heads = "native head and probe" if config.classifier == "both" else "probe"
                say(f"{name}: {heads}")
            run_results = execute(config, dry_run=dry_run)
            if run_results is not None:
                results[name] = run_results
    if len(results) < len(runs):  # a dry run, or not the main process
        return None
    diagnosis = collect(runs, results)
    write_record(Path(base.out).expanduser() / FILE, diagnosis)
    return diagnosis


def plan(base: RunConfig, backbones: Sequence[str]) -> dict[str, RunConfig]:
    """The configuration of each backbone's run, by the name of its folder. All are checked before any run starts."""
    if not backbones:
        raise ConfigError("--backbone is missing: name one or more.")
    if base.classifier not in ("both", "probe"):
        raise ConfigError(f"classifier must be both or probe, not {base.classifier!r}.")
    if base.out:
        folder = Path(base.out).expanduser()
        require_apart(folder, run_data(base))
        require_own_runs(folder, FILES)
        if folder.is_dir():
            require_file(folder / FILE, (".json",), replaces=KEYS)
            require_file(folder / TABLE, (".md",))
    runs: dict[str, RunConfig] = {}
    for backbone in backbones:
        name = folder_name(backbone)
        if name in runs:
            raise ConfigError(f"Two of the backbones are called {name}: rename the folder of one.")
        out = str(Path(base.out) / name) if base.out else ""
        config = replace(base, backbone=backbone, out=out).checked()
        runs[name] = replace(config, classifier=_classifier(config))
    return runs


def folder_name(backbone: str) -> str:
    """The last part of a Hub name or a path, as the name of a folder."""
    last = Path(backbone.removeprefix("timm:")).name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "backbone"


def _classifier(config: RunConfig) -> str:
    """``both`` if the checkpoint has a head, whose classes must then fit the class folders; otherwise ``probe``."""
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


def collect(runs: dict[str, RunConfig], results: dict[str, Results]) -> Diagnosis:
    rows = [
        _row(name, Path(runs[name].out).expanduser(), run_results, classifier, score)
        for name, run_results in results.items()
        for classifier in sorted(run_results.classifiers)  # native before probe
        for score in run_results.notes.attention_scores
    ]
    attention, hybrid, gain = (
        holm([getattr(row, field) for row in rows]) for field in ("attention_p", "hybrid_p", "gain_p")
    )
    rows = [
        replace(row, attention_p=attention[at], hybrid_p=hybrid[at], gain_p=gain[at]) for at, row in enumerate(rows)
    ]
    notes = next(iter(results.values())).notes
    return Diagnosis(
        rows,
        {name: config.backbone for name, config in runs.items()},
        Data(**{entry.name: getattr(notes, entry.name) for entry in fields(Data)}),
    )


def _row(name: str, folder: Path, results: Results, classifier: str, score: str) -> DiagnosisRow:
    product = Score("tfidf", score).name
    dense = results.row(DENSE, classifier)
    alone = results.row(score, classifier)
    hybrid = results.row(product, classifier)
    gain = _paired(folder, classifier, product, score)
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
    """Accuracy of a row against a row other than dense, from the predictions of the run."""
    own, other = (
        artifacts.load(folder / f"{prediction_name(classifier, name)}.safetensors")[0] for name in (row, reference)
    )
    return accuracy(own["top5"], other["top5"], own["labels"])
