"""The places on disk that a data set is read from, which no command may write to."""

import os
from glob import glob
from pathlib import Path


def data_places(where: str) -> list[Path]:
    """The folder of a data set and the folders that it links to, or its shards; none for a dataset on the Hub."""
    if where.startswith("hf:"):
        return []
    path = Path(where).expanduser()
    if not path.is_dir():
        return [Path(match) for match in glob(str(path))]
    with os.scandir(path) as entries:
        return [path, *(Path(entry.path) for entry in entries if entry.is_symlink() and entry.is_dir())]
