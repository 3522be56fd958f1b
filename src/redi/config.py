"""The configuration of a run: composed here, read from TOML, unknown keys rejected, saved resolved."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from redi.errors import ConfigError, RediError
from redi.reduction.budget import Budget

T = TypeVar("T")

#: Words are stored in 16 bits.
MOST_WORDS = 32767
CLASSIFIERS = ("probe", "native", "both")
FEATURES = ("postnorm", "prenorm")
CACHES = ("none", "fp16")


@dataclass(frozen=True)
class VocabularyConfig:
    n_words: int = 512  # visual words, the paper's K
    n_passes: int = 3  # k-means passes over the corpus


@dataclass(frozen=True)
class ProbeConfig:
    epochs: int = 20
    batch_size: int = 4096
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    min_steps: int = 2000  # small data sets take at least this many steps
    features: str = "postnorm"  # tokens after the final norm, or before it (prenorm)


@dataclass(frozen=True)
class AnalysisConfig:
    n_words: int = 512  # words of figure 2's own codebooks
    sample: int = 96  # validation images in the explorer
    typical: int = 6  # thumbnails a visual word


@dataclass(frozen=True)
class RuntimeConfig:
    """How, not what: these change the numbers at most in their last digits."""

    device: str = "auto"  # auto, cpu, cuda or cuda:N
    batch_size: int = 32
    workers: int = 2  # processes that decode images ahead
    threads: int = 0  # CPU threads of torch; 0 leaves torch's own choice
    strict: bool = False  # stop at an image that cannot be decoded instead of skipping it
    cache: str = "none"  # fp16 keeps patch features on disk so that later passes skip the backbone


@dataclass(frozen=True)
class RunConfig:
    backbone: str = ""  # Hub name or folder
    train: str = ""  # labelled images of the corpus
    val: str = ""  # labelled images of the evaluation
    out: str = ""  # the run folder
    revision: str = ""  # of a Hub name
    size: int = 0  # side of the crop in pixels; 0 gives a 14x14 grid
    classifier: str = "probe"  # probe, native or both
    class_map: str = ""  # file that maps folders to the classes of the checkpoint's head
    seed: int = 0  # of the views, the random score and the probe's batches
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    budget: Budget = field(default_factory=Budget)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def checked(self) -> "RunConfig":
        """The same, or one sentence about what is missing or impossible."""
        for name in ("backbone", "train", "val", "out"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is missing (or `{name}` in the configuration file).")
        _choice("classifier", self.classifier, CLASSIFIERS)
        _choice("features", self.probe.features, FEATURES)
        _choice("cache", self.runtime.cache, CACHES)
        for name, value in (
            ("batch_size", self.runtime.batch_size),
            ("n_words", self.vocabulary.n_words),
            ("n_passes", self.vocabulary.n_passes),
            ("analysis.n_words", self.analysis.n_words),
            ("analysis.sample", self.analysis.sample),
            ("analysis.typical", self.analysis.typical),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be positive, not {value}.")
        if max(self.vocabulary.n_words, self.analysis.n_words) > MOST_WORDS:
            raise ConfigError(
                f"A vocabulary has at most {MOST_WORDS:,} words: they are stored in 16 bits."
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must lie in 0 to 2**32 - 1, not {self.seed}.")
        if self.size < 0:
            raise ConfigError(f"size must be a number of pixels, not {self.size}.")
        if self.runtime.workers < 0 or self.runtime.threads < 0:
            raise ConfigError("workers and threads must not be negative.")
        return self


def read_config(path: Path) -> RunConfig:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    return overlay(RunConfig(), content, str(path))


def saved_config(folder: Path) -> RunConfig:
    """Of a run folder; the folder itself may have been moved."""
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigError(
            f"{folder} is not a run folder: it has no config.toml. Use `redi run` first."
        )
    return replace(read_config(path), out=str(folder))


def overlay(base: T, changes: Mapping[str, Any], where: str) -> T:
    """``base`` with some of its fields changed; a key it does not have is an error that says so."""
    assert is_dataclass(base)
    assert not isinstance(base, type)
    known = {entry.name for entry in fields(base)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise ConfigError(
                f"{where}: unknown key {name!r}; known are {', '.join(sorted(known))}."
            )
        current = getattr(base, name)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {name} must be a table, [{name}].")
            values[name] = overlay(current, value, f"{where} [{name}]")
        elif isinstance(current, float) and isinstance(value, int) and not isinstance(value, bool):
            values[name] = float(value)
        elif type(value) is not type(current):
            kind = type(current).__name__
            raise ConfigError(f"{where}: {name} must be of type {kind}, not {value!r}.")
        else:
            values[name] = value
    try:
        return replace(base, **values)
    except ConfigError:
        raise
    except RediError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_toml(config: RunConfig) -> str:
    """The resolved configuration; :func:`read_config` gives it back."""
    content = asdict(config)
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    lines = [_line(name, value) for name, value in content.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _line(name: str, value: object) -> str:
    """Strings, numbers and booleans read the same in JSON and in TOML."""
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
