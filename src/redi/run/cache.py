"""``--cache fp16``: patch features of the corpus on disk, so that later passes skip the backbone.

There is one flat file of float16 per block, ``[images, patches, width]``, mapped into memory. The first pass writes
the rows of each image, later passes read them. With a cache, every pass rounds features to FP16, including the
first, so results do not depend on which passes found the cache complete.
"""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from redi.errors import ArtifactError, ConfigError
from redi.images.loader import Batch
from redi.records import artifacts


@dataclass(frozen=True)
class FeatureCache:
    folder: Path
    blocks: tuple[int, ...]
    n_images: int
    n_patches: int
    width: int

    @property
    def bytes(self) -> int:
        return 2 * len(self.blocks) * self.n_images * self.n_patches * self.width

    def prepare(self) -> bool:
        """Create the missing files and return whether there were any; a full disk is an error."""
        missing = [block for block in self.blocks if not self._has_size(block)]
        needed = len(missing) * self.bytes // len(self.blocks)
        if not missing:
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "complete.json").unlink(missing_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise ConfigError(
                f"--cache fp16 needs {needed / 2**30:.1f} GB in {self.folder}, but {free / 2**30:.1f} GB are free: "
                "choose another --out, or run without --cache."
            )
        try:
            for block in missing:
                with self._file(block).open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, self.bytes // len(self.blocks))
        except OSError as error:
            raise ArtifactError(f"The cache {self.folder} cannot be created: {error.strerror}.") from None
        return True

    def write(self, indices: Sequence[int], features: dict[int, Tensor]) -> None:
        for block in self.blocks:
            self._map(block, "r+")[list(indices)] = features[block].half().cpu().numpy()

    def read(self, indices: Sequence[int]) -> dict[int, Tensor]:
        return {block: torch.from_numpy(self._map(block, "r")[list(indices)]) for block in self.blocks}

    def is_complete(self, key: artifacts.Key) -> bool:
        note = self.folder / "complete.json"
        if not note.exists() or not all(map(self._has_size, self.blocks)):
            return False
        try:
            return bool(json.loads(note.read_text(encoding="utf-8")) == json.loads(json.dumps(key)))
        except (OSError, ValueError):
            return False

    def complete(self, key: artifacts.Key) -> None:
        artifacts.write_text(self.folder / "complete.json", json.dumps(key))

    def _file(self, block: int) -> Path:
        return self.folder / f"block{block}.f16"

    def _has_size(self, block: int) -> bool:
        file = self._file(block)
        return file.exists() and file.stat().st_size == self.bytes // len(self.blocks)

    def _map(self, block: int, mode: str) -> "np.memmap[tuple[int, int, int], np.dtype[np.float16]]":
        shape = (self.n_images, self.n_patches, self.width)
        return np.memmap(self._file(block), np.float16, mode, shape=shape)  # type: ignore[call-overload, no-any-return]


class CachedImages:
    """Batches of cached features instead of pixels, read in this process because nothing is decoded."""

    def __init__(self, cache: FeatureCache, labels: Sequence[int]) -> None:
        self.cache, self.labels = cache, labels

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterable[Batch]:
        del workers
        for indices in plan:
            yield Batch(
                indices=list(indices),
                labels=torch.tensor([self.labels[index] for index in indices]),
                views=[],
                pixels=torch.empty(0, 0, 0, 0, 0, dtype=torch.uint8),
                skipped=[],
                features=self.cache.read(indices),
            )
