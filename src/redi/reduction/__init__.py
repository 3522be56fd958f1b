"""Token reduction: a score per patch in, a shorter sequence out.

``reduce`` is the paper's fixed keep / merge / compress operator. ``unreduce`` spreads the shorter
sequence back onto the patch grid.
"""

from redi.reduction.budget import Budget
from redi.reduction.operator import Reduction, keep_merge_compress, reduce, unreduce

__all__ = ["Budget", "Reduction", "keep_merge_compress", "reduce", "unreduce"]
