"""With what numbers were made: versions, machine, device. Kept beside results."""

import os
import platform
import sys
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
