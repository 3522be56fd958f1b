"""``accelerate``: a module that is called like the model it was made from and costs less."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DeiTForImageClassificationWithTeacher, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.models.clip.modeling_clip import CLIPVisionModelOutput
from transformers.models.deit.modeling_deit import DeiTForImageClassificationWithTeacherOutput
from transformers.utils.generic import ModelOutput

from redi.backbone import Backbone
from redi.backbone.families import Head
from redi.backbone.progressive import Shortened
from redi.backbone.timm_model import TimmModel
from redi.backbone.tokens import Tokens
from redi.cost import Geometry
from redi.deploy.card import Facts, public
from redi.deploy.intermediates import FORMATS, as_intermediates, taken_blocks
from redi.deploy.origin import Origin, known_input, origin
from redi.deploy.parts import Parts
from redi.deploy.saved import Published, read_model
from redi.errors import ConfigError, InvalidInput
from redi.grid import Grid
from redi.images.preprocessing import Preprocessing
from redi.learning.files import LearnedFile
from redi.records.setting import SecondLook, Setting
from redi.records.tuning import Tuned
from redi.reduction import Extent, Progressive, Schedule
from redi.reduction.result import take
from redi.reduction.titles import title
from redi.runs.identity import require_own_model

Module = TypeVar("Module", bound=nn.Module)

NO_HEAD = "Second looks need a head, whose confidence decides: this model has none."


@dataclass
class ReducedOutput(ModelOutput):
    """The output for ``reduced=True``: the shorter sequence itself."""

    last_hidden_state: Float[Tensor, "batch tokens dim"] | None = None  # prefix first, then patches
    pooler_output: Float[Tensor, "batch pooled"] | None = None
    sizes: Float[Tensor, "batch reduced"] | None = None  # image patches per token
    source: Int[Tensor, "batch patches"] | None = None  # the token that each image patch was merged into


class Accelerated(Published):
    """A frozen model that merges patch tokens from block to block.

    It is called like the model it was made from and gives the same kind of output; a model of timm gives outputs of
    transformers. ``last_hidden_state`` is on the full grid in the original order: every patch has the updates of the
    token that it was merged into (:mod:`redi.reduction.unmerge`).
    """

    main_input_name = "pixel_values"
    gives_maps: ClassVar[bool] = False  # whether patches are all that is read; CLS of an encoder is read too
    gives_tokens: ClassVar[bool] = False  # whether merged tokens can be the output

    def __init__(
        self, backbone: Backbone, setting: Setting, tuned: Tuned | None = None, original: Origin | None = None
    ) -> None:
        if setting.relevance == "cls" and not backbone.has_cls:
            raise ConfigError(
                "This model has no CLS token, whose attention the setting's relevance reads: name another."
            )
        if setting.tokens and not self.gives_tokens:
            raise ConfigError(
                "tokens is for vision-language models. This model gives the full grid, or, if it is an encoder, the "
                "merged tokens when called with reduced=True."
            )
        super().__init__(backbone, setting.for_output(self.gives_maps))
        self.tuned = tuned  # the record that the setting comes from, for the model card
        self.original = original or origin(backbone.config)
        self.prefix_only = backbone.reads_prefix
        if setting.second_look is not None and backbone.head is None:
            raise ConfigError(NO_HEAD)
        self._schedules: dict[tuple[Geometry, bool], Schedule] = {}
        self.reducer: Progressive = self.setting.reducer
        self.schedule(self.grid)  # raises now if the setting does not fit

    @classmethod
    def fits(cls, parts: Parts) -> bool:  # noqa: ARG003
        """Whether the parts make a model of this kind."""
        return True

    @classmethod
    def of_parts(cls, parts: Parts, setting: Setting, tuned: Tuned | None, original: Origin | None) -> "Accelerated":
        return cls(parts.backbone, setting, tuned, original)

    @property
    def config(self) -> Any:
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.model.dtype

    @property
    def _has_loss(self) -> bool:
        """Whether the model has a head that transformers trains with labels."""
        model = self.backbone.model
        distilled = isinstance(model, DeiTForImageClassificationWithTeacher)
        head = self.backbone.head is not None and isinstance(model, PreTrainedModel)
        return head and not distilled

    @staticmethod
    def can_generate() -> bool:
        """Always False; transformers' pipelines ask for it."""
        return False

    @property
    def dense(self) -> nn.Module:
        """The original model, as it is saved."""
        return self.backbone.model

    def at_cost(self, cost: float) -> "Accelerated":
        """The same weights, the same reducer and the same shape of the schedule, at another cost."""
        other = type(self)(self.backbone, self.setting.at_cost(cost), self.tuned, self.original)
        return other if self.learned is None else other.use_learned(self.learned)

    def use_learned(self, learned: LearnedFile) -> "Accelerated":
        """From now on, use a learned reducer instead of our own, on its own schedule. Return this model."""
        reducer, method = learned.method.reducer(), learned.training.method
        if not isinstance(reducer, Progressive):
            raise ConfigError(
                f"{method} gives every image a length of its own, which a fixed cost does not allow: compare it with "
                "`redi compare`."
            )
        if self.gives_maps:
            raise ConfigError("A learned reducer is for classifiers and encoders, not for models that give maps.")
        if not self.setting.is_plain:
            raise ConfigError("A learned reducer has its own schedule and relevance: give it a cost and nothing else.")
        self.learned, self.reducer = learned, reducer
        self.learned_module = learned.method  # so that it moves with the model
        self._schedules.clear()
        self.schedule(self.grid)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For a copy or a pickle: without the reducer, whose functions are of this object alone. It is made again."""
        return {**vars(self), "reducer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.reducer = self.setting.reducer
        if self.learned is not None:
            self.use_learned(self.learned)

    # A compiler must not trace the search.
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def schedule(self, grid: Grid) -> Schedule:
        """The number of patch tokens after each block, for images of the given grid."""
        schedule: Schedule = self._schedule(self._geometry(grid), self.prefix_only)
        return schedule

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _schedule(self, on: Geometry, prefix_only: bool) -> Schedule:
        if (on, prefix_only) not in self._schedules:
            if self.learned is None:
                extent = self.setting.extent(on, prefix_only)
            elif on.depth != self.backbone.depth:
                raise ConfigError("A learned reducer needs all blocks: take the output of the last one too.")
            else:
                extent = self.reducer.extent_within_cost(self.setting.cost, on, prefix_only)
            self._schedules[on, prefix_only] = extent.schedule
        return self._schedules[on, prefix_only]

    def _geometry(self, grid: Grid) -> Geometry:
        return replace(self.backbone.geometry, grid=grid)

    @property
    def grid(self) -> Grid:
        """The grid of the backbone's usual input."""
        return self.backbone.geometry.grid

    def cost(self, grid: Grid | None = None) -> float:
        """Cost relative to dense. It is at most the setting's cost, and lower by at most the step of one token.

        With second looks it is the mean over images like those that the confidence was set on.
        """
        on = self._geometry(grid or self.grid)
        extent = Extent(schedule=self.schedule(on.grid))
        first = self.reducer.cost(extent, on, self.prefix_only)
        return first + self.setting.second_share * self.setting.second_cost(on, self.prefix_only)

    def extra_repr(self) -> str:
        return f"{self.setting}"

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channels height width"],
        labels: Tensor | None = None,
        *,
        reduced: bool = False,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool | None = None,  # noqa: ARG002  # it is always done if needed
        **unsupported: Any,
    ) -> Any:
        """Run the model. With ``reduced``, an encoder returns the short sequence with its sizes and sources."""
        self._check_call(labels, reduced, unsupported)
        backbone, head = self.backbone, self.backbone.head
        tokens = backbone.embed(pixel_values)
        assert tokens.grid is not None
        grid = index(tokens.grid[0]), index(tokens.grid[1])  # constants, also for a compiler
        start = 0
        if self.setting.second_look is not None:
            start = self.setting.shared_blocks(backbone.depth)
            tokens = tokens.advanced(backbone.encode(tokens, stop=start))
        short = self._encode(tokens, self.schedule(grid), start, residual=not reduced)
        hidden = self._read(short, reduced)
        if self.setting.second_look is not None:
            hidden = self._look_again(self.setting.second_look, tokens, hidden, start)
        normed = backbone.final_norm(hidden)
        counted = self._counted(normed, short) if self._reads_patches and not reduced else normed
        if head is not None:
            output = self._classified(head, counted, labels)
        else:
            pooled = backbone.family.pool(backbone.encoder, counted, short.sizes if reduced else None)
            last = normed if backbone.family.normed_output else hidden
            output = ReducedOutput(last, pooled, short.sizes, short.source) if reduced else self._encoded(last, pooled)
        return output.to_tuple() if return_dict is False else output

    def forward_intermediates(
        self,
        x: Float[Tensor, "batch channels height width"],
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        **unsupported: Any,
    ) -> Any:
        """As the method of timm's models: the outputs of some blocks, each on the full grid.

        Blocks that no output needs do not run, and the cost is relative to the dense blocks up to there.
        """
        if not isinstance(self.backbone.model, TimmModel):
            raise InvalidInput("forward_intermediates() is for models of timm; accelerate a backbone of transformers.")
        if output_fmt not in FORMATS:
            raise InvalidInput(f"output_fmt must be {' or '.join(FORMATS)}, not {output_fmt!r}.")
        self._check_call(None, False, unsupported)
        backbone, blocks = self.backbone, taken_blocks(indices, self.backbone.depth)
        depth = blocks[-1] + 1 if stop_early or intermediates_only else backbone.depth
        tokens = backbone.embed(x)
        assert tokens.grid is not None
        grid = index(tokens.grid[0]), index(tokens.grid[1])
        schedule = self._schedule(replace(self._geometry(grid), depth=depth), False)
        levels = [*(block + 1 for block in blocks), depth]
        *states, last = self._encode(tokens, schedule, 0, residual=True, levels=levels).levels
        states = [backbone.final_norm(state) for state in states] if norm else states
        outputs = as_intermediates(states, backbone.prefix, grid, output_fmt, return_prefix_tokens)
        return outputs if intermediates_only else (backbone.final_norm(last), outputs)

    def _encode(
        self, tokens: Tokens, schedule: Schedule, start: int, residual: bool = False, levels: Sequence[int] = ()
    ) -> Shortened:
        prefix_only = self.prefix_only and not levels
        residual = residual and not prefix_only and self.setting.restore == "residual"
        return self.backbone.encode_progressively(
            tokens, self.reducer, schedule, prefix_only=prefix_only, start=start, residual=residual, levels=levels
        )

    def _read(self, short: Shortened, reduced: bool) -> Float[Tensor, "batch tokens dim"]:
        """The tokens before the final norm: the prefix alone, the short sequence, or the full grid."""
        short_only = self.prefix_only or reduced
        return short.hidden if short_only else short.full(self.backbone.prefix)

    @property
    def _reads_patches(self) -> bool:
        """Whether the head, or the pool of an encoder, reads patches."""
        return not (self.backbone.has_cls if self.backbone.head is None else self.prefix_only)

    def _counted(self, full: Float[Tensor, "batch tokens dim"], short: Shortened) -> Float[Tensor, "batch counted dim"]:
        """What a head or a pool reads: without the patches that a learned reducer has dropped, as in training."""
        if self.learned is None or not self.learned.method.drops:
            return full
        prefix, left = self.backbone.prefix, short.sizes.shape[1]
        kept = (short.source < 0).long().argsort(dim=1, stable=True)[:, :left]
        return torch.cat([full[:, :prefix], take(full[:, prefix:], kept)], dim=1)

    def _look_again(
        self, look: SecondLook, tokens: Tokens, hidden: Float[Tensor, "batch tokens dim"], start: int
    ) -> Float[Tensor, "batch tokens dim"]:
        """Replace the rows of the images that the head is not sure of by those of the dense model."""
        unsure = self._confidence(hidden) < look.confidence
        if not unsure.any():
            return hidden
        again = replace(tokens, prefix=tokens.prefix[unsure], patches=tokens.patches[unsure])
        dense = self._encode(again, (tokens.patches.shape[1],) * self.backbone.depth, start)
        return hidden.index_put((unsure,), self._read(dense, reduced=False))

    def _confidence(self, hidden: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, " batch"]:
        """The probability of the best class."""
        return self.backbone.classify(hidden).float().softmax(dim=-1).amax(dim=-1)

    def _check_call(self, labels: Tensor | None, reduced: bool, unsupported: dict[str, Any]) -> None:
        wrong = [name for name, value in unsupported.items() if not (value is None or value is False)]
        if wrong:
            raise InvalidInput(
                f"An accelerated model has no {', '.join(wrong)}: tokens are merged on the way. Use the original model."
            )
        if labels is not None and not self._has_loss:
            raise InvalidInput("This model takes no labels: it has no loss of its own.")
        if reduced and self.backbone.head is not None:
            raise InvalidInput("A classifier gives logits; reduced=True is for encoders without a head.")

    def _classified(self, head: Head, normed: Float[Tensor, "batch tokens dim"], labels: Tensor | None) -> Any:
        model: Any = self.backbone.model
        logits: Any = head.classify(model, normed, self.backbone.prefix)
        if isinstance(model, DeiTForImageClassificationWithTeacher):
            return DeiTForImageClassificationWithTeacherOutput(
                logits=logits,
                cls_logits=model.cls_classifier(normed[:, 0]),
                distillation_logits=model.distillation_classifier(normed[:, 1]),
            )
        loss = None if labels is None else model.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(loss=loss, logits=logits)

    def _encoded(self, last: Any, pooled: Any) -> Any:
        if self.backbone.projection is not None:
            embeds: Any = self.backbone.project(pooled)
            return CLIPVisionModelOutput(image_embeds=embeds, last_hidden_state=last)
        return BaseModelOutputWithPooling(last_hidden_state=last, pooler_output=pooled)

    def facts(self, name: str, license_name: str) -> Facts:
        """What the model card says; ``name`` is a folder or the name on the Hub."""
        return Facts(
            name=name,
            task="image-feature-extraction" if self.backbone.head is None else "image-classification",
            base_model=self.original.base_model,
            license=license_name or self.original.license,
            cost=self.cost(),
            schedule=self.schedule(self.grid),
            preprocessing=self._published_input(),
            tuned=public(self.tuned, self.setting) if self.learned is None else None,
            learned="" if self.learned is None else title(self.learned.training.method),
        )

    def _published_input(self) -> Preprocessing | None:
        return known_input(self.backbone)

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, config: Any = None, **options: Any) -> "Accelerated":
        """Load what :meth:`save_pretrained` or :meth:`push_to_hub` wrote, in the precision it was written in.

        The options of transformers that choose a ``dtype``, one device (``device_map``) or a ``revision`` work too.
        """
        loaded = read_model(name_or_path, config, options)
        require_own_model(loaded.setting, loaded.parts.backbone)
        model = assemble(loaded.parts, loaded.setting, loaded.tuned, loaded.original)
        return model if loaded.learned is None else model.use_learned(loaded.learned)


#: The other kinds of accelerated models, which the package lists.
KINDS: list[type[Accelerated]] = []


def assemble(parts: Parts, setting: Setting, tuned: Tuned | None, original: Origin | None = None) -> Accelerated:
    """The accelerated model of the kind that the parts make."""
    kind = next((kind for kind in KINDS if kind.fits(parts)), Accelerated)
    return kind.of_parts(parts, setting, tuned, original)
