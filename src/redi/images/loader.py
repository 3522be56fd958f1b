"""Batches of decoded views, prepared ahead by worker processes so that the encoder never waits.

A worker decodes an image, resizes it, cuts the views and returns bytes (uint8). The main process normalises them,
so four times less data travels between the processes. An image that cannot be decoded is reported and left out; the
others keep their index.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from redi.errors import CorpusError, ImageError, LoaderError, RediError, one_line
from redi.images.labelled import LabelledImages
from redi.images.preprocessing import Preprocessing
from redi.images.workers import WorkerDied, leave_quietly, loaded_batches, worker_context
from redi.views import N_VIEWS, View

#: Seconds without a batch after which the workers are restarted.
PATIENCE = 120.0
#: Largest number of restarts in a row.
RESTARTS = 2
Item = TypeVar("Item")
Loaded = TypeVar("Loaded")

FEWER = "use fewer --workers or a smaller --batch-size and run the same command again."


@dataclass(frozen=True)
class Batch:
    """The images of a batch that could be decoded, and the reasons why others could not."""

    indices: list[int]
    labels: Tensor  # [batch] int64
    views: list[tuple[View, ...]]  # [batch][view]
    pixels: UInt8[Tensor, "batch views channels height width"]
    skipped: list[tuple[int, str]]  # (index, reason)
    features: dict[int, Tensor] | None = None  # cached features per block, instead of pixels


@runtime_checkable
class BatchSource(Protocol):
    """The source of the batches of a pass."""

    def __len__(self) -> int: ...

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterable[Batch]: ...


@dataclass(frozen=True)
class _Item:
    index: int
    views: tuple[View, ...]
    pixels: Tensor | None
    reason: str = ""
    failure: RediError | None = None  # ends the run; torch would wrap it in the text of a traceback if it were raised


class ViewDataset(Dataset[_Item]):
    """One item per image: its reference crop, or all four validation views, reference first."""

    def __init__(
        self,
        images: LabelledImages,
        preprocessing: Preprocessing,
        four_views: bool,
        seed: int,
        patience: float = PATIENCE,
    ) -> None:
        self.images = images
        self.preprocessing = preprocessing
        self.four_views = four_views
        self.seed = seed
        self.patience = patience

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: int) -> _Item:
        view_index = index if self.four_views else None
        try:
            views, pixels = self.preprocessing.cut(self.images.load(index), view_index, self.seed)
        except ImageError as error:
            return _Item(index, (), None, str(error))
        except RediError as error:
            return _Item(index, (), None, failure=error)
        except OSError as error:
            name = f"{self.images.image_name(index)} of {self.images.name}"
            failure: RediError = CorpusError(f"{name} can no longer be read: {error.strerror or one_line(error)}.")
            return _Item(index, (), None, failure=failure)
        except MemoryError:
            failure = LoaderError(f"Memory ran out when {self.images.image_name(index)} was decoded: {FEWER}")
            return _Item(index, (), None, failure=failure)
        return _Item(index, views, pixels)

    def collate(self, items: list[_Item]) -> Batch | RediError:
        """A batch, or the error that ends the run."""
        if failure := next((item.failure for item in items if item.failure), None):
            return failure
        decoded = [item for item in items if item.pixels is not None]
        size = self.preprocessing.size
        views = N_VIEWS if self.four_views else 1
        pixels = [item.pixels for item in decoded if item.pixels is not None]
        return Batch(
            indices=[item.index for item in decoded],
            labels=torch.tensor([self.images.labels[item.index] for item in decoded]).long(),
            views=[item.views for item in decoded],
            pixels=torch.stack(pixels) if pixels else torch.empty(0, views, 3, size, size, dtype=torch.uint8),
            skipped=[(item.index, item.reason) for item in items if item.pixels is None],
        )

    def batches(self, plan: Iterable[Sequence[int]], workers: int) -> Iterator[Batch]:
        """Load the given batches of indices in order, with ``workers`` processes (0 means none)."""
        return load_batches(self, self.collate, plan, workers, self.patience)


def load_batches(
    dataset: Dataset[Item],
    collate: Callable[[list[Item]], Loaded | RediError],
    plan: Iterable[Sequence[int]],
    workers: int,
    patience: float = PATIENCE,
) -> Iterator[Loaded]:
    """Load the batches of a plan in order, with ``workers`` processes (0 means none).

    A process that is forked while another thread holds a lock may never start. If no batch arrives for ``patience``
    seconds, the workers are restarted and continue with the batches that are left. ``collate`` makes a batch of items,
    or returns the error that ends the work.
    """
    batches = [list(indices) for indices in plan]
    workers, done, restarts = min(workers, len(batches)), 0, 0
    while done < len(batches):
        loader = DataLoader(
            dataset,
            batch_sampler=batches[done:],
            num_workers=workers,
            collate_fn=collate,
            prefetch_factor=2 if workers else None,
            timeout=patience if workers else 0,
            multiprocessing_context=worker_context() if workers else None,
            worker_init_fn=leave_quietly,
        )
        try:
            for batch in loaded_batches(loader):
                if isinstance(batch, RediError):
                    raise batch
                yield batch
                done, restarts = done + 1, 0
        except WorkerDied:
            raise LoaderError(
                f"A worker process that decodes images was killed, probably because memory ran out: {FEWER}"
            ) from None
        except OSError as error:
            raise LoaderError(
                f"The worker processes that decode images cannot be started ({one_line(error)}): {FEWER}"
            ) from None
        except RuntimeError as error:
            if "DataLoader timed out" not in str(error):
                raise
            restarts += 1
            if restarts > RESTARTS:
                raise LoaderError(
                    f"No image came from the worker processes for {restarts * patience:g} seconds. Check that the "
                    "disk is reachable and run the same command again, or use --workers 0."
                ) from error
