"""The command that measures dense prediction."""

from pathlib import Path
from typing import Annotated

from redi import bounds
from redi.cli import options
from redi.cli.app import app, echo, interruptible
from redi.cli.options import DATA, METHOD, OUTPUT, RESOURCES, option

SCENES = "a folder with images/ and labels/, PNG index maps of the same stems."
Train = Annotated[str, option(DATA, f"Training scenes: {SCENES}")]
Val = Annotated[str, option(DATA, f"Validation scenes: {SCENES}")]
Limit = Annotated[
    int | None,
    option(DATA, "Scenes of each part, spread evenly, for a quick trial.", default="all", within=bounds.LIMIT),
]
Sides = Annotated[
    list[int] | None,
    option(
        DATA,
        "Shorter side of the pictures in pixels; twice for height and width. They become multiples of the patch.",
        default="the pictures' own",
        within=bounds.SIDE,
    ),
]
Void = Annotated[
    int | None,
    option(
        DATA,
        "Value of pixels without a class.",
        default="with class names, the largest value that is no class; otherwise 255",
        within=bounds.VOID,
    ),
]
Names = Annotated[
    Path | None, option(DATA, "File with class names, one per line.", default="classes.txt in or beside the scenes")
]
Costs = Annotated[
    list[float] | None,
    option(METHOD, "A cost relative to dense; repeat for more.", default="0.5, 0.65 and 0.75", within=bounds.COST),
]
Rows = Annotated[
    list[str] | None,
    option(
        METHOD,
        "accelerate, or a progressive reducer such as tome; repeat for more.",
        default="accelerate and the peers that merge for dense outputs",
    ),
]
Steps = Annotated[int | None, option(METHOD, "Training steps of the linear head.", default=1500, within=bounds.STEPS)]
HeadSeed = Annotated[
    int | None, option(METHOD, "Seed of the head's training and of the bootstrap.", default=0, within=bounds.SEED)
]
Repeats = Annotated[
    int | None, option(RESOURCES, "Repeats of the timing, interleaved.", default=5, within=bounds.REPEATS)
]
Out = Annotated[Path, option(OUTPUT, "Folder for the head, the rows, dense.json and the report.")]


@app.command()
def dense(
    backbone: options.Checkpoint,
    *,
    train: Train,
    val: Val,
    limit: Limit = None,
    size: Sides = None,
    void: Void = None,
    names: Names = None,
    cost: Costs = None,
    row: Rows = None,
    steps: Steps = None,
    seed: HeadSeed = None,
    repeats: Repeats = None,
    device: options.Device = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    out: Out,
) -> None:
    """Measure what dense prediction loses when tokens are merged: mIoU, agreement with dense, speed and memory.

    A linear head is trained on dense patch tokens. It then reads the tokens of every row, restored to the full grid by
    residual unmerge and by copies. Example: `redi dense facebook/dinov2-small --train camvid/train --val camvid/val
    --out runs/camvid`

    It writes dense.json and report/index.html. If it is stopped, the same command continues where it was.
    """
    from redi.api import dense as measure

    with interruptible():
        result = measure(
            backbone,
            train,
            val,
            out,
            limit=limit,
            size=size,
            void=void,
            names=names,
            cost=cost,
            row=row,
            steps=steps,
            seed=seed,
            repeats=repeats,
            device=device,
            workers=workers,
            threads=threads,
        )
    result.print()
    for path in result.written:
        echo(f"written: {path}")
