"""One interface over the frozen backbones, with the loop over the blocks in our own hands."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from redi.backbone.families import Family, Head, square_patch
from redi.backbone.inputs import shorter_side
from redi.backbone.timm_model import TimmModel
from redi.backbone.tokens import Tokens
from redi.backbone.watch import IMPLEMENTATION, Watch
from redi.checks import require_float
from redi.errors import BackboneError, InvalidInput
from redi.images import to_rgb
from redi.reduction import Inside, Progressive, Schedule
from redi.reduction.schedule import check_schedule
from redi.views import View, crop, normalise, reference_view, resize, to_bytes


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to the backbone's input. The sizes keep the paper's 256 : 224."""

    shorter: int  # shorter side after resizing
    size: int  # side of the crop the backbone sees
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: Image.Resampling = Image.Resampling.BICUBIC

    def resized(self, image: Image.Image) -> Image.Image:
        """Any picture as upright RGB with the shorter side that the crops are cut from."""
        return resize(to_rgb(image), self.shorter, self.resample)

    def reference(self, resized: Image.Image) -> View:
        return reference_view(resized.width, resized.height, self.size)

    def normalise(self, pixels: Tensor) -> Float[Tensor, "*axes channels height width"]:
        """Bytes of one or many crops to the backbone's input."""
        return normalise(pixels, self.mean, self.std)

    def __call__(self, image: Image.Image) -> Float[Tensor, "channels height width"]:
        """The reference crop of a picture of any size and mode."""
        resized = self.resized(image)
        reference = crop(resized, self.reference(resized), self.size, self.resample)
        return self.normalise(to_bytes(reference))


class Shortened(NamedTuple):
    """What comes out of a progressive forward: the sequence before the final norm, and where
    everything went."""

    hidden: Float[Tensor, "batch tokens dim"]
    sizes: Float[Tensor, "batch reduced"]
    source: Int[Tensor, "batch patches"]


