"""``redi demo``: draw pictures, run the protocol on them, and report how much of each object is kept."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from time import monotonic

from rich.console import Console

from redi.backbone import load_backbone
from redi.backbone.checkpoint import checkpoint_digest
from redi.comparison.compare import compare
from redi.demo.coverage import mean_coverage
from redi.demo.generator import CLASSES, write_folder
from redi.errors import ArtifactError, ConfigError
from redi.records import artifacts
from redi.records.deployed import STUDY, earlier_deployed
from redi.records.outputs import PICTURES, RUN, mark_run, recorded_identity, require_own
from redi.records.results import FILE, Results, read_results, write_results
from redi.report.build import build_report
from redi.report.deployed import deployed_sheets
from redi.report.sheets import Sheet, print_sheet
from redi.report.tables import print_tables
from redi.rows import SCORES, Score
from redi.runs.config import RunConfig, RuntimeConfig
from redi.runs.progress import say

TRAIN_PER_CLASS = 60
VAL_PER_CLASS = 30
TRAIN_SEED, VAL_SEED = 1, 2


def run_demo(
    out: Path, threads: int = 0, train_per_class: int = TRAIN_PER_CLASS, val_per_class: int = VAL_PER_CLASS
) -> Results:
    """Run the whole protocol on generated pictures, with the backbone that ships with the package."""
    begin = monotonic()
    images = out / PICTURES
    train, val, masks = images / "train", images / "val", images / "val-masks"
    config = RunConfig(
        backbone=str(files("redi.demo") / "demo-vit"),
        train=str(train),
        val=str(val),
        out=str(out),
        runtime=RuntimeConfig(threads=threads, device="cpu"),
    ).checked()
    require_own(out)
    backbone = checkpoint_digest(Path(config.backbone))
    if recorded_identity(out).get("backbone", backbone) != backbone:
        raise ConfigError(f"{out} is the folder of another run. Nothing was written; choose another --out.")
    if not RUN.marks(out):
        mark_run(out, {})  # the pictures that the run is made from do not exist yet
    say(f"drawing {train_per_class} + {val_per_class} pictures per class for {len(CLASSES)} classes")
    try:
        write_folder(train, TRAIN_SEED, train_per_class * len(CLASSES))
        write_folder(val, VAL_SEED, val_per_class * len(CLASSES), masks=masks)
    except OSError as error:
        raise ArtifactError(
            f"The demo cannot write its pictures to {images}: {error.strerror or error}. Choose another --out."
        ) from None
    compare(config, [STUDY])  # runs the stages first
    results = _with_coverage(out, config, masks, read_results(out))
    console = Console()
    print_tables(results, console)
    for sheet in (*deployed_sheets(results, earlier_deployed(out)).values(), coverage_sheet(results)):
        print_sheet(sheet, console)
    page = build_report(out)
    say(f"Finished in {monotonic() - begin:.0f} s. Every number is in {out / FILE}. Open the report:")
    say(str(page))
    return results


def _with_coverage(out: Path, config: RunConfig, masks: Path, results: Results) -> Results:
    backbone = load_backbone(config.backbone)
    preprocessing = backbone.preprocessing
    scores = {name: artifacts.load(out / "scores" / f"{name}.safetensors")[0]["scores"] for name in SCORES}
    mask_files = sorted(masks.glob("*/*.png"), key=lambda path: path.relative_to(masks).as_posix())
    coverage = mean_coverage(
        scores, mask_files, preprocessing.shorter, preprocessing.size, backbone.geometry.grid, config.budget
    )
    results = replace(results, notes=replace(results.notes, object_coverage=coverage))
    write_results(out, results)
    return results


def coverage_sheet(results: Results) -> Sheet:
    return Sheet(
        "Object kept. Area of the class object that lies in kept patches, %",
        ("Score", "Area kept"),
        [[Score.parse(name).title, f"{value:.1f}"] for name, value in (results.notes.object_coverage or {}).items()],
        [],
    )
