"""``--cache fp16``: patch features of the corpus on disk, so that later passes skip the backbone.

There is one flat file of float16 per block, ``[images, patches, width]``, mapped into memory. The first pass writes
the rows of each image, later passes read them. With a cache, every pass rounds features to FP16, including the
first, so results do not depend on which passes found the cache complete.

Files that were written just before a power cut may come back as zeros. So the cache is flushed to disk before a chunk
of the first pass counts as done, and the features of every image and block have a checksum. A process checks it when
it first reads an image that it has not written itself; features that do not match are computed again.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from redi.errors import ArtifactError, ConfigError
from redi.images.loader import Batch
from redi.records import artifacts
from redi.runs.progress import say

Features = Mapping[int, Tensor]


class FeatureCache:
    """The features of the corpus after several blocks, and which of them this process can rely on."""

    def __init__(self, folder: Path, blocks: tuple[int, ...], n_images: int, n_patches: int, width: int) -> None:
        self.folder = folder
        self.blocks = blocks
        self.n_images, self.n_patches, self.width = n_images, n_patches, width
        self._digests = torch.zeros(n_images, len(blocks), dtype=torch.int64)
        self._trusted = torch.zeros(n_images, dtype=torch.bool)  # written or checked by this process
        self._record = folder / "digests.safetensors"

    @property
    def bytes(self) -> int:
        return 2 * len(self.blocks) * self.n_images * self.n_patches * self.width

    def require_space(self) -> None:
        """Refuse a disk that has no room for the files that are missing."""
        needed = len(self._missing()) * self.bytes // len(self.blocks)
        existing = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise ConfigError(
                f"--cache fp16 needs {needed / 2**30:.1f} GB in {self.folder}, but {free / 2**30:.1f} GB are free: "
                "choose another --out, or run without --cache."
            )

    def prepare(self) -> bool:
        """Create the missing files and return whether there were any."""
        missing = self._missing()
        if not missing:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._record.unlink(missing_ok=True)
            for block in missing:
                with self._file(block).open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, self.bytes // len(self.blocks))
        except OSError as error:
            raise ArtifactError(f"The cache {self.folder} cannot be created: {error.strerror}.") from None
        self._trusted[:] = False
        return True

    def write(self, indices: Sequence[int], features: Features) -> None:
        halves = {block: features[block].half().cpu() for block in self.blocks}
        for block, half in halves.items():
            self._map(block, "r+")[list(indices)] = half.numpy()
        self._digests[list(indices)] = _digests(halves)
        self._trusted[list(indices)] = True

    def digests(self, indices: Sequence[int]) -> Int64[Tensor, "batch blocks"]:
        """The digests of images that this process has written."""
        return self._digests[list(indices)]

    def flush(self) -> None:
        """Wait until everything that was written is on disk."""
        try:
            for block in self.blocks:
                with self._file(block).open("rb") as file:
                    os.fsync(file.fileno())
        except OSError as error:
            raise ArtifactError(f"The cache {self.folder} cannot be written: {error.strerror}.") from None

    def read(self, indices: Sequence[int]) -> Features | None:
        """The features of some images; None if they are damaged."""
        halves = {block: torch.from_numpy(self._map(block, "r")[list(indices)]) for block in self.blocks}
        if not self._trusted[list(indices)].all():
            if not torch.equal(_digests(halves), self._digests[list(indices)]):
                return None
            self._trusted[list(indices)] = True
        return halves

    def complete(self, key: artifacts.Key, indices: Tensor, digests: Int64[Tensor, "images blocks"]) -> None:
        """Record that the features of all these images are in the cache."""
        artifacts.save(self._record, {"indices": indices, "digests": digests}, key)

    def open(self, key: artifacts.Key) -> bool:
        """Whether the cache is complete for this key; its digests are then read."""
        try:
            if self._missing() or not artifacts.is_current(self._record, key):
                return False
            stored, _ = artifacts.load(self._record)
        except ArtifactError:  # damaged: the images are read instead
            return False
        self._digests[stored["indices"]] = stored["digests"]
        return True

    def _missing(self) -> list[int]:
        return [block for block in self.blocks if not self._has_size(block)]

    def _file(self, block: int) -> Path:
        return self.folder / f"block{block}.f16"

    def _has_size(self, block: int) -> bool:
        file = self._file(block)
        return file.exists() and file.stat().st_size == self.bytes // len(self.blocks)

    def _map(self, block: int, mode: str) -> "np.memmap[tuple[int, int, int], np.dtype[np.float16]]":
        shape = (self.n_images, self.n_patches, self.width)
        return np.memmap(self._file(block), np.float16, mode, shape=shape)  # type: ignore[call-overload, no-any-return]


class CachedImages:
    """Batches of cached features instead of pixels, read in this process because nothing is decoded.

    ``recompute`` makes the features of images whose cached features are damaged.
    """

    def __init__(
        self, cache: FeatureCache, labels: Sequence[int], recompute: Callable[[Sequence[int]], Features]
    ) -> None:
        self.cache, self.labels, self.recompute = cache, labels, recompute

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterable[Batch]:
        del workers
        damaged = False
        for indices in plan:
            features = self.cache.read(indices)
            if features is None:
                if not damaged:
                    say(f"warning: the cache {self.cache.folder} is damaged; what is wrong is computed again")
                damaged = True
                features = self.recompute(indices)
            yield Batch(
                indices=list(indices),
                labels=torch.tensor([self.labels[index] for index in indices]),
                views=[],
                pixels=torch.empty(0, 0, 0, 0, 0, dtype=torch.uint8),
                skipped=[],
                features=dict(features),
            )


def _digests(halves: Features) -> Int64[Tensor, "batch blocks"]:
    """One checksum per image and block. It guards against lost pages, not against forgery, so CRC-32 is enough."""
    columns = [[zlib.crc32(np.ascontiguousarray(image).data) for image in half.numpy()] for half in halves.values()]
    return torch.tensor(columns).T
