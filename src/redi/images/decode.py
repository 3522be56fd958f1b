"""Decoding of image files of any mode and orientation to upright RGB pictures."""

import warnings
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from redi.errors import ImageError

#: Pixels beyond which a file is refused as a decompression bomb (Pillow's own warning threshold).
MAX_PIXELS = 89_478_485


def load_image(file: str | Path | bytes, name: str | None = None) -> Image.Image:
    """Decode a file, or its content, to upright RGB.

    Greyscale, palette, CMYK and 16-bit pictures are converted, transparency is dropped, EXIF orientation is
    applied, and only the first frame of an animation is used. A file that cannot be decoded completely raises an
    :class:`ImageError` with the file's name.
    """
    name = name or ("The image" if isinstance(file, bytes) else str(file))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. about corrupt EXIF, which does not matter here
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                image.load()
                return to_rgb(image)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise ImageError(f"{name} has more than {MAX_PIXELS:,} pixels; scale it down before using it.") from None
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist.") from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a folder, not an image.") from None
    except UnidentifiedImageError:
        raise ImageError(f"{name} is not an image that Pillow can read.") from None
    except ImageError:
        raise
    except Exception as error:  # decoders raise many types of errors on broken files
        raise ImageError(f"{name} cannot be decoded: {error or type(error).__name__}.") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """An upright 8-bit RGB copy of a picture of any mode."""
    if 0 in image.size:
        raise ImageError(f"The image has no pixels: its size is {image.width}x{image.height}.")
    image = ImageOps.exif_transpose(image)
    is_16_bit = image.mode.startswith("I;16")
    if is_16_bit or image.mode == "I":
        # convert() would clip values at 255 instead of scaling them. Mode "I" does not say how many bits are used;
        # a value above 255 means 16.
        image = image.convert("I")
        scale = 1 / 257 if is_16_bit or _extrema(image)[1] > 255 else 1
        image = image.point(lambda value: value * scale).convert("L")
    elif image.mode == "F":
        _, high = _extrema(image)
        scale = 255.0 if high <= 1 else 1.0
        image = image.point(lambda value: value * scale).convert("L")
    elif image.mode == "P":
        # Go through RGBA, because transparency given as bytes cannot be converted to RGB directly.
        image = image.convert("RGBA")
    return image.convert("RGB")


def _extrema(image: Image.Image) -> tuple[float, float]:
    low, high = image.getextrema()
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    return low, high
