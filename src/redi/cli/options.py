"""Options that several commands share, and the one way in which all options are declared.

Help groups the options by panel, in the order of the parameters of a command: data, model, method, resources, output.
Options of the command as a whole have no panel. A default is stated at the end of the help text, and nowhere else.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

DATA, MODEL, METHOD, RESOURCES, OUTPUT = "Data", "Model", "Method", "Resources", "Output"


def option(panel: str | None, text: str, *names: str, default: object = None) -> Any:
    """An option. ``default`` is what happens without it, as the user should read it."""
    stated = text if default is None else f"{text} Default: {default}."
    return typer.Option(*names, help=stated, show_default=False, rich_help_panel=panel)


Folder = Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")]
Checkpoint = Annotated[str, typer.Argument(help="Hub name, timm:name or folder of a checkpoint.", metavar="BACKBONE")]

ConfigFile = Annotated[Path | None, option(None, "TOML file with settings; options override it.")]
DryRun = Annotated[bool, option(None, "Print the plan and stop.", "--dry-run")]

ClassMap = Annotated[str | None, option(DATA, "File that maps folders to classes of the model's head.")]
Size = Annotated[int | None, option(DATA, "Side of the crop in pixels.", default="14 patches")]
Resize = Annotated[
    str | None, option(DATA, "Filter that resizes images: bilinear, bicubic, ...", default="the checkpoint's own")
]
Names = Annotated[
    Path | None, option(DATA, "File with readable class names: one per line, or `folder<TAB>name` lines.")
]

Backbone = Annotated[str | None, option(MODEL, "Hub name, timm:name or folder of a checkpoint.")]

Words = Annotated[int | None, option(METHOD, "Number of visual words.", default=512)]
Seed = Annotated[int | None, option(METHOD, "Seed of the views, the random score and the probe's batches.", default=0)]

DEVICE, BATCH_SIZE = "auto, cpu, cuda or cuda:N.", "Images per forward."
WORKERS, THREADS = "Processes that decode images.", "CPU threads that torch uses."
Device = Annotated[str | None, option(RESOURCES, DEVICE, default="auto")]
BatchSize = Annotated[int | None, option(RESOURCES, BATCH_SIZE, default=32)]
Workers = Annotated[int | None, option(RESOURCES, WORKERS, default=2)]
Threads = Annotated[int | None, option(RESOURCES, THREADS, default="torch's own choice")]
Cache = Annotated[
    str | None, option(RESOURCES, "none, or fp16 to keep patch features on disk between passes.", default="none")
]
