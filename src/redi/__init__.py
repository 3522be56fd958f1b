"""REDI: corpus-aware patch ranking for token reduction in frozen Vision Transformers.

Data flows one way, and each arrow is one module::

    images -> views -> backbone -> vocabulary -> tfidf --+
                          |                              +-> score -> reduction -> backbone -> probe
                          +-> attention -----------------+

Importing ``redi`` loads neither torch nor transformers; the public names load them when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redi._version import __version__

#: Public names of each module. The modules are public too (``redi.score.minmax``).
_NAMES = {
    "api": (
        *("audit", "bench", "compare", "dense", "export", "inspect", "learn", "run", "text", "tune"),
        *("AuditResult", "ComparisonResult", "DenseResult", "ExportResult", "InspectionResult", "LearnResult"),
        *("RunResult", "SpeedResult", "TextResult", "TuneResult"),
    ),
    "attention": (),
    "backbone": ("Backbone", "Tokens", "load_backbone"),
    "budget": ("Budget",),
    "cost": (),
    "deploy": ("Accelerated", "Setting", "accelerate"),
    "errors": ("RediError",),
    "evaluate": (),
    "images": (),
    "pipeline": (),
    "probe": ("LinearProbe",),
    "reduction": ("Reduction", "reduce", "unreduce"),
    "score": ("hybrid", "minmax"),
    "shortcuts": (),
    "tfidf": ("CorpusStatistics",),
    "views": ("View",),
    "vocabulary": ("Vocabulary",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from redi.api import (
        AuditResult as AuditResult,
        ComparisonResult as ComparisonResult,
        DenseResult as DenseResult,
        ExportResult as ExportResult,
        InspectionResult as InspectionResult,
        LearnResult as LearnResult,
        RunResult as RunResult,
        SpeedResult as SpeedResult,
        TextResult as TextResult,
        TuneResult as TuneResult,
        audit as audit,
        bench as bench,
        compare as compare,
        dense as dense,
        export as export,
        inspect as inspect,
        learn as learn,
        run as run,
        text as text,
        tune as tune,
    )
    from redi.backbone import Backbone as Backbone, Tokens as Tokens, load_backbone as load_backbone
    from redi.budget import Budget as Budget
    from redi.deploy import Accelerated as Accelerated, Setting as Setting, accelerate as accelerate
    from redi.errors import RediError as RediError
    from redi.probe import LinearProbe as LinearProbe
    from redi.reduction import Reduction as Reduction, reduce as reduce, unreduce as unreduce
    from redi.score import hybrid as hybrid, minmax as minmax
    from redi.tfidf import CorpusStatistics as CorpusStatistics
    from redi.views import View as View
    from redi.vocabulary import Vocabulary as Vocabulary


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return import_module(f"redi.{name}")
    if name in _HOME:
        return getattr(import_module(f"redi.{_HOME[name]}"), name)
    raise AttributeError(f"module 'redi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_NAMES])
