"""Several processes share a run, and one of them may die, or torchrun itself."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch

from redi.errors import ConfigError, RanksError
from redi.runs.distributed import choose_device, join_ranks
from small_run import content, start, torchrun

CPU = torch.device("cpu")


def test_two_processes_give_what_one_gives(small_data: Path, finished: Path, tmp_path: Path) -> None:
    done = torchrun(small_data, tmp_path, 2)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path) == content(finished)


def test_a_process_that_dies_ends_the_job_and_another_number_of_processes_goes_on(
    small_data: Path, finished: Path, tmp_path: Path
) -> None:
    done = torchrun(small_data, tmp_path, 2, "--dying-rank", "1")
    assert done.returncode != 0
    assert "this process was told to fail" in done.stderr
    assert torchrun(small_data, tmp_path, 2, "--killed-rank", "0").returncode != 0
    assert list((tmp_path / "partial").rglob("*.safetensors")), "work was kept"
    start(small_data, tmp_path)
    assert content(tmp_path) == content(finished)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a number"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2', not a number"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": ""}, "RANK is '', not a number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, "MASTER_PORT is not set"),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "99999"},
            "MASTER_PORT is '99999', not a number from 0 to 65535",
        ),
    ],
    ids=str,
)
def test_variables_that_do_not_describe_a_process_are_named(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{message}.*: start several processes with torchrun"), join_ranks(CPU):
        pass


def test_a_local_rank_that_is_not_a_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "first")
    with pytest.raises(ConfigError, match="LOCAL_RANK is 'first', not a number"):
        choose_device("auto")


def test_joining_where_nobody_listens_ends_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the death of torchrun, which is where the processes of a run meet."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    begin = monotonic()
    with pytest.raises(RanksError, match="Process 1 of 2 cannot join the others at localhost"), join_ranks(CPU):
        pass
    assert monotonic() - begin < 60


def children(process: int) -> list[int]:
    """The processes that a process has started, once they run the program."""
    found = [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [pid for pid in found if b"redi" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_processes_end_when_torchrun_is_killed_while_they_import(small_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "redi"]
    command += ["run", "--backbone", str(small_data / "backbone"), "--out", str(tmp_path / "run"), "--workers", "0"]
    command += ["--train", str(small_data / "train"), "--val", str(small_data / "val"), "--words", "16"]
    with (tmp_path / "said").open("w") as said:
        agent = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while len(ranks := children(agent.pid)) < 2 and agent.poll() is None:
        sleep(0.05)
    sleep(0.5)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    assert len(ranks) == 2, (tmp_path / "said").read_text()
    end = monotonic() + 60
    try:
        while any(map(is_running, ranks)) and monotonic() < end:
            sleep(0.1)
        assert not any(map(is_running, ranks)), "they wait for a torchrun that is gone"
    finally:
        for rank in filter(is_running, ranks):
            os.kill(rank, signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "said").read_text()
