"""REDI: corpus-aware patch ranking for token reduction in frozen Vision Transformers.

Data flows one way, and each arrow is one module::

    images -> views -> backbone -> vocabulary -> tfidf --+
                          |                              +-> score -> reduction -> backbone -> probe
                          +-> attention -----------------+

Importing ``redi`` loads neither torch nor transformers; the names below do, when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from redi.backbone import Backbone, Tokens, load_backbone
    from redi.errors import RediError
    from redi.probe import LinearProbe
    from redi.reduction import Budget, Reduction, reduce, unreduce
    from redi.score import hybrid, minmax
    from redi.tfidf import CorpusStatistics
    from redi.views import View
    from redi.vocabulary import Vocabulary

_HOME = {
    "Backbone": "redi.backbone",
    "Budget": "redi.reduction",
    "CorpusStatistics": "redi.tfidf",
    "LinearProbe": "redi.probe",
    "RediError": "redi.errors",
    "Reduction": "redi.reduction",
    "Tokens": "redi.backbone",
    "View": "redi.views",
    "Vocabulary": "redi.vocabulary",
    "hybrid": "redi.score",
    "load_backbone": "redi.backbone",
    "minmax": "redi.score",
    "reduce": "redi.reduction",
    "unreduce": "redi.reduction",
}

__all__ = [
    "Backbone",
    "Budget",
    "CorpusStatistics",
    "LinearProbe",
    "RediError",
    "Reduction",
    "Tokens",
    "View",
    "Vocabulary",
    "__version__",
    "hybrid",
    "load_backbone",
    "minmax",
    "reduce",
    "unreduce",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'redi' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
