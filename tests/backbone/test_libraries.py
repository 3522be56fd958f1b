"""A torchvision that was not built for the installed torch: one sentence, wherever it is met."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import redi
from redi.backbone.libraries import failure_of_torchvision

DEMO = Path(redi.__file__).parent / "demo" / "demo-vit"
BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


def with_torchvision(folder: Path, source: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python where a torchvision of this source is installed."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(source)
    (folder / "torchvision-0.99.0.dist-info").mkdir()
    (folder / "torchvision-0.99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.99.0\n"
    )
    path = os.pathsep.join([str(folder), str(Path(redi.__file__).parent.parent)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [("-m", "redi", "export", str(DEMO)), ("-c", f"import redi; redi.load_backbone({str(DEMO)!r})")]
)
def test_a_torchvision_of_another_torch_is_one_sentence_with_the_repair(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = with_torchvision(tmp_path, BROKEN, *arguments)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert f"torchvision 0.99.0 was not built for torch {torch.__version__} " in said[-1]
    assert "(RuntimeError: operator torchvision::nms does not exist)" in said[-1]
    assert "run `pip uninstall torchvision`" in said[-1]
    assert "ModuleNotFoundError" not in done.stderr
    if "redi" in arguments:
        assert len(said) == 1
        assert not (tmp_path / "model.onnx").exists()


def test_another_failure_of_an_import_is_not_blamed_on_torchvision() -> None:
    with pytest.raises(ImportError) as caught:
        import_module("a_module_that_is_not_there")
    assert failure_of_torchvision(caught.value) is None
