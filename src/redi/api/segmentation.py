"""Dense prediction: what merging costs a segmentation head."""

from pathlib import Path
from typing import Any

from redi.api.results import DenseResult
from redi.api.settings import configured
from redi.records.dense import DenseConfig
from redi.report.dense_page import build_dense_report
from redi.segmentation.bench import measure_dense


def dense(backbone: str | Path, train: str | Path, val: str | Path, out: str | Path, **settings: Any) -> DenseResult:
    """Measure what dense prediction loses when tokens are merged, as ``redi dense`` does.

    ``backbone`` is a Hub name, ``timm:name`` or folder. ``train`` and ``val`` are folders with ``images/`` and
    ``labels/``, where a picture and its label map have the same stem. ``out`` is the folder for the head, the rows, the
    records and the report. The same call continues where it was stopped. More settings are the options of
    ``redi dense``: ``cost`` and ``row`` (one or a list), ``limit``, ``size`` (a shorter side, or height and width),
    ``void``, ``names``, ``steps``, ``seed``, ``repeats``, ``device``, ``workers`` and ``threads``.
    """
    places = {"backbone": str(backbone), "train": str(train), "val": str(val), "out": str(out)}
    config = configured(DenseConfig, settings, {"cost": "costs", "row": "rows"}, **places)
    folder = Path(config.out).expanduser()
    return DenseResult(folder, measure_dense(config), build_dense_report(folder))
