"""The input of a checkpoint's own processor, and the paper's where there is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from families import save_checkpoint
from redi import accelerate
from redi.backbone import load_backbone
from redi.backbone.own_input import load_with_own_input
from redi.errors import BackboneError
from timm_families import edit_config

CROP = {"height": 224, "width": 224}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint("dinov2", tmp_path_factory.mktemp("dinov2"), patch=14)


@pytest.mark.parametrize(
    ("processor", "shorter", "size", "resample"),
    [
        # DINOv2's own: 16x16 patches, not the 14x14 of the paper's protocol.
        (
            {"size": {"shortest_edge": 256}, "crop_size": CROP, "do_center_crop": True, "resample": 3},
            256,
            224,
            "BICUBIC",
        ),
        ({"size": 248, "crop_size": 225, "resample": 2}, 248, 224, "BILINEAR"),
        ({"size": {"height": 518, "width": 518}, "crop_size": CROP, "do_center_crop": False}, 592, 518, "BICUBIC"),
        ({"image_mean": [0.5, 0.5, 0.5]}, 224, 196, "BICUBIC"),
    ],
)
def test_sizes_and_filter_are_the_processors(
    folder: Path, processor: dict[str, Any], shorter: int, size: int, resample: str
) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    ours = load_with_own_input(folder).preprocessing
    assert (ours.shorter, ours.size, ours.resample.name) == (shorter, size, resample)
    assert ours.mean == load_backbone(folder).preprocessing.mean
    assert load_backbone(folder).preprocessing.size == 196, "the paper's protocol keeps its grid"
    assert accelerate(folder, cost=0.8).grid == (size // 14, size // 14)


@pytest.mark.parametrize("size", ["large", {"shortest_edge": "224"}, -1])
def test_a_size_that_is_no_number_of_pixels_is_refused(folder: Path, size: Any) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": size}))
    with pytest.raises(BackboneError, match="as a whole number of pixels, not"):
        load_with_own_input(folder)


def test_timm_gives_the_crop_as_a_share_of_the_shorter_side(tmp_path: Path) -> None:
    folder = save_checkpoint("timm_deit3", tmp_path)
    edit_config(folder, pretrained_cfg={"input_size": [3, 96, 96], "crop_pct": 0.9, "num_classes": 7})
    ours = load_with_own_input(folder).preprocessing
    assert (ours.shorter, ours.size) == (106, 96)
