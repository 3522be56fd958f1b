"""What the commands do, as functions: ``redi.run``, ``compare``, ``tune``, ``export``, ``inspect`` and ``bench``.

Each returns a result with ``table()``, ``plot()`` and a view for notebooks. Settings have the names of the command's
options, with underscores for hyphens. The commands call these functions.
"""

from redi.api.deploy import bench, export, tune
from redi.api.protocol import compare, inspect, run
from redi.api.results import ComparisonResult, ExportResult, InspectionResult, RunResult, SpeedResult, TuneResult

__all__ = [
    "ComparisonResult",
    "ExportResult",
    "InspectionResult",
    "RunResult",
    "SpeedResult",
    "TuneResult",
    "bench",
    "compare",
    "export",
    "inspect",
    "run",
    "tune",
]
