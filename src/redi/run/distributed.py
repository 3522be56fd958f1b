"""The torchrun context: which process this is, and how it waits for the others.

Processes share the run folder and exchange results through it (see :mod:`redi.run.passes`); while running, they
only wait for each other. Without torchrun there is one process, and waiting costs nothing.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from redi.errors import ConfigError

T = TypeVar("T")

#: Longer than any stage that one process runs alone (training the probe) while the others wait. If a process dies,
#: torchrun ends the others at once.
PATIENCE = timedelta(days=2)


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Wait until every process has reached this call."""
        if self.world > 1:
            dist.barrier()

    def share(self, decide: Callable[[], T]) -> T:
        """Let the main process decide and return its decision on all processes.

        A decision that depends on files must be made once: on a network file system, or while the main process
        writes, two processes may see different files and would diverge.
        """
        if self.world == 1:
            return decide()
        decision = [decide() if self.is_main else None]
        dist.broadcast_object_list(decision, src=0)
        return decision[0]  # type: ignore[return-value]


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the process group that torchrun announces in the environment, and leave it at the end.

    A nested call uses the same group: joining a second time would race for old addresses.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    if "RANK" not in os.environ:
        raise ConfigError("WORLD_SIZE is set but RANK is not: start several processes with torchrun.")
    ranks = Ranks(int(os.environ["RANK"]), world)
    if dist.is_initialized():
        yield ranks
        return
    gpu = device.type == "cuda"
    dist.init_process_group("nccl" if gpu else "gloo", timeout=PATIENCE, device_id=device if gpu else None)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


def choose_device(name: str) -> torch.device:
    """The device with this name; ``auto`` is this process's own GPU if there is one, otherwise the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    elif name == "cuda":
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{name!r} is not a supported device: use auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"There is no {name} here, only {torch.cuda.device_count()} CUDA devices: use --device cpu.")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return device
