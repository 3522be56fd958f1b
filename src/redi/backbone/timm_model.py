"""timm's ``VisionTransformer`` and ``Eva`` behind the backbone interface.

timm's blocks take no extra keyword arguments, so attention is not read as in :mod:`redi.backbone.hook`. While a
watched block runs, a torch function mode takes over the fused call of its attention
(``scaled_dot_product_attention``), computes it slice by slice and lets the watches observe it. Nothing in timm is
replaced. Blocks without watches never enter the mode, and it ends with the block, even after an exception. Query
and key arrive normed and rotated, as the attention uses them, from all of timm's attention modules.

Only :mod:`redi.backbone.timm_loading` imports timm; this file needs only its modules.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from redi.backbone.families import Family, Halves, Head, Logits, Normed
from redi.backbone.tokens import Rope
from redi.backbone.watch import MASKED, Watch, observed_attention
from redi.errors import BackboneError, InvalidInput


@dataclass(frozen=True)
class TimmConfig:
    """The part of a configuration that the rest of the package reads, under transformers' names."""

    hidden_size: int
    num_attention_heads: int
    patch_size: int
    prefix: int  # CLS, distillation and register tokens
    has_cls: bool  # whether token 0 is a CLS token; without one the prefix is registers alone, or empty
    id2label: dict[int, str] = field(default_factory=dict)  # empty without a head
    problem_type: str | None = None  # read by transformers' pipelines, like num_labels
    settings: dict[str, Any] = field(default_factory=dict)  # config.json of the checkpoint; empty for a live model

    @property
    def num_labels(self) -> int:
        return len(self.id2label)


class TimmModel(nn.Module):
    """A timm model whose blocks are called like transformers' blocks."""

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
    """One timm block. Positions arrive as (cos, sin); timm takes them as one tensor, sin first."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Float[Tensor, "batch tokens dim"], **options: Any) -> Float[Tensor, "batch tokens dim"]:
        return self._run(self.block, hidden, **options)

    def attend(self, hidden: Float[Tensor, "batch tokens dim"], **options: Any) -> Float[Tensor, "batch tokens dim"]:
        """The attention half, with its residual."""
        attended = self._run(self.block.attn, self.block.norm1(hidden), **options)
        return hidden + self._scaled(attended, 1)

    def _run(
        self,
        part: Any,
        hidden: Tensor,
        position_embeddings: Rope | None = None,
        attention_mask: Tensor | None = None,
        **watch_options: Any,
    ) -> Tensor:
        """Call the block or its attention with timm's arguments, observed if there are watches."""
        options = _options(position_embeddings, attention_mask)
        with _watching(self.block.attn, **watch_options) if watch_options else nullcontext():
            output: Tensor = part(hidden, **options)
        return output

    def transform(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """The MLP half, with its residual."""
        return hidden + self._scaled(self.block.mlp(self.block.norm2(hidden)), 2)

    def _scaled(self, update: Tensor, half: int) -> Tensor:
        """Apply layer scale, which is a module in ``VisionTransformer`` and a parameter or None in ``Eva``."""
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
    attention: Any, redi_watches: Sequence[Watch] = (), redi_block: int = -1, redi_capture: dict[str, Any] | None = None
) -> Iterator[None]:
    """Observe the fused call of one attention module, and restore the module afterwards.

    If timm is set to avoid fused attention (TIMM_FUSED_ATTN=0), the module uses it for this one call all the same,
    because there is no way to observe timm's own arithmetic.
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
            f"timm's {type(attention).__name__} made {observer.calls} fused attention calls instead of one, so its "
            "attention cannot be read: use a supported version of timm."
        )


class _Observer(TorchFunctionMode):
    """A torch function mode that takes over scaled_dot_product_attention and nothing else."""

    def __init__(self, watches: Sequence[Watch], block: int, capture: dict[str, Any] | None) -> None:
        super().__init__()
        self.watches, self.block, self.capture = watches, block, capture
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
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
    """timm's own patch embedding, prefix tokens and positions, which timm resamples for other input sizes.

    ``Eva`` also returns rotary positions, ``[patches, 2 * head_dim]``, sin before cos.
    """
    vit = model.vit
    if not vit.dynamic_img_size and tuple(pixels.shape[2:]) != tuple(vit.patch_embed.img_size):
        height, width = vit.patch_embed.img_size
        raise InvalidInput(
            f"This model of timm takes images of {width}x{height} px only, not {pixels.shape[3]}x{pixels.shape[2]}: "
            "create it with dynamic_img_size=True."
        )
    embedded = vit._pos_embed(vit.patch_embed(pixels))
    hidden, rotary = embedded if isinstance(embedded, tuple) else (embedded, None)
    hidden = vit.norm_pre(hidden)
    if rotary is None:
        return hidden, None
    sin, cos = rotary.chunk(2, dim=-1)
    return hidden, (cos, sin)


def _classify(model: TimmModel, normed: Normed, _prefix: int) -> Logits:
    """timm's own head: it reads CLS, an average, an attention pool or the distillation pair."""
    return _forward_head(model, normed)


def _forward_head(model: TimmModel, normed: Normed) -> Tensor:
    output: Tensor = model.vit.forward_head(normed)
    return output


def _pool_nothing(_model: TimmModel, _normed: Normed, _sizes: Tensor | None) -> None:
    return None


def _pool_joint(model: TimmModel, normed: Normed, sizes: Tensor | None) -> Tensor:
    """The model's own output. An attention pool attends to a token of several patches as to that many copies of it."""
    vit = model.vit
    if sizes is None or vit.attn_pool is None:
        return _forward_head(model, normed)
    skipped = 0 if getattr(vit, "pool_include_prefix", True) else vit.num_prefix_tokens  # Eva's pool reads the prefix
    bias = pad(sizes.log(), (vit.num_prefix_tokens, 0))[:, None, None, skipped:]
    pooled = vit.attn_pool(normed[:, skipped:], attn_mask=bias.to(normed.dtype))
    output: Tensor = vit.head(vit.fc_norm(pooled))
    return output


TIMM = Family(
    blocks="blocks",
    norm="vit.norm",
    prefix=attrgetter("prefix"),
    embed=_embed,
    halves=Halves(TimmBlock.attend, TimmBlock.transform, mlp="block.mlp"),
    pool=_pool_nothing,
)
#: Towers whose own output texts are compared with: the projection of CLIP and PE, the attention pool of SigLIP.
TIMM_JOINT = replace(TIMM, pool=_pool_joint, joint=True)


def timm_head(vit: Any) -> Head:
    """The head of a timm model; with ``global_pool="token"`` it reads CLS, or the pair of a distilled model.

    An attention pool reads all tokens whatever ``global_pool`` says, and without a class token, token 0 is a patch.
    """
    reads_cls = vit.global_pool == "token" and vit.cls_token is not None and vit.attn_pool is None
    return Head(TimmModel, "", _classify, prefix_only=reads_cls)
