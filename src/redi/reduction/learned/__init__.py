"""Learned reducers: what the published methods with trained weights learn, on a frozen backbone and without labels.

Each method is a :class:`Learned` module with few parameters, which makes a reducer like any other. ``redi learn``
trains it; :mod:`redi.learning` holds the training and the files.
"""

from redi.reduction.learned.halting import AViT
from redi.reduction.learned.masks import IARED, AdaViT, DynamicViT, SPViT
from redi.reduction.learned.method import Learned, Lesson
from redi.reduction.learned.mixing import PatchMerger, TokenLearner
from redi.reduction.learned.protection import Protection
from redi.reduction.learned.targets import PatchSlimming, WeiToP

#: The learned methods by name.
LEARNED: dict[str, type[Learned]] = {
    method.name: method
    for method in (Protection, DynamicViT, SPViT, AdaViT, IARED, AViT, PatchMerger, TokenLearner, PatchSlimming, WeiToP)
}

__all__ = ["LEARNED", "Learned", "Lesson"]
