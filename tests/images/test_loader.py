"""Batches from worker processes: one may be killed, or fail to read an image, at any moment."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import active_children

import pytest
import torch
from PIL import Image

from redi.errors import CorpusError, LoaderError
from redi.images.loader import Batch, ViewDataset
from redi.images.preprocessing import Preprocessing

PLAN = [[2 * k, 2 * k + 1] for k in range(12)]
KILLED = "A worker process that decodes images was killed, probably because memory ran out"


@dataclass
class Pictures:
    """Pictures that exist in memory alone; loading one of them may raise."""

    failing: int = -1
    failure: Exception = field(default_factory=Exception)
    name: str = "pictures"
    class_names: Sequence[str] = ("one",)
    labels: Sequence[int] = (0,) * 24
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def load(self, index: int) -> Image.Image:
        if index == self.failing:
            raise self.failure
        return Image.new("RGB", (16, 16), (index, 0, 0))

    def image_name(self, index: int) -> str:
        return f"picture {index}"

    def fingerprint(self, indices: Sequence[int] | None = None) -> str:
        return str(indices)


def views(images: Pictures) -> ViewDataset:
    preprocessing = Preprocessing(16, 16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    return ViewDataset(images, preprocessing, False, 0)


@pytest.fixture(autouse=True)
def handlers_kept() -> Iterator[None]:
    """Ctrl-C interrupts, also where the shell ignores it, as in a background job; afterwards all is as it was."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def start(workers: int) -> tuple[Iterator[Batch], list[int]]:
    """Batches of which the first was taken, and the processes that make them."""
    others = set(active_children())
    batches = views(Pictures()).batches(PLAN, workers)
    next(batches)
    return batches, [worker.pid for worker in set(active_children()) - others if worker.pid]


def kill(worker: int) -> None:
    """Kill a process and go on only when the main process has been told."""
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    for _ in range(100):
        torch.ones(10).sum()  # the main process is inside a forward


# The worker's death may be noticed while torch holds a temporary file open, which then closes late.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("moment", range(len(PLAN)))
def test_a_worker_killed_during_a_forward_ends_in_one_sentence_of_the_loader(moment: int) -> None:
    batches, workers = start(2)
    for _ in range(moment):
        next(batches)
    kill(workers[moment % 2])
    with pytest.raises(LoaderError, match=KILLED):
        list(batches)


def test_a_killed_worker_of_one_pass_does_not_disturb_the_next() -> None:
    _batches, workers = start(1)
    kill(workers[0])
    assert [batch.indices for batch in views(Pictures()).batches(PLAN, workers=1)] == PLAN


@dataclass
class DeadlyPictures(Pictures):
    """A picture kills its process at the moment at which torch's loop there asks whether the pass has ended."""

    def load(self, index: int) -> Image.Image:  # noqa: ARG002
        frame = sys._getframe()
        while "done_event" not in frame.f_locals:
            assert frame.f_back
            frame = frame.f_back
        if lock := getattr(frame.f_locals["done_event"], "_cond", None):  # multiprocessing's own event has one
            lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.timeout(60)
def test_a_worker_killed_while_it_holds_a_lock_of_the_loader_does_not_hang() -> None:
    with pytest.raises(LoaderError, match=KILLED):
        list(views(DeadlyPictures()).batches(PLAN, workers=2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (CorpusError("It is gone."), CorpusError, "^It is gone.$"),
        (PermissionError(13, "Permission denied"), CorpusError, "^picture 7 of pictures .*read: Permission denied.$"),
        (MemoryError(), LoaderError, "^Memory ran out when picture 7 was decoded: use fewer --workers"),
    ],
)
def test_an_image_that_cannot_be_read_is_one_sentence_with_workers_and_without(
    workers: int, failure: Exception, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        list(views(Pictures(7, failure)).batches(PLAN, workers))
    assert "\n" not in str(caught.value)


def test_processes_that_cannot_be_forked_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(LoaderError, match=r"cannot be started .*Resource temporarily unavailable.*fewer --workers"):
        list(views(Pictures()).batches(PLAN, workers=2))


def test_ctrl_c_while_workers_fork_is_not_lost() -> None:
    """Python ignores what its hooks around a fork raise."""
    forking = [True]

    def hook() -> None:
        if forking:
            forking.clear()
            signal.raise_signal(signal.SIGINT)

    os.register_at_fork(before=hook)
    with pytest.raises(KeyboardInterrupt):
        list(views(Pictures()).batches(PLAN, workers=2))
    assert not forking


def test_ctrl_c_stays_ignored_where_the_shell_ignores_it() -> None:
    """As in a background job or under nohup, which a Ctrl-C at the terminal is not meant for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    batches = views(Pictures()).batches(PLAN, workers=2)
    next(batches)
    signal.raise_signal(signal.SIGINT)
    assert len(list(batches)) == len(PLAN) - 1
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_workers_leave_ctrl_c_to_the_main_process() -> None:
    """A terminal sends it to all of them."""
    batches, workers = start(2)
    for worker in workers:
        os.kill(worker, signal.SIGINT)
    assert len(list(batches)) == len(PLAN) - 1
