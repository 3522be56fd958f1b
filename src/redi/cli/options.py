"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer


def option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text)


Folder = Annotated[Path, typer.Argument(help="The folder of a `redi run`.", metavar="RUN")]
ConfigFile = Annotated[Path | None, option("TOML file with settings; options override it.")]
Size = Annotated[int | None, option("Side of the crop in pixels; the default gives a 14x14 grid.")]
Resize = Annotated[str | None, option("Filter that resizes images: bilinear, bicubic, ... (the checkpoint's own).")]
Seed = Annotated[int | None, option("Seed of the views, the random score and the probe's batches.")]
Words = Annotated[int | None, option("Number of visual words (512).")]
ClassMap = Annotated[str | None, option("File that maps folders to classes of the model's head.")]
Cache = Annotated[str | None, option("none, or fp16 to keep patch features on disk between passes.")]
Device = Annotated[str | None, option("auto, cpu, cuda or cuda:N.")]
BatchSize = Annotated[int | None, option("Images per forward (32).")]
Workers = Annotated[int | None, option("Processes that decode images (2).")]
Threads = Annotated[int | None, option("Number of CPU threads that torch uses.")]
DryRun = Annotated[bool, option("Print the plan and stop.", "--dry-run")]
Names = Annotated[Path | None, option("File with readable class names: one per line, or `folder<TAB>name` lines.")]
