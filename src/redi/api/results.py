"""What the functions of :mod:`redi.api` return: the records, with a table, a plot and a view for notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redi.checks import require_type
from redi.deploy.export import Exported
from redi.deploy.model import Accelerated
from redi.deploy.onnx_speed import REPEATS, measure_export
from redi.images.classes import find_class
from redi.learning.files import LearnedFile
from redi.records.audit import FILE as AUDIT_FILE, AuditRecord
from redi.records.comparison import Bundle
from redi.records.dense import FILE as DENSE_FILE, DenseRecord
from redi.records.deployed import STUDY as ACCELERATE, earlier_deployed
from redi.records.explained import Explained
from redi.records.learning import Training
from redi.records.outputs import TUNED, require_own, require_replaceable, require_run
from redi.records.results import Results, read_results
from redi.records.setting import Setting
from redi.records.texts import ClassTexts
from redi.records.timing import BENCH_KEYS, BenchResult, write_bench
from redi.records.tuning import Tuned
from redi.report.audit import TOP, audit_verdict, class_sheets, print_audit, ranking_sheet, titles_of
from redi.report.bench import bench_sheets, print_bench
from redi.report.compare import print_sheets, sheets as comparison_sheets
from redi.report.dense import class_sheet, dense_sheets, dense_verdict, draw_dense, print_dense
from redi.report.dense_scene import draw_scene
from redi.report.deployed import deployed_sheets
from redi.report.dots import Dot, draw_dots, draw_schedule
from redi.report.inspection import answer_sheet, far_note, print_inspection, score_sheet, write_picture
from redi.report.learning import draw_learning, learning_sheet, learning_verdict, print_learning
from redi.report.notebook import Table
from redi.report.pictures import draw_attention, draw_overview
from redi.report.sheets import Sheet
from redi.report.tables import paper_tables, print_tables
from redi.report.tasks import task_figures, task_sheets
from redi.report.tune import draw_curve, print_tuned, tune_sheet, verdict
from redi.rows import DENSE


class Shown:
    """A result that can be looked at."""

    def sheets(self) -> Sequence[Sheet]:
        raise NotImplementedError

    def table(self) -> Table:
        """The result as one or more tables: ``print`` them, or let a notebook show them."""
        return Table(self.sheets())

    def plot(self) -> Any:
        """The result as a figure of matplotlib."""
        raise NotImplementedError

    def print(self) -> None:
        """Print the result as the command does."""
        print(self)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True, repr=False)
class RunResult(Shown):
    """A finished run: ``RunResult(folder)`` opens any run folder."""

    folder: Path

    def __post_init__(self) -> None:
        require_type(self.folder, str | Path, "folder")
        object.__setattr__(self, "folder", Path(self.folder).expanduser())
        require_run(self.folder)

    @cached_property
    def results(self) -> Results:
        return read_results(self.folder)

    def sheets(self) -> Sequence[Sheet]:
        """The paper's Tables 1 to 3."""
        return list(paper_tables(self.results).values())

    def plot(self) -> Any:
        """Points of Top-1 that each score loses against dense, with 95 % intervals."""
        panels = {}
        for name in self.results.classifiers:
            rows = [self.results.row(score, name) for score in self.results.scores]
            dense = self.results.row(DENSE, name)
            title = f"{name} classifier, {dense.images} images, dense {dense.top1:.1f} %"
            panels[title] = [Dot(row.title, row.delta_dense, *row.delta_interval) for row in rows]
        return draw_dots(panels, "points of Top-1 against dense, 95 %", 0)

    def print(self) -> None:
        print_tables(self.results)


@dataclass(frozen=True, repr=False)
class ComparisonResult(Shown):
    """The comparisons that one call asked for."""

    folder: Path
    bundle: Bundle
    written: list[Path]
    tasks: Sequence[str] = ()  # studies of other tasks, which have records of their own

    def sheets(self) -> Sequence[Sheet]:
        results = read_results(self.folder)
        timed = any(entry.study.startswith(ACCELERATE) for entry in self.bundle.comparisons)
        deployed = deployed_sheets(results, earlier_deployed(self.folder)) if timed else {}
        tasks = task_sheets(self.folder, results) if self.tasks else {}
        others = [sheet for task in self.tasks for sheet in tasks[task].values()]
        return [*deployed.values(), *comparison_sheets(self.bundle, results), *others]

    def plot(self) -> Any:
        """Points of Top-1 that each row loses against dense, with 95 % intervals, one panel per comparison.

        If only other tasks were measured, the curve of the first of them.
        """
        if self.tasks and not self.bundle.comparisons:
            return task_figures(self.folder, read_results(self.folder))[self.tasks[0]][0]
        panels = {}
        for entry in self.bundle.comparisons:
            lines = sorted(entry.lines, key=lambda line: (round(line.row.cost, 2), -line.row.top1))
            dots = [Dot(line.row.title, line.row.delta_dense, *line.dense_interval) for line in lines]
            panels[f"{entry.title}, {entry.classifier} classifier"] = dots
        return draw_dots(panels, "points of Top-1 against dense, 95 %", 0)

    def print(self) -> None:
        print_sheets(self.sheets())


