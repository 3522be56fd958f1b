"""The command that learns a reducer."""

from pathlib import Path
from typing import Annotated

import typer

from redi import bounds
from redi.cli import options
from redi.cli.app import app, echo, interruptible
from redi.cli.options import DATA, METHOD, OUTPUT, RESOURCES, option

Model = Annotated[
    str, typer.Argument(help="Hub name, timm:name or folder of a checkpoint, or the folder of a run.", metavar="MODEL")
]
Images = Annotated[
    str | None,
    option(
        DATA,
        "Images to learn from: class folders, a flat folder, shards or hf:owner/name:split. Labels are not read.",
        default="the training images of the run",
    ),
]
Limit = Annotated[
    int | None,
    option(DATA, "Images to learn from, at most; all are kept in memory.", default=2000, within=bounds.LEARNED_FROM),
]
Held = Annotated[
    int | None, option(DATA, "Further images that decide which state is kept.", default=256, within=bounds.LEARNED_FROM)
]
Mirror = Annotated[bool | None, option(DATA, "Learn from the mirror image of each image too.", "--mirror")]
Method = Annotated[
    str,
    option(
        METHOD,
        "protected-learned (our own step), dynamicvit, spvit, adavit, ia-red2, a-vit, patchmerger, tokenlearner, "
        "patch-slimming or weitop.",
    ),
]
Costs = Annotated[
    list[float] | None,
    option(
        METHOD,
        "A cost to learn for, relative to dense; repeat for more.",
        default="0.55, 0.65, 0.75",
        within=bounds.COST,
    ),
]
Steps = Annotated[int | None, option(METHOD, "Batches to learn from, at most.", default=150, within=bounds.STEPS)]
Checks = Annotated[int | None, option(METHOD, "Looks at the held-out images.", default=6, within=bounds.CHECKS)]
Rate = Annotated[
    float | None, option(METHOD, "Learning rate at the start.", default="the method's own", within=bounds.RATE)
]
Seed = Annotated[
    int | None, option(METHOD, "Seed of the parameters, batches and masks.", default=0, within=bounds.SEED)
]
Size = Annotated[
    int | None, option(DATA, "Side of the crop in pixels.", default="the checkpoint's own", within=bounds.SIZE)
]
BatchSize = Annotated[int | None, option(RESOURCES, "Images per step.", default=32, within=bounds.BATCH)]
Out = Annotated[Path | None, option(OUTPUT, "The file.", default="METHOD.safetensors")]


@app.command()
def learn(
    model: Model,
    *,
    images: Images = None,
    limit: Limit = None,
    held: Held = None,
    mirror: Mirror = None,
    size: Size = None,
    method: Method,
    cost: Costs = None,
    steps: Steps = None,
    checks: Checks = None,
    rate: Rate = None,
    seed: Seed = None,
    batch_size: BatchSize = None,
    device: options.Device = None,
    workers: options.Workers = None,
    threads: options.Threads = None,
    out: Out = None,
) -> None:
    """Learn a reducer for a frozen model, without labels: the reduced model's output follows the dense one's.

    Only the method's own parameters learn. The file works wherever a reducer does. Examples:
    `redi learn google/vit-base-patch16-224 --method dynamicvit --images photos`, then in Python
    `redi.accelerate("google/vit-base-patch16-224", cost=0.65, reducer="dynamicvit.safetensors")`;
    `redi learn runs/demo --method spvit` and `redi compare runs/demo --reducer spvit.safetensors --cost 0.65`.

    If it is stopped, the same command continues where it was.
    """
    from redi.api import learn as train

    with interruptible():
        result = train(
            model,
            method,
            images,
            out=out,
            limit=limit,
            held=held,
            mirror=mirror,
            size=size,
            cost=cost,
            steps=steps,
            checks=checks,
            rate=rate,
            seed=seed,
            batch_size=batch_size,
            device=device,
            workers=workers,
            threads=threads,
        )
    result.print()
    echo(f"written: {result.file}")
