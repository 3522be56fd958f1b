"""The rows of a grid that a user asks for."""

import pytest

from redi.comparison.grid import Request, grid
from redi.comparison.ground import Ground
from redi.cost import Geometry
from redi.errors import ConfigError, InvalidInput
from redi.reduction import Extent
from redi.rows import Catalogue
from redi.runs.config import VocabularyConfig


def test_the_grid_multiplies_labels_only_with_corpus_scores() -> None:
    on = Geometry((14, 14), 1, 192, 64, 12)
    ground = Ground(on, Extent(), Catalogue(), VocabularyConfig(), 4000)
    asked = Request(scorers=["mass", "redi_mass"], labels=["gt", "none"], reducers=["prune", "tome"], costs=[0.6])
    rows = grid(ground, asked).variants
    assert [(row.score.name, row.label_source, row.reducer) for row in rows] == [
        ("mass", "", "prune"),
        ("redi_mass", "gt", "prune"),
        ("redi_mass", "none", "prune"),
        ("", "", "tome"),
    ]


@pytest.mark.parametrize("tokens", [-3, 0, 197, 100_000])
@pytest.mark.parametrize("reducer", ["keep-merge-compress", "prune", "tome"])
def test_a_number_of_tokens_that_no_image_has_is_refused(tokens: int, reducer: str) -> None:
    ground = Ground(Geometry((14, 14), 1, 192, 64, 12), Extent(), Catalogue(), VocabularyConfig(), 4000)
    with pytest.raises(ConfigError, match=rf"--tokens must lie in 1 to 196, .* not at {tokens:,}\.$"):
        grid(ground, Request(scorers=["mass"], reducers=[reducer], tokens=[98, tokens]))


def test_a_keep_rate_that_makes_more_tokens_than_patches_is_refused() -> None:
    ground = Ground(Geometry((14, 14), 1, 192, 64, 12), Extent(), Catalogue(), VocabularyConfig(), 4000)
    with pytest.raises(InvalidInput, match="would make 198 tokens of 196 patches"):
        grid(ground, Request(scorers=["mass"], keeps=[0.99]))
