"""The ready-made studies before anything is measured."""

import pytest

from redi.budget import Budget
from redi.comparison.ground import Ground, Study
from redi.comparison.studies import STUDIES
from redi.cost import Geometry
from redi.reduction import Extent
from redi.rows import Catalogue
from redi.runs.config import VocabularyConfig


def studies_on(budget: Budget, side: int = 14) -> list[Study]:
    on = Geometry((side, side), 1, 192, 64, 12)
    ground = Ground(on, Extent(budget), Catalogue(), VocabularyConfig(), 4000)
    return [study for make in STUDIES.values() for study in make(ground)]


@pytest.mark.parametrize("budget", [Budget(), Budget(0.4, 0.3, cells=3, spatial=0.5)])
def test_no_two_rows_of_a_study_share_a_name(budget: Budget) -> None:
    for study in studies_on(budget):
        names = [variant.name(budget) for variant in study.variants]
        assert len(set(names)) == len(set(study.variants)), study.name


@pytest.mark.parametrize("side", [4, 5, 14])
def test_no_row_of_a_study_makes_more_tokens_than_patches(side: int) -> None:
    rows = [row for study in studies_on(Budget(), side) for row in (*study.variants, study.reference)]
    assert any(row.extent.schedule for row in rows)
    for row in rows:
        if not row.extent.schedule:
            assert row.extent.budget.tokens(side**2) <= side**2