class Backbone(nn.Module):
    """A frozen ViT: ``embed -> encode -> final_norm -> classify``.

    ``encode`` runs any range of blocks over any subset of patches, so a reduced sequence is the same
    call with fewer patches: ``encode(tokens.reduced(reduction))``.
    """

    def __init__(
        self,
        model: PreTrainedModel | TimmModel,
        family: Family,
        head: Head | None,
        preprocessing: Preprocessing,
    ) -> None:
        super().__init__()
        if isinstance(model, PreTrainedModel):
            model.set_attn_implementation(IMPLEMENTATION)
        self.model: PreTrainedModel | TimmModel = model.eval().requires_grad_(False)
        self.family = family
        self.head = head
        self.preprocessing = preprocessing
        self.blocks: Sequence[nn.Module] = list(
            self.encoder.get_submodule(family.blocks).children()
        )
        self.config = model.config
        self.depth = len(self.blocks)
        self.width: int = self.config.hidden_size
        self.patch_size = square_patch(self.config)
        self.prefix = family.prefix(self.config)

    def at_size(self, size: int) -> "Backbone":
        """The same weights for crops of another side than the default, which gives a 14x14 grid."""
        if size < self.patch_size or size % self.patch_size:
            raise BackboneError(
                f"The size of the input must be a multiple of the patch size {self.patch_size}, not "
                f"{size}."
            )
        other = copy(self)
        other.preprocessing = replace(self.preprocessing, shorter=shorter_side(size), size=size)
        return other

    @property
    def encoder(self) -> nn.Module:
        """The part that ends with the final norm; the head, where there is one, lies outside."""
        trunk: nn.Module = self.model.get_submodule(self.head.trunk) if self.head else self.model
        return trunk

    def train(self, mode: bool = True) -> "Backbone":
        """Always evaluation: in training mode DINOv3 jitters its rotary positions."""
        return super().train(False) if mode else super().train(mode)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def class_names(self) -> list[str] | None:
        """Labels of the checkpoint's own head, in the order of its logits."""
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
                f"An input of {width}x{height} is not a multiple of the patch size "
                f"{self.patch_size}: crop or resize it."
            )
        # The patch convolution in full FP32. A compiler cannot trace the switch, so there it is left to
        # redi.distributed.choose_device, which turns TF32 off for good.
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
    ) -> Float[Tensor, "batch tokens dim"]:
        """Run blocks ``start .. stop - 1`` and return the sequence *before* the final norm.

        Each :class:`Watch` sees the attention of its blocks. A dictionary in ``capture`` is filled
        with the query, key, value and scale of its block. To go on from a middle block, pass
        ``tokens.advanced(hidden)`` with the next ``start``.
        """
        stop = self.depth if stop is None else stop
        if not 0 <= start <= stop <= self.depth:
            raise InvalidInput(f"Blocks {start} to {stop} do not lie within 0 to {self.depth}.")
        for watcher in watch:
            watcher.begin(start)
        hidden = tokens.sequence
        positions = {} if tokens.rope is None else {"position_embeddings": tokens.rope}
        for block in range(start, stop):
            watches = tuple(watcher for watcher in watch if block in watcher.blocks)
            extra: dict[str, Any] = {}
            if watches:
                extra = {"redi_watches": watches, "redi_block": block}
            if capture is not None and block in capture:
                extra["redi_capture"] = capture[block]
            hidden = self.blocks[block](hidden, **positions, **extra)
        return hidden

    def encode_progressively(
        self,
        tokens: Tokens,
        reducer: Progressive,
        schedule: Schedule,
        scores: Float[Tensor, "batch patches"] | None = None,
        prefix_only: bool = False,
    ) -> "Shortened":
        """All blocks with ``reducer`` at work between attention and MLP of each.

        ``schedule[k]`` patch tokens leave block k. A block that removes nothing is left alone.
        ``scores`` are handed to the reducer, the best of its members for a merged token. With
        ``prefix_only`` only the prefix goes through the last block's MLP and comes out, which is
        exact for a head that reads nothing else; the last block then removes nothing.
        """
        batch, n = tokens.patches.shape[:2]
        check_schedule(schedule, n, self.depth, reducer.halving)
        if scores is not None and scores.shape != (batch, n):
            raise InvalidInput(f"There are scores {list(scores.shape)} for {[batch, n]} patches.")
        sizes = torch.ones(batch, n, device=tokens.patches.device)
        source = torch.arange(n, device=sizes.device).expand(batch, -1)
        bias: Tensor | None = None
        for block, count in enumerate(schedule):
            options: dict[str, Any] = {} if bias is None else {"attention_mask": bias}
            if tokens.rope is not None:
                options["position_embeddings"] = tokens.rope
            if prefix_only and block == self.depth - 1:
                hidden = self._finish_prefix(tokens, options)
                return Shortened(hidden, sizes, source)
            if count == tokens.patches.shape[1]:
                hidden = self.blocks[block](tokens.sequence, **options)
                tokens = tokens.advanced(hidden)
                continue
            capture: dict[str, Any] = {}
            halves = self.family.halves
            hidden = halves.attend(
                self.blocks[block], tokens.sequence, **options, redi_capture=capture
            )
            tokens = tokens.advanced(hidden)
            inside = Inside(
                patches=tokens.patches,
                sizes=sizes,
                scores=scores,
                bias=bias,
                prefix=self.prefix,
                block=block,
                depth=self.depth,
                **capture,
            )
            reduction = reducer.step(inside, count)
            if reduction.tokens.shape[1] != count:
                raise InvalidInput(
                    f"In block {block + 1} the reducer left {reduction.tokens.shape[1]} tokens, not "
                    f"the {count} of its schedule."
                )
            tokens = tokens.reduced(reduction)
            tokens = tokens.advanced(halves.transform(self.blocks[block], tokens.sequence))
            sizes, scores = _carry(reduction.source, count, sizes, scores)
            source = torch.where(
                source < 0, source, reduction.source.gather(1, source.clamp(min=0))
            )
            if reducer.proportional:
                bias = self._size_bias(sizes, hidden.dtype)
        return Shortened(tokens.sequence, sizes, source)

    def _finish_prefix(
        self, tokens: Tokens, options: Mapping[str, Any]
    ) -> Float[Tensor, "batch prefix dim"]:
        """The last block for a head that reads the prefix: no MLP for the patches."""
        halves, last = self.family.halves, self.blocks[-1]
        attended = halves.attend(last, tokens.sequence, **options)
        return halves.transform(last, attended[:, : self.prefix])

    def _size_bias(
        self, sizes: Float[Tensor, "batch patches"], dtype: torch.dtype
    ) -> Float[Tensor, "batch one one tokens"]:
        """Proportional attention (ToMe, Sec. 3): log(size) on the logits of a key; 0 for the prefix."""
        return pad(sizes.log(), (self.prefix, 0)).to(dtype)[:, None, None]

    def final_norm(
        self, hidden: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        normed: Tensor = self.encoder.get_submodule(self.family.norm)(hidden)
        return normed

    def classify(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch classes"]:
        """Logits of the checkpoint's own head, from the sequence before the final norm."""
        if self.head is None:
            raise BackboneError(
                "This checkpoint has no classifier of its own; train a linear probe on its features."
            )
        return self.head.classify(self.model, self.final_norm(hidden), self.prefix)


def _carry(
    source: Int[Tensor, "batch patches"],
    count: int,
    sizes: Float[Tensor, "batch patches"],
    scores: Float[Tensor, "batch patches"] | None,
) -> tuple[Float[Tensor, "batch reduced"], Float[Tensor, "batch reduced"] | None]:
    """Sizes add up, of scores the best counts; what was dropped goes to an extra place at the end."""
    place = torch.where(source < 0, count, source)
    grown = sizes.new_zeros(len(sizes), count + 1).scatter_add(1, place, sizes)[:, :count]
    if scores is None:
        return grown, None
    best = scores.new_zeros(len(scores), count + 1)
    return grown, best.scatter_reduce(1, place, scores, "amax", include_self=False)[:, :count]
