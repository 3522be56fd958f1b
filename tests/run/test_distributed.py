"""Several processes share a run, and one of them may die."""

from pathlib import Path

from small_run import content, start, torchrun


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
