"""Faster models: tuning, export and measured speed."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from redi import bounds
from redi.api.models import live_backbone, model_name
from redi.api.results import ExportResult, SpeedResult, TuneResult
from redi.api.settings import configured
from redi.backbone.own_input import load_with_own_input
from redi.checks import require_type
from redi.demo.examples import example_pixels
from redi.deploy import Accelerated, Setting, accelerate
from redi.deploy.export import export as write_onnx
from redi.deploy.tune import tune as find_setting
from redi.errors import ConfigError
from redi.records.drafts import scratch
from redi.records.outputs import TUNED, require_apart, require_file, require_own
from redi.records.timing import BENCH_KEYS, BenchResult, write_bench
from redi.records.tuning import TuneConfig
from redi.runs.places import data_places
from redi.speed.bench import BenchConfig, run_bench


def tune(model: Any, images: str | Path, *, out: str | Path | None = None, **settings: Any) -> TuneResult:
    """Find the cheapest setting of :func:`redi.accelerate` within a tolerance, as ``redi tune`` does.

    ``model`` is a Hub name, ``timm:name`` or folder, a model of transformers, a backbone or an accelerated model.
    ``images`` are class folders, a flat folder, shards or ``hf:owner/name:split``. ``out`` is a folder for
    setting.json, tune.json and curve.png; without it nothing is written. More settings are the options of
    ``redi tune``: ``task`` (classify, or dense to measure patches), ``max_drop``, ``min_agreement``, ``cost`` (one or a
    list), ``calibration``, ``check``, ``class_map``, ``size``, ``resize``, ``batch_size``, ``repeats``, ``device``,
    ``workers`` and ``threads``.
    """
    require_type(images, str | Path, "images")
    require_type(out, str | Path | None, "out")
    name = model_name(model)
    names = {"cost": "costs", "batch_size": "batch"}
    config = configured(TuneConfig, settings, names, backbone=name, images=str(images)).checked()
    if out is not None:
        places = [("the images", place) for place in data_places(str(images))]
        places += [("the model", place) for place in data_places(name.removeprefix("timm:"))]
        require_apart(Path(out), places)
        require_own(Path(out), TUNED)
        made = not Path(out).exists()
        _make_writable(Path(out))
    try:
        result = TuneResult(find_setting(config, live_backbone(model)))
    except BaseException:
        if out is not None and made:
            with suppress(OSError):
                Path(out).rmdir()
        raise
    if out is None:
        return result
    try:
        return replace(result, written=result.save(out))
    except Exception:
        result.print()  # the numbers are seen even if the disk is full
        raise


def export(
    model: Any,
    out: str | Path = "model.onnx",
    *,
    cost: float | None = None,
    setting: Setting | str | Path | None = None,
    reducer: str | Path | None = None,
    size: int | None = None,
    batch_size: int = 1,
    image: str | Path | None = None,
) -> ExportResult:
    """Write an accelerated model as ONNX with fixed shapes and compare it with PyTorch, as ``redi export`` does.

    ``model`` is as for :func:`tune`. An accelerated model is written as it is. Anything else is accelerated first, at a
    ``cost`` relative to dense, with a tuned ``setting`` or a learned ``reducer``. ``size`` is the side of the input in
    pixels. Both runtimes see ``image``, or generated scenes.
    """
    require_type(out, str | Path, "out")
    require_type(size, int | None, "size")
    require_type(batch_size, int, "batch_size")
    require_type(image, str | Path | None, "image")
    file, name = Path(out), model_name(model)
    require_file(file, (".onnx",), Path(name.removeprefix("timm:")).glob("*.onnx"))
    for option, number, within in (("batch_size", batch_size, bounds.BATCH), ("size", size or 0, bounds.SIZE)):
        within.require(option, number)
    if isinstance(model, Accelerated):
        if not (cost is None and setting is None and size is None and reducer is None):
            raise ConfigError("An accelerated model already has a cost, a reducer and a size: give none of them.")
        faster = model
    else:
        backbone = live_backbone(model) or load_with_own_input(name)
        faster = accelerate(backbone.at_size(size) if size else backbone, cost, setting, reducer=reducer)
    picture = Path(image) if image is not None else None
    pixels = example_pixels(faster.backbone.preprocessing, batch_size, picture).to(faster.device)
    return ExportResult(write_onnx(faster, file, pixels), faster, name, pixels)


def require_timing(repeats: int, threads: int, record: Path) -> None:
    """Refuse, before the work, a timing that cannot be made or recorded."""
    bounds.REPEATS.require("repeats", repeats)
    bounds.THREADS.require("threads", threads)
    require_file(record, (".json",), replaces=BENCH_KEYS)


def bench(model: Any = None, *, out: str | Path | None = None, **settings: Any) -> SpeedResult:
    """Measure the speed of the dense path and of every reducer on this machine, as ``redi bench`` does.

    ``model`` is as for :func:`tune`; without it, random weights of a ``model_size`` are used. ``out`` is a JSON file
    for the records. More settings are the options of ``redi bench``, of which ``reducer``, ``batch_size``, ``dtype``
    and ``mode`` take one value or a list: also ``head``, ``size``, ``cost``, ``scoring``, ``repeats``,
    ``seconds``, ``quick``, ``device`` and ``threads``.
    """
    names = {"reducer": "reducers", "batch_size": "batch_sizes", "dtype": "dtypes", "mode": "modes"}
    config = configured(BenchConfig, settings, names, backbone="" if model is None else model_name(model))
    require_type(out, str | Path | None, "out")
    file = Path(out) if out is not None else None
    if file is not None:
        require_file(file, (".json",), replaces=BENCH_KEYS)

    def save(so_far: BenchResult) -> None:
        if file is not None:
            write_bench(file, so_far)

    return SpeedResult(run_bench(config, backbone=live_backbone(model), save=save))


def _make_writable(folder: Path) -> None:
    """Create a folder, and fail before the work if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch(folder / TUNED.file):
            pass
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written to: {error.strerror}.") from None
