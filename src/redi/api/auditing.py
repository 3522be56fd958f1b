"""The audit of a run's training images."""

from pathlib import Path
from typing import Any

from redi.api.results import AuditResult, RunResult
from redi.api.settings import run_config
from redi.images.classes import class_titles, find_class
from redi.pipeline import open_run
from redi.report.audit_page import build_audit_page
from redi.runs.config import saved_config
from redi.stages.audit import audit_run
from redi.stages.classifiers import native_classes


def audit(
    run: RunResult | str | Path,
    *,
    block: int | None = None,
    names: str | Path | None = None,
    class_name: str = "",
    **settings: Any,
) -> AuditResult | None:
    """Say what distinguishes every class in the training images of a run, as ``redi audit`` does.

    ``block`` is the block whose words are audited, half of the depth by default. ``names`` is a file with readable
    class names. A ``class_name`` that the run does not have is an error before any work. ``train``, ``val``,
    ``device``, ``batch_size``, ``workers`` and ``threads`` are as for :func:`redi.run`. The run's vocabulary and TF-IDF
    are used, not made again, and a pass that is current is only read. Under torchrun, processes other than the main
    one return None.
    """
    folder = run.folder if isinstance(run, RunResult) else Path(run)
    class_names = None if names is None else Path(names)
    config = run_config(settings, base=saved_config(folder))
    with open_run(config) as opened:
        if opened.ranks.is_main:
            opened.require_same()
        columns, _ = native_classes(opened)
        folders = opened.training.class_names
        titles = class_titles(folders, opened.backbone.class_names or [] if columns else [], columns, class_names)
        if class_name:
            find_class(folders, titles, class_name)
        record = audit_run(opened, block)
    if record is None:
        return None
    return AuditResult(folder, record, build_audit_page(folder, class_names), class_names)
