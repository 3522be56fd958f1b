"""Patch scores that need no corpus: each a small function of one dense pass, in a plain table.

A scorer takes a :class:`Dense` and returns one number a patch, ``[batch, patches]``, higher for more
important; the bench normalises it (Eq. norm01). Alone it ranks patches; multiplied with a corpus term
it is a REDI score. A user's own is a function in a file (``redi compare --scorer my.py:name``)::

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

from redi.attention import cls_max, cls_mean, incoming_mass
from redi.grid import Grid

PatchScores = Float[Tensor, "batch patches"]


@dataclass(frozen=True)
class Dense:
    """What a scorer may look at: a block of a dense pass over the reference crops of a batch."""

    query: Float[Tensor, "batch heads tokens head_dim"]  # of the block's attention, prefix included
    key: Float[Tensor, "batch heads tokens head_dim"]
    value: Float[Tensor, "batch heads tokens head_dim"]
    scale: float
    patches: Float[Tensor, "batch patches dim"]  # patch features after the block
    prefix: int  # tokens before the patches: CLS, registers, distillation
    grid: Grid
    indices: list[int]  # of the images in their data set
    seed: int

    @cached_property
    def attention(self) -> Float[Tensor, "batch heads tokens tokens"]:
        """softmax(Q K^T / sqrt(d)): rows are queries, columns keys; token 0 is CLS."""
        return (self.query @ self.key.transpose(2, 3) * self.scale).softmax(dim=-1)


Scorer = Callable[[Dense], PatchScores]


def column_norm(order: int) -> Scorer:
    """Col-Ln: the l_n norm of the attention a patch receives, mean over heads; l_1 is incoming mass."""

    def score(dense: Dense) -> PatchScores:
        columns = dense.attention[..., dense.prefix :]
        return columns.pow(order).sum(dim=2).pow(1 / order).mean(dim=1)

    return score


def shannon(dense: Dense) -> PatchScores:
    """Minus the entropy of a patch's own attention row, mean over heads: a focused patch scores high."""
    rows = dense.attention[:, :, dense.prefix :]
    return torch.xlogy(rows, rows).sum(dim=-1).mean(dim=1)


def renyi(dense: Dense) -> PatchScores:
    """The same with Renyi's entropy of order 2: log sum_j a_ij^2, mean over heads."""
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
    rows, columns = dense.grid
    down = torch.arange(rows, device=dense.patches.device) - (rows - 1) / 2
    across = torch.arange(columns, device=dense.patches.device) - (columns - 1) / 2
    return -torch.hypot(down[:, None], across).flatten().expand(len(dense.patches), -1)


def random(dense: Dense) -> PatchScores:
    """Uniform noise from (seed, image index) alone."""
    return random_scores(dense.seed, dense.indices, dense.patches.shape[1]).to(dense.patches.device)


def random_scores(seed: int, indices: list[int], patches: int) -> PatchScores:
    return torch.stack(
        [torch.rand(patches, generator=image_generator(seed, index)) for index in indices]
    )


def image_generator(seed: int, index: int) -> torch.Generator:
    """Randomness of one image, whatever the order of the calls."""
    return torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)


SCORERS: dict[str, Scorer] = {
    "mass": lambda dense: incoming_mass(dense.attention, dense.prefix),
    "cls_max": lambda dense: cls_max(dense.attention, dense.prefix),
    "cls_mean": lambda dense: cls_mean(dense.attention, dense.prefix),
    "col_l2": column_norm(2),
    "col_l4": column_norm(4),
    "shannon": shannon,
    "renyi": renyi,
    "key_norm": key_norm,
    "feature_norm": feature_norm,
    "mean_distance": mean_distance,
    "centre": centre,
    "random": random,
}