@dataclass(frozen=True, repr=False)
class AuditResult(Shown):
    """What distinguishes each class of the training images, and the page that shows it."""

    folder: Path
    record: AuditRecord
    page: Path
    names: Path | None = None

    @cached_property
    def titles(self) -> list[str]:
        return titles_of(self.record, self.names)

    @property
    def written(self) -> list[Path]:
        return [self.folder / AUDIT_FILE, self.page]

    @property
    def verdict(self) -> str:
        """One sentence on the whole data set."""
        return audit_verdict(self.record, self.titles)

    @property
    def flagged(self) -> list[str]:
        """The flagged classes, most suspicious first."""
        return [self.titles[label] for label in self.record.flagged]

    def sheets(self, top: int = TOP) -> Sequence[Sheet]:
        return [ranking_sheet(self.record, self.titles, top)]

    def of_class(self, name: str) -> Table:
        """The words of one class, named by its folder or its title, and the classes that share them."""
        return Table(self._class_sheets(name))

    def _class_sheets(self, name: str) -> list[Sheet]:
        folders = [own.name for own in self.record.classes]
        return class_sheets(self.record, self.titles, find_class(folders, self.titles, name))

    def plot(self) -> Any:
        """The suspicion of the most suspicious classes, with the limit."""
        shown = [(self.titles[label], self.record.classes[label].suspicion) for label in self.record.order[:20]]
        dots = [Dot(title, value, value, value) for title, value in shown]
        return draw_dots({"suspicion of the classes": dots}, "suspicion; the line is the limit", self.record.limit)

    def print(self, class_name: str = "", top: int = TOP) -> None:
        """Print the ranked classes, or the words of one class."""
        print_audit(self._class_sheets(class_name) if class_name else self.sheets(top))


@dataclass(frozen=True, repr=False)
class TextResult(Shown):
    """Embeddings of class names, and the file that holds them."""

    file: Path
    texts: ClassTexts

    def closest(self, count: int = 10) -> list[tuple[str, str, float]]:
        """The pairs of classes that the texts tell apart least: two names, and the cosine of their embeddings."""
        cosines = self.texts.embeddings @ self.texts.embeddings.T
        rows, columns = torch.triu_indices(len(cosines), len(cosines), offset=1)
        best = cosines[rows, columns].topk(min(count, len(rows)))
        names = self.texts.names
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(names[rows[place]], names[columns[place]], cosine) for place, cosine in pairs]

    def sheets(self) -> Sequence[Sheet]:
        texts = self.texts
        made = f"{len(texts.classes)} classes, {len(texts.templates)} prompts each, scale {texts.scale:.1f}."
        rows = [[first, second, f"{cosine:.3f}"] for first, second, cosine in self.closest()]
        return [Sheet("The closest class names", ("Class", "Other class", "Cosine"), rows, [made])]

    def plot(self) -> Any:
        """The cosines of the closest pairs of class names."""
        dots = [Dot(f"{first}, {second}", cosine, cosine, cosine) for first, second, cosine in self.closest()]
        return draw_dots({"the closest class names": dots}, "cosine of the embeddings", 1)


@dataclass(frozen=True, repr=False)
class DenseResult(Shown):
    """What dense prediction loses at each cost, and the page that shows it."""

    folder: Path
    record: DenseRecord
    page: Path

    @property
    def written(self) -> list[Path]:
        return [self.folder / DENSE_FILE, self.page]

    @property
    def verdict(self) -> str:
        """One sentence on what ships, at the cost closest to the default."""
        return dense_verdict(self.record)

    def sheets(self) -> Sequence[Sheet]:
        return [*dense_sheets(self.record), class_sheet(self.record)]

    def plot(self) -> Any:
        """mIoU and agreement with dense against cost."""
        return draw_dense(self.record)

    def scene(self, number: int = 0) -> Any:
        """One of the stored scenes at every cost: what the head decides, where that differs from dense, what merged."""
        return draw_scene(self.folder, number)

    def print(self) -> None:
        print_dense(self.record)


@dataclass(frozen=True, repr=False)
class TuneResult(Shown):
    """A tuned setting and the curve that it was chosen from."""

    tuned: Tuned
    written: Sequence[Path] = ()

    @property
    def setting(self) -> Setting:
        return self.tuned.setting

    @property
    def verdict(self) -> str:
        """One sentence that says which setting to use and why."""
        return verdict(self.tuned)

    def sheets(self) -> Sequence[Sheet]:
        sheet = tune_sheet(self.tuned)
        return [Sheet(sheet.title, sheet.columns, sheet.rows, [self.verdict, *sheet.notes], sheet.strong)]

    def plot(self) -> Any:
        """What is lost against the measured speed-up."""
        return draw_curve(self.tuned)

    def print(self) -> None:
        print_tuned(self.tuned)

    def save(self, folder: str | Path) -> list[Path]:
        """Write setting.json, tune.json and curve.png."""
        folder = Path(folder)
        require_own(folder, TUNED)
        written = self.tuned.write(folder)
        draw_curve(self.tuned, folder / "curve.png")
        return [*written, folder / "curve.png"]


