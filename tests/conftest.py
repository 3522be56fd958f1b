"""Shared fixtures: one small checkpoint of every supported family, loaded from the Hub's format."""

import timm_import  # noqa: F401 - before anything that imports torchvision

# isort: split
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from checking import without_checks
from families import CHECKPOINTS, save_checkpoint
from redi.backbone import Backbone, load_backbone
from redi.comparison.compare import compare
from redi.comparison.grid import Request
from redi.pipeline import execute
from redi.runs.config import saved_config
from small_run import CLASS_MAP, HOSTILE_CLASS, HOSTILE_FOLDER, small_config, start, write_images

SHARED = Path(__file__).parents[2] / "shared"


#: No test is timed: a busy machine is not a failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_sessionstart() -> None:
    """`make test-matrix` names the constraints it means: it must not test other versions, or none."""
    if file := os.environ.get("REDI_CONSTRAINTS"):
        lines = Path(file).read_text().splitlines()
        for package, wanted in (line.split("==") for line in lines if "==" in line):
            if package in ("torch", "transformers", "timm"):
                installed = version(package).partition("+")[0]
                assert installed == wanted, f"{package} is {installed}, not the {wanted} of {file}"


@pytest.fixture
def unchecked() -> Iterator[None]:
    """For tests of bad input, which the annotations forbid."""
    with without_checks():
        yield


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


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a backbone, and one with a head and its class map. Not to be written to."""
    folder = tmp_path_factory.mktemp("data")
    write_images(folder)
    save_checkpoint("dinov3", folder / "backbone")
    save_checkpoint("dinov2_swiglu_head", folder / "head")
    (folder / "map.tsv").write_text(CLASS_MAP)
    return folder


@pytest.fixture(scope="session")
def finished(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on them. A test that changes it puts it back."""
    out = tmp_path_factory.mktemp("run")
    start(small_data, out)
    return out


@pytest.fixture(scope="session")
def seen_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with both classifiers, all 20 images in its explorer, a few compared rows and a
    class whose images lie under a hostile path. Not to be written to: copy it."""
    folder = tmp_path_factory.mktemp("seen")
    write_images(folder)
    for split in ("train", "val"):
        nested = folder / split / HOSTILE_CLASS / HOSTILE_FOLDER
        nested.mkdir(parents=True)
        for file in sorted((folder / split / "amber").iterdir()):
            shutil.move(file, nested / file.name)
        (folder / split / "amber").rmdir()
    save_checkpoint("dinov2_registers_head", folder / "backbone")
    (folder / "map.tsv").write_text(f"{HOSTILE_CLASS}\t2\nblue\tLABEL_5\ngreen\t0\nred\t6\n")
    config = small_config(folder, folder / "run", words=80)
    config = replace(
        config,
        classifier="both",
        class_map=str(folder / "map.tsv"),
        analysis=replace(config.analysis, sample=24, typical=3),
    )
    execute(config)
    request = Request(scorers=["mass"], reducers=["prune"], keeps=[0.25, 0.5, 0.75])
    compare(saved_config(folder / "run"), [], request)
    return folder / "run"
