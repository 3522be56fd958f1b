"""With what numbers were made: versions, machine, device. Kept beside results."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from redi import __version__


def environment(device: torch.device) -> dict[str, Any]:
    return {
        "redi": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "timm": getattr(sys.modules.get("timm"), "__version__", ""),  # empty where it was not used
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many CPU threads of torch for a while; 0 leaves its own choice."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
