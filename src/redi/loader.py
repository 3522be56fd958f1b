"""Decoded views in batches, prepared ahead by worker processes so that the encoder never waits.

A worker decodes an image, resizes it, cuts the views and hands over bytes (uint8); the division and
the normalisation happen in the main process, so four times less data travels between them. An image
that cannot be decoded is reported and left out; the others keep their index.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from redi.backbone import Preprocessing
from redi.errors import ImageError, LoaderError
from redi.images import LabelledImages
from redi.views import View, crop, to_bytes, validation_views

#: Seconds without a batch after which the workers are started again, and how often in a row.
PATIENCE = 120
RESTARTS = 2


@dataclass(frozen=True)
class Batch:
    """The images of a batch that could be decoded, and what is to say of those that could not."""

    indices: list[int]
    labels: Tensor  # [batch] int64
    views: list[tuple[View, ...]]  # [batch][view]
    pixels: UInt8[Tensor, "batch views channels height width"]
    skipped: list[tuple[int, str]]  # (index, reason)
    features: dict[int, Tensor] | None = None  # of a cached pass, by block, instead of pixels


class BatchSource(Protocol):
    """Where a pass gets its batches from."""

    def __len__(self) -> int: ...

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterable[Batch]: ...


@dataclass(frozen=True)
class _Item:
    index: int
    views: tuple[View, ...]
    pixels: Tensor | None
    reason: str = ""


class ViewDataset(Dataset[_Item]):
    """One item an image: the reference crop, or all four validation views (reference first)."""

    def __init__(
        self, images: LabelledImages, preprocessing: Preprocessing, four_views: bool, seed: int
    ) -> None:
        self.images = images
        self.preprocessing = preprocessing
        self.four_views = four_views
        self.seed = seed

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: int) -> _Item:
        settings = self.preprocessing
        try:
            resized = settings.resized(self.images.load(index))
        except ImageError as error:
            return _Item(index, (), None, str(error))
        if self.four_views:
            views: tuple[View, ...] = validation_views(
                resized.width, resized.height, index, settings.size, self.seed
            )
        else:
            views = (settings.reference(resized),)
        crops = [to_bytes(crop(resized, view, settings.size, settings.resample)) for view in views]
        return _Item(index, views, torch.stack(crops))

    def collate(self, items: list[_Item]) -> Batch:
        good = [item for item in items if item.pixels is not None]
        size = self.preprocessing.size
        views = 4 if self.four_views else 1
        pixels = [item.pixels for item in good if item.pixels is not None]
        return Batch(
            indices=[item.index for item in good],
            labels=torch.tensor([self.images.labels[item.index] for item in good]).long(),
            views=[item.views for item in good],
            pixels=torch.stack(pixels)
            if pixels
            else torch.empty(0, views, 3, size, size, dtype=torch.uint8),
            skipped=[(item.index, item.reason) for item in items if item.pixels is None],
        )

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterator[Batch]:
        """The given batches of indices, in their order, ``workers`` processes ahead (0: none).

        A process that is forked while another thread of this one holds a lock may never start. Then no
        batch comes for :data:`PATIENCE` seconds, and the workers are started again from there.
        """
        batches = [list(indices) for indices in plan]
        workers, done, restarts = min(workers, len(batches)), 0, 0
        while done < len(batches):
            loader = DataLoader(
                self,
                batch_sampler=batches[done:],
                num_workers=workers,
                collate_fn=self.collate,
                prefetch_factor=2 if workers else None,
                timeout=PATIENCE if workers else 0,
            )
            try:
                for batch in loader:
                    yield batch
                    done, restarts = done + 1, 0
            except RuntimeError as error:
                if "DataLoader timed out" in str(error) and restarts < RESTARTS:
                    restarts += 1
                    continue
                if "DataLoader" not in str(error):
                    raise
                raise LoaderError(_failure(error)) from error


def _failure(error: RuntimeError) -> str:
    if "timed out" in str(error):
        return (
            f"No image came from the worker processes for {(RESTARTS + 1) * PATIENCE} seconds: is the "
            "disk reachable? Run the same command again, or with --workers 0."
        )
    return (
        "A worker process that decodes images was killed, probably for want of memory: use "
        "fewer --workers or a smaller --batch-size and run the same command again."
    )
