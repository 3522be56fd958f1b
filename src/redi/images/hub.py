"""Hugging Face datasets, by name or on disk. Needs the ``datasets`` extra.

The order is the dataset's own. The image column and the label column are found by their types. If the labels are
plain integers, the class names are these numbers.
"""

from pathlib import Path
from typing import Any

from PIL import Image

from redi.errors import CorpusError
from redi.images.decode import load_image


class HubImages:
    def __init__(self, dataset: Any, name: str) -> None:
        from datasets import ClassLabel, Image as ImageFeature

        self.name = name
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
        except (TypeError, ValueError):
            raise CorpusError(f"{name} has labels in {label_column!r} that are not numbers.") from None
        if self.labels and min(self.labels) < 0:
            raise CorpusError(f"{name} has unlabelled images (label -1): choose a labelled split.")
        feature = features[label_column]
        if isinstance(feature, ClassLabel):
            self.class_names: list[str] = list(feature.names)
        else:
            self.class_names = [str(k) for k in range(max(self.labels, default=-1) + 1)]
        self._fingerprint: str = dataset._fingerprint
        # Keep the bytes undecoded: our own decoder treats unusual modes and broken files the same for all sources.
        self.dataset = dataset.cast_column(self.column, ImageFeature(decode=False))

    def load(self, index: int) -> Image.Image:
        entry = self.dataset[index][self.column]
        content = entry["bytes"] if entry["bytes"] is not None else entry["path"]
        return load_image(content, self.image_name(index))

    def image_name(self, index: int) -> str:
        return f"{self.name}#{index}"

    def fingerprint(self) -> str:
        return self._fingerprint


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
    return HubImages(dataset, f"hf:{address}")


def disk_images(folder: Path) -> HubImages:
    """Open a dataset (one split) written by ``save_to_disk``."""
    datasets = _datasets()
    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise CorpusError(f"{folder} cannot be read as a dataset: {error}.") from error
    if isinstance(dataset, datasets.DatasetDict):
        raise CorpusError(f"{folder} holds several splits: pass one of {', '.join(str(folder / s) for s in dataset)}.")
    return HubImages(dataset, str(folder))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise CorpusError("Hugging Face datasets need an extra: pip install 'redi-vit[datasets]'.") from None
    return datasets
