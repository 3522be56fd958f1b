"""Ctrl-C at any moment: one line, exit code 130, and nothing is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from small_run import content

COMMAND = [sys.executable, "-m", "redi"]
PROGRAM = """
import signal, time
from redi.__main__ import main

class Destructor:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def in_a_destructor():
    Destructor()
    time.sleep(60)

def in_a_library():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("initialization failed")

def in_code_that_catches_everything():
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        time.sleep(60)

def in_a_command_that_still_ends():
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        raise SystemExit(1)

def in_an_import():
    import swallowing

main({}, grace={})
"""
SWALLOWING = """
import signal, time
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    time.sleep(60)
"""


def interrupt(process: "subprocess.Popen[str]", group: bool = True) -> tuple[int, str]:
    """Send Ctrl-C, to the whole group as a terminal does, and wait for the end."""
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    return process.returncode, said


def launch(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell without job control ignores Ctrl-C in what it starts in the background, such as these tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("place", "grace"),
    [
        ("in_a_destructor", 100),
        ("in_a_library", 100),
        ("in_an_import", 100),
        ("in_a_command_that_still_ends", 100),
        ("in_code_that_catches_everything", 1),
    ],
)
def test_ctrl_c_ends_the_process_even_where_it_is_swallowed(place: str, grace: int, tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(SWALLOWING)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(place, grace)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.stderr == "redi: stopped; run the same command again.\n"
    assert done.returncode == 130


def test_ctrl_c_stays_ignored_where_the_shell_ignores_it() -> None:
    """As in a background job or under nohup: such a process goes on to its end."""
    code = "import signal; from redi.__main__ import main; main(lambda: signal.raise_signal(signal.SIGINT))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["report", "export", "compare", "tune"])
def test_ctrl_c_while_a_command_imports_is_one_line(command: str, finished: Path, small_data: Path) -> None:
    target = str(small_data / "head" if command in ("export", "tune") else finished)
    options = ("--images", str(small_data / "val")) if command == "tune" else ()
    process = launch(command, target, *options)
    library = b"numpy" if command == "report" else b"libtorch"
    while library not in Path(f"/proc/{process.pid}/maps").read_bytes() and process.poll() is None:
        sleep(0.002)
    code, said = interrupt(process)
    assert code == 130, said
    assert said.startswith("redi: stopped; ")
    assert said.count("\n") == 1


def test_a_run_stopped_by_ctrl_c_again_and_again_ends_with_the_same_results(finished: Path, tmp_path: Path) -> None:
    """With worker processes, which a terminal interrupts as well."""
    arguments = ("run", "--config", str(finished / "config.toml"), "--out", str(tmp_path / "run"), "--workers", "2")
    for moment, group in (("vocabulary pass 1", True), ("score", False)):
        process = launch(*arguments)
        assert process.stderr
        said = ""
        while moment not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        code, rest = interrupt(process, group)
        assert code == 130, said + rest
        assert "redi: stopped; run the same command again to continue.\n" in rest
        assert rest.count("redi: ") == 1
        assert "Traceback" not in rest
        assert "Exception ignored" not in rest
    process = launch(*arguments)
    assert process.communicate()[1].count("already done") >= 2
    assert process.returncode == 0
    assert content(tmp_path / "run")["rows"] == content(finished)["rows"]
