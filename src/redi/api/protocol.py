"""Runs, their comparisons and single images."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from redi.api.results import ComparisonResult, InspectionResult, RunResult
from redi.api.settings import configured, run_config
from redi.bounds import require_bounds
from redi.checks import require_type
from redi.comparison.compare import compare as measure
from redi.comparison.grid import Request
from redi.comparison.studies import STUDIES
from redi.comparison.tasks import TASKS, TaskOptions, possible_tasks
from redi.errors import ConfigError
from redi.pipeline import execute
from redi.records.comparison import read_bundle
from redi.records.outputs import PICTURE_SUFFIXES, require_apart, require_file
from redi.report.compare import publish
from redi.rows import MAIN_ROW, PRODUCTS
from redi.runs.config import saved_config
from redi.runs.folder import repair
from redi.runs.places import run_data
from redi.stages.inspect import inspect_alone, inspect_in_run

#: Names of settings that differ from the fields of a request.
GRID = {"scorer": "scorers", "reducer": "reducers", "keep": "keeps", "cost": "costs"}
#: Settings of the studies of other tasks.
OF_TASKS = tuple(field.name for field in fields(TaskOptions))
#: Settings of a saved run that a later command may change.
CHANGEABLE = ("train", "val", "device", "batch_size", "workers", "threads")


def run(
    backbone: str | Path | None = None,
    train: str | Path | None = None,
    val: str | Path | None = None,
    out: str | Path | None = None,
    *,
    config: str | Path | None = None,
    **settings: Any,
) -> RunResult:
    """Run the whole protocol, as ``redi run`` does. Stages that are done are not computed again.

    ``backbone`` is a Hub name, ``timm:name`` or a folder; ``train`` and ``val`` are labelled images; ``out`` is the
    run folder; ``config`` is a TOML file whose values the others override. More settings are the options of
    ``redi run``: ``limit``, ``classifier``, ``class_map``, ``size``, ``resize``, ``words``, ``passes``, ``features``,
    ``seed``, ``revision``, ``strict``, ``device``, ``batch_size``, ``workers``, ``threads`` and ``cache``.
    """
    places = {"backbone": backbone, "train": train, "val": val, "out": out}
    configuration = run_config(places | settings, config)
    execute(configuration)
    return RunResult(Path(configuration.out))


def compare(
    run: RunResult | str | Path,
    study: str | Sequence[str] | None = None,
    *,
    against: str = "",
    text: str | Path | None = None,
    **settings: Any,
) -> ComparisonResult:
    """Compare scores and reducers on a finished run, as ``redi compare`` does, with paired statistics.

    ``study`` names one or more of the package's studies. A grid of your own is made of ``scorer`` (or ``my.py:name``),
    ``labels``, ``reducer``, one of ``keep``, ``tokens`` and ``cost``, and ``after``, each one value or a list; ``name``
    is its title. ``against`` is the name or title of the row to compare with. ``text`` is a file of :func:`redi.text`
    for the label source ``text``; without it, the embeddings are those that the run has kept, or are made with the text
    tower of its backbone. ``masks`` is a folder with masks of the objects, for the study ``localisation``; ``gallery``
    and ``queries`` are the most images of the study ``retrieval``. ``train``, ``val``, ``device``, ``batch_size``,
    ``workers`` and ``threads`` are as for :func:`run`. Rows that are already measured are not measured again.
    """
    result = measure_comparison(run, study, against, settings, text=text)
    if result is None:  # only the main process of torchrun summarises
        result = ComparisonResult(_folder(run), read_bundle(_folder(run)), [])
    return result


def measure_comparison(
    run: RunResult | str | Path,
    study: str | Sequence[str] | None,
    against: str,
    settings: Mapping[str, Any],
    dry_run: bool = False,
    text: str | Path | None = None,
) -> ComparisonResult | None:
    """:func:`compare`; None in a dry run, and in other processes than the main one."""
    folder = _folder(run)
    changes = {name: value for name, value in settings.items() if name in CHANGEABLE}
    config = run_config(changes, base=saved_config(folder))
    options = _task_options(settings)
    others = (*CHANGEABLE, *OF_TASKS)
    axes = {name: value for name, value in settings.items() if name not in others and value is not None}
    request = configured(Request, axes, GRID) if axes else None
    if request is not None:
        require_bounds(request)
    if request is not None and not (axes.get("scorer") or axes.get("reducer")):
        raise ConfigError("--labels, --keep, --tokens, --cost, --after and --name need --scorer or --reducer.")
    everything = [] if request else [*STUDIES, *possible_tasks(folder, options)]
    studies = [study] if isinstance(study, str) else list(study or everything)
    file = None if text is None else Path(text)
    bundle = measure(config, studies, request, against, dry_run, text=file, options=options)
    tasks = [name for name in studies if name in TASKS]
    return None if bundle is None else ComparisonResult(folder, bundle, publish(folder), tasks)


def _task_options(settings: Mapping[str, Any]) -> TaskOptions:
    masks, sizes = settings.get("masks"), {name: settings.get(name) for name in ("gallery", "queries")}
    for name, value in sizes.items():
        if value is not None and type(value) is not int:
            raise ConfigError(f"{name} must be of type int, not {value!r}.")
    return TaskOptions(None if masks is None else Path(masks), **sizes)


def inspect(
    image: str | Path,
    run: RunResult | str | Path | None = None,
    *,
    backbone: str | Path = "",
    class_name: str = "",
    scorer: str = "",
    names: str | Path | None = None,
    train: str | None = None,
    val: str | None = None,
    device: str = "auto",
    out: str | Path | None = None,
) -> InspectionResult:
    """Show which patches of an image matter, as ``redi inspect`` does.

    With ``run``, its corpus, backbone and classifier are used, for ``class_name`` or the predicted class; ``scorer`` is
    the product to show. ``train`` and ``val`` name the new places of the run's data, if they have moved. With
    ``backbone``, only the attention scores are computed. ``out`` is a file for the picture.
    """
    require_type(image, str | Path, "image")
    require_type(out, str | Path | None, "out")
    require_type(names, str | Path | None, "names")
    image, picture = Path(image), Path(out) if out is not None else None
    class_names = Path(names) if names is not None else None
    if (run is None) == (not backbone):
        raise ConfigError("Give either --run RUN or --backbone NAME.")
    if scorer and scorer not in PRODUCTS:
        raise ConfigError(f"--scorer must be a product, one of {', '.join(PRODUCTS)}, not {scorer!r}.")
    if picture is not None:
        require_file(picture, PICTURE_SUFFIXES, [path for path in (image, class_names) if path])
    if run is None:
        if class_name or names or scorer or train or val:
            raise ConfigError("--class, --names, --scorer, --train and --val need the corpus of a run: --run RUN.")
        explained = inspect_alone(image, str(backbone), device)
    else:
        folder = _folder(run)
        repair(folder, train, val)
        if picture is not None:
            require_apart(picture, run_data(saved_config(folder)))
        explained = inspect_in_run(image, folder, class_name, device, class_names)
    result = InspectionResult(explained, scorer or MAIN_ROW)
    if picture is not None:
        result.save(picture)
    return result


def _folder(run: RunResult | str | Path) -> Path:
    require_type(run, RunResult | str | Path, "run")
    return run.folder if isinstance(run, RunResult) else Path(run)
