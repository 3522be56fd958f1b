"""Patch scores that need no corpus: small functions of one dense pass, in a plain table.

A scorer takes a :class:`Dense` and returns one number per patch, ``[batch, patches]``; a higher number means a more
important patch. The caller normalises the map (Eq. norm01). A scorer ranks patches alone; multiplied by a corpus
term it gives a REDI score. Users add their own from a file (``redi compare --scorer my.py:name``)::

    # my.py
    def contrast(dense):
        "Patches whose final feature differs most from that of their right neighbour."
        rows, columns = dense.grid
        grid = dense.patches.unflatten(1, (rows, columns))
        return (grid - grid.roll(-1, dims=2)).norm(dim=-1).flatten(1)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from redi.attention import ATTENTION_SCORES, AttentionScore, cls_rows, head_mean
from redi.grid import Grid

PatchScores = Float[Tensor, "batch patches"]


@dataclass(frozen=True)
class Dense:
    """The input of a scorer: one block of a dense pass over the reference crops of a batch."""

    query: Float[Tensor, "batch heads tokens head_dim"]  # of the block's attention; includes the prefix
    key: Float[Tensor, "batch heads tokens head_dim"]
    value: Float[Tensor, "batch heads tokens head_dim"]
    scale: float
    patches: Float[Tensor, "batch patches dim"]  # patch features after the block
    prefix: int  # tokens before the patches: CLS, registers, distillation
    grid: Grid
    indices: list[int]  # index of each image in its data set
    seed: int
    has_cls: bool = True  # whether token 0 is a CLS token

    @cached_property
    def attention(self) -> Float[Tensor, "batch heads tokens tokens"]:
        """softmax(Q K^T / sqrt(d)): rows are queries, columns are keys; token 0 is CLS, if there is one."""
        return (self.query @ self.key.transpose(2, 3) * self.scale).softmax(dim=-1)


Scorer = Callable[[Dense], PatchScores]


@dataclass(frozen=True)
class LocalScore:
    """A scorer of the package and the title that reports show."""

    score: Scorer
    title: str

    def __call__(self, dense: Dense) -> PatchScores:
        return self.score(dense)


def of_block(attention: AttentionScore) -> Scorer:
    """A scorer that computes an attention score from the full attention of one block."""

    def score(dense: Dense) -> PatchScores:
        full = dense.attention
        return attention.map([head_mean(full)], cls_rows(full), dense.prefix)

    return score


def column_norm(order: int) -> Scorer:
    """Col-Ln: the l_n norm of the attention that a patch receives, mean over heads; l_1 is incoming mass."""

    def score(dense: Dense) -> PatchScores:
        columns = dense.attention[..., dense.prefix :]
        return columns.pow(order).sum(dim=2).pow(1 / order).mean(dim=1)

    return score


def shannon(dense: Dense) -> PatchScores:
    """Minus the entropy of a patch's own attention row, mean over heads: a focused patch scores high."""
    rows = dense.attention[:, :, dense.prefix :]
    return torch.xlogy(rows, rows).sum(dim=-1).mean(dim=1)


def renyi(dense: Dense) -> PatchScores:
    """Minus the Rényi entropy of order 2 of a patch's own attention row: log sum_j a_ij^2, mean over heads."""
    rows = dense.attention[:, :, dense.prefix :]
    return rows.square().sum(dim=-1).log().mean(dim=1)


def key_norm(dense: Dense) -> PatchScores:
    """Length of a patch's key, mean over heads."""
    lengths: Tensor = torch.linalg.vector_norm(dense.key[:, :, dense.prefix :], dim=-1)
    return lengths.mean(dim=1)


def feature_norm(dense: Dense) -> PatchScores:
    """Length of a patch's feature."""
    lengths: Tensor = torch.linalg.vector_norm(dense.patches, dim=-1)
    return lengths


def mean_distance(dense: Dense) -> PatchScores:
    """One minus the cosine between a patch's feature and the mean feature of its image."""
    return 1 - cosine_similarity(dense.patches, dense.patches.mean(dim=1, keepdim=True), dim=-1)


def centre(dense: Dense) -> PatchScores:
    """Minus the distance to the middle of the grid."""
    return centre_prior(dense.grid).to(dense.patches.device).expand(len(dense.patches), -1)


def centre_prior(grid: Grid) -> Float[Tensor, " patches"]:
    """Minus the distance of each patch to the middle of the grid, in patches."""
    rows, columns = grid
    down, across = torch.arange(rows) - (rows - 1) / 2, torch.arange(columns) - (columns - 1) / 2
    return -torch.hypot(down[:, None], across).flatten()


def random(dense: Dense) -> PatchScores:
    """Uniform noise that depends on (seed, image index) only."""
    return random_scores(dense.seed, dense.indices, dense.patches.shape[1]).to(dense.patches.device)


def random_scores(seed: int, indices: list[int], patches: int) -> PatchScores:
    return torch.stack([torch.rand(patches, generator=image_generator(seed, index)) for index in indices])


def image_generator(seed: int, index: int) -> torch.Generator:
    """A random generator for one image that does not depend on the order of the calls."""
    return torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


#: Scorers by name. Every command accepts the names in this table.
SCORERS: dict[str, LocalScore] = {
    **{
        name: LocalScore(of_block(attention), attention.title)
        for name, attention in ATTENTION_SCORES.items()
        if not attention.every_block
    },
    "col_l2": LocalScore(column_norm(2), "Col-L2"),
    "col_l4": LocalScore(column_norm(4), "Col-L4"),
    "shannon": LocalScore(shannon, "Shannon entropy"),
    "renyi": LocalScore(renyi, "Rényi entropy"),
    "key_norm": LocalScore(key_norm, "Key norm"),
    "feature_norm": LocalScore(feature_norm, "Feature norm"),
    "mean_distance": LocalScore(mean_distance, "Distance to mean"),
    "centre": LocalScore(centre, "Centre prior"),
    "random": LocalScore(random, "Random"),
}
