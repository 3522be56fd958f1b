"""timm's ``forward_intermediates`` on accelerated models, against timm's own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from families import make_model, save_checkpoint
from redi.deploy import accelerate
from redi.errors import InvalidInput
from timm_families import TIMM_CHECKPOINTS

OPTIONS: list[dict[str, Any]] = [
    {},
    {"indices": 2, "norm": True},
    {"indices": [2, 0], "return_prefix_tokens": True, "output_fmt": "NLC"},
    {"indices": [-2], "intermediates_only": True, "return_prefix_tokens": True},
    {"indices": [0, 1], "stop_early": True, "norm": True},
]


@pytest.mark.parametrize("name", TIMM_CHECKPOINTS)
def test_at_full_cost_they_are_timms(name: str, tmp_path: Path) -> None:
    given = make_model(name)
    folder = save_checkpoint(name, tmp_path / "given")
    faster = {"live": accelerate(given, cost=1.0), "by folder": accelerate(folder, cost=1.0)}
    shorter = accelerate(given, cost=0.75)
    for pixels in (torch.randn(2, 3, 48, 48), torch.randn(1, 3, 40, 64)):
        for options in OPTIONS:
            expected = given.forward_intermediates(pixels, **options)
            for model in faster.values():
                output = model.forward_intermediates(pixels, **options)
                torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
            merged = shorter.forward_intermediates(pixels, **options)
            assert shapes(merged) == shapes(expected)


def shapes(output: Any) -> Any:
    return type(output)(map(shapes, output)) if isinstance(output, tuple | list) else output.shape


def test_merging_changes_them() -> None:
    given, pixels = make_model("timm_dinov3"), torch.randn(2, 3, 48, 48)
    merged = accelerate(given, cost=0.7).forward_intermediates(pixels, intermediates_only=True)
    expected = given.forward_intermediates(pixels, intermediates_only=True)
    assert [torch.allclose(a, b, atol=1e-4) for a, b in zip(merged, expected, strict=True)][-1] is False


def test_what_is_not_there_is_refused() -> None:
    model, pixels = accelerate(make_model("timm_dinov2"), cost=0.7), torch.randn(1, 3, 48, 48)
    for option in ({"output_dict": True}, {"attn_mask": pixels}, {"is_causal": True}):
        with pytest.raises(InvalidInput, match=f"^.*no {next(iter(option))}: .*$"):
            model.forward_intermediates(pixels, **option)
    with pytest.raises(InvalidInput, match=r"^output_fmt must be NCHW or NLC, not 'NHWC'.$"):
        model.forward_intermediates(pixels, output_fmt="NHWC")
    for indices in (0, 4, [3], [-4], []):
        with pytest.raises(InvalidInput, match=r"^indices=.* does not fit a model of 3 blocks.$"):
            model.forward_intermediates(pixels, indices)