@dataclass(frozen=True, repr=False)
class LearnResult(Shown):
    """A learned reducer, which ``redi.accelerate(model, reducer=result.learned)`` uses."""

    learned: LearnedFile
    file: Path

    @property
    def training(self) -> Training:
        return self.learned.training

    @property
    def verdict(self) -> str:
        """One sentence that says whether learning has paid."""
        return learning_verdict(self.training)

    def sheets(self) -> Sequence[Sheet]:
        return [learning_sheet(self.training)]

    def plot(self) -> Any:
        """The distance from dense over the steps."""
        return draw_learning(self.training)

    def print(self) -> None:
        print_learning(self.training)


@dataclass(frozen=True, repr=False)
class ExportResult(Shown):
    """An ONNX file that was compared with PyTorch."""

    exported: Exported
    model: Accelerated
    name: str  # of the original model
    pixels: Tensor  # what both runtimes saw

    @property
    def file(self) -> Path:
        return self.exported.file

    def measure(self, out: str | Path | None = None, *, repeats: int = REPEATS, threads: int = 0) -> "SpeedResult":
        """Time the file in onnxruntime, in turn with an export of the original model.

        ``threads`` are onnxruntime's, and 0 means its own choice; ``out`` is a JSON file for the record.
        """
        if out is not None:
            require_replaceable(Path(out), BENCH_KEYS)
        record = measure_export(self.model, self.file, self.pixels, self.name, repeats=repeats, threads=threads)
        if out is not None:
            write_bench(Path(out), record)
        return SpeedResult(record)

    def sheets(self) -> Sequence[Sheet]:
        exported = self.exported
        rows = [
            ["File", str(exported.file)],
            ["Size", f"{exported.bytes / 1e6:.1f} MB"],
            ["Input", "pixel_values " + "x".join(map(str, exported.inputs))],
            ["Outputs", ", ".join(exported.outputs)],
            ["Cost relative to dense", f"{self.model.cost():.3f}"],
            *(
                [f"Difference of {name} from PyTorch", f"{share:.1g} of the largest output"]
                for name, share in exported.differences.items()
            ),
        ]
        return [Sheet("ONNX export", ("", "Value"), rows, [])]

    def plot(self) -> Any:
        """The number of patch tokens after each block."""
        rows, columns = self.model.grid
        schedule = self.model.schedule(self.model.grid)
        return draw_schedule(rows * columns, schedule, f"{self.file.name}, cost {self.model.cost():.3f}")


@dataclass(frozen=True, repr=False)
class InspectionResult(Shown):
    """One image through every step."""

    image: Explained
    scorer: str  # the product that the picture shows, with a run

    @property
    def warning(self) -> str:
        """One sentence if the image is unlike the images of the run; otherwise empty."""
        closeness = self.image.closeness
        return far_note(self.image) if closeness is not None and closeness.is_far else ""

    def sheets(self) -> Sequence[Sheet]:
        scores = score_sheet(self.image)
        notes = [f"Warning: {self.warning}"] if self.warning else []
        sheets = [Sheet(scores.title, scores.columns, scores.rows, notes)]
        if self.image.guesses:
            shown = self.scorer if self.image.looked_up else next(iter(self.image.scores))
            sheets.append(answer_sheet(self.image, shown))
        return sheets

    def plot(self) -> Any:
        """The maps and the roles of the patches: the paper's Figure 1, if a run was given."""
        return draw_overview(self.image, self.scorer) if self.image.looked_up else draw_attention(self.image)

    def print(self) -> None:
        print_inspection(self.image, self.scorer)

    def save(self, file: str | Path) -> Path:
        """Write the plot as a PNG, PDF or SVG."""
        return write_picture(self.image, self.scorer, Path(file))


@dataclass(frozen=True, repr=False)
class SpeedResult(Shown):
    """Measured speed."""

    record: BenchResult

    def sheets(self) -> Sequence[Sheet]:
        return bench_sheets(self.record)

    def plot(self) -> Any:
        """Speed-up over dense with quartiles, one panel per batch size, precision and mode."""
        panels: dict[str, list[Dot]] = {}
        for row in self.record.rows:
            if row.speedup is not None and row.row != DENSE:
                name = f"{row.row} with scoring" if row.scoring else row.row
                dot = Dot(name, row.speedup, row.speedup_low or row.speedup, row.speedup_high or row.speedup)
                panels.setdefault(f"batch {row.batch}, {row.dtype}, {row.mode}", []).append(dot)
        return draw_dots(panels, "times as fast as dense, quartiles", 1)

    def print(self) -> None:
        print_bench(self.record)
