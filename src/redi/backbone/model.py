"""One interface for all frozen backbones, with our own loop over the blocks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from redi.backbone.families import Family, Head, Projection, TransformersFamily, square_patch
from redi.backbone.hook import register_attention, watch_attention
from redi.backbone.progressive import Shortened, Varied, encode_adaptively, encode_progressively, finish_prefix
from redi.backbone.timm_model import TimmModel
from redi.backbone.tokens import Tokens
from redi.backbone.watch import Watch
from redi.checks import require_finite_weights, require_float
from redi.cost import Block, Geometry, vit_block
from redi.errors import BackboneError, InvalidInput
from redi.images.preprocessing import Preprocessing, resampling, shorter_side
from redi.reduction import Adaptive, Progressive, Schedule


class Backbone(nn.Module):
    """A frozen ViT: ``embed -> encode -> final_norm -> classify``.

    ``encode`` runs any range of blocks over any subset of patches, so a reduced sequence uses the same call with
    fewer patches: ``encode(tokens.reduced(reduction))``.
    """

    def __init__(
        self, model: PreTrainedModel | TimmModel, family: Family, head: Head | None, preprocessing: Preprocessing
    ) -> None:
        super().__init__()
        require_finite_weights(model)
        if isinstance(model, PreTrainedModel):
            watch_attention(model)
        self.model: PreTrainedModel | TimmModel = model.eval().requires_grad_(False)
        self.family = family
        self.head = head
        self.projection = _projection(model, family)
        self.preprocessing = preprocessing
        self.blocks: Sequence[nn.Module] = list(self.encoder.get_submodule(family.blocks).children())
        self.config = model.config
        self.depth = len(self.blocks)
        self.width: int = self.config.hidden_size
        self.patch_size = square_patch(self.config)
        self.prefix = family.prefix(self.config)
        self.has_cls: bool = getattr(self.config, "has_cls", self.prefix > 0)
        self.products = block_products(self.blocks[0], family.halves.mlp, self.width)

    @property
    def reads_prefix(self) -> bool:
        """Whether there is a head and it reads only the prefix, so that the last block can work for that alone."""
        return self.head is not None and self.head.prefix_only

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, perhaps in a process that has not registered the attention function yet."""
        super().__setstate__(state)
        register_attention()

    def at_size(self, size: int) -> "Backbone":
        """The same weights for crops of another size; the default size gives a 14x14 grid."""
        if size < self.patch_size or size % self.patch_size:
            raise BackboneError(f"The input size must be a multiple of the patch size {self.patch_size}, not {size}.")
        other = copy(self)
        other.preprocessing = replace(self.preprocessing, shorter=shorter_side(size), size=size)
        return other

    def with_resize(self, name: str) -> "Backbone":
        """The same weights for images that are resized with another filter, e.g. ``bilinear``."""
        other = copy(self)
        other.preprocessing = replace(self.preprocessing, resample=resampling(name))
        return other

    @property
    def encoder(self) -> nn.Module:
        """The part of the model up to the final norm, without a head."""
        part = self.head or self.projection
        trunk: nn.Module = self.model.get_submodule(part.trunk) if part else self.model
        return trunk

    def train(self, mode: bool = True) -> "Backbone":  # noqa: ARG002
        """Stay in evaluation mode: in training mode DINOv3 jitters its rotary positions."""
        return super().train(False)

    @property
    def geometry(self) -> Geometry:
        """The sizes that the cost depends on, for the input of :attr:`preprocessing`."""
        side = self.preprocessing.size // self.patch_size
        heads: int = self.config.num_attention_heads
        own = None if self.products == vit_block(self.width) else self.products
        shortcut = self.family.halves.attend_prefix is not None
        return Geometry((side, side), self.prefix, self.width, self.width // heads, self.depth, own, shortcut)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def class_names(self) -> list[str] | None:
        """The class names of the checkpoint's own head, in the order of its logits; None without a head."""
        if self.head is None:
            return None
        names = {int(index): name for index, name in (self.config.id2label or {}).items()}
        return [names[index] for index in sorted(names)]

    def embed(self, pixels: Float[Tensor, "batch channels height width"]) -> Tokens:
        """Prefix and patch tokens just before block 1, with learned positions already added."""
        if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape:
            raise InvalidInput(f"Pixels must be [batch 3 height width], not {list(pixels.shape)}.")
        require_float(pixels, "Pixels (normalised, see Backbone.preprocessing)")
        height, width = pixels.shape[2:]
        grid = (height // self.patch_size, width // self.patch_size)
        if (grid[0] * self.patch_size, grid[1] * self.patch_size) != (height, width):
            raise InvalidInput(
                f"An input of {width}x{height} is not a multiple of the patch size {self.patch_size}; crop or "
                "resize it."
            )
        # The patch convolution must run in full FP32. A compiler cannot trace this switch; compiled runs rely on
        # redi.runs.distributed.choose_device, which turns TF32 off for the whole process.
        exact = pixels.is_cuda and not torch.compiler.is_compiling()
        with torch.backends.cudnn.flags(allow_tf32=False) if exact else nullcontext():
            hidden, rope = self.family.embed(self.encoder, pixels.to(self.model.dtype))
        return Tokens(hidden[:, : self.prefix], hidden[:, self.prefix :], rope, grid)

    def encode(
        self,
        tokens: Tokens,
        start: int = 0,
        stop: int | None = None,
        watch: Sequence[Watch] = (),
        capture: Mapping[int, dict[str, Any]] | None = None,
        prefix_only: bool = False,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Run blocks ``start .. stop - 1`` and return the sequence *before* the final norm.

        Each :class:`Watch` sees the attention of its blocks. A dictionary in ``capture`` is filled with the query,
        key, value and scale of its block. To continue from a middle block, pass ``tokens.advanced(hidden)`` with
        the next ``start``. With ``prefix_only`` the last block computes only the prefix, from the keys and values of
        all tokens.
        """
        stop = self.depth if stop is None else stop
        if not 0 <= start <= stop <= self.depth:
            raise InvalidInput(f"Blocks {start} to {stop} do not lie within 0 to {self.depth}.")
        for watcher in watch:
            watcher.begin(start)
        hidden = tokens.sequence
        options: dict[str, Any] = {"attention_mask": None}
        if tokens.rope is not None:
            options["position_embeddings"] = tokens.rope
        for block in range(start, stop):
            if prefix_only and block == self.depth - 1:
                return finish_prefix(self, hidden, options)
            watches = tuple(watcher for watcher in watch if block in watcher.blocks)
            extra: dict[str, Any] = {"redi_watches": watches, "redi_block": block} if watches else {}
            if capture is not None and block in capture:
                extra["redi_capture"] = capture[block]
            if extra:  # not every block passes arguments on to its attention, but the halves do
                halves = self.family.halves
                attended = halves.attend(self.blocks[block], hidden, **options, **extra)
                hidden = halves.transform(self.blocks[block], attended)
            else:
                hidden = self.blocks[block](hidden, **options)
        return hidden

    def encode_progressively(
        self,
        tokens: Tokens,
        reducer: Progressive,
        schedule: Schedule,
        scores: Float[Tensor, "batch patches"] | None = None,
        prefix_only: bool = False,
        start: int = 0,
        residual: bool = False,
        levels: Sequence[int] = (),
    ) -> Shortened:
        """Run all blocks and apply ``reducer`` between the attention and the MLP of each block.

        ``schedule[k]`` patch tokens leave block k; a block that removes nothing runs unchanged. The reducer sees
        ``scores``; a merged token has the best score of its members. With ``prefix_only``, the last block removes
        nothing and computes only the prefix, from the keys and values of all tokens. This is exact for a head that
        reads only the prefix. ``tokens`` are those after ``start`` blocks, which must remove nothing.

        With ``residual``, the full grid is restored by :mod:`redi.reduction.unmerge`, else by copies of the tokens.
        ``levels`` are numbers of blocks after which the full grid is wanted. With them, a shorter schedule ends the
        pass before the last block.
        """
        return encode_progressively(self, tokens, reducer, schedule, scores, prefix_only, start, residual, levels)

    def encode_adaptively(
        self,
        tokens: Tokens,
        reducer: Adaptive,
        strength: float,
        scores: Float[Tensor, "batch patches"] | None = None,
        prefix_only: bool = False,
    ) -> Varied:
        """As :meth:`encode_progressively`, but ``reducer`` decides for each image how many tokens it keeps.

        An image has the tokens that it would have alone. Shorter images are padded at the end with tokens of size 0.
        """
        return encode_adaptively(self, tokens, reducer, strength, scores, prefix_only)

    def final_norm(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        normed: Tensor = self.encoder.get_submodule(self.family.norm)(hidden)
        return normed

    def classify(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch classes"]:
        """Logits of the checkpoint's own head, from the sequence before the final norm."""
        if self.head is None:
            raise BackboneError("This checkpoint has no classifier of its own; train a linear probe on its features.")
        return self.head.classify(self.model, self.final_norm(hidden), self.prefix)

    def image_embedding(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch joint"]:
        """The embedding that texts are compared with, of unit length, from the sequence before the final norm."""
        pooled = self.family.pool(self.encoder, self.final_norm(hidden), None) if self.has_embedding else None
        if pooled is None:
            raise BackboneError("This checkpoint gives no embedding that texts can be compared with, as CLIP does.")
        return normalize(self.project(pooled), dim=-1)

    @property
    def has_embedding(self) -> bool:
        """Whether the checkpoint compares images with texts."""
        return self.family.joint or self.projection is not None

    def project(self, pooled: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch joint"]:
        """The pooled output behind the projection, if the model has one."""
        if self.projection is None:
            return pooled
        embedding: Tensor = self.model.get_submodule(self.projection.layer)(pooled)
        return embedding


def _projection(model: nn.Module, family: Family) -> Projection | None:
    """The projection of the model's class, if it has one."""
    projection = family.projection if isinstance(family, TransformersFamily) else None
    return projection if projection is not None and type(model) is projection.model else None


def block_products(block: nn.Module, mlp: str, width: int) -> Block:
    """The matrix products of a block: each weight of a linear layer is one multiply-add per token.

    ``mlp`` is the path of the MLP. All other linear layers belong to the attention, whose heads together have the
    width of the backbone in every supported architecture.
    """

    def weights(module: nn.Module) -> int:
        return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))

    transformed = weights(block.get_submodule(mlp))
    return Block(weights(block) - transformed, transformed, 2 * width)
