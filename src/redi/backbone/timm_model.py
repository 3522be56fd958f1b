"""timm's ``VisionTransformer`` and ``Eva`` behind the backbone interface.

timm's blocks take no extra keyword arguments, so attention is read another way than in
:mod:`redi.backbone.watch`: for the time of one watched block, the fused call its attention makes
(``scaled_dot_product_attention``) is taken over by a torch function mode and computed slice by slice
and observed instead. Nothing of timm is replaced, blocks that nobody watches never enter the mode,
and it ends with the block, also by an exception. Query and key arrive there as the attention uses
them, normed and rotated, whichever of timm's attention modules made them.

timm is imported by :mod:`redi.backbone.timm_loading` alone; this file needs only its modules.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from redi.backbone.families import Family, Halves, Head, Logits, Normed
from redi.backbone.tokens import Rope
from redi.backbone.watch import MASKED, Watch, observed_attention
from redi.errors import BackboneError, InvalidInput


@dataclass(frozen=True)
class TimmConfig:
    """What the rest of the package reads of a configuration, under transformers' names."""

    hidden_size: int
    num_attention_heads: int
    patch_size: int
    prefix: int  # CLS, distillation and register tokens
    id2label: dict[int, str] = field(default_factory=dict)  # empty without a head
    problem_type: str | None = None  # asked by transformers' pipelines, as is the next

    @property
    def num_labels(self) -> int:
        return len(self.id2label)


class TimmModel(nn.Module):
    """A timm model whose blocks are called the way transformers' are."""

    def __init__(self, vit: Any, config: TimmConfig) -> None:
        super().__init__()
        self.vit = vit
        self.blocks = nn.ModuleList(TimmBlock(block) for block in vit.blocks)
        self.config = config

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class TimmBlock(nn.Module):
    """One block of timm. Positions are (cos, sin), which timm wants as one tensor, sin first."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(
        self,
        hidden: Float[Tensor, "batch tokens dim"],
        position_embeddings: Rope | None = None,
        attention_mask: Tensor | None = None,
        **watching: Any,
    ) -> Float[Tensor, "batch tokens dim"]:
        options = _options(position_embeddings, attention_mask)
        with _watching(self.block.attn, **watching) if watching else nullcontext():
            output: Tensor = self.block(hidden, **options)
        return output

    def attend(
        self,
        hidden: Float[Tensor, "batch tokens dim"],
        position_embeddings: Rope | None = None,
        attention_mask: Tensor | None = None,
        **watching: Any,
    ) -> Float[Tensor, "batch tokens dim"]:
        """The first half, with its residual."""
        options = _options(position_embeddings, attention_mask)
        with _watching(self.block.attn, **watching) if watching else nullcontext():
            attended = self.block.attn(self.block.norm1(hidden), **options)
        return hidden + self._scaled(attended, 1)

    def transform(
        self, hidden: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """The second half, with its residual."""
        return hidden + self._scaled(self.block.mlp(self.block.norm2(hidden)), 2)

    def _scaled(self, update: Tensor, half: int) -> Tensor:
        """Layer scale: a module in ``VisionTransformer``, a parameter or None in ``Eva``."""
        module = getattr(self.block, f"ls{half}", None)
        if module is not None:
            scaled: Tensor = module(update)
            return scaled
        gamma = getattr(self.block, f"gamma_{half}")
        return update if gamma is None else gamma * update


def _options(rope: Rope | None, mask: Tensor | None) -> dict[str, Tensor]:
    options = {} if mask is None else {"attn_mask": mask}
    if rope is not None:
        cos, sin = rope
        options["rope"] = torch.cat([sin, cos], dim=-1)
    return options


@contextmanager
def _watching(
    attention: Any,
    redi_watches: Sequence[Watch] = (),
    redi_block: int = -1,
    redi_capture: dict[str, Any] | None = None,
) -> Iterator[None]:
    """The fused call of one attention module observed; after it, all is as before.

    Where timm was told to do without fused attention (TIMM_FUSED_ATTN=0), the module is told
    otherwise for that time: its own arithmetic offers no place to look at.
    """
    observer = _Observer(redi_watches, redi_block, redi_capture)
    fused = attention.fused_attn
    attention.fused_attn = True
    try:
        with observer:
            yield
    finally:
        attention.fused_attn = fused
    if observer.calls != 1:
        raise BackboneError(
            f"timm's {type(attention).__name__} made {observer.calls} fused attention calls instead "
            "of one, so its attention cannot be read: use a supported version of timm."
        )


class _Observer(TorchFunctionMode):
    """While it is active, takes over scaled_dot_product_attention and nothing else."""

    def __init__(
        self, watches: Sequence[Watch], block: int, capture: dict[str, Any] | None
    ) -> None:
        super().__init__()
        self.watches, self.block, self.capture = watches, block, capture
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **options)
        self.calls += 1
        query, key, value = args[:3]
        scale = options.get("scale") or query.shape[-1] ** -0.5
        if self.capture is not None:
            self.capture.update(query=query, key=key, value=value, scale=scale)
        if not self.watches:
            return func(*args, **options)
        if options.get("attn_mask") is not None:
            raise InvalidInput(MASKED)
        output = observed_attention(query, key, value, scale, self.watches, self.block)
        return output.transpose(1, 2)


def _embed(model: TimmModel, pixels: Tensor) -> tuple[Tensor, Rope | None]:
    """timm's own patch embedding, prefix tokens and positions, resampled off the native size.

    ``Eva`` gives rotary positions too, ``[patches, 2 * head_dim]``, sin before cos.
    """
    vit = model.vit
    embedded = vit._pos_embed(vit.patch_embed(pixels))
    hidden, rotary = embedded if isinstance(embedded, tuple) else (embedded, None)
    hidden = vit.norm_pre(hidden)
    if rotary is None:
        return hidden, None
    sin, cos = rotary.chunk(2, dim=-1)
    return hidden, (cos, sin)


def _classify(model: TimmModel, normed: Normed, _prefix: int) -> Logits:
    """timm's own head on the tokens there are: CLS, average with ``fc_norm``, distillation pair."""
    logits: Tensor = model.vit.forward_head(normed)
    return logits


TIMM = Family(
    blocks="blocks",
    norm="vit.norm",
    prefix=lambda config: config.prefix,
    embed=_embed,
    halves=Halves(TimmBlock.attend, TimmBlock.transform),
    pool=lambda encoder, normed: None,
)


def timm_head(vit: Any) -> Head:
    """``global_pool`` says what the head reads; ``token`` is CLS, or the pair of a distilled model."""
    return Head(TimmModel, "", _classify, prefix_only=vit.global_pool == "token")
