"""Labelled images: sources, decoding and preprocessing for a backbone."""

from redi.images.decode import MAX_PIXELS, load_image, to_rgb
from redi.images.folders import FolderImages
from redi.images.labelled import LabelledImages, relabel
from redi.images.preprocessing import Preprocessing
from redi.images.sources import open_images, open_pictures

__all__ = [
    "MAX_PIXELS",
    "FolderImages",
    "LabelledImages",
    "Preprocessing",
    "load_image",
    "open_images",
    "open_pictures",
    "relabel",
    "to_rgb",
]
