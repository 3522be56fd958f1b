"""``redi run`` and the stages as commands."""

import subprocess
import sys
from pathlib import Path

from redi.records.results import read_results
from redi.runs.config import read_config


def test_the_command_line_runs_the_protocol_with_its_flags(small_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "redi"]
    flags = ["--backbone", str(small_data / "backbone"), "--train", str(small_data / "train")]
    flags += ["--val", str(small_data / "val"), "--out", str(tmp_path / "run"), "--words", "16"]
    flags += "--passes 1 --threads 1 --workers 0 --batch-size 8 --seed 3 --resize lanczos".split()
    done = subprocess.run([*command, "run", *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Table 2" in done.stdout
    config = read_config(tmp_path / "run" / "config.toml")
    assert (config.vocabulary.n_passes, config.runtime.batch_size, config.seed) == (1, 8, 3)
    assert config.resize == read_results(tmp_path / "run").notes.resize == "lanczos"
    wrong = subprocess.run(
        [*command, "tfidf", *flags, "--device", "cuda:7"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("redi: There is no cuda:7 here")
    assert len(wrong.stderr.splitlines()) == 1
