"""The sizes in a checkpoint's config.json, checked against its weights before a model is built.

A model of a million layers, or one that is a billion wide, would take all memory before its weights are missed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redi.errors import BackboneError

#: Fields of transformers and of timm that count something, with their smallest value.
COUNTS = {
    **dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"), 1),
    **dict.fromkeys(("depth", "embed_dim", "num_heads"), 1),
    **dict.fromkeys(("num_channels", "in_chans", "patch_size", "image_size", "img_size"), 1),
    **dict.fromkeys(("num_register_tokens", "reg_tokens", "num_reg_tokens", "num_labels", "num_classes"), 0),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "projection_dim", "projection_size"), 1),
}
#: Fields that may give one number per axis.
PER_AXIS = ("patch_size", "image_size", "img_size")
#: Fields that no weight may show: the head or the projection can be missing, and rotary positions fit every image.
FREE = ("image_size", "img_size", "num_labels", "num_classes", "projection_dim", "projection_size")
#: Largest value of those.
MOST = 100_000


def require_sizes(file: Path, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Require whole numbers that weights of these shapes can have. ``settings`` is the content of ``file``."""
    longest = max((side for shape in shapes.values() for side in shape), default=0)
    for field, least in COUNTS.items():
        if field not in settings:
            continue
        value = settings[field]
        sides = value if field in PER_AXIS and isinstance(value, list) and value else [value]
        if not all(type(side) is int and side >= least for side in sides):
            raise BackboneError(f"{file} has {field} = {_shown(value)}, which is not a whole number from {least}.")
        most = len(shapes) if field in ("num_hidden_layers", "depth") else max(longest, MOST * (field in FREE))
        if max(sides) > most:
            raise BackboneError(f"{file} has {field} = {_shown(value)}, but the weights are those of a smaller model.")
    for width, heads in (("hidden_size", "num_attention_heads"), ("embed_dim", "num_heads")):
        if width in settings and heads in settings and settings[width] % settings[heads]:
            raise BackboneError(
                f"{file} has {width} = {settings[width]}, which cannot be split into {heads} = {settings[heads]}."
            )
    _require_positions(file, settings, shapes)


def _require_positions(file: Path, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Require a grid for which learned positions, if there are any, are long enough."""
    learned = [shape for name, shape in shapes.items() if "pos" in name and "embed" in name and len(shape) > 1]
    if not learned:
        return
    image = settings.get("image_size", settings.get("img_size"))
    patch = settings.get("patch_size")
    if image is None or patch is None:
        return
    side = max(image if isinstance(image, list) else [image]) // min(patch if isinstance(patch, list) else [patch])
    if side**2 > max(max(shape) for shape in learned):
        raise BackboneError(
            f"{file} has images of {_shown(image)} in patches of {_shown(patch)}, but the weights have fewer positions."
        )


def _shown(value: Any) -> str:
    return repr(value)[:40]
