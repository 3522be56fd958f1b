"""Shared fixtures: one small checkpoint of every supported family, loaded from the Hub's format."""

import timm_import  # noqa: F401 - before anything that imports torchvision

# isort: split
from pathlib import Path

import pytest
import torch

from families import CHECKPOINTS, save_checkpoint
from redi.backbone import Backbone, load_backbone

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Tests may draw without naming a seed; what they draw is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one small checkpoint; tests that use it run for every family."""
    name: str = request.param
    return save_checkpoint(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def backbone(checkpoint: Path) -> Backbone:
    return load_backbone(checkpoint)


@pytest.fixture(scope="session")
def dinov3(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return load_backbone(save_checkpoint("dinov3", tmp_path_factory.mktemp("dinov3")))


@pytest.fixture
def pixels() -> torch.Tensor:
    """Three images whose grid is 6x6 at the small checkpoints' patch size of 8."""
    return torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real images and weights beside the project, where somebody put them."""
    if not SHARED.is_dir():
        pytest.skip("needs the real images and weights in ../shared")
    return SHARED
