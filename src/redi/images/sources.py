"""Open a data set by its address: folders, webdataset shards or Hugging Face datasets."""

from pathlib import Path

from redi.errors import CorpusError
from redi.images.folders import FlatImages, FolderImages
from redi.images.hub import disk_images, hub_images
from redi.images.labelled import SUFFIXES, LabelledImages, describe_left_out, first_of_each
from redi.images.shards import ShardImages

#: What may be given where classes are needed, and where they are not.
LABELLED = "a folder with one folder per class, .tar shards, or hf:owner/name:split for a dataset on the Hub"
PICTURES = f"a folder of images, {LABELLED}"
#: What marks a folder that ``save_to_disk`` of datasets has written.
SAVED = ("state.json", "dataset_dict.json")
PARQUET = (
    'parquet files are read by `datasets`: pass the folder that load_dataset("parquet", data_files=..., '
    'split="train").save_to_disk(FOLDER) writes'
)


def open_images(where: str, limit: int = 0) -> LabelledImages:
    """Open a data set by its address. With a ``limit``, at most that many images of each class, the first ones.

    The address is a folder with one folder per class; a folder or a pattern of ``.tar`` shards (webdataset); a
    folder written by ``datasets``' ``save_to_disk``; or ``hf:owner/name:split`` for a dataset on the Hub.
    """
    images = _open(where, LABELLED)
    return first_of_each(images, limit) if limit else images


def _open(where: str, wanted: str) -> LabelledImages:
    if not where:  # which pathlib takes for the current folder
        raise CorpusError(f"The address of the images is empty: pass {wanted}.")
    if where.startswith("hf:"):
        return _not_empty(hub_images(where.removeprefix("hf:")), wanted)
    try:
        return _open_path(where, Path(where).expanduser(), wanted)
    except CorpusError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no permission, no such user in ~user, a zero byte
        raise CorpusError(f"{where} cannot be read: {error}.") from None


def _open_path(where: str, path: Path, wanted: str) -> LabelledImages:
    if not path.is_dir() and (path.suffix == ".tar" or any(letter in where for letter in "*?[")):
        return _not_empty(ShardImages.from_pattern(path), wanted)
    if path.suffix == ".parquet" and path.exists():
        raise CorpusError(f"{where} cannot be read: {PARQUET}.")
    if not path.is_dir():
        kind = f"{where} is a file" if path.exists() else f"There is no folder {where}"
        raise CorpusError(f"{kind}; pass {wanted}.")
    if any((path / name).exists() for name in SAVED):
        return _not_empty(disk_images(path), wanted)
    if any(path.glob("*.tar")):
        return _not_empty(ShardImages.from_pattern(path / "*.tar"), wanted)
    return _not_empty(FolderImages(path), wanted, path)


def open_pictures(where: str) -> LabelledImages:
    """Open a data set as :func:`open_images` does, or a folder of pictures without class folders."""
    try:
        folder = Path(where).expanduser()
        if where and folder.is_dir() and _is_flat(folder):
            return _not_empty(FlatImages(folder), PICTURES)
    except (OSError, RuntimeError) as error:  # no permission, no such user in ~user
        raise CorpusError(f"{where} cannot be read: {error}.") from None
    return _open(where, PICTURES)


def _is_flat(folder: Path) -> bool:
    """Whether the folder holds pictures and nothing that :func:`open_images` would read."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if any(entry.is_dir() or entry.suffix == ".tar" or entry.name in SAVED for entry in entries):
        return False
    return any(entry.suffix.lower() in SUFFIXES for entry in entries)


def _not_empty(images: LabelledImages, wanted: str, folder: Path | None = None) -> LabelledImages:
    if len(images.labels):
        return images
    if folder is not None and _is_flat(folder):
        raise CorpusError(
            f"The images in {folder} lie in no folder of a class: the class of an image is the name of its folder, as "
            f"in {folder}/<class>/<image>."
        )
    reason = describe_left_out(images) or (_why_empty(folder) if folder else "") or f"pass {wanted}"
    raise CorpusError(f"There are no images in {images.name}: {reason}.")


def _why_empty(folder: Path) -> str:
    """Why no image was found, by the files that lie in the folder; empty if there are none."""
    files = [entry for entry in folder.rglob("*") if not entry.name.startswith(".") and entry.is_file()]
    if any(file.suffix == ".parquet" for file in files):
        return PARQUET
    return "the name of no file in it ends as that of an image does (.jpg, .png, ...)" if files else ""
