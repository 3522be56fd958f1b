"""The rows of the bench: dense, and what can be deployed, at each cost, with both ways to restore the full grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from redi.backbone import Backbone
from redi.cost import Geometry
from redi.errors import ConfigError
from redi.grid import Grid
from redi.records.dense import ACCELERATE
from redi.records.setting import RESTORES, Setting
from redi.reduction import PROGRESSIVE, Extent, Progressive

#: Rows without ``--row``, if they exist: the method of the classification default, and its peers for dense outputs.
DEFAULT_ROWS = (ACCELERATE, "protected", "tome", "pitome-released", "algm", "cubist")


def setting_at(cost: float) -> Setting:
    """The setting of ``accelerate`` for dense outputs at a cost."""
    return Setting(cost=cost, task="dense")


@dataclass(frozen=True)
class Plan:
    """A reducer at a cost, and its extent on every grid of the data."""

    row: str
    cost: float  # what it may cost
    reducer: Progressive
    extents: Mapping[Grid, Extent]

    def spent(self, on: Geometry) -> float:
        """The analytic cost on a grid."""
        return self.reducer.cost(self.extents[on.grid], on)

    @property
    def description(self) -> str:
        """What tells two reducers of one name apart, e.g. the weight of protection; no addresses of functions."""
        step: Any = self.reducer.step
        if is_dataclass(step):
            return f"{step} {self.reducer.proportional}"
        options = sorted((name, value) for name, value in getattr(step, "keywords", {}).items() if not callable(value))
        name = getattr(getattr(step, "func", step), "__qualname__", type(step).__name__)
        return f"{name} {options} {self.reducer.proportional}"

    def __str__(self) -> str:
        return f"{self.row} at cost {self.cost:g}"


def plan_rows(
    names: Sequence[str], costs: Sequence[float], geometries: Sequence[Geometry]
) -> tuple[list[Plan], list[str]]:
    """The rows in the order of costs and names, and why others are left out.

    Without names, the rows are :data:`DEFAULT_ROWS`, without those that this version lacks and without the reducer of
    ``accelerate`` under its own name if both are the same.
    """
    unknown = [name for name in names if name != ACCELERATE and name not in PROGRESSIVE]
    if unknown:
        known = ", ".join((ACCELERATE, *PROGRESSIVE))
        raise ConfigError(f"There is no row {unknown[0]!r}; choose from {known}.")
    chosen = names or [name for name in DEFAULT_ROWS if name == ACCELERATE or name in PROGRESSIVE]
    plans: list[Plan] = []
    left_out: list[str] = []
    for cost in costs:
        for name in dict.fromkeys(chosen):
            try:
                plan = plan_row(name, cost, geometries)
            except ConfigError as error:
                left_out.append(f"{name} at cost {cost:g}: {error}")
                continue
            if names or not any(_same(plan, other) for other in plans):
                plans.append(plan)
    if not plans:
        raise ConfigError(f"No row reaches its cost. {left_out[0]}")
    return plans, left_out


def plan_row(name: str, cost: float, geometries: Sequence[Geometry]) -> Plan:
    """The row that removes least and costs at most ``cost`` on every grid."""
    if name == ACCELERATE:
        setting = setting_at(cost)
        extents = {on.grid: setting.extent(on, prefix_only=False) for on in geometries}
        return Plan(name, cost, setting.reducer, extents)
    reducer = PROGRESSIVE[name]
    return Plan(name, cost, reducer, {on.grid: reducer.extent_within_cost(cost, on) for on in geometries})


def _same(first: Plan, second: Plan) -> bool:
    return replace(first, row="") == replace(second, row="")


@dataclass(frozen=True)
class Restored:
    """Final normed patch tokens on the full grid, by the way they were restored, and what merged into what."""

    tokens: dict[str, Float[Tensor, "batch patches dim"]]
    source: Int[Tensor, "batch patches"]


def encode_dense(
    backbone: Backbone, pixels: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, "batch patches dim"]:
    return backbone.final_norm(backbone.encode(backbone.embed(pixels)))[:, backbone.prefix :]


def encode_row(
    backbone: Backbone,
    plan: Plan,
    pixels: Float[Tensor, "batch channels height width"],
    restores: Sequence[str] = RESTORES,
) -> Restored:
    """One pass gives both ways to restore the grid: they differ only in what is read at the end."""
    tokens = backbone.embed(pixels)
    assert tokens.grid is not None
    schedule = plan.extents[tokens.grid].schedule
    residual = "residual" in restores
    short = backbone.encode_progressively(tokens, plan.reducer, schedule, residual=residual)
    shorts = {"residual": short, "copy": short._replace(unmerge=None)}
    normed = {restore: backbone.final_norm(shorts[restore].full(backbone.prefix)) for restore in restores}
    return Restored({name: full[:, backbone.prefix :] for name, full in normed.items()}, short.source)
