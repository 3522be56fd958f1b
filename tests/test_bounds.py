"""Bounds of the numbers that a user gives: every number of every configuration has some."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from math import inf, nan
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from redi.bounds import Bounds, require_bounds
from redi.budget import Budget
from redi.comparison.grid import Request
from redi.comparison.tasks import TaskOptions
from redi.errors import ConfigError
from redi.records.dense import DenseConfig
from redi.records.learning import LearnConfig
from redi.records.setting import Setting
from redi.records.tuning import TuneConfig
from redi.runs.config import RunConfig
from redi.speed.bench import BenchConfig

FOLDERS = RunConfig(backbone="b", train="t", val="v", out="o")
#: Configurations, and the check that each of them goes through before any work.
CHECKED: list[tuple[Any, Any]] = [
    (FOLDERS, RunConfig.checked),
    (DenseConfig("b", "t", "v", "o"), DenseConfig.checked),
    (LearnConfig("b", "i", "dynamicvit"), LearnConfig.checked),
    (TuneConfig("b", "i"), TuneConfig.checked),
    (BenchConfig(), require_bounds),
    (Request(), require_bounds),
    (TaskOptions(), require_bounds),
    (Setting(), require_bounds),
    (Budget(), require_bounds),
]


def numbers(config: Any) -> Iterator[tuple[Any, str, bool]]:
    """The fields of a configuration that hold a number or several, and whether they hold several."""
    for entry in fields(config):
        value, kind = getattr(config, entry.name), get_type_hints(type(config))[entry.name]
        if is_dataclass(value):
            yield from ((value, name, several) for _, name, several in numbers(value))
        elif {int, float} & {kind, *get_args(kind)}:
            yield config, entry.name, get_origin(kind) not in (None,) and isinstance(value, list | tuple)


FIELDS = [(config, check, *number) for config, check in CHECKED for number in numbers(config)]


def test_all_numbers_are_looked_at() -> None:
    names = {name for *_, name, _ in FIELDS}
    assert {"steps", "seed", "size", "costs", "void", "keeps", "tokens", "gallery", "patience", "max_drop"} <= names
    assert len(FIELDS) > 60


@pytest.mark.parametrize(
    ("config", "check", "owner", "name", "several"), FIELDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_number_of_a_configuration_has_bounds(
    config: Any, check: Any, owner: Any, name: str, several: bool
) -> None:
    kind = get_type_hints(type(owner), include_extras=True)[name]
    assert get_origin(kind) is Annotated
    assert isinstance(kind.__metadata__[0], Bounds)
    for value in (10**30, -(10**30), 1e300, -1e300, nan, inf, -inf, 10**5000, True, "3"):
        with pytest.raises(ConfigError, match=rf"{name} must (lie|be)|fractions|cells") as refused:
            check(changed(config, owner, name, (value,) if several else value))
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 200


def changed(config: Any, owner: Any, name: str, value: Any) -> Any:
    """The configuration with a field of its own, or of one of its parts, changed unseen by their own checks."""
    copy = replace(config)
    for entry in fields(copy):
        part = getattr(copy, entry.name)
        if owner is part:
            part = replace(part)
            object.__setattr__(copy, entry.name, part)
            object.__setattr__(part, name, value)
            return copy
    object.__setattr__(copy, name, value)
    return copy
