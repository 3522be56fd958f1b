"""Start a command of the project, watch it, kill it.

Most commands run in a child that is forked from this process, where everything is imported already. A start then
takes milliseconds instead of seconds, so a campaign can make many more. A fresh process is used where its own start
is part of what is tested, and for torchrun.
"""

import atexit
import fcntl
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep

import torch

# What the commands import when they run. No tensor is computed here, so no thread exists when a child is forked.
import redi.cli
import redi.comparison.compare
import redi.demo.examples
import redi.deploy.export
import redi.deploy.tune
import redi.report.build
import redi.report.figures
import redi.stages.inspect  # noqa: F401
from redi.__main__ import main
from redi.errors import RediError, printable

#: The arguments of a command, or a function that a user's own script would call.
Work = Sequence[str] | Callable[[], None]

#: Seconds after which a command counts as hung.
PATIENCE = 120.0
POLL = 0.01
#: Bytes that a command may print before somebody reads them.
PIPE = 2**20


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int | None  # negative: killed by this signal; None: still running after all patience
    stdout: str
    stderr: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The lines that say why the command failed."""
        return [line for line in self.stderr.splitlines() if line.startswith("redi: ")]

    @property
    def fault(self) -> str:
        """What is wrong with how the command ended, if anything: it must say one line if it fails."""
        if self.code is None:
            return "hung"
        if self.code < 0:
            return f"died of signal {-self.code}"
        if "Traceback" in self.stderr or "Exception ignored" in self.stderr:
            return f"traceback: {self.stderr[-600:]!r}"
        if self.code == 1 and len(self.errors) != 1:
            return f"exit 1 with {len(self.errors)} lines: {self.stderr[-300:]}"
        if any(not letter.isprintable() and letter != "\n" for letter in self.stderr):
            return f"control characters: {self.stderr[-300:]!r}"
        return ""


@dataclass(frozen=True)
class Conditions:
    """What a command finds: variables, a limit of file sizes, a standard output."""

    variables: Mapping[str, str] | None = None
    file_size: int = 0  # bytes that a file may have; 0 means any number
    full_stdout: bool = False  # standard output is a full device
    fresh: bool = False  # a new Python process instead of a fork of this one


PLAIN = Conditions()


class Command:
    """A running command, in a process group of its own."""

    def __init__(self, work: Work, conditions: Conditions = PLAIN, torchrun: int = 0) -> None:
        """Start ``redi`` with the arguments, under torchrun with so many processes; or a function, in a fork."""
        self.begun = monotonic()
        self.code: int | None = None
        (self._out, stdout), (self._err, stderr) = _pipe(), _pipe()
        if conditions.full_stdout:
            os.close(stdout)
            stdout = os.open("/dev/full", os.O_WRONLY)
        if callable(work):
            self.pid = _fork(work, stdout, stderr, conditions)
        elif torchrun:
            start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun)]
            self.pid = _spawn([sys.executable, *start, "-m", "redi", *work], stdout, stderr, conditions)
        elif conditions.fresh:
            self.pid = _spawn([sys.executable, "-m", "redi", *work], stdout, stderr, conditions)
        else:
            self.pid = _fork(work, stdout, stderr, conditions)
        os.close(stdout)
        os.close(stderr)

    def running(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait(self, seconds: float) -> bool:
        """Whether the command ends within this time."""
        end = monotonic() + seconds
        while self.running():
            if monotonic() > end:
                return False
            sleep(POLL)
        return True

    def kill(self, whole_group: bool = True, number: int = signal.SIGKILL) -> bool:
        """Send a signal if the command still runs; return whether it did."""
        if not self.running():
            return False
        if whole_group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)
        return True

    def finish(self, patience: float = PATIENCE) -> Outcome:
        """Wait for the end. A command that does not end is killed and has no exit code."""
        ended = self.wait(patience)
        seconds = monotonic() - self.begun
        if not ended:
            self.kill()
            self.wait(PATIENCE)
        # Workers of a killed command end on their own, but none of them may outlive the campaign.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return Outcome(self.code if ended else None, _read(self._out), _read(self._err), seconds)


def run(work: Work, conditions: Conditions = PLAIN, patience: float = PATIENCE) -> Outcome:
    return Command(work, conditions).finish(patience)


def prepare() -> None:
    """One thread per command, so that results do not depend on how many run at once."""
    torch.set_num_threads(1)


def _pipe() -> tuple[int, int]:
    """(read end, write end). A pipe, because a limit of file sizes would cut off a file of messages too."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
    os.set_blocking(read, False)
    return read, write


def _read(pipe: int) -> str:
    parts = []
    with suppress(BlockingIOError):  # a worker still holds the other end
        while part := os.read(pipe, PIPE):
            parts.append(part)
    os.close(pipe)
    return b"".join(parts).decode(errors="replace")


def _fork(work: Work, stdout: int, stderr: int, conditions: Conditions) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        _limit(conditions)
        os.environ.update(conditions.variables or {})
        code = _call(work)
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except OSError:  # a full standard output shows itself at the last flush
        code = code or 120
    finally:
        os._exit(code)


def _call(work: Work) -> int:
    try:
        if callable(work):
            work()
        else:
            sys.argv = ["redi", *work]
            main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except RediError as error:  # of a function; a command prints it itself
        print(f"redi: {printable(error)}", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _limit(conditions: Conditions) -> None:
    if conditions.file_size:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (conditions.file_size,) * 2)


def _spawn(arguments: Sequence[str], stdout: int, stderr: int, conditions: Conditions) -> int:
    process = subprocess.Popen(
        arguments,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(conditions.variables or {})},
        start_new_session=True,
        preexec_fn=lambda: _limit(conditions),
    )
    process.returncode = 0  # this module waits for the process itself
    return process.pid
