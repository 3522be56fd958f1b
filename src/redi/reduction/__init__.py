"""Token reduction: functions that replace the patch tokens by fewer tokens.

``reduce`` is the paper's fixed keep / merge / compress operator. There are three kinds of :class:`Reducer`, each
with one signature and one table. ``ONE_SHOT`` reducers shorten the sequence once, by a score per patch. ``PROGRESSIVE``
reducers shorten it in every block, between attention and MLP. ``ADAPTIVE`` reducers do so too, but decide for each
image how many tokens it keeps. ``unreduce`` restores the full patch grid.
"""

from redi.budget import Budget
from redi.reduction.adaptive import Adaptive
from redi.reduction.atm import ADAPTIVE
from redi.reduction.clustering import BY_WORD, CLUSTERING, WORD_MERGING, WordMerging
from redi.reduction.decoupling import DECOUPLING
from redi.reduction.diffrate import DIFFRATE
from redi.reduction.evolving import EVOLVING, SlowFast
from redi.reduction.local import LOCAL
from redi.reduction.merging import MERGING
from redi.reduction.oneshot import BY_SCORE, OPERATOR, OneShot
from redi.reduction.operator import keep_merge_compress, reduce
from redi.reduction.peers import PEERS
from redi.reduction.progressive import Inside, Progressive
from redi.reduction.propagation import PROPAGATION
from redi.reduction.protected import OURS
from redi.reduction.ranking import RANKING
from redi.reduction.reducer import Extent, Reducer, Schedule
from redi.reduction.result import DROPPED, Reduction, unreduce

ONE_SHOT: dict[str, OneShot] = {**BY_SCORE, **BY_WORD}
PROGRESSIVE: dict[str, Progressive] = {
    **OURS,
    **PEERS,
    **MERGING,
    **DIFFRATE,
    **RANKING,
    **PROPAGATION,
    **LOCAL,
    **DECOUPLING,
    **CLUSTERING,
    **EVOLVING,
}
#: Every reducer of the package by name.
REDUCERS: dict[str, Reducer] = {**ONE_SHOT, **PROGRESSIVE, **ADAPTIVE}

__all__ = [
    "ADAPTIVE",
    "DROPPED",
    "ONE_SHOT",
    "OPERATOR",
    "PROGRESSIVE",
    "REDUCERS",
    "WORD_MERGING",
    "Adaptive",
    "Budget",
    "Extent",
    "Inside",
    "OneShot",
    "Progressive",
    "Reducer",
    "Reduction",
    "Schedule",
    "SlowFast",
    "WordMerging",
    "keep_merge_compress",
    "reduce",
    "unreduce",
]
