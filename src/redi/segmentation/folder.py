"""The folder of a bench: what it was made from, what is already there, and chunks of tokens on disk.

OUT/
  identity.json         the marker: digests of the backbone and of both data sets
  head.safetensors      the linear head
  scenes.safetensors    the pictures and label maps of the report
  reference/            dense tokens (FP16) and decisions of the validation scenes, batch by batch
  rows/<row>.safetensors   per-image counts, agreement and cosine; maps of the shown scenes
  timing.safetensors    seconds of every repeat
  dense.json            the results
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
from jaxtyping import Float, UInt8
from torch import Tensor

from redi.errors import ArtifactError
from redi.grid import Grid
from redi.records import artifacts, drafts
from redi.records.dense import MARKER, DenseConfig

#: Increased by one when the bench computes something new, so that old artefacts are made again.
FORMAT = 1
#: Training tokens, which are removed when the head is trained.
TRAINING = "training"
#: Dense tokens and decisions of the validation scenes.
REFERENCE = "reference"


class BenchFolder:
    """Artefacts of one bench, each with a key that says what it was made from."""

    def __init__(self, root: Path, identity: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        self.root = root
        self.identity = dict(identity)
        self._key = {"format": FORMAT, **identity, **settings}

    def claim(self, config: DenseConfig) -> None:
        """Write the marker, or refuse the folder of another backbone or other data."""
        if MARKER.marks(self.root):
            recorded = json.loads((self.root / MARKER.file).read_text(encoding="utf-8"))
            for part in ("backbone", "train", "val"):
                if recorded[part] != self.identity[part]:
                    limited = f" with --limit {config.limit}" if config.limit and part != "backbone" else ""
                    raise ArtifactError(
                        f"{self.root} belongs to another {part} than {getattr(config, part)}{limited}, or its content "
                        "has changed since: choose another --out."
                    )
            drafts.clear(self.root)
        else:
            content = {**self.identity, "bench": "dense prediction"}
            artifacts.write_text(self.root / MARKER.file, json.dumps(content, indent=2) + "\n")

    def path(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"

    def key(self, stage: str, **settings: Any) -> dict[str, Any]:
        return {"stage": stage, **self._key, **settings}

    def current(self, name: str, key: artifacts.Key) -> bool:
        return artifacts.is_current(self.path(name), key)

    def save(self, name: str, tensors: Mapping[str, Tensor], key: artifacts.Key, **notes: Any) -> None:
        artifacts.save(self.path(name), tensors, key, **notes)

    def load(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return artifacts.load(self.path(name))

    def digest(self, name: str) -> str:
        manifest = artifacts.read_manifest(self.path(name))
        assert manifest is not None
        digest: str = manifest["digest"]
        return digest

    def discard(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)


class StoredTokens:
    """Training tokens in files that are mapped into memory: only what a step reads is loaded."""

    def __init__(self, files: Sequence[Path], plan: Sequence[Sequence[int]], grids: Sequence[Grid]) -> None:
        self.grids = grids
        self._files = [safetensors.safe_open(file, framework="pt") for file in files]
        self._place = {index: (chunk, row) for chunk, batch in enumerate(plan) for row, index in enumerate(batch)}
        # Cells are a hundredth of the tokens, and every epoch asks for their shapes.
        self._cells = {
            index: self._files[chunk].get_tensor(f"cells.{row}") for index, (chunk, row) in self._place.items()
        }

    def tokens(self, index: int) -> Float[Tensor, "patches dim"]:
        chunk, row = self._place[index]
        tokens: Tensor = self._files[chunk].get_slice("tokens")[row]
        return tokens

    def cells(self, index: int) -> UInt8[Tensor, "cell_rows cell_columns"]:
        cells: Tensor = self._cells[index]
        return cells
