"""Makes timm importable in the tests, and must be imported before transformers.

``make`` keeps timm and torchvision in a folder of their own beside the environment's packages,
because torchvision has no build for every build of torch. A torchvision that does not fit lacks two
compiled operators, and the import of timm and that of transformers fail. Nothing here calls these
operators, so their schemas are enough for the import. All this is for the tests alone: the package
imports the timm that is there, and processes that the tests start see neither timm nor torchvision.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _fits(torchvision: Path) -> bool:
    """Whether its compiled operators load beside this torch."""
    for library in torchvision.glob("_C*.so"):
        try:
            torch.ops.load_library(library)
        except OSError:
            return False
    return True


def _prepare() -> torch.library.Library | None:
    folder = Path(sys.prefix) / "timm"
    if folder.is_dir():
        sys.path.append(str(folder))
    torchvision = find_spec("torchvision")
    if torchvision is None or torchvision.origin is None or _fits(Path(torchvision.origin).parent):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + _SCHEMA)
    return library


#: Kept alive: a library that is garbage-collected takes its schemas with it.
SCHEMAS = _prepare()


def timm() -> ModuleType:
    """timm, or the test is skipped where it is not installed."""
    module: ModuleType = pytest.importorskip("timm")
    return module
