"""The REDI score: min-max normalisation and the product of a corpus map with an attention map."""

import torch
from jaxtyping import Float
from torch import Tensor

from redi.checks import require_axes, require_finite, require_float, require_same_shape

#: The 1e-8 of Eq. norm01: the largest range that counts as constant, and the guard in the denominator.
EPSILON = 1e-8


def norm01(values: Float[Tensor, "... patches"]) -> Float[Tensor, "... patches"]:
    """Eq. norm01 without value checks: the tensor core that compiled graphs use.

    ::

        N(q)_i = (q_i - q_min) / (q_max - q_min + 1e-8)   if q_max - q_min > 1e-8
               = 0                                        otherwise
    """
    low, high = values.aminmax(dim=-1, keepdim=True)
    span = high - low
    return torch.where(span > EPSILON, (values - low) / (span + EPSILON), torch.zeros_like(values))


def minmax(values: Float[Tensor, "... patches"]) -> Float[Tensor, "... patches"]:
    """Eq. norm01 over the last axis; a constant map becomes zero. NaN and infinity are errors."""
    require_axes(values, "... patches", "A map")
    require_float(values, "A map")
    require_finite(values, "The values of a map")
    return norm01(values)


def hybrid(
    corpus: Float[Tensor, "batch patches"], attention: Float[Tensor, "batch patches"]
) -> Float[Tensor, "batch patches"]:
    """Eq. hybrid: s = N(N(t) * N(a)); ``corpus`` is the paper's t and ``attention`` its a."""
    require_same_shape(corpus, attention, "The corpus map and the attention map")
    return norm01(minmax(corpus) * minmax(attention))
