"""The torchrun context: which process this is, and how it waits for the others.

Processes share the run folder and exchange results through it (see :mod:`redi.runs.passes`); while running, they
only wait for each other. Without torchrun there is one process, and waiting costs nothing.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from redi.errors import ConfigError, RanksError, one_line

T = TypeVar("T")

#: Longer than any stage that one process runs alone (training the probe) while the others wait. If a process dies,
#: torchrun ends the others at once.
PATIENCE = timedelta(days=2)
#: Seconds to reach torchrun's own process, which listens before it starts the others.
CONNECT = 5.0
#: Seconds for all processes to start, import and join.
JOIN = 600.0
TORCHRUN = "start several processes with torchrun, or unset the variable."


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
            with _other_ranks():
                dist.barrier()

    def share(self, decide: Callable[[], T]) -> T:
        """Let the main process decide and return its decision on all processes.

        A decision that depends on files must be made once: on a network file system, or while the main process
        writes, two processes may see different files and would diverge.
        """
        if self.world == 1:
            return decide()
        decision = [decide() if self.is_main else None]
        with _other_ranks():
            dist.broadcast_object_list(decision, src=0)
        return decision[0]  # type: ignore[return-value]


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the process group that torchrun announces in the environment, and leave it at the end.

    A nested call uses the same group: joining a second time would race for old addresses.
    """
    world = _number("WORLD_SIZE", default=1)
    if world == 1:
        yield Ranks()
        return
    ranks = Ranks(_number("RANK"), world)
    if not 0 <= ranks.rank < world:
        raise ConfigError(f"RANK is {ranks.rank} and WORLD_SIZE is {world}: {TORCHRUN}")
    if dist.is_initialized():
        yield ranks
        return
    _join(ranks, device)
    try:
        yield ranks
    finally:
        dist.destroy_process_group()


def _join(ranks: Ranks, device: torch.device) -> None:
    """Join the others. Waiting for them to start has a limit, unlike waiting for their work."""
    address = os.environ.get("MASTER_ADDR")
    if not address:
        raise ConfigError(f"MASTER_ADDR is not set: {TORCHRUN}")
    port = _number("MASTER_PORT", most=2**16 - 1)
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _reach(address, port, CONNECT)
        elif not ranks.is_main:  # the main process listens, as soon as it gets here
            _reach(address, port, JOIN)
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN)))
        store.set(f"joined/{ranks.rank}", "")
        store.wait([f"joined/{rank}" for rank in range(ranks.world)], timedelta(seconds=JOIN))
        gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if gpu else "gloo",
            store=store,
            rank=ranks.rank,
            world_size=ranks.world,
            timeout=PATIENCE,
            device_id=device if gpu else None,
        )
    except (RuntimeError, ValueError, OSError) as error:  # torch's own errors are RuntimeErrors
        raise RanksError(
            f"Process {ranks.rank} of {ranks.world} cannot join the others at {address}:{port} ("
            f"{one_line(error)[:200]}): see whether torchrun or another process has ended, and run the same command "
            "again."
        ) from None


def _reach(address: str, port: int, seconds: float) -> None:
    """Return as soon as somebody listens there. torch would wait for as long as a stage may last."""
    end = monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=CONNECT).close()
            return
        except OSError:
            if monotonic() > end:
                raise
            sleep(0.5)


@contextmanager
def _other_ranks() -> Iterator[None]:
    """Say in one sentence that another process is gone. torchrun prints what that process said."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(
            f"Another process of this run has ended ({one_line(error)[:200]}): see its own message, and run the same "
            "command again to continue."
        ) from None


def _number(variable: str, default: int | None = None, most: int = 2**31) -> int:
    """The whole number in one of torchrun's environment variables."""
    text = os.environ.get(variable)
    if text is None and default is not None:
        return default
    if text is None:
        raise ConfigError(f"{variable} is not set: {TORCHRUN}")
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise ConfigError(f"{variable} is {text!r}, not a number from 0 to {most}: {TORCHRUN}")
    return number


def choose_device(name: str) -> torch.device:
    """The device with this name; ``auto`` is this process's own GPU if there is one, otherwise the CPU."""
    local_rank = _number("LOCAL_RANK", default=0)
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
