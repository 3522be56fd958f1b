"""A pass over the images that can be killed at any moment, continued, and shared by processes.

The images are split into fixed chunks in index order. Each process takes whole chunks and saves its results in the
run folder every few seconds: rows (a few numbers per image) as new files, sums as one file that is replaced and
lists the chunks it covers. When all chunks are covered, the main process merges the parts of all processes, of this
run and of killed ones. Merging is exact in any order: rows are sorted by index, counts are integers, and the sums
of :mod:`redi.centroids` are multiples of a fixed step. So a continued run, or one with another number of processes,
gives the same result as an uninterrupted one.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from redi.errors import ArtifactError, CorpusError, ImageError, InvalidInput
from redi.images.labelled import digest_lines, refuse_damage
from redi.images.loader import Batch, BatchSource
from redi.records import artifacts
from redi.runs.config import RuntimeConfig
from redi.runs.distributed import Ranks
from redi.runs.progress import Pace, track

#: Saving takes at most one fiftieth of the time.
SAVE_SHARE = 50


@runtime_checkable
class Sums(Protocol):
    """State that adds up over chunks; ``merge_state`` must be exact in any order."""

    def state(self) -> dict[str, Tensor]: ...

    def merge_state(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass
class Outcome:
    """The outcome of a pass on the main process: rows in index order, sums of all processes."""

    indices: list[int]
    rows: dict[str, Tensor]
    sums: dict[str, Any]
    skipped: list[tuple[int, str]]


@dataclass(frozen=True)
class Pass:
    """The work on every image: ``step`` turns a batch into rows and adds to the sums."""

    name: str
    source: BatchSource
    step: Callable[[Batch, Mapping[str, Any]], Mapping[str, Tensor]]
    sums: Callable[[], dict[str, Any]] = dict
    indices: Sequence[int] | None = None  # None means all images
    flush: Callable[[], None] | None = None  # called before finished chunks are recorded as such
    title: str = ""  # for the progress, if the name is not for people
    forwards: float = 1.0  # dense forwards that an image takes, for the time that is left


@dataclass
class _Part:
    """The work that one process has finished since its run began."""

    chunks: list[int] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    row_files: int = 0


@dataclass(frozen=True)
class PassRunner:
    """Runs the passes of one run folder."""

    folder: Path  # of the parts, which are removed once their outcome is saved
    ranks: Ranks
    settings: RuntimeConfig
    pace: Pace = field(default_factory=Pace)

    def run(self, work: Pass, key: artifacts.Key) -> Outcome | None:
        """Finish a pass and merge its parts, including those of earlier runs with the same key.

        Only the main process returns the outcome; the others return None.
        """
        indices = list(range(len(work.source))) if work.indices is None else list(work.indices)
        size = self.settings.chunk
        chunks = [indices[at : at + size] for at in range(0, len(indices), size)]
        key = {**key, "chunk": size, "images": digest_lines(list(map(str, indices)))}
        folder = self.folder / work.name.replace(" ", "-")

        def remaining_chunks() -> tuple[list[int], int]:
            self._remove_foreign(folder, key)
            covered = self._covered(folder)
            generation = 1 + max((int(path.name[1:5]) for path in folder.glob("g*")), default=0)
            return [chunk for chunk in range(len(chunks)) if chunk not in covered], generation

        remaining, generation = self.ranks.share(remaining_chunks)
        stem = folder / f"g{generation:04d}-r{self.ranks.rank:04d}"
        self._work(work, key, stem, chunks, remaining[self.ranks.rank :: self.ranks.world])
        self.ranks.wait()
        if not self.ranks.is_main:
            return None
        outcome = self._merge(work, folder, indices)
        self._refuse_damage(work, outcome.skipped, len(indices))
        return outcome

    def discard(self, name: str) -> None:
        """Remove the parts of a pass whose outcome has been written."""
        if self.ranks.is_main:
            shutil.rmtree(self.folder / name.replace(" ", "-"), ignore_errors=True)

    def _work(
        self, work: Pass, key: artifacts.Key, stem: Path, chunks: Sequence[Sequence[int]], mine: Sequence[int]
    ) -> None:
        part, sums = _Part(), work.sums()
        rows: list[tuple[list[int], Mapping[str, Tensor]]] = []
        total = sum(map(len, chunks))
        share = sum(len(chunks[chunk]) for chunk in mine) * self.ranks.world
        saved = monotonic()
        pause = shortest = self.settings.save_every
        earlier = max(total - share, 0)
        self.pace.skip(earlier * work.forwards)
        with track(work.title or work.name, total, earlier, self.ranks.is_main, self.pace) as advance:
            for chunk, last, batch in self._batches(work, chunks, mine):
                if batch.skipped and self.settings.strict:
                    raise ImageError(f"{batch.skipped[0][1]} (--strict stops at the first unreadable image)")
                part.skipped += batch.skipped
                self._refuse_damage(work, part.skipped, total)
                if batch.indices:
                    rows.append((batch.indices, work.step(batch, sums)))
                images = (len(batch.indices) + len(batch.skipped)) * self.ranks.world
                self.pace.advance(images * work.forwards)
                advance(images)
                if last:
                    part.chunks.append(chunk)
                    if monotonic() - saved > pause:
                        begin = monotonic()
                        self._save(work, stem, key, part, sums, rows)
                        saved = monotonic()
                        if shortest:
                            pause = max(shortest, SAVE_SHARE * (saved - begin))
            if mine:
                self._save(work, stem, key, part, sums, rows)

    def _refuse_damage(self, work: Pass, skipped: Sequence[tuple[int, str]], total: int) -> None:
        """Stop a pass over a whole data set once more of it is damaged than is allowed."""
        if not skipped or work.indices is not None:
            return
        try:
            refuse_damage(len(skipped), total, skipped[0][1])
        except CorpusError:
            self.discard(work.name)  # the next run tries the images again
            raise

    def _batches(
        self, work: Pass, chunks: Sequence[Sequence[int]], mine: Sequence[int]
    ) -> Iterator[tuple[int, bool, Batch]]:
        """Yield (chunk, whether this batch is its last, batch). A batch never spans two chunks."""
        size = self.settings.batch_size
        plan = [
            (chunk, at + size >= len(chunks[chunk]), chunks[chunk][at : at + size])
            for chunk in mine
            for at in range(0, len(chunks[chunk]), size)
        ]
        loaded = work.source.batches([batch for _, _, batch in plan], self.settings.workers)
        for (chunk, last, _), batch in zip(plan, loaded, strict=True):
            yield chunk, last, batch

    def _save(
        self,
        work: Pass,
        stem: Path,
        key: artifacts.Key,
        part: _Part,
        sums: Mapping[str, Sums],
        rows: list[tuple[list[int], Mapping[str, Tensor]]],
    ) -> None:
        """Write the rows to a new file, then replace the part's own file; only then do the rows count."""
        if work.flush is not None:
            work.flush()
        if rows:
            tensors = {name: torch.cat([row[name].cpu() for _, row in rows]) for name in rows[0][1]}
            tensors[".indices"] = torch.tensor([index for indices, _ in rows for index in indices])
            _require_finite_rows(work, tensors)
            artifacts.save(_row_file(stem, part.row_files), tensors, key)
            part.row_files += 1
            rows.clear()
        state = {f"{name}/{field}": tensor for name, total in sums.items() for field, tensor in total.state().items()}
        state[".chunks"] = torch.tensor(part.chunks)
        artifacts.save(
            stem.with_name(f"{stem.name}.safetensors"), state, key, skipped=part.skipped, row_files=part.row_files
        )

    def _remove_foreign(self, folder: Path, key: artifacts.Key) -> None:
        """Remove parts with another key (e.g. another number of words) and parts whose rows are missing.

        The part's own file goes first: rows without it are ignored.
        """
        for path in _part_files(folder):
            manifest = artifacts.read_manifest(path)
            rows = manifest["notes"]["row_files"] if manifest else 0
            whole = all(_row_file(path.with_suffix(""), k).exists() for k in range(rows))
            if not (whole and artifacts.is_current(path, key)):
                path.unlink()
                for file in folder.glob(f"{path.stem}*"):
                    file.unlink()

    def _covered(self, folder: Path) -> set[int]:
        """The chunks that earlier runs finished."""
        return {int(chunk) for path in _part_files(folder) for chunk in artifacts.load(path)[0][".chunks"].tolist()}

    def _merge(self, work: Pass, folder: Path, expected: list[int]) -> Outcome:
        sums, skipped = work.sums(), []
        rows: list[dict[str, Tensor]] = []
        chunks: list[int] = []
        for path in _part_files(folder):
            state, manifest = artifacts.load(path)
            chunks += state[".chunks"].tolist()
            for name, total in sums.items():
                prefix = f"{name}/"
                total.merge_state({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
            skipped += [(int(index), str(reason)) for index, reason in manifest["notes"]["skipped"]]
            for number in range(manifest["notes"]["row_files"]):
                rows.append(artifacts.load(_row_file(path.with_suffix(""), number))[0])
        merged = {name: torch.cat([part[name] for part in rows]) for name in rows[0]} if rows else {}
        indices = merged.pop(".indices", torch.empty(0, dtype=torch.int64))
        order = indices.argsort()
        seen = sorted([*indices.tolist(), *(index for index, _ in skipped)])
        all_chunks = list(range(-(-len(expected) // self.settings.chunk)))
        if sorted(chunks) != all_chunks or seen != sorted(expected):
            raise ArtifactError(
                f"The parts in {folder} do not cover every image once. On a network file system they may not be "
                "visible yet: run the same command again."
            )
        return Outcome(
            indices[order].tolist(), {name: tensor[order] for name, tensor in merged.items()}, sums, sorted(skipped)
        )


def _require_finite_rows(work: Pass, tensors: Mapping[str, Tensor]) -> None:
    """Refuse outputs that are not finite, and name the first image. The rows are on the CPU, so no device waits."""
    for name, values in tensors.items():
        wrong = ~values.flatten(1).isfinite().all(dim=1) if values.ndim > 1 else ~values.isfinite()
        if wrong.any():
            index = int(tensors[".indices"][wrong][0])
            images = getattr(work.source, "images", None)
            image = f"image {index}" if images is None else images.image_name(index)
            raise InvalidInput(
                f"The {name} of {image} must be finite, but are not: check the weights of the model, and its "
                "preprocessing."
            )


def _part_files(folder: Path) -> list[Path]:
    """The parts, ``gNNNN-rNNNN.safetensors``; their rows are in ``gNNNN-rNNNN-NNNNNN.rows``."""
    return sorted(folder.glob("g????-r????.safetensors"))


def _row_file(stem: Path, number: int) -> Path:
    return stem.with_name(f"{stem.name}-{number:06d}.rows")
