"""Imports transformers before the rest of the package does, with one sentence for what it cannot work beside.

It builds its classes from docstrings, which ``python -OO`` removes.

transformers imports torchvision wherever it is installed, and has no option against that. timm brings torchvision, and
beside a CPU build of torch pip installs one that was built for another torch. It cannot be imported, and transformers
fails with it.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType

import torch

from redi.errors import BackboneError, one_line


def failure_of_torchvision(error: BaseException) -> BaseException | None:
    """The error that torchvision itself raised, among those that led to this one; None if there is none."""
    at: BaseException | None = error
    while at is not None and not _passes_torchvision(at.__traceback__):
        at = at.__cause__ or at.__context__
    return at


def _passes_torchvision(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == "torchvision":
            return True
        traceback = traceback.tb_next
    return False


def _installed() -> str:
    try:
        return f"torchvision {version('torchvision')}"
    except PackageNotFoundError:
        return "torchvision"


if sys.flags.optimize > 1:
    raise BackboneError("transformers needs docstrings: run Python without -OO, and without PYTHONOPTIMIZE=2.")
try:
    from transformers import PreTrainedModel  # noqa: F401
except ImportError as error:
    if (failure := failure_of_torchvision(error)) is None:
        raise
    raise BackboneError(
        f"{_installed()} was not built for torch {torch.__version__} and takes transformers with it "
        f"({one_line(failure)}): run `pip uninstall torchvision`; timm's models need the one from the package index "
        "that torch came from (`pip install --force-reinstall --no-deps torchvision --index-url INDEX`)."
    ) from None
