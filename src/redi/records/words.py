"""What Figure 2 says about the visual words besides its counts."""

from dataclasses import dataclass

from redi.rows import MAIN_ROW
from redi.statistics import ZipfFit

#: Rows whose score mass is recorded per word: the paper's main score and its corpus term.
MASS_ROWS = (MAIN_ROW, "tfidf")


@dataclass(frozen=True)
class WordNotes:
    zipf: dict[str, ZipfFit]  # by block ("block3"), of the training frequencies
    spearman: dict[str, float]  # by row: rank correlation of frequency and score mass over the validation words
