"""What the commands do, as functions.

They are ``redi.run``, ``compare``, ``audit``, ``text``, ``dense``, ``tune``, ``learn``, ``export``, ``inspect`` and
``bench``.
Each returns a result with ``table()``, ``plot()`` and a view for notebooks. Settings have the names of the options,
with underscores for hyphens. The commands call these functions.
"""

from redi.api.auditing import audit
from redi.api.deploy import bench, export, tune
from redi.api.learning import learn
from redi.api.protocol import compare, inspect, run
from redi.api.results import (
    AuditResult,
    ComparisonResult,
    DenseResult,
    ExportResult,
    InspectionResult,
    LearnResult,
    RunResult,
    SpeedResult,
    TextResult,
    TuneResult,
)
from redi.api.segmentation import dense
from redi.api.texts import text

__all__ = [
    "AuditResult",
    "ComparisonResult",
    "DenseResult",
    "ExportResult",
    "InspectionResult",
    "LearnResult",
    "RunResult",
    "SpeedResult",
    "TextResult",
    "TuneResult",
    "audit",
    "bench",
    "compare",
    "dense",
    "export",
    "inspect",
    "learn",
    "run",
    "text",
    "tune",
]
