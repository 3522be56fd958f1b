"""How long the report of a large run takes to build, and how big it is.

    python benchmarks/report.py runs/demo

The records of a finished run are copied and its predictions repeated, until there are as many images and
classes as in ImageNet-1K's validation set. The report then reads as much as it would there.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from redi.records import artifacts
from redi.report.build import build_report

IMAGES, CLASSES = 50_000, 1_000


def enlarge(run: Path) -> None:
    """Predictions for 50,000 images and a table of 1,000 classes; the explorer sample stays."""
    for path in (run / "predictions").rglob("*.safetensors"):
        manifest = artifacts.read_manifest(path)
        assert manifest is not None
        tensors = load_file(path)
        first = tensors["indices"].max().item() + 1
        more = IMAGES - len(tensors["indices"])
        rows = torch.arange(more) % len(tensors["indices"])
        grown = {name: torch.cat([tensor, tensor[rows]]) for name, tensor in tensors.items()}
        grown["indices"][-more:] = torch.arange(first, first + more)
        artifacts.save(path, grown, manifest["key"], **manifest["notes"])
    path = run / "tfidf.safetensors"
    manifest = artifacts.read_manifest(path)
    assert manifest is not None
    tensors = load_file(path)
    classes = torch.arange(CLASSES) % len(tensors["class_images"])
    for name in ("table", "contrast", "support", "word_counts", "class_images"):
        tensors[name] = tensors[name][classes]
    artifacts.save(path, tensors, manifest["key"], **manifest["notes"])
    path = run / "analysis" / "explorer.safetensors"
    manifest = artifacts.read_manifest(path)
    assert manifest is not None
    notes = manifest["notes"]
    notes["classes"] = [f"class {number}" for number in range(CLASSES)]
    artifacts.save(path, load_file(path), manifest["key"], **notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="folder of a finished run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        shutil.copytree(options.run, run, ignore=shutil.ignore_patterns("images", "cache", "partial"))
        enlarge(run)
        begin = time.perf_counter()
        page = build_report(run)
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": round(seconds, 2), "MB": round(page.stat().st_size / 1e6, 2)}))


if __name__ == "__main__":
    main()
