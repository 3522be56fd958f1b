"""Labelled images: a folder, a Hugging Face dataset or webdataset shards, decoded to upright RGB."""

from redi.images.decode import MAX_PIXELS, load_image, to_rgb
from redi.images.sources import FolderImages, LabelledImages, open_images, open_pictures, relabel

__all__ = [
    "MAX_PIXELS",
    "FolderImages",
    "LabelledImages",
    "load_image",
    "open_images",
    "open_pictures",
    "relabel",
    "to_rgb",
]
