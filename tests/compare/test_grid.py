"""The rows of a grid that a user asks for."""

from redi.compare.grid import Request, grid
from redi.compare.ground import Ground
from redi.cost import Geometry
from redi.reduction import Extent
from redi.rows import Catalogue
from redi.run.config import VocabularyConfig


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
