"""Options that several commands share, and the one way in which all options are declared.

Help groups the options by panel, in the order of the parameters of a command: data, model, method, resources, output.
Options of the command as a whole have no panel. A default is stated at the end of the help text, and nowhere else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from redi import bounds
from redi.bounds import Bounds

#: The default of options that a run folder records.
OWN = "as in the run"
DATA, MODEL, METHOD, RESOURCES, OUTPUT = "Data", "Model", "Method", "Resources", "Output"


def option(panel: str | None, text: str, *names: str, default: object = None, within: Bounds | None = None) -> Any:
    """An option. ``default`` is what happens without it, as the user should read it. A number needs ``within``."""
    stated = text if default is None else f"{text} Default: {default}."
    check = None if within is None else _checked(within)
    return typer.Option(*names, help=stated, show_default=False, rich_help_panel=panel, callback=check)


def _checked(within: Bounds) -> Callable[[Any, Any, Any], Any]:
    """Refuse a number while the options are read, in one line and with the exit code of a wrong option."""

    def check(context: Any, parameter: Any, value: Any) -> Any:  # noqa: ARG001
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None and (refusal := within.refusal(parameter.opts[0], one)):
                typer.echo(f"redi: {refusal}", err=True)
                raise typer.Exit(2)
        return value

    return check


Folder = Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")]
Checkpoint = Annotated[str, typer.Argument(help="Hub name, timm:name or folder of a checkpoint.", metavar="BACKBONE")]

ConfigFile = Annotated[Path | None, option(None, "TOML file with settings; options override it.")]
DryRun = Annotated[bool, option(None, "Print the plan and stop.", "--dry-run")]

ClassMap = Annotated[str | None, option(DATA, "File that maps folders to classes of the model's head.")]
Size = Annotated[int | None, option(DATA, "Side of the crop in pixels.", default="14 patches", within=bounds.SIZE)]
Resize = Annotated[
    str | None, option(DATA, "Filter that resizes images: bilinear, bicubic, ...", default="the checkpoint's own")
]
MOVED = "images of the run, if they have moved; other images are refused."
MovedTrain = Annotated[str | None, option(DATA, f"New place of the training {MOVED}", "--train", default=OWN)]
MovedVal = Annotated[str | None, option(DATA, f"New place of the validation {MOVED}", "--val", default=OWN)]
Names = Annotated[
    Path | None, option(DATA, "File with readable class names: one per line, or `folder<TAB>name` lines.")
]

Backbone = Annotated[str | None, option(MODEL, "Hub name, timm:name or folder of a checkpoint.")]

Words = Annotated[int | None, option(METHOD, "Number of visual words.", default=512, within=bounds.WORDS)]
Seed = Annotated[
    int | None,
    option(METHOD, "Seed of the views, the random score and the probe's batches.", default=0, within=bounds.SEED),
]

DEVICE, BATCH_SIZE = "auto, cpu, cuda or cuda:N.", "Images per forward."
WORKERS, THREADS = "Processes that decode images.", "CPU threads that torch uses."
Device = Annotated[str | None, option(RESOURCES, DEVICE, default="auto")]
BatchSize = Annotated[int | None, option(RESOURCES, BATCH_SIZE, default=32, within=bounds.BATCH)]
Workers = Annotated[int | None, option(RESOURCES, WORKERS, default=2, within=bounds.WORKERS)]
Threads = Annotated[int | None, option(RESOURCES, THREADS, default="torch's own choice", within=bounds.THREADS)]
Cache = Annotated[
    str | None, option(RESOURCES, "none, or fp16 to keep patch features on disk between passes.", default="none")
]
