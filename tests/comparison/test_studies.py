"""The ready-made studies before anything is measured."""

import pytest

from redi.budget import Budget
from redi.comparison.ground import Ground, Study
from redi.comparison.studies import DEPLOYABLE_COSTS, SLOW_COST, STUDIES, deployable_rows
from redi.cost import Geometry
from redi.reduction import ADAPTIVE, OPERATOR, PROGRESSIVE, Adaptive, Extent
from redi.reduction.adaptive import Curve, Point
from redi.reduction.reducer import TOLERANCE
from redi.rows import Catalogue
from redi.runs.config import VocabularyConfig


def studies_on(budget: Budget, side: int = 14) -> list[Study]:
    on = Geometry((side, side), 1, 192, 64, 12)
    catalogue = Catalogue().with_curves(lambda *_: (Point(0.0, 1.0, on.patches), Point(1.0, 0.3, 1.0)))
    ground = Ground(on, Extent(budget), catalogue, VocabularyConfig(), 4000)
    return [study for make in STUDIES.values() for study in make(ground)]


@pytest.mark.parametrize("budget", [Budget(), Budget(0.4, 0.3, cells=3, spatial=0.5)])
def test_no_two_rows_of_a_study_share_a_name(budget: Budget) -> None:
    for study in studies_on(budget):
        names = [variant.name(budget) for variant in study.variants]
        assert len(set(names)) == len(set(study.variants)), study.name


@pytest.mark.parametrize("side", [5, 14])
def test_no_row_of_a_study_makes_more_tokens_than_patches(side: int) -> None:
    rows = [row for study in studies_on(Budget(), side) for row in (*study.variants, study.reference)]
    assert any(row.extent.schedule for row in rows)
    for row in rows:
        if row.extent.is_budget:
            assert row.extent.budget.tokens(side**2) <= side**2


def test_every_reducer_that_works_block_by_block_can_be_deployed() -> None:
    """At every cost that it reaches, but slow ones at one cost only. None needs a label or a score from elsewhere."""
    on = Geometry((14, 14), 1, 192, 64, 12)
    ground = Ground(on, Extent(), Catalogue(), VocabularyConfig(), 4000)
    for cost in DEPLOYABLE_COSTS:
        rows = deployable_rows(ground, cost)
        reaching = {
            name
            for name, reducer in PROGRESSIVE.items()
            if any(abs(reached - cost) <= TOLERANCE for reached, _ in reducer.costs(on, Extent()))
            and (cost == SLOW_COST or not reducer.slow)
        }
        assert {row.reducer for row in rows if not row.score.name} >= reaching
        assert {"atc"} & {row.reducer for row in rows} == ({"atc"} if cost == SLOW_COST else set())
        scored = [row for row in rows if row.score.name]
        assert [row.reducer for row in scored] == ["prune", OPERATOR]
        assert not any(row.label_source for row in rows)
        assert all(row.score.block == row.extent.after == 4 for row in scored)


def test_a_reducer_is_measured_on_images_only_for_studies_that_have_it() -> None:
    on, measured = Geometry((14, 14), 1, 192, 64, 12), []

    def curve(name: str, _reducer: Adaptive) -> Curve:
        measured.append(name)
        return Point(0.0, 1.0, 196.0), Point(1.0, 0.3, 1.0)

    ground = Ground(on, Extent(), Catalogue().with_curves(curve), VocabularyConfig(), 4000)
    STUDIES["accelerate"](ground)
    assert not measured
    for study in STUDIES["deployable"](ground):
        assert set(ADAPTIVE) <= {row.reducer for row in study.variants}, study.name
    assert measured == [*ADAPTIVE]
