"""The results of ``redi dense``: the content of dense.json, and the maps of the scenes that a report shows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from torch import Tensor

from redi import bounds
from redi.errors import ConfigError
from redi.grid import Grid
from redi.records import artifacts
from redi.records.outputs import Marker
from redi.records.reading import read_record, write_record
from redi.records.results import Environment
from redi.records.timing import Timing
from redi.rows import DENSE

FILE = "dense.json"
#: The marker of the folder, its first file: what the bench was made from.
MARKER = Marker("identity.json", ("backbone", "train", "val", "bench"))
#: The artefact with the shown pictures and their label maps, and the folder of the rows.
SCENES, ROWS = "scenes", "rows"
COMMAND = "redi dense"
#: The row of what :func:`redi.accelerate` ships for a dense task.
ACCELERATE = "accelerate"
COSTS = (0.5, 0.65, 0.75)
#: The meaning of the numbers, stored with them and printed under the tables.
DEFINITIONS = {
    "miou": "mean IoU in percent, from the pixels of all images together, over the classes that the labels have; void "
    "pixels are left out.",
    "accuracy": "percent of labelled pixels whose class is right.",
    "agreement": "percent of all pixels, void or not, with the same class as dense; mean over images.",
    "cosine": "of the final normed patch tokens with dense's; mean over patches, then over images.",
    "tokens": "patch tokens after the last block; mean over images.",
    "analytic": "multiply-adds of the blocks and of the reducer, relative to dense; mean over images.",
    "interval": "95 %, paired bootstrap over images.",
    "p": "paired t-test over images against the reference row, Holm-corrected over the rows of a cost.",
    "speed": "from normalised pixels to the final normed tokens on the full grid, batch 1, FP32; quartiles over "
    "interleaved repeats, as ratios to dense.",
    "memory": "peak on top of weights and input, in MB of 1e6 bytes; on a CPU it counts live tensors, without the "
    "kernels' own buffers.",
    "input": "a picture is resized to the largest multiple of the patch within its own size or that of --size; a label "
    "map is never resized, the logits are upsampled to it.",
}

#: The number of images below which the intervals of mIoU are clearly too narrow.
FEW_IMAGES = 30


def interval_warning(images: int) -> str:
    """What to know about intervals of mIoU over few images; empty if there are enough."""
    if images >= FEW_IMAGES:
        return ""
    return (
        f"{images} images are few: the 95 % intervals of mIoU are too narrow. In simulations they hold the true value "
        "in 83 % of samples of 4 images and in 90 % of those of 8 or 20."
    )


@dataclass(frozen=True)
class DenseConfig:
    backbone: str
    train: str
    val: str
    out: str
    costs: Annotated[tuple[float, ...], bounds.COST] = COSTS
    rows: tuple[str, ...] = ()  # empty means the defaults
    limit: Annotated[int, bounds.LIMIT] = 0  # scenes of each part, spread evenly; 0 means all
    # Pixels of the shorter side, or height and width; empty means the pictures' own.
    size: Annotated[tuple[int, ...], bounds.SIDE] = ()
    # None: the largest value that is no class if there are names, else 255.
    void: Annotated[int | None, bounds.VOID] = None
    names: str = ""  # file with class names; empty means classes.txt beside the scenes, if there is one
    steps: Annotated[int, bounds.STEPS] = 1500  # of the head's training
    seed: Annotated[int, bounds.SEED] = 0
    repeats: Annotated[int, bounds.REPEATS] = 5  # of the timing
    device: str = "auto"
    workers: Annotated[int, bounds.WORKERS] = 2
    threads: Annotated[int, bounds.THREADS] = 0

    def checked(self) -> "DenseConfig":
        bounds.require_bounds(self)
        for name in ("train", "val", "out"):
            if not getattr(self, name):  # which pathlib takes for the current folder
                raise ConfigError(f"--{name} is empty: name a folder.")
        if len(self.size) > 2:
            raise ConfigError("--size is a shorter side in pixels; given twice, it is height and width.")
        return replace(self, costs=tuple(sorted(set(self.costs))) or COSTS)


@dataclass(frozen=True)
class HeadNotes:
    """How the head was trained."""

    steps: int
    batch: int  # scenes per step
    learning_rate: float
    weight_decay: float
    seed: int
    cells: int  # cells of the training labels per patch and axis
    loss: float  # mean cross-entropy of the last steps, nats
    images: int


@dataclass(frozen=True)
class InputNotes:
    """Validation pictures of one input size."""

    images: int
    picture: tuple[int, int]  # (height, width) of the first one
    input: tuple[int, int]
    grid: Grid


@dataclass(frozen=True)
class Difference:
    """A row minus another row on the same images. Points, except for the cosine."""

    miou: float
    miou_interval: tuple[float, float]
    accuracy: float
    accuracy_interval: tuple[float, float]
    agreement: float
    cosine: float
    p_agreement: float | None = None  # None against dense, whose agreement with itself is 100 % in every image
    p_cosine: float | None = None


@dataclass(frozen=True)
class DenseRow:
    """One row. Its identity is (row, restore, cost)."""

    row: str  # dense, accelerate, or a progressive reducer
    restore: str  # residual or copy; empty for dense
    cost: float  # what it may cost
    analytic: float  # what it costs
    tokens: float
    schedule: tuple[int, ...]  # patch tokens after each block, on the most frequent grid; empty for dense
    miou: float
    accuracy: float
    agreement: float
    cosine: float
    class_iou: list[float | None]  # None: no label has the class
    to_dense: Difference | None  # None for dense
    to_reference: Difference | None  # against accelerate at this cost; None for that row itself and for dense
    timing: Timing | None = None

    @property
    def name(self) -> str:
        return row_name(self.row, self.restore, self.cost)

    @property
    def is_dense(self) -> bool:
        return self.row == DENSE


@dataclass(frozen=True)
class DenseRecord:
    rows: list[DenseRow]  # dense first
    references: dict[str, str]  # the reference row's name at each cost
    classes: list[str]
    void: int  # value of pixels without a class in the label maps
    images: int
    shown: list[str]  # names of the scenes in the report
    inputs: list[InputNotes]
    head: HeadNotes
    left_out: list[str]  # rows that could not be measured, and why
    definitions: dict[str, str]
    config: DenseConfig
    environment: Environment

    @property
    def dense(self) -> DenseRow:
        return next(row for row in self.rows if row.is_dense)

    def at(self, cost: float) -> list[DenseRow]:
        return [row for row in self.rows if not row.is_dense and row.cost == cost]

    @property
    def costs(self) -> list[float]:
        return sorted({row.cost for row in self.rows if not row.is_dense})

    def reference(self, cost: float) -> DenseRow:
        """The row of a cost that the others are compared with."""
        name = self.references[f"{cost:g}"]
        return next(row for row in self.at(cost) if row.name == name)


def row_name(row: str, restore: str, cost: float) -> str:
    """The name of a row, of its artefact, and in links."""
    return DENSE if row == DENSE else f"{row}~{restore}~{cost:g}"


def write_dense(folder: Path, result: DenseRecord) -> Path:
    return write_record(folder / FILE, result)


def read_dense(folder: Path) -> DenseRecord:
    return read_record(folder / FILE, DenseRecord, COMMAND)


def load_scenes(folder: Path) -> Mapping[str, Tensor]:
    """The pictures ``picture.k`` [3 h w] and label maps ``labels.k`` [h w] of the shown scenes, as bytes."""
    return artifacts.load(folder / f"{SCENES}.safetensors")[0]


def load_row(folder: Path, name: str) -> Mapping[str, Tensor]:
    """Per-image measures of a row; ``map.k`` [h w] of each shown scene and, if reduced, ``groups.k`` [patches]."""
    return artifacts.load(folder / ROWS / f"{name}.safetensors")[0]
