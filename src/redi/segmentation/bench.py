"""``redi dense``: a linear head, trained on dense tokens, reads the tokens of every row.

Each step leaves an artefact: batches of dense tokens, the head, one file per row, the times. The same command
continues after a kill; what is finished is not computed again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi.backbone import Backbone
from redi.backbone.checkpoint import checkpoint_digest, checkpoint_folder
from redi.backbone.own_input import load_with_own_input
from redi.checks import require_finite
from redi.errors import CorpusError
from redi.images.scenes import SceneBatch, SceneDataset, class_values, find_class_file, read_class_names
from redi.records.dense import MARKER, ROWS, SCENES, DenseConfig, DenseRecord, row_name, write_dense
from redi.records.outputs import require_apart, require_own
from redi.records.setting import RESTORES
from redi.rows import DENSE
from redi.runs.distributed import choose_device
from redi.runs.environment import environment, threads
from redi.runs.folder import lock, require_writable
from redi.runs.places import data_places
from redi.runs.progress import say, track
from redi.segmentation.folder import REFERENCE, TRAINING, BenchFolder, StoredTokens
from redi.segmentation.head import CELLS, LinearHead, Recipe, fit_head, majority
from redi.segmentation.measures import RowMeasures, confusion, patch_cosine
from redi.segmentation.parts import Part
from redi.segmentation.rows import Plan, encode_dense, encode_row, plan_rows
from redi.segmentation.speed import Times, time_rows
from redi.segmentation.summary import Measured, summarise


def measure_dense(config: DenseConfig) -> DenseRecord:
    """Train or load the head, measure the rows that are missing, time all of them, and write dense.json."""
    config = config.checked()
    out = Path(config.out).expanduser()
    places = [("the training scenes", place) for place in data_places(config.train)]
    places += [("the validation scenes", place) for place in data_places(config.val)]
    checkpoint = checkpoint_folder(config.backbone)
    require_apart(out, [*places, ("the backbone", checkpoint)])
    require_own(out, MARKER)
    require_writable(out)
    device = choose_device(config.device)
    with threads(config.threads):
        bench = Bench(config, load_with_own_input(config.backbone).to(device), checkpoint_digest(checkpoint))
        with lock(out):
            return bench.run()


class Bench:
    """A configuration bound to its data, its backbone and its folder. To make one checks the input alone."""

    def __init__(self, config: DenseConfig, backbone: Backbone, digest: str) -> None:
        self.config, self.backbone = config, backbone
        self.train, self.val = self._part("train"), self._part("val")
        values = {**self.val.survey.values, **self.train.survey.values}
        file = Path(config.names).expanduser() if config.names else find_class_file(Path(config.train).expanduser())
        names = read_class_names(file) if file else []
        self.classes, self.void = class_values(values, names, config.void)
        for name, part in (("training", self.train), ("validation", self.val)):
            if set(part.survey.values) <= {self.void}:
                raise CorpusError(f"No {name} scene has a labelled pixel: all of them are void ({self.void}).")
        self.geometries = {grid: replace(backbone.geometry, grid=grid) for grid in dict.fromkeys(self.val.grids)}
        self.plans, self.left_out = plan_rows(config.rows, config.costs, list(self.geometries.values()))
        self.recipe = Recipe(steps=config.steps, seed=config.seed)
        identity = {"backbone": digest, "train": self.train.scenes.fingerprint(), "val": self.val.scenes.fingerprint()}
        preprocessing = backbone.preprocessing
        settings = {
            "size": list(config.size),
            "resize": preprocessing.resample.name.lower(),
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "void": self.void,
            "classes": len(self.classes),
        }
        self.folder = BenchFolder(Path(config.out).expanduser(), identity, settings)

    def _part(self, name: str) -> Part:
        try:
            root = Path(getattr(self.config, name)).expanduser()
            return Part.open(root, self.config.limit, self.backbone.patch_size, self.config.size)
        except CorpusError as error:
            raise CorpusError(f"--{name}: {error}") from None

    def run(self) -> DenseRecord:
        self.folder.claim(self.config)
        self._announce()
        with torch.inference_mode():
            self._keep_scenes()
        head = self._head()
        with torch.inference_mode():
            self._dense_row(head)
            for plan in self.plans:
                self._row(plan, head)
            times = self._times()
        result = self._result(times)
        write_dense(self.folder.root, result)
        self.folder.discard(TRAINING)
        return result

    def _announce(self) -> None:
        sizes = Counter(self.val.sizes).most_common(1)[0][0]
        grid = self.val.grids[self.val.sizes.index(sizes)]
        say(
            f"{len(self.train.scenes)} + {len(self.val.scenes)} scenes, {len(self.classes)} classes, void is "
            f"{self.void}; input {sizes[1]}x{sizes[0]}, {grid[0]}x{grid[1]} patches"
        )
        for reason in self.left_out:
            say(f"  left out: {reason}")

    # The head

    def _head(self) -> LinearHead:
        recipe = {**asdict(self.recipe), "cells": CELLS}
        key = self.folder.key("head", **recipe)
        if not self.folder.current("head", key):
            with torch.inference_mode():
                files = self._training_tokens()
            with track("training the head", self.recipe.steps * self.recipe.batch) as advance:
                source = StoredTokens(files, self.train.plan, self.train.grids)
                head, loss = fit_head(source, len(self.classes), self.recipe, advance)
            self.folder.save("head", head.tensors(), key, loss=loss, images=len(self.train.scenes))
        self.folder.discard(TRAINING)
        return LinearHead(**self.folder.load("head")[0]).to(self.backbone.device)

    def _training_tokens(self) -> list[Path]:
        """Dense tokens of the training scenes in FP16, in files of one batch each."""
        names = [f"{TRAINING}/{number:05d}" for number in range(len(self.train.plan))]
        keys = [self.folder.key("training", cells=CELLS, indices=list(batch)) for batch in self.train.plan]
        for number, batch in self._missing(self.train, names, keys, "training tokens"):
            tokens = encode_dense(self.backbone, self._pixels(batch))
            _require_finite_tokens(tokens, self.train, batch)
            grid = self.train.grids[batch.indices[0]]
            size = CELLS * grid[0], CELLS * grid[1]
            cells = {
                f"cells.{row}": majority(labels, size, len(self.classes)) for row, labels in enumerate(batch.labels)
            }
            self.folder.save(names[number], {"tokens": tokens.half(), **cells}, keys[number])
        return [self.folder.path(name) for name in names]

    # The rows

    def _dense_row(self, head: LinearHead) -> None:
        """The dense row; its tokens and decisions stay on disk, batch by batch, for the other rows."""
        names = [f"{REFERENCE}/{number:05d}" for number in range(len(self.val.plan))]
        keys = [
            self.folder.key("reference", indices=list(batch), head=self.folder.digest("head"))
            for batch in self.val.plan
        ]
        for number, batch in self._missing(self.val, names, keys, "dense"):
            tokens = encode_dense(self.backbone, self._pixels(batch))
            maps = self._decisions(head, tokens, batch)
            matrices = torch.stack(
                [confusion(*pair, len(self.classes)) for pair in zip(maps, batch.labels, strict=True)]
            )
            content = {f"map.{row}": decided for row, decided in enumerate(maps)}
            self.folder.save(
                names[number], {"tokens": tokens.half(), "confusion": matrices.int(), **content}, keys[number]
            )
        key = self._row_key(DENSE, "", 1.0)
        if self.folder.current(f"{ROWS}/{DENSE}", key):
            return
        rows = RowMeasures(len(self.val.scenes), len(self.classes))
        for name, indices in zip(names, self.val.plan, strict=True):
            stored, _ = self.folder.load(name)
            for row, index in enumerate(indices):
                rows.add(index, stored["confusion"][row].long(), 100.0, 1.0)
                if index in self.val.shown:
                    rows.maps[f"map.{self.val.shown.index(index)}"] = stored[f"map.{row}"]
        self.folder.save(f"{ROWS}/{DENSE}", rows.tensors(), key)

    def _row(self, plan: Plan, head: LinearHead) -> None:
        """A row with both ways to restore the grid, from one pass."""
        names = {restore: f"{ROWS}/{row_name(plan.row, restore, plan.cost)}" for restore in RESTORES}
        keys = {restore: self._row_key(plan.row, restore, plan.cost, plan) for restore in RESTORES}
        if all(self.folder.current(names[restore], keys[restore]) for restore in RESTORES):
            return
        rows = {restore: RowMeasures(len(self.val.scenes), len(self.classes)) for restore in RESTORES}
        with track(str(plan), len(self.val.scenes)) as advance:
            for number, batch in enumerate(self._batches(self.val, self.val.plan)):
                reference, _ = self.folder.load(f"{REFERENCE}/{number:05d}")
                encoded = encode_row(self.backbone, plan, self._pixels(batch))
                for restore, tokens in encoded.tokens.items():
                    maps = self._decisions(head, tokens, batch)
                    cosines = patch_cosine(reference["tokens"], tokens.cpu())
                    for row, index in enumerate(batch.indices):
                        same = 100 * (maps[row] == reference[f"map.{row}"]).double().mean().item()
                        matrix = confusion(maps[row], batch.labels[row], len(self.classes))
                        rows[restore].add(index, matrix, same, cosines[row].item())
                        if index in self.val.shown:
                            scene = self.val.shown.index(index)
                            rows[restore].maps[f"map.{scene}"] = maps[row]
                            rows[restore].maps[f"groups.{scene}"] = encoded.source[row].int().cpu()
                advance(len(batch.indices))
        for restore in RESTORES:
            self.folder.save(names[restore], rows[restore].tensors(), keys[restore])

    def _decisions(self, head: LinearHead, tokens: Tensor, batch: SceneBatch) -> list[Tensor]:
        _require_finite_tokens(tokens, self.val, batch)
        grid = self.val.grids[batch.indices[0]]
        sizes = [(labels.shape[0], labels.shape[1]) for labels in batch.labels]
        return [head.decide(own, grid, size).cpu() for own, size in zip(tokens, sizes, strict=True)]

    def _row_key(self, row: str, restore: str, cost: float, plan: Plan | None = None) -> dict[str, Any]:
        schedules = {} if plan is None else {f"{grid}": list(extent.schedule) for grid, extent in plan.extents.items()}
        reducer = {} if plan is None else {"reducer": plan.description}
        head, shown = self.folder.digest("head"), self.val.shown
        return self.folder.key(
            "row", row=row, restore=restore, cost=cost, head=head, shown=shown, schedules=schedules, **reducer
        )

    # Times and results

    def _times(self) -> Times:
        """Seconds of all rows in turn, on one scene of the most frequent size."""
        size = Counter(self.val.sizes).most_common(1)[0][0]
        index = self.val.sizes.index(size)
        key = self.folder.key(
            "timing",
            rows=[[plan.row, plan.cost, list(plan.extents[self.val.grids[index]].schedule)] for plan in self.plans],
            repeats=self.config.repeats,
            environment=asdict(environment(self.backbone.device)),
            scene=index,
        )
        if not self.folder.current("timing", key):
            (batch,) = self._batches(self.val, [[index]])
            times = time_rows(self.backbone, self.plans, self._pixels(batch), self.config.repeats)
            self.folder.save("timing", times.tensors(), key)
        return Times(**self.folder.load("timing")[0])

    def _result(self, times: Times) -> DenseRecord:
        identities = [(DENSE, "", 1.0), *((p.row, restore, p.cost) for p in self.plans for restore in RESTORES)]
        measured = []
        for number, (row, restore, cost) in enumerate(identities):
            plan = None if row == DENSE else self.plans[(number - 1) // len(RESTORES)]
            stored, _ = self.folder.load(f"{ROWS}/{row_name(row, restore, cost)}")
            costs, left, schedule = self._spent(plan)
            measured.append(Measured(row, restore, cost, stored, costs, left, schedule))
        return summarise(
            measured,
            times,
            stems=self.val.scenes.stems,
            shown=self.val.shown,
            inputs=list(zip(self.val.survey.sizes, self.val.sizes, self.val.grids, strict=True)),
            classes=self.classes,
            void=self.void,
            head=(self.recipe, CELLS, self.folder.load("head")[1]["notes"]),
            left_out=self.left_out,
            config=self.config,
            environment=environment(self.backbone.device),
        )

    def _spent(self, plan: Plan | None) -> tuple[float, float, tuple[int, ...]]:
        """Mean analytic cost, mean tokens left, and the schedule on the most frequent grid."""
        grids = Counter(self.val.grids)
        total = grids.total()
        if plan is None:
            return 1.0, sum(count * grid[0] * grid[1] for grid, count in grids.items()) / total, ()
        cost = sum(count * plan.spent(self.geometries[grid]) for grid, count in grids.items()) / total
        left = sum(count * plan.extents[grid].schedule[-1] for grid, count in grids.items()) / total
        return cost, left, plan.extents[grids.most_common(1)[0][0]].schedule

    # Scenes

    def _keep_scenes(self) -> None:
        """The pictures and label maps of the report."""
        key = self.folder.key("scenes", shown=self.val.shown)
        if self.folder.current(SCENES, key):
            return
        content: dict[str, Tensor] = {}
        batches = self._batches(self.val, [[index] for index in self.val.shown])
        for number, batch in enumerate(batches):
            content |= {f"picture.{number}": batch.pixels[0], f"labels.{number}": batch.labels[0]}
        self.folder.save(SCENES, content, key)

    def _pixels(self, batch: SceneBatch) -> Tensor:
        return self.backbone.preprocessing.normalise(batch.pixels.to(self.backbone.device))

    def _batches(self, part: Part, plan: Sequence[Sequence[int]]) -> Iterator[SceneBatch]:
        dataset = SceneDataset(part.scenes, part.sizes, self.backbone.preprocessing, self.void)
        return dataset.batches(plan, self.config.workers)

    def _missing(
        self, part: Part, names: Sequence[str], keys: Sequence[Mapping[str, Any]], title: str
    ) -> Iterator[tuple[int, SceneBatch]]:
        """The batches whose artefacts are not there yet, with their numbers."""
        numbers = [k for k in range(len(names)) if not self.folder.current(names[k], keys[k])]
        if not numbers:
            return
        done = len(part.scenes) - sum(len(part.plan[number]) for number in numbers)
        with track(title, len(part.scenes), done) as advance:
            batches = self._batches(part, [part.plan[number] for number in numbers])
            for number, batch in zip(numbers, batches, strict=True):
                yield number, batch
                advance(len(batch.indices))


def _require_finite_tokens(tokens: Tensor, part: Part, batch: SceneBatch) -> None:
    for own, index in zip(tokens, batch.indices, strict=True):
        require_finite(own, f"The patch tokens of {part.scenes.stems[index]}")
