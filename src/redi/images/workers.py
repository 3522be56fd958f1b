"""Worker processes and signals: a worker that dies, and Ctrl-C, are noticed only where that is safe."""

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from multiprocessing import active_children, get_context, get_start_method
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from typing import Any

from torch.utils.data import DataLoader


class WorkerDied(Exception):
    """A worker process was killed or failed."""


class SharedFlag:
    """Tells worker processes that a pass has ended.

    multiprocessing's own event has a lock, and a worker that is killed while it holds the lock blocks the main process
    for ever.
    """

    def __init__(self) -> None:
        self._value = RawValue("b", 0)

    def set(self) -> None:
        self._value.value = 1

    def is_set(self) -> bool:
        return bool(self._value.value)


def leave_quietly(_worker: int) -> None:
    """Let a worker process say nothing of a main process that has gone.

    The thread that hands over tensors prints a traceback if Ctrl-C stops the main process in the middle of it.
    """
    report = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, ConnectionError | EOFError):
            report(kind, error, trace)

    sys.excepthook = hook


def worker_context() -> BaseContext:
    """The platform's own way to start processes, with :class:`SharedFlag` as its event."""
    context = copy(get_context(get_start_method()))
    context.Event = SharedFlag  # type: ignore[assignment, method-assign]
    return context


class WorkerWatch:
    """A handler of SIGCHLD that raises :class:`WorkerDied`, but only while the main process waits for a batch.

    torch's own handler raises wherever the main process is: inside a forward, a user's function, a destructor.
    """

    def __init__(self, workers: Iterable[BaseProcess]) -> None:
        self.workers = list(workers)
        self.is_waiting = False

    def __call__(self, _number: int, _frame: Any) -> None:
        if self.is_waiting:
            self.check()

    def check(self) -> None:
        if any(worker.exitcode for worker in self.workers):
            raise WorkerDied

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise if a worker has died or dies within the context."""
        self.is_waiting = True
        try:
            self.check()
            yield
        except (ConnectionError, FileNotFoundError, EOFError):  # it died while it handed over a batch
            raise WorkerDied from None
        except RuntimeError as error:
            if "DataLoader worker (pid" in str(error):  # torch was the first to notice
                raise WorkerDied from None
            raise
        finally:
            self.is_waiting = False


def loaded_batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader; raises :class:`WorkerDied` where a batch is waited for."""
    others = set(active_children())
    with held_interrupts():
        batches = iter(loader)
    watch = WorkerWatch(set(active_children()) - others)
    if watch.workers and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, watch)
    while True:
        with watch.waiting():
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while processes are forked, and deliver it afterwards.

    Python ignores what is raised inside its hooks around a fork, so Ctrl-C would be lost there. The forked processes
    inherit the handler and therefore leave Ctrl-C to the main process, which ends them.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)
