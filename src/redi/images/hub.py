"""Hugging Face datasets, by name or on disk. Needs the ``datasets`` extra.

The order is the dataset's own. The image column and the label column are found by their types. If the labels are
plain integers, the class names are these numbers.

A row holds the bytes of its image, or the path of a file. A dataset is somebody else's text, and a path in it could
name any file of this machine, so only files in the dataset's own folders are opened.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from redi.errors import CorpusError, ImageError
from redi.images.decode import load_image
from redi.images.labelled import digest_lines, numbered_classes
from redi.images.samples import sample, sample_file


class HubImages:
    """Images of one split. ``folders`` are those that its files may lie in; the first is its own."""

    def __init__(self, dataset: Any, name: str, folders: Sequence[Path]) -> None:
        from datasets import ClassLabel, Image as ImageFeature

        self.name = name
        self.folders = [folder.resolve() for folder in folders]
        self.left_out: dict[str, list[str]] = {}
        features = dataset.features
        images = [key for key, feature in features.items() if isinstance(feature, ImageFeature)]
        labels = [key for key, feature in features.items() if isinstance(feature, ClassLabel)]
        if not labels:
            labels = [key for key in ("label", "labels", "fine_label") if key in features]
        if not images or not labels:
            raise CorpusError(f"{name} needs a column of images and a column of labels; it has {', '.join(features)}.")
        self.column, label_column = images[0], labels[0]
        try:
            self.labels: list[int] = [int(label) for label in dataset[label_column]]
        except (TypeError, ValueError, OverflowError):
            raise CorpusError(f"{name} has labels in {label_column!r} that are not numbers.") from None
        if self.labels and min(self.labels) < 0:
            raise CorpusError(f"{name} has unlabelled images (label -1): choose a labelled split.")
        feature = features[label_column]
        if isinstance(feature, ClassLabel):
            self.class_names: list[str] = list(feature.names)
            if self.labels and max(self.labels) >= len(self.class_names):
                raise CorpusError(f"{name} has a label of {max(self.labels)}, but {len(self.class_names)} class names.")
        else:
            self.class_names = numbered_classes(self.labels, name)
        # Keep the bytes undecoded: our own decoder treats unusual modes and broken files the same for all sources.
        self.dataset = dataset.cast_column(self.column, ImageFeature(decode=False))

    def load(self, index: int) -> Image.Image:
        entry, name = self.dataset[index][self.column], self.image_name(index)
        if entry is None or (entry["bytes"] is None and entry["path"] is None):
            raise ImageError(f"{name} has no image.")
        return load_image(entry["bytes"] if entry["bytes"] is not None else self._file(entry["path"], name), name)

    def image_name(self, index: int) -> str:
        return f"{self.name}#{index}"

    def fingerprint(self, indices: Sequence[int] | None = None) -> str:
        dataset = self.dataset if indices is None else self.dataset.select(indices)
        labels = self.labels if indices is None else [self.labels[index] for index in indices]
        rows = zip(labels, self._digests(dataset), strict=True)
        return digest_lines([*self.class_names, "", *(f"{label} {digest}" for label, digest in rows)])

    def _file(self, path: str, name: str) -> Path:
        """The file of a row, if it lies in a folder of the dataset after links are followed."""
        try:
            file = (self.folders[0] / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a zero byte
            raise ImageError(f"{name} names a file that cannot be found: {error}.") from None
        if not any(file.is_relative_to(folder) for folder in self.folders):
            raise ImageError(f"{name} names the file {path} outside its dataset, which is not opened.")
        return file

    def _digests(self, dataset: Any) -> Iterator[str]:
        for table in dataset.select_columns([self.column]).with_format("arrow").iter(batch_size=1000):
            for chunk in table[self.column].chunks:
                contents, paths = (chunk.field(name) for name in ("bytes", "path"))
                for row, valid in enumerate(chunk.is_valid().to_pylist()):
                    if valid and contents[row].is_valid:
                        yield _content_digest(memoryview(contents[row].as_buffer()))
                    else:
                        yield self._file_digest(paths[row].as_py() if valid else None)

    def _file_digest(self, path: str | None) -> str:
        try:
            return sample_file(self._file(path, "")) if path is not None else ""
        except (ImageError, CorpusError):  # it will be left out
            return path or ""


def _content_digest(content: memoryview) -> str:
    return sample(lambda start, length: bytes(content[start : start + length]), len(content))


def hub_images(address: str) -> HubImages:
    """Open ``owner/name:split`` or ``owner/name:configuration:split`` from the Hub."""
    datasets = _datasets()
    name, *rest = address.split(":")
    if not rest or len(rest) > 2:
        raise CorpusError(f"hf:{address} must name a split, as in hf:owner/name:split.")
    configuration = rest[0] if len(rest) == 2 else None
    try:
        dataset = datasets.load_dataset(name, configuration, split=rest[-1])
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CorpusError(
            f"hf:{address} cannot be loaded: {reason} Check the name and the network, or log in with `hf auth login`."
        ) from error
    return HubImages(dataset, f"hf:{address}", _folders(name))


def disk_images(folder: Path) -> HubImages:
    """Open a dataset (one split) written by ``save_to_disk``."""
    datasets = _datasets()
    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise CorpusError(f"{folder} cannot be read as a dataset: {error}.") from error
    if isinstance(dataset, datasets.DatasetDict):
        raise CorpusError(f"{folder} holds several splits: pass one of {', '.join(str(folder / s) for s in dataset)}.")
    return HubImages(dataset, str(folder), [folder])


def _folders(name: str) -> list[Path]:
    """Where the files of a dataset lie: a local folder or its own part of the Hub's cache, and unpacked archives."""
    from huggingface_hub.constants import HF_HUB_CACHE

    own = Path(name) if Path(name).is_dir() else Path(HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    return [own, Path(_datasets().config.EXTRACTED_DATASETS_PATH)]


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise CorpusError("Hugging Face datasets need an extra: pip install 'redi-vit[datasets]'.") from None
    return datasets
