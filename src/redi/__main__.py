"""``redi``, ``python -m redi`` and ``torchrun -m redi``: the command line as a process of its own.

Ctrl-C and the death of torchrun may come at any moment. Both are prepared for before the first slow import.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from time import sleep
from typing import Any

#: Exit code of a process that Ctrl-C has stopped.
STOPPED = 130
#: Seconds after Ctrl-C until the process ends, whatever it does. Files are never left half written.
GRACE = 15.0


class Interrupts:
    """Ctrl-C raises KeyboardInterrupt, and the process ends even if something swallows it."""

    def __init__(self) -> None:
        self.count = 0
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored, as under nohup
            signal.signal(signal.SIGINT, self)
            sys.unraisablehook = self.unraisable

    def __call__(self, number: int, frame: Any) -> None:
        self.count += 1
        if self.count == 1:
            timer = threading.Timer(GRACE, end_now, (STOPPED, "stopped; run the same command again."))
            timer.daemon = True
            timer.start()
        signal.default_int_handler(number, frame)

    def unraisable(self, ignored: Any) -> None:
        """Python ignores what is raised in a destructor or a callback, but Ctrl-C must not be lost."""
        if ignored.exc_type is KeyboardInterrupt:
            end_now(STOPPED, "stopped; run the same command again.")
        sys.__unraisablehook__(ignored)


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


def main() -> None:
    """Run the command line. After Ctrl-C the exit code is 130, whatever became of the exception."""
    interrupts = Interrupts()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    try:
        from redi.cli import main as run_command

        run_command()
    except SystemExit as end:
        sys.exit(STOPPED if interrupts.count else end.code)
    except BaseException:  # a library may turn Ctrl-C into an error of its own, e.g. of an import
        if not interrupts.count:
            raise
        end_now(STOPPED, "stopped; run the same command again.")
    finally:
        if signal.getsignal(signal.SIGINT) is interrupts:  # from here on Ctrl-C ends the process at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
