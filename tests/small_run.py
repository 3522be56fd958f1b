"""A run small enough for tests: a tiny backbone, four classes of coloured noise, chunks of eight images.

As a script it is what the fault tests start and kill: ``python small_run.py FOLDER OUT [options]``.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from redi.errors import RediError
from redi.pipeline import execute
from redi.records import artifacts
from redi.runs.config import AnalysisConfig, ProbeConfig, RunConfig, RuntimeConfig, VocabularyConfig

COLOURS = {"amber": (200, 140, 30), "blue": (30, 60, 200), "green": (40, 170, 60), "red": (200, 30, 40)}
TRAIN, VAL = 7, 5
#: The classes of a small head with seven classes that the folders stand for.
CLASS_MAP = "amber\t2\nblue\tLABEL_5\ngreen\t0\nred\t6\n"
#: Names that would break a page which took them for markup. A path holds what a name cannot: </script>.
HOSTILE_CLASS = "<"
HOSTILE_FOLDER = "script><img src=x onerror=document.title='taken over'>"


def write_images(folder: Path, train: int = TRAIN, val: int = VAL) -> None:
    """Noise around a class colour, with a square of it somewhere: enough for a probe to learn."""
    for split, count in (("train", train), ("val", val)):
        for label, (name, colour) in enumerate(COLOURS.items()):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                generator = torch.Generator().manual_seed(1000 * label + number + 100 * (split == "val"))
                noise = torch.randint(0, 256, (10, 12, 3), generator=generator, dtype=torch.uint8)
                image = Image.fromarray(noise.numpy()).resize((144, 120), Image.Resampling.BILINEAR)
                place = torch.randint(0, 60, (2,), generator=generator).tolist()
                image.paste(colour, (place[0], place[1], place[0] + 60, place[1] + 50))
                image.save(folder / split / name / f"{number:03d}.jpg")


def small_config(folder: Path, out: Path, words: int = 16, workers: int = 0) -> RunConfig:
    """Every chunk of eight images is saved at once, so that little work is lost when a run is killed."""
    return RunConfig(
        backbone=str(folder / "backbone"),
        train=str(folder / "train"),
        val=str(folder / "val"),
        out=str(out),
        vocabulary=VocabularyConfig(n_words=words),
        analysis=AnalysisConfig(n_words=16, sample=8, typical=2),
        probe=ProbeConfig(min_steps=50),
        runtime=RuntimeConfig(device="cpu", batch_size=4, workers=workers, threads=1, chunk=8, save_every=0),
    )


def copy_images(folder: Path, target: Path) -> RunConfig:
    """A run with images of its own, which a test may damage, and the backbone of ``folder``."""
    write_images(target)
    return replace(small_config(target, target / "run"), backbone=str(folder / "backbone"))


def start(folder: Path, out: Path, *options: str) -> None:
    """The run as a process that must succeed."""
    done = script(folder, out, *options)
    assert done.returncode == 0, done.stderr


def script(folder: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, str(folder), str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def torchrun(folder: Path, out: Path, processes: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), __file__, str(folder), str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def content(out: Path) -> dict[str, Any]:
    """Everything that a run computed: tensors by digest, rows as they are."""
    digests: dict[str, Any] = {
        str(path.relative_to(out)): artifacts.load(path)[1]["digest"] for path in sorted(out.rglob("*.safetensors"))
    }
    results = json.loads((out / "results.json").read_text())
    return {**digests, "rows": results["rows"], "digests": results["digests"]}


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock, to see that nothing was touched."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def interrupt_writes(kill_at: str, fails: bool, dies: bool) -> None:
    """Crash at the moment when a finished file would get its name.

    The process is killed where the path contains ``kill_at``, and half a file stays behind. With
    ``fails`` or ``dies`` the third artefact that this process writes is an error or its death.
    """
    rename = Path.replace
    written = 0

    def rename_or_crash(temporary: Path, target: Path) -> Path:
        nonlocal written
        written += target.suffix in (".safetensors", ".rows")
        if kill_at and kill_at in str(target):
            os.truncate(temporary, 100)
            os.kill(os.getpid(), signal.SIGKILL)
        if written == 3 and dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if written == 3 and fails:
            raise RediError("this process was told to fail")
        return rename(temporary, target)

    Path.replace = rename_or_crash  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kill-at", default="", help="part of the path whose write is not finished")
    parser.add_argument("--dying-rank", type=int, default=-1)
    parser.add_argument("--killed-rank", type=int, default=-1)
    parser.add_argument("--backbone", default="backbone")
    parser.add_argument("--classifier", default="probe")
    parser.add_argument("--cache", default="none")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--file-size-limit", type=int, default=0)
    options = parser.parse_args()

    rank = int(os.environ.get("RANK", "0"))
    interrupt_writes(options.kill_at, rank == options.dying_rank, rank == options.killed_rank)
    if options.file_size_limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_size_limit,) * 2)
    config = small_config(options.folder, options.out, workers=options.workers)
    config = replace(
        config,
        backbone=str(options.folder / options.backbone),
        classifier=options.classifier,
        class_map=str(options.folder / "map.tsv") if options.classifier != "probe" else "",
        runtime=replace(config.runtime, cache=options.cache),
    )
    try:
        execute(config)
    except RediError as error:
        sys.exit(f"redi: {error}")


if __name__ == "__main__":
    main()
