"""What the campaign works on: images, checkpoints and finished runs of a user, and a watch over the user's bytes.

As a script it makes them: ``python -m chaos.ground FOLDER``. It is a process of its own because the campaign forks,
and a process that has computed with several threads must not.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Images per class of the large set, for training and validation: several chunks of the stock size of 256 images.
LARGE = (150, 70)

CONFIG = """
backbone = "{user}/{backbone}"
train = "{user}/{data}/train"
val = "{user}/{data}/val"
{more}
[vocabulary]
n_words = 16
[analysis]
n_words = 16
sample = 8
typical = 2
[probe]
min_steps = 50
[runtime]
device = "cpu"
threads = 1
{runtime}
"""


@dataclass(frozen=True)
class Ground:
    """The folders of a campaign."""

    root: Path

    @property
    def user(self) -> Path:
        """What belongs to the user: nothing may change in it."""
        return self.root / "user"

    @property
    def finished(self) -> Path:
        """An uninterrupted run on the small set, with a few compared rows. To be copied."""
        return self.root / "finished"

    def config(self, name: str) -> Path:
        return self.user / f"{name}.toml"

    def fresh(self, name: str) -> Path:
        """An empty place for one case."""
        place = self.root / "cases" / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    def run_folder(self, place: Path) -> Path:
        shutil.copytree(self.finished, place / "run")
        return place / "run"

    def build(self) -> None:
        if not (self.root / "ready").exists():
            shutil.rmtree(self.root, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "chaos.ground", str(self.root)], check=True)

    def watch(self) -> "Bytes":
        return Bytes(self.user)


@dataclass(frozen=True)
class Bytes:
    """A folder whose bytes must stay as they are."""

    folder: Path

    def state(self) -> dict[str, tuple[int, ...]]:
        """Type, size, time and inode of everything below: a write, a rename and a removal all show."""
        entries: dict[str, tuple[int, ...]] = {}
        for root, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = Path(root, name)
                status = path.lstat()
                times = () if name in folders else (status.st_size, status.st_mtime_ns, status.st_ino)
                entries[str(path.relative_to(self.folder))] = (status.st_mode, *times)
        return entries


def content(run: Path) -> dict[str, Any]:
    """Everything that a run computed: its artefacts by digest, its rows as they are."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*.safetensors")):
        if "partial" not in path.parts:
            found[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()
    results = json.loads((run / "results.json").read_text())
    return {**found, "rows": results["rows"], "digests": results["digests"]}


def write_shard(folder: Path, images: Path) -> None:
    folder.mkdir()
    with tarfile.open(folder / "0.tar", "w") as shard:
        for number, file in enumerate(sorted(images.rglob("*.jpg"))):
            for suffix, data in (("jpg", file.read_bytes()), ("cls", file.parent.name.encode())):
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))


def write_hub(folder: Path, picture: bytes) -> None:
    """Data sets of the ``datasets`` library with a mistake each."""
    from datasets import Dataset, Features, Image as Picture, Value

    good = {"bytes": picture, "path": None}
    features = Features({"image": Picture(), "label": Value("int64")})
    for name, images, labels in (
        ("null-image", [good, None, good], [0, 1, 1]),
        ("huge-label", [good, good, good], [0, 1, 10**12]),
        ("foreign-path", [good, {"bytes": None, "path": "/etc/passwd"}, good], [0, 1, 1]),
        ("no-label", [good, good, good], [0, None, 1]),
    ):
        Dataset.from_dict({"image": images, "label": labels}, features).save_to_disk(str(folder / name))


def make(root: Path) -> None:
    from chaos.bad_learned import write_learned_files
    from chaos.saves import write_saved_models
    from families import save_checkpoint
    from redi.records.outputs import MARK
    from small_run import CLASS_MAP, write_images

    ground = Ground(root)
    ground.user.mkdir(parents=True)
    write_images(ground.user / "small")
    write_images(ground.user / "large", *LARGE)
    save_checkpoint("dinov3", ground.user / "backbone")
    save_checkpoint("vit_head", ground.user / "head")
    write_shard(ground.user / "train-shards", ground.user / "small" / "train")
    write_shard(ground.user / "val-shards", ground.user / "small" / "val")
    (ground.user / "map.tsv").write_text(CLASS_MAP)
    shutil.copytree(ground.user / "small" / "val" / "red", ground.user / "photos")
    write_hub(ground.user / "hub", (ground.user / "photos" / "000.jpg").read_bytes())
    (ground.user / "marked.onnx").write_text(MARK)  # as if it were an earlier export
    write_learned_files(ground.user)
    write_saved_models(ground.user)
    precious = ground.user / "precious"  # a folder that only looks like a run
    (precious / "partial").mkdir(parents=True)
    for name in ("config.toml", "results.json", "partial/thesis.tex", ".results.json.123", "notes.txt"):
        (precious / name).write_text("ten years of work")
    small = "chunk = 8\nbatch_size = 4\nsave_every = 0\nworkers = {}"
    head = 'classifier = "both"\nclass_map = "{}"'.format(ground.user / "map.tsv")
    for name, data, backbone, more, runtime in (
        ("small", "small", "backbone", "", small.format(0)),
        ("workers", "small", "head", head, small.format(2)),
        ("cached", "small", "backbone", "", small.format(1) + '\ncache = "fp16"'),
        ("stock", "large", "backbone", "", "save_every = 0.2\nworkers = 1"),
    ):
        text = CONFIG.format(user=ground.user, data=data, backbone=backbone, more=more, runtime=runtime)
        ground.config(name).write_text(text)
    redi = [sys.executable, "-m", "redi"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = [*redi, "run", "--config", str(ground.config("workers")), "--out", str(ground.finished)]
    subprocess.run(run, **quiet)  # type: ignore[call-overload]
    rows = ["--scorer", "mass", "--reducer", "prune", "--reducer", "tome", "--cost", "0.7"]
    subprocess.run([*redi, "compare", str(ground.finished), *rows], **quiet)  # type: ignore[call-overload]
    (root / "ready").touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
