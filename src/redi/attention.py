"""Attention scores of Sec. "Attention scores": incoming mass, CLS mean, CLS max and rollout.

Attention rows are queries and columns are keys. ``prefix`` is the number of tokens before the patches (CLS,
registers, distillation), so the patch columns are ``prefix:``. Token 0 is CLS.

The four functions of the paper take full attention ``[batch, heads, tokens, tokens]``. Each computes a small
statistic and then applies :func:`redi.score.minmax`. A dense pass keeps only those statistics
(:class:`redi.backbone.AttentionScores`), never the full tensors of all blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from redi.checks import require_axes, require_float
from redi.errors import InvalidInput
from redi.score import minmax

Attention = Float[Tensor, "batch heads tokens tokens"]
PatchMap = Float[Tensor, "batch patches"]
FULL = "batch heads tokens tokens"


def head_mean(attention: Attention) -> Float[Tensor, "batch tokens tokens"]:
    """Attention averaged over heads: the statistic for rollout and, through its column mean, for incoming mass."""
    return attention.mean(dim=1)


def cls_rows(attention: Attention) -> Float[Tensor, "batch heads tokens"]:
    """Attention from CLS in each head: the statistic for CLS mean and CLS max.

    It is a copy, because a view would keep the whole attention tensor in memory.
    """
    return attention[:, :, 0].clone()


def incoming_mass(attention: Attention, prefix: int) -> PatchMap:
    """Eq. attentionmassraw: a_i = 1/(HT) sum_h sum_q A[h, q, j(i)], then N."""
    _check(attention, prefix, needs_cls=False)
    return minmax(mass_of(head_mean(attention), prefix))


def cls_mean(attention: Attention, prefix: int) -> PatchMap:
    """Mean over heads of the attention from CLS to each patch, then N."""
    _check(attention, prefix)
    return minmax(cls_mean_of(cls_rows(attention), prefix))


def cls_max(attention: Attention, prefix: int) -> PatchMap:
    """Maximum over heads of the attention from CLS to each patch, then N."""
    _check(attention, prefix)
    return minmax(cls_max_of(cls_rows(attention), prefix))


def rollout(attentions: Sequence[Tensor], prefix: int) -> PatchMap:
    """Attention rollout (Abnar and Zuidema, 2020): the CLS row of T_L ... T_2 T_1, then N.

    ``attentions`` lists the blocks from first to last, each ``[batch, heads, tokens, tokens]`` or already averaged
    over heads. T = rownorm(mean_h A + I). Only row 0 of the product is needed, so it is computed from the left as
    vector-matrix products: e_0 T_L, then times T_{L-1}, down to T_1.

    The rows of an exact softmax sum to one, so rownorm(A + I) is (A + I) / 2. The rows are normalised anyway,
    because attention may be inexact (BF16) or edited by hand.
    """
    attentions = list(attentions)
    if not attentions:
        raise InvalidInput("Rollout needs the attention of at least one block.")
    for block in attentions:
        _check(block, prefix, "batch tokens tokens" if block.ndim == 3 else FULL)
    averaged = [head_mean(block) if block.ndim == 4 else block for block in attentions]
    if len({block.shape for block in averaged}) > 1:
        raise InvalidInput("Rollout needs the attention of the same images and tokens in every block.")
    return minmax(rollout_of(averaged, prefix))


def rollout_of(means: Sequence[Tensor], prefix: int) -> PatchMap:
    """The CLS row of the product, for attention averaged over heads; rows are queries."""
    row: Tensor | None = None
    for block in reversed(means):
        # Row-normalised (A + I) applied from the left: scale the vector by 1 / rowsum first.
        scale = 1 / (block.sum(dim=-1) + 1)
        if row is None:
            row = block[:, 0] * scale[:, :1]
            row[:, 0] += scale[:, 0]
        else:
            row = row * scale
            row = (row[:, None] @ block)[:, 0] + row
    assert row is not None
    return row[:, prefix:]


def mass_of(mean: Float[Tensor, "batch tokens tokens"], prefix: int) -> PatchMap:
    """Column mean of the head-averaged attention: Eq. attentionmassraw weighs all heads and queries equally."""
    return mean.mean(dim=1)[:, prefix:]


def cls_mean_of(rows: Float[Tensor, "batch heads tokens"], prefix: int) -> PatchMap:
    return rows.mean(dim=1)[:, prefix:]


def cls_max_of(rows: Float[Tensor, "batch heads tokens"], prefix: int) -> PatchMap:
    return rows.amax(dim=1)[:, prefix:]


@dataclass(frozen=True)
class AttentionScore:
    """An attention score of the paper, as a function of the statistics of a dense pass."""

    title: str
    short: str  # its name in the title of a product ("REDI, mass")
    #: (head means of the blocks, CLS rows of the last block, prefix) -> map before N
    raw: Callable[[Sequence[Tensor], Tensor, int], PatchMap]
    every_block: bool = False  # whether it reads all blocks, not only the last one
    needs_cls: bool = True  # whether it reads the row of the CLS token
    every_query: bool = False  # whether it reads the rows of all tokens; without the CLS row it must

    def queries(self, tokens: int) -> int:
        """The number of queries whose attention it reads in a block."""
        return tokens if self.every_query or not self.needs_cls else 1

    def map(self, means: Sequence[Tensor], rows: Tensor, prefix: int) -> PatchMap:
        return minmax(self.raw(means, rows, prefix))


#: The attention scores by name, in the order of the paper's Table 2. Every score in this table is computed in each
#: dense pass, multiplied with TF-IDF, evaluated and reported.
ATTENTION_SCORES: dict[str, AttentionScore] = {
    "mass": AttentionScore(
        "Incoming mass", "mass", lambda means, rows, prefix: mass_of(means[-1], prefix), needs_cls=False
    ),
    "rollout": AttentionScore(
        "Rollout", "rollout", lambda means, rows, prefix: rollout_of(means, prefix), every_block=True, every_query=True
    ),
    "cls_max": AttentionScore("CLS max", "CLS max", lambda means, rows, prefix: cls_max_of(rows, prefix)),
    "cls_mean": AttentionScore("CLS mean", "CLS mean", lambda means, rows, prefix: cls_mean_of(rows, prefix)),
}


def scores_of(has_cls: bool) -> list[str]:
    """Names of the attention scores that a backbone has: without a CLS token, only those that do not read it."""
    return [name for name, score in ATTENTION_SCORES.items() if has_cls or not score.needs_cls]


def _check(attention: Tensor, prefix: int, axes: str = FULL, needs_cls: bool = True) -> None:
    require_axes(attention, axes, "Attention")
    require_float(attention, "Attention")
    queries, keys = attention.shape[-2:]
    if queries != keys:
        raise InvalidInput(f"Attention must be square, but has {queries} rows and {keys} columns.")
    if prefix == 0 and needs_cls:
        raise InvalidInput("This score reads the CLS token, and there is none (prefix 0): use incoming mass.")
    if not 0 <= prefix < keys:
        raise InvalidInput(f"prefix counts the tokens before the patches, so it must be 0 to {keys - 1}, not {prefix}.")
