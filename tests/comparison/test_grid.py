"""The rows of a grid that a user asks for."""

import re
from typing import Any

import pytest

from redi.comparison.grid import Request, grid
from redi.comparison.ground import Ground
from redi.cost import Geometry
from redi.errors import ConfigError, InvalidInput
from redi.reduction import OPERATOR, Extent
from redi.rows import Catalogue
from redi.runs.config import VocabularyConfig

GROUND = Ground(Geometry((14, 14), 1, 192, 64, 12), Extent(), Catalogue(), VocabularyConfig(), 4000)


def test_the_grid_multiplies_labels_only_with_corpus_scores() -> None:
    asked = Request(scorers=["mass", "redi_mass"], labels=["gt", "none"], reducers=["prune", "tome"], costs=[0.6])
    (study,) = grid(GROUND, asked)
    assert [(row.score.name, row.label_source, row.reducer) for row in study.variants] == [
        ("mass", "", "prune"),
        ("redi_mass", "gt", "prune"),
        ("redi_mass", "none", "prune"),
        ("", "", "tome"),
        ("redi_mass", "gt", OPERATOR),  # the reference
    ]


@pytest.mark.parametrize(
    ("sizes", "titles"),
    [
        ({"costs": [0.55, 0.65]}, ["X (at a cost of 0.55)", "X (at a cost of 0.65)"]),
        ({"keeps": [0.6], "after": [0, 4]}, ["X (at a keep rate of 0.6)", "X (at a keep rate of 0.6, after block 4)"]),
        ({}, ["X"]),
    ],
)
def test_rows_are_compared_at_one_cost_with_a_reference_at_that_cost(sizes: dict[str, Any], titles: list[str]) -> None:
    studies = grid(GROUND, Request(scorers=["mass"], reducers=["prune", "tome"], name="X", **sizes))
    assert [study.title for study in studies] == titles
    for study in studies:
        costs = [GROUND.catalogue.reducers[row.reducer].cost(row.extent, GROUND.on) for row in study.variants]
        assert max(costs) - min(costs) < 0.02
        assert study.reference in study.variants
        assert (study.reference.score.name, study.reference.label_source) == ("redi_mass", "gt")


def test_the_name_of_a_study_is_the_name_of_its_files() -> None:
    def names(name: str) -> list[str]:
        return [study.name for study in grid(GROUND, Request(scorers=["mass"], costs=[0.5], name=name))]

    assert names("Pruning or merging") == ["own-pruning-or-merging-cost-0.5"]
    others = [*names("a b"), *names("a-b"), *names("a/b"), *names("ρ"), *names("Δ")]
    assert len(set(others)) == len(others), "no study replaces another"
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in others)
    (unnamed,) = grid(GROUND, Request(scorers=["mass", "cls_max"], reducers=["prune"], costs=[0.5]))
    assert unnamed.title == "mass, cls_max with prune (at a cost of 0.5)"
    for wrong in ("a\nb", "a" * 81, "a\u202eb"):
        with pytest.raises(ConfigError, match="--name must be one line of at most 80 printable characters"):
            names(wrong)


@pytest.mark.parametrize("tokens", [-3, 0, 197, 100_000])
@pytest.mark.parametrize("reducer", ["keep-merge-compress", "prune", "tome"])
def test_a_number_of_tokens_that_no_image_has_is_refused(tokens: int, reducer: str) -> None:
    with pytest.raises(ConfigError, match=rf"--tokens must lie in 1 to 196, .* not at {tokens:,}\.$"):
        grid(GROUND, Request(scorers=["mass"], reducers=[reducer], tokens=[98, tokens]))


def test_a_keep_rate_that_makes_more_tokens_than_patches_is_refused() -> None:
    with pytest.raises(InvalidInput, match="would make 198 tokens of 196 patches"):
        grid(GROUND, Request(scorers=["mass"], keeps=[0.99]))
