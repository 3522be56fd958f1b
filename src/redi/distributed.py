"""The torchrun context: which process this is, and waiting for the others.

Processes share the run folder and exchange results through it (see :mod:`redi.passes`); what they
need of each other while running is only to wait. Without torchrun there is one process and waiting
is free.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from redi.errors import ConfigError

#: Longer than any stage that one process does alone (training the probe) while the others wait.
#: A process that dies is noticed by torchrun, which ends the others at once.
PATIENCE = timedelta(days=2)


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the process group that torchrun announces in the environment, and leave it at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


def choose_device(name: str) -> torch.device:
    """``auto`` is this process's own GPU where there is one, else the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    elif name == "cuda":
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{name!r} is not a device: use auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("There is no CUDA device here: use --device cpu.")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device
