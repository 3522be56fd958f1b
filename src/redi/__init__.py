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

#: Public names and where they live; modules are reached by their own names (``redi.score.minmax``).
_HOME = {
    "Accelerated": "deploy",
    "Backbone": "backbone",
    "Budget": "reduction",
    "CorpusStatistics": "tfidf",
    "LinearProbe": "probe",
    "RediError": "errors",
    "Setting": "deploy",
    "Reduction": "reduction",
    "Tokens": "backbone",
    "View": "views",
    "Vocabulary": "vocabulary",
    "accelerate": "deploy",
    "hybrid": "score",
    "load_backbone": "backbone",
    "minmax": "score",
    "reduce": "reduction",
    "unreduce": "reduction",
}
_MODULES = (
    "attention backbone cost deploy errors evaluate images pipeline probe reduction score "
    "tfidf views vocabulary"
).split()

__all__ = [
    "Accelerated",
    "Backbone",
    "Budget",
    "CorpusStatistics",
    "LinearProbe",
    "RediError",
    "Reduction",
    "Setting",
    "Tokens",
    "View",
    "Vocabulary",
    "__version__",
    "accelerate",
    "hybrid",
    "load_backbone",
    "minmax",
    "reduce",
    "unreduce",
]

if TYPE_CHECKING:
    from redi.backbone import Backbone, Tokens, load_backbone
    from redi.deploy import Accelerated, Setting, accelerate
    from redi.errors import RediError
    from redi.probe import LinearProbe
    from redi.reduction import Budget, Reduction, reduce, unreduce
    from redi.score import hybrid, minmax
    from redi.tfidf import CorpusStatistics
    from redi.views import View
    from redi.vocabulary import Vocabulary


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"redi.{name}")
    if name in _HOME:
        return getattr(import_module(f"redi.{_HOME[name]}"), name)
    raise AttributeError(f"module 'redi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
