"""A run small enough for tests: a tiny backbone, four classes of coloured noise, chunks of eight images.

As a script it is what the fault tests start and kill: ``python small_run.py FOLDER OUT [options]``.
"""

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from redi.config import AnalysisConfig, ProbeConfig, RunConfig, RuntimeConfig, VocabularyConfig

COLOURS = {
    "amber": (200, 140, 30),
    "blue": (30, 60, 200),
    "green": (40, 170, 60),
    "red": (200, 30, 40),
}
TRAIN, VAL = 7, 5


def write_images(folder: Path) -> None:
    """Noise around a class colour, with a square of it somewhere: enough for a probe to learn."""
    for split, count in (("train", TRAIN), ("val", VAL)):
        for label, (name, colour) in enumerate(COLOURS.items()):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                generator = torch.Generator().manual_seed(
                    1000 * label + number + 100 * (split == "val")
                )
                noise = torch.randint(0, 256, (10, 12, 3), generator=generator, dtype=torch.uint8)
                image = Image.fromarray(noise.numpy()).resize((144, 120), Image.Resampling.BILINEAR)
                place = torch.randint(0, 60, (2,), generator=generator).tolist()
                image.paste(colour, (place[0], place[1], place[0] + 60, place[1] + 50))
                image.save(folder / split / name / f"{number:03d}.jpg")


def small_config(folder: Path, out: Path, words: int = 16, workers: int = 0) -> RunConfig:
    return RunConfig(
        backbone=str(folder / "backbone"),
        train=str(folder / "train"),
        val=str(folder / "val"),
        out=str(out),
        vocabulary=VocabularyConfig(n_words=words),
        analysis=AnalysisConfig(n_words=16, sample=8, typical=2),
        probe=ProbeConfig(min_steps=50),
        runtime=RuntimeConfig(device="cpu", batch_size=4, workers=workers, threads=1),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--kill-at", default="", help="part of the path whose write is not finished"
    )
    parser.add_argument("--dying-rank", type=int, default=-1)
    parser.add_argument("--killed-rank", type=int, default=-1)
    parser.add_argument("--backbone", default="backbone")
    parser.add_argument("--classifier", default="probe")
    parser.add_argument("--cache", default="none")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--file-size-limit", type=int, default=0)
    options = parser.parse_args()

    from redi import artifacts, passes
    from redi.errors import RediError
    from redi.pipeline import execute

    passes.CHUNK, passes.SAVE_EVERY, passes.SAVE_SHARE = 8, 0.0, 0
    if options.kill_at:
        original = artifacts.write_bytes

        def write_or_die(path: Path, content: bytes) -> None:
            if options.kill_at in str(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_name(f".{path.name}.{os.getpid()}").write_bytes(content[:100])
                os.kill(os.getpid(), signal.SIGKILL)
            original(path, content)

        artifacts.write_bytes = write_or_die
    if options.file_size_limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_size_limit,) * 2)
    rank = int(os.environ.get("RANK", "0"))
    if rank in (options.dying_rank, options.killed_rank):
        original_save = artifacts.save
        calls = 0

        def save_or_fail(*arguments: Any, **notes: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 3 and rank == options.killed_rank:
                os.kill(os.getpid(), signal.SIGKILL)
            if calls == 3:
                raise RediError("this process was told to fail")
            original_save(*arguments, **notes)

        artifacts.save = save_or_fail
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
