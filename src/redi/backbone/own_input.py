"""The input that a checkpoint's own image processor gives, for use outside the paper's protocol."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from redi.backbone.checkpoint import checkpoint_folder, read_json
from redi.backbone.loading import load_backbone
from redi.backbone.model import Backbone
from redi.errors import BackboneError
from redi.images.preprocessing import FILTERS, Preprocessing, shorter_side


def load_with_own_input(name_or_path: str | Path) -> Backbone:
    """:func:`load_backbone` with crops of the processor's size, e.g. 224 px for DINOv2 instead of a 14x14 grid.

    The sizes come from preprocessor_config.json or, for timm, from config.json. A processor that resizes to a square
    without a crop gives the size of our crop only: pictures are never squashed here. The default grid stays if the
    checkpoint gives no size.
    """
    backbone = load_backbone(name_or_path)
    folder = checkpoint_folder(name_or_path)
    file = folder / "preprocessor_config.json"
    if not hasattr(backbone.config, "model_type"):  # timm
        file = folder / "config.json"
    settings = read_json(file) if file.exists() else {}
    sizes = _timm_sizes(settings) if file.name == "config.json" else processor_sizes(settings)
    other = copy(backbone)
    other.preprocessing = own_input(file, settings, sizes, backbone.preprocessing, backbone.patch_size)
    return other


def own_input(
    file: Path | str, settings: dict[str, Any], sizes: tuple[Any, Any], ours: Preprocessing, patch_size: int
) -> Preprocessing:
    """Our preprocessing with the shorter side, the crop and the filter that a checkpoint's ``file`` gives."""
    size = _whole(file, sizes[1]) // patch_size * patch_size
    if not size:
        return ours
    shorter = max(_whole(file, sizes[0]) or shorter_side(size), size)
    own = [resample for resample in FILTERS.values() if resample == settings.get("resample")]
    return replace(ours, shorter=shorter, size=size, resample=own[0] if own else ours.resample)


def processor_sizes(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The shorter side after resizing and the side of the crop, as transformers writes them; None if not given."""
    size, crop = settings.get("size"), settings.get("crop_size")
    if not settings.get("do_center_crop", crop is not None) or crop is None:
        return None, _side(size)
    return _side(size), _side(crop)


def _side(size: Any) -> Any:
    if not isinstance(size, dict):
        return size
    sides = [size[name] for name in ("shortest_edge", "height", "width") if name in size]
    return min(sides, default=None) if all(isinstance(side, int) for side in sides) else sides


def _timm_sizes(settings: dict[str, Any]) -> tuple[Any, Any]:
    pretrained = settings.get("pretrained_cfg", settings)
    share, shape = pretrained.get("crop_pct"), pretrained.get("input_size")
    size = shape[-1] if isinstance(shape, list) and shape else None
    if isinstance(share, float) and 0.01 <= share <= 1 and type(size) is int and size < 10_000:
        return int(size / share), size
    return None, size


def _whole(file: Path | str, side: Any) -> int:
    """A side in pixels; 0 if there is none."""
    if side is None:
        return 0
    if type(side) is not int or not 0 < side < 10_000:
        raise BackboneError(f"{file} must give the size of images as a whole number of pixels, not {side!r}.")
    return side
