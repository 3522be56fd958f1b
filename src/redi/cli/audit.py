"""The command that audits the training images of a run."""

from typing import Annotated

from redi import bounds
from redi.cli import options
from redi.cli.app import app, echo, interruptible
from redi.cli.measure import RunBatchSize, RunDevice, RunThreads, RunWorkers
from redi.cli.options import METHOD, OUTPUT, option

ClassName = Annotated[
    str, option(OUTPUT, "Show the words of this class.", "--class", default="the most suspicious classes")
]
Top = Annotated[int, option(OUTPUT, "Classes to list.", default=10, within=bounds.SHOWN_CLASSES)]
Block = Annotated[
    int | None, option(METHOD, "Block whose words are audited.", default="half of the depth", within=bounds.BLOCK)
]


@app.command()
def audit(
    run: options.Folder,
    train: options.MovedTrain = None,
    val: options.MovedVal = None,
    names: options.Names = None,
    block: Block = None,
    device: RunDevice = None,
    batch_size: RunBatchSize = None,
    workers: RunWorkers = None,
    threads: RunThreads = None,
    class_: ClassName = "",
    top: Top = 10,
) -> None:
    """Say what distinguishes each class in the training images of a run, and what may be a shortcut.

    A shortcut is something beside the object that tells the class: a ground, a border, a watermark. Examples: `redi
    audit runs/demo`, `redi audit runs/demo --class dotted-heart`.

    It takes one pass over the training images, and writes audit.json and report/audit.html. The next call needs no
    pass. If it is stopped, the same command continues where it was.
    """
    from redi.api import audit as measure

    with interruptible():
        result = measure(
            run,
            block=block,
            names=names,
            class_name=class_,
            train=train,
            val=val,
            device=device,
            batch_size=batch_size,
            workers=workers,
            threads=threads,
        )
    if result is not None:
        result.print(class_, top)
        for path in result.written:
            echo(f"written: {path}")
