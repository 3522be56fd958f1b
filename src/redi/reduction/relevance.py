"""Relevance of the tokens inside a block, read from the attention of that block.

A CLS token says by its attention which patches matter. An encoder without one (SigLIP, global-average ViTs) has no such
row. There the patches speak for themselves: how much attention a token receives from all tokens, or, as a cheap
stand-in with one row instead of n, how much it receives from their mean query.

Each function gives the attention per head. A token stands for ``sizes`` patches, so it counts as that many queries.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

Tokens = Float[Tensor, "batch heads tokens head_dim"]
Query = Float[Tensor, "batch heads one head_dim"]
Bias = Float[Tensor, "batch one one tokens"]
Relevance = Float[Tensor, "batch heads patches"]

#: What every relevance sees: query and key of the block, the scale and the bias of its logits, the sizes of the patch
#: tokens, and the number of tokens before them.
Attending = Callable[[Tokens, Tokens, float, Bias | None, Float[Tensor, "batch patches"], int], Relevance]


def cls_attention(
    query: Tokens, key: Tokens, scale: float, bias: Bias | None, _sizes: Float[Tensor, "batch patches"], prefix: int
) -> Relevance:
    """Attention from the CLS token to each patch token."""
    return _attention_of(query[:, :, :1], key, scale, bias)[..., prefix:]


def mean_query_attention(
    query: Tokens, key: Tokens, scale: float, bias: Bias | None, sizes: Float[Tensor, "batch patches"], prefix: int
) -> Relevance:
    """Attention from the mean query of all tokens to each patch token."""
    weights = _query_weights(sizes, prefix).to(query.dtype)[:, None, :, None]
    return _attention_of((query * weights).sum(dim=2, keepdim=True), key, scale, bias)[..., prefix:]


def received_attention(
    query: Tokens, key: Tokens, scale: float, bias: Bias | None, sizes: Float[Tensor, "batch patches"], prefix: int
) -> Relevance:
    """Attention that each patch token receives, mean over all queries."""
    logits = (query @ key.transpose(2, 3)) * scale
    attention = (logits if bias is None else logits + bias).softmax(dim=-1, dtype=torch.float32)
    return (_query_weights(sizes, prefix)[:, None, None] @ attention)[:, :, 0, prefix:]


#: Relevances by the name that a setting gives.
RELEVANCES: dict[str, Attending] = {
    "cls": cls_attention,
    "mean_query": mean_query_attention,
    "received": received_attention,
}


def default_relevance(has_cls: bool) -> str:
    """The rule of all families: CLS attention if there is a CLS token, else the attention of the mean query."""
    return "cls" if has_cls else "mean_query"


def relevance_products(name: str, tokens: int, patches: int, width: int) -> int:
    """Multiply-adds of the rows of attention that a relevance needs beyond one, which every reducer counts."""
    return (tokens - 1) * patches * width if name == "received" else 0


def _attention_of(query: Query, key: Tokens, scale: float, bias: Bias | None) -> Float[Tensor, "batch heads tokens"]:
    """The attention of one query per head."""
    # A product with one query per head is faster as a sum, which needs no copy of the keys.
    logits = (key * query).sum(dim=-1)
    logits = logits * scale if bias is None else bias[:, 0].add(logits, alpha=scale)
    return logits.softmax(dim=-1, dtype=torch.float32)


def _query_weights(sizes: Float[Tensor, "batch patches"], prefix: int) -> Float[Tensor, "batch tokens"]:
    """The share of each token among the queries: its patches, or one for a token of the prefix."""
    counts = pad(sizes, (prefix, 0), value=1.0)
    return counts / counts.sum(dim=1, keepdim=True)
