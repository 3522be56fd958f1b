"""Learned reducers in a comparison, named by their files."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from redi.backbone import Backbone
from redi.comparison.grid import Request
from redi.errors import ConfigError
from redi.learning.files import SUFFIX, load_learned, read_training
from redi.rows import Catalogue


def with_learned(catalogue: Catalogue, request: Request | None, backbone: Backbone) -> tuple[Catalogue, Request | None]:
    """Load the files of ``redi learn``. Return the catalogue with them, and the request with names instead of files."""
    if request is None:
        return catalogue, None
    files = [text for text in request.reducers if text.endswith(SUFFIX)]
    names = {text: read_training(Path(text)).method for text in files}
    reducers = [names.get(text, text) for text in request.reducers]
    return with_files(catalogue, map(Path, files), backbone), replace(request, reducers=reducers)


def with_files(catalogue: Catalogue, files: Iterable[Path], backbone: Backbone) -> Catalogue:
    """The catalogue with the learned reducers of some files, by the names of their methods."""
    for file in files:
        learned = load_learned(file, backbone)
        name = learned.training.method
        if catalogue.digests.get(name, learned.digest) != learned.digest:
            raise ConfigError(f"Two files hold {name}: compare them one after the other.")
        catalogue = replace(
            catalogue,
            reducers={**catalogue.reducers, name: learned.method.reducer()},
            digests={**catalogue.digests, name: learned.digest},
        )
    return catalogue
