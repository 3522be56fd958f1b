"""Token reduction: patch tokens in, fewer of them out.

``reduce`` is the paper's fixed keep / merge / compress operator. Peers come in two kinds, each with
one signature and one table: ``ONE_SHOT`` (a score a patch, once) and ``PROGRESSIVE`` (in every
block, between attention and MLP). ``unreduce`` spreads a shorter sequence back onto the patch grid.
"""

from redi.reduction.budget import Budget
from redi.reduction.clustering import CLUSTERING, WordMerging
from redi.reduction.oneshot import ONE_SHOT, OPERATOR, WORD_MERGING, OneShot
from redi.reduction.operator import keep_merge_compress, reduce
from redi.reduction.peers import PEERS
from redi.reduction.progressive import Inside, Progressive, Schedule
from redi.reduction.protected import OURS
from redi.reduction.result import DROPPED, Reduction, unreduce

PROGRESSIVE: dict[str, Progressive] = {**OURS, **PEERS, **CLUSTERING}

__all__ = [
    "DROPPED",
    "ONE_SHOT",
    "OPERATOR",
    "PROGRESSIVE",
    "WORD_MERGING",
    "Budget",
    "Inside",
    "OneShot",
    "Progressive",
    "Reduction",
    "Schedule",
    "WordMerging",
    "keep_merge_compress",
    "reduce",
    "unreduce",
]
