"""``redi``, ``python -m redi`` and ``torchrun -m redi``: the command line as a process of its own.

Ctrl-C and the death of torchrun may come at any moment. Both are prepared for before the first slow import.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from time import sleep
from typing import Any

#: Exit code of a process that Ctrl-C has stopped.
STOPPED = 130
#: Seconds after Ctrl-C until the process ends, whatever it does. Files are never left half written.
GRACE = 15.0
AGAIN = "stopped; run the same command again."
#: What tells OpenMP how its threads wait for work: any OpenMP, GNU's (torch on Linux), and Intel's or LLVM's.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
#: How long threads spin before they sleep: turns of a loop in GNU's OpenMP, milliseconds in the others.
BRIEFLY = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}


class Interrupts:
    """Ctrl-C raises KeyboardInterrupt, and the process ends even if something swallows it."""

    def __init__(self, grace: float) -> None:
        self.count = 0
        self.grace = grace
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored, as under nohup
            signal.signal(signal.SIGINT, self)
            sys.unraisablehook = self.unraisable

    def __call__(self, number: int, frame: Any) -> None:
        """Raise; but end at once in an import: compiled modules swallow the exception, or abort."""
        self.count += 1
        if is_importing(frame):
            end_now(STOPPED, AGAIN)
        if self.count == 1:
            timer = threading.Timer(self.grace, end_now, (STOPPED, AGAIN))
            timer.daemon = True
            timer.start()
        signal.default_int_handler(number, frame)

    def unraisable(self, ignored: Any) -> None:
        """Python ignores what is raised in a destructor or a callback, but Ctrl-C must not be lost."""
        if ignored.exc_type is KeyboardInterrupt:
            end_now(STOPPED, AGAIN)
        sys.__unraisablehook__(ignored)


def is_importing(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def end_now(code: int, message: str) -> None:
    with suppress(OSError, ValueError):
        print(f"redi: {message}", file=sys.stderr, flush=True)
    os._exit(code)


def end_with_parent() -> None:
    """End this process when its parent is gone: nobody else would end the processes of a torchrun that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1)
        end_now(1, "torchrun was killed; run the same command again to continue.")

    threading.Thread(target=watch, daemon=True).start()


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let threads spin for a moment and then sleep while they wait, unless the user has decided how they wait.

    By default they spin for long, and beside other jobs they take the processor from the thread that they wait for: a
    small ViT then loses most of its speed. If they sleep at once, it is slow even alone (benchmarks/threads.py). OpenMP
    reads this when torch is imported.
    """
    if not any(name in environment for name in WAITING):
        environment.update(BRIEFLY)


def main(command: Callable[[], None] | None = None, grace: float = GRACE) -> None:
    """Run the command line. After Ctrl-C the exit code is 130, whatever became of the exception."""
    interrupts = Interrupts(grace)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    try:
        if command is None:
            wait_briefly(os.environ)
            from redi.cli import main as run_command

            command = run_command
        command()
    except SystemExit as end:
        if not interrupts.count or end.code == STOPPED:
            raise
        print(f"redi: {AGAIN}", file=sys.stderr)
        sys.exit(STOPPED)
    except BaseException:  # a library may turn Ctrl-C into an error of its own, e.g. of an import
        if not interrupts.count:
            raise
        end_now(STOPPED, AGAIN)
    finally:
        if signal.getsignal(signal.SIGINT) is interrupts:  # from here on Ctrl-C ends the process at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
