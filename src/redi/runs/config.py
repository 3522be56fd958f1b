"""The configuration of a run, which is read from TOML and saved with all values; unknown keys are errors."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

from redi import bounds
from redi.budget import Budget
from redi.errors import ConfigError, RediError
from redi.images.preprocessing import FILTERS
from redi.probe import LinearProbe
from redi.records.outputs import require_run
from redi.runs.addresses import absolute, moved
from redi.vocabulary import N_PASSES, N_WORDS

T = TypeVar("T")

CLASSIFIERS = ("probe", "native", "both")
FEATURES = ("postnorm", "prenorm")
CACHES = ("none", "fp16")
#: The inputs of a run on disk.
PLACES = ("backbone", "train", "val", "class_map")


@dataclass(frozen=True)
class VocabularyConfig:
    n_words: Annotated[int, bounds.WORDS] = N_WORDS  # visual words, the paper's K
    n_passes: Annotated[int, bounds.PASSES] = N_PASSES  # k-means passes over the corpus


@dataclass(frozen=True)
class ProbeConfig:
    epochs: Annotated[int, bounds.EPOCHS] = LinearProbe.epochs
    batch_size: Annotated[int, bounds.PROBE_BATCH] = LinearProbe.batch_size
    learning_rate: Annotated[float, bounds.PROBE_RATE] = LinearProbe.learning_rate
    weight_decay: Annotated[float, bounds.DECAY] = LinearProbe.weight_decay
    # Small data sets take at least this many steps.
    min_steps: Annotated[int, bounds.PROBE_STEPS] = LinearProbe.min_steps
    features: str = "postnorm"  # tokens after the final norm, or before it (prenorm)

    @property
    def prenorm(self) -> bool:
        return self.features == "prenorm"


@dataclass(frozen=True)
class AnalysisConfig:
    n_words: Annotated[int, bounds.WORDS] = N_WORDS  # words of figure 2's own codebooks
    sample: Annotated[int, bounds.SHOWN_IMAGES] = 96  # validation images in the explorer
    typical: Annotated[int, bounds.SHOWN_PATCHES] = 6  # thumbnails per visual word


@dataclass(frozen=True)
class RuntimeConfig:
    """How to compute, not what to compute: these settings change results in their last digits at most."""

    device: str = "auto"  # auto, cpu, cuda or cuda:N
    batch_size: Annotated[int, bounds.BATCH] = 32
    workers: Annotated[int, bounds.WORKERS] = 2  # processes that decode images ahead
    threads: Annotated[int, bounds.THREADS] = 0  # CPU threads of torch; 0 means torch's own choice
    strict: bool = False  # stop at an image, link or folder that cannot be read instead of leaving it out
    cache: str = "none"  # fp16 keeps patch features on disk, so that later passes skip the backbone
    # Images per chunk, the unit of work that a killed run may lose.
    chunk: Annotated[int, bounds.CHUNK] = 256
    save_every: Annotated[float, bounds.PAUSE] = 5.0  # seconds between two saves of finished work
    # Seconds to wait for a batch before the workers are restarted.
    patience: Annotated[float, bounds.SECONDS] = 120.0


@dataclass(frozen=True)
class RunConfig:
    backbone: str = ""  # Hub name or folder
    train: str = ""  # labelled images for the corpus
    val: str = ""  # labelled images for the evaluation
    out: str = ""  # the run folder
    revision: str = ""  # of a Hub name
    size: Annotated[int, bounds.SIZE] = 0  # side of the crop in pixels; 0 gives a 14x14 grid
    resize: str = ""  # filter that resizes images, e.g. bilinear; empty means the checkpoint's own, else bicubic
    classifier: str = "probe"  # probe, native or both
    class_map: str = ""  # file that maps folders to the classes of the checkpoint's head
    # Images per class, the first ones of training and of validation; 0 means all.
    limit: Annotated[int, bounds.LIMIT] = 0
    seed: Annotated[int, bounds.SEED] = 0  # draws the views, the random score and the probe's batches
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    budget: Budget = field(default_factory=Budget)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def checked(self) -> "RunConfig":
        """Return the configuration, or raise an error that says what is missing or impossible."""
        for name in ("backbone", "train", "val", "out"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is missing (or `{name}` in the configuration file).")
            if "\0" in getattr(self, name):
                raise ConfigError(f"--{name} must not contain a null character.")
        for name in ("backbone", "train", "val", "out", "revision", "class_map"):
            _encodable(name, getattr(self, name))
        _choice("classifier", self.classifier, CLASSIFIERS)
        _choice("features", self.probe.features, FEATURES)
        _choice("resize", self.resize, ("", *FILTERS))
        _choice("cache", self.runtime.cache, CACHES)
        bounds.require_bounds(self)
        if max(self.probe.epochs, self.probe.min_steps) < 1:
            raise ConfigError("The probe must take at least one step: raise probe.epochs or probe.min_steps.")
        return self


def read_config(path: Path) -> RunConfig:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    return overlay(RunConfig(), content, str(path))


def saved_config(folder: Path) -> RunConfig:
    """The configuration of a run folder, which may have been moved, alone or together with its data."""
    require_run(folder)
    config = read_config(folder / "config.toml")
    places = {name: moved(getattr(config, name), config.out, folder) for name in PLACES}
    return overlay(config, {**places, "out": str(folder)}, str(folder))


def located(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths, which mean the same in every working directory."""
    places = {name: absolute(getattr(config, name), name == "backbone") for name in (*PLACES, "out")}
    return overlay(config, places, config.out)


def overlay(base: T, changes: Mapping[str, Any], where: str) -> T:
    """Return ``base`` with some of its fields changed; an unknown key is an error."""
    assert is_dataclass(base)
    assert not isinstance(base, type)
    names = {entry.name for entry in fields(base)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            raise ConfigError(f"{where}: unknown key {name!r}; known are {', '.join(sorted(names))}.")
        current = getattr(base, name)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {name} must be a table, [{name}].")
            values[name] = overlay(current, value, f"{where} [{name}]")
        elif isinstance(current, float) and isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = _finite(name, value, where)
        elif type(value) is not type(current):
            raise ConfigError(f"{where}: {name} must be of type {type(current).__name__}, not {value!r}.")
        else:
            values[name] = value
    try:
        return replace(base, **values)
    except ConfigError:
        raise
    except RediError as error:
        raise ConfigError(f"{where}: {error}") from None


def _finite(name: str, value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise ConfigError(f"{where}: {name} must be a finite number, not {number}.")
    return number


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML with all values; :func:`read_config` reads it back."""
    content = asdict(config)
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    lines = [_line(name, value) for name, value in content.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: object) -> str:
    """Strings, finite numbers and booleans read the same in JSON and in TOML."""
    return f"{name} = {json.dumps(value, ensure_ascii=False, allow_nan=False)}"


def _encodable(name: str, value: str) -> None:
    """TOML is UTF-8, so a configuration cannot hold other bytes. Files inside a data set may have any name."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} is {value!r}, which is not UTF-8: rename it, or make a link to it.") from None


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(filter(None, choices))}, not {value!r}.")
