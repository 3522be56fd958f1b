"""The versions, machine and device that produced the results, stored with them."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers

from redi._version import __version__
from redi.bounds import THREADS
from redi.records.results import Environment


def environment(device: torch.device, processes: int = 1) -> Environment:
    return Environment(
        redi=__version__,
        torch=torch.__version__,
        transformers=transformers.__version__,
        timm=getattr(sys.modules.get("timm"), "__version__", ""),
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cores=os.cpu_count() or 0,
        threads=torch.get_num_threads(),
        device=str(device),
        processes=processes,
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of CPU threads of torch within the context; 0 changes nothing."""
    THREADS.require("threads", count)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
