"""The content of diagnose.json: several backbones on the same data."""

from dataclasses import dataclass

from redi.records.results import Data

FILE, TABLE = "diagnose.json", "diagnose.md"
#: The files of a diagnosis beside its run folders.
FILES = (FILE, TABLE)
#: What marks a file as such a record.
KEYS = ("rows", "backbones", "data")


@dataclass(frozen=True)
class DiagnosisRow:
    """One backbone, classifier and attention score. Values are percent and points of Top-1."""

    backbone: str  # the name of its folder
    classifier: str  # native or probe
    score: str  # the attention score
    images: int
    tokens: tuple[int, int]  # dense, reduced; prefix included
    dense: float
    attention: float  # the attention score alone
    attention_delta: float  # against dense
    attention_p: float  # exact McNemar test, corrected by Holm's method over the table
    hybrid: float  # the product of the attention score and the TF-IDF of the true class
    hybrid_delta: float
    hybrid_interval: tuple[float, float]  # 95 % of the difference from dense
    hybrid_p: float
    gain: float  # hybrid against attention alone, paired
    gain_interval: tuple[float, float]
    gain_p: float


@dataclass(frozen=True)
class Diagnosis:
    rows: list[DiagnosisRow]
    backbones: dict[str, str]  # the name or folder of each checkpoint, by the folder of its run
    data: Data
