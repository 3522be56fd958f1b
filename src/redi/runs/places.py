"""The places on disk that a data set is read from, which no command may write to."""

import os
from glob import glob
from pathlib import Path

from redi.runs.addresses import parts
from redi.runs.config import RunConfig


def run_data(config: RunConfig) -> list[tuple[str, Path]]:
    """The places of the data of a run, with a name for messages."""
    return [
        *(("the training data", place) for place in data_places(config.train)),
        *(("the validation data", place) for place in data_places(config.val)),
    ]


def data_places(where: str) -> list[Path]:
    """The folder of a data set and all folders that it links to, or its shards; none for a dataset on the Hub."""
    prefix, place, _ = parts(where)
    if not place:  # which pathlib takes for the current folder
        return []
    path = Path(place).expanduser()
    if prefix:  # a Hub name, or a folder that datasets can load
        return linked_folders(path) if path.is_dir() else []
    return linked_folders(path) if path.is_dir() else [Path(match) for match in glob(str(path))]


def linked_folders(root: Path) -> list[Path]:
    """A folder and those that links below it lead to, each once."""
    places, waiting = dict[str, Path](), [root]
    while waiting:
        place = waiting.pop()
        real = os.path.realpath(place)
        if real in places:
            continue
        places[real] = place
        for folder, names, _ in os.walk(place):
            waiting += [path for path in (Path(folder, name) for name in names) if path.is_symlink()]
    return list(places.values())
