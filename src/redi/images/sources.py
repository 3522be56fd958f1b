"""Open a data set by its address: folders, webdataset shards or Hugging Face datasets."""

from pathlib import Path

from redi.errors import CorpusError
from redi.images.folders import FlatImages, FolderImages
from redi.images.hub import disk_images, hub_images
from redi.images.labelled import SUFFIXES, LabelledImages, describe_left_out, first_of_each
from redi.images.shards import ShardImages


def open_images(where: str, limit: int = 0) -> LabelledImages:
    """Open a data set by its address. With a ``limit``, at most that many images of each class, the first ones.

    The address is a folder with one folder per class; a folder or a pattern of ``.tar`` shards (webdataset); a
    folder written by ``datasets``' ``save_to_disk``; or ``hf:owner/name:split`` for a dataset on the Hub.
    """
    images = _open(where)
    return first_of_each(images, limit) if limit else images


def _open(where: str) -> LabelledImages:
    if where.startswith("hf:"):
        return _not_empty(hub_images(where.removeprefix("hf:")))
    try:
        return _open_path(where, Path(where).expanduser())
    except CorpusError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no such user in ~user, a zero byte
        raise CorpusError(f"{where} cannot be read: {error}.") from None


def _open_path(where: str, path: Path) -> LabelledImages:
    if not path.is_dir() and (path.suffix == ".tar" or any(letter in where for letter in "*?[")):
        return _not_empty(ShardImages.from_pattern(path))
    if not path.is_dir():
        raise CorpusError(
            f"There is no folder {where}; pass a folder with one folder per class, .tar shards, or "
            "hf:owner/name:split for a dataset on the Hub."
        )
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return _not_empty(disk_images(path))
    if any(path.glob("*.tar")):
        return _not_empty(ShardImages.from_pattern(path / "*.tar"))
    return _not_empty(FolderImages(path))


def open_pictures(where: str) -> LabelledImages:
    """Open a data set as :func:`open_images` does, or a folder of pictures without class folders."""
    try:
        folder = Path(where).expanduser()
        if folder.is_dir() and _is_flat(folder):
            return _not_empty(FlatImages(folder))
    except (OSError, RuntimeError) as error:  # no permission, no such user in ~user
        raise CorpusError(f"{where} cannot be read: {error}.") from None
    return open_images(where)


def _is_flat(folder: Path) -> bool:
    """Whether the folder holds pictures and nothing that :func:`open_images` would read."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if any(entry.is_dir() or entry.suffix in (".tar", ".json") for entry in entries):
        return False
    return any(entry.suffix.lower() in SUFFIXES for entry in entries)


def _not_empty(images: LabelledImages) -> LabelledImages:
    if not len(images.labels):
        reason = describe_left_out(images) or "expected one folder per class, each with images"
        raise CorpusError(f"There are no images in {images.name}: {reason}.")
    return images
