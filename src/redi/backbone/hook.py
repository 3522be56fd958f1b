"""Attention statistics of transformers' models, through transformers' own attention interface.

transformers lets a library register an attention function by name and passes extra keyword arguments through to it.
A block without watches calls transformers' SDPA function. :mod:`redi.backbone.timm_model` does the same for timm.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from redi.backbone.watch import MASKED, Watch, observed_attention
from redi.errors import InvalidInput

#: The name under which the attention function is registered with transformers.
IMPLEMENTATION = "redi"


def register_attention() -> str:
    """Register the function and return its name; registering it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, attention_forward)
    return IMPLEMENTATION


def watch_attention(model: PreTrainedModel) -> None:
    """Make a model use the function, so that its blocks can be watched."""
    model.set_attn_implementation(register_attention())


def attention_forward(
    module: nn.Module,
    query: Float[Tensor, "batch heads tokens head_dim"],
    key: Float[Tensor, "batch heads keys head_dim"],
    value: Float[Tensor, "batch heads keys head_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    redi_watches: Sequence[Watch] = (),
    redi_block: int = -1,
    redi_capture: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch tokens heads head_dim"], None]:
    """SDPA for a block without watches; with watches, the same attention computed slice by slice and observed.

    ``redi_capture`` is filled with the block's query, key, value and scale, for reducers that work inside a block.
    """
    if redi_capture is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        redi_capture.update(query=query, key=key, value=value, scale=scale)
    if not redi_watches:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, None
    if attention_mask is not None:
        raise InvalidInput(MASKED)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return observed_attention(query, key, value, scale, redi_watches, redi_block), None
