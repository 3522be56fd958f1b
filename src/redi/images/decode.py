"""Decoding of image files of any mode and orientation to upright RGB pictures."""

import os
import stat
import warnings
from functools import cache
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from redi.errors import ImageError

#: Pixels beyond which a file is refused as a decompression bomb (Pillow's own warning threshold).
MAX_PIXELS = 89_478_485
#: Size of the largest file that is read, in bytes. A sparse file or the header of an archive may claim any size.
MAX_BYTES = 256 * 2**20
#: Formats that are decoded. Pillow would also try others, and start Ghostscript for EPS, whatever a file is called.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")


def load_image(file: str | Path | bytes, name: str | None = None) -> Image.Image:
    """Decode a file, or its content, to upright RGB.

    Greyscale, palette, CMYK and 16-bit pictures are converted, transparency is dropped, EXIF orientation is
    applied, and only the first frame of an animation is used. A file that cannot be decoded completely, or whose
    format is not in :data:`FORMATS`, raises an :class:`ImageError` with the file's name.
    """
    name = name or ("The image" if isinstance(file, bytes) else str(file))
    try:
        content = file if isinstance(file, bytes) else read_file(Path(file), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. about corrupt EXIF, which does not matter here
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(content), formats=_formats()) as image:
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
        raise ImageError(f"{name} is not an image in one of the formats {', '.join(_formats())}.") from None
    except ImageError:
        raise
    except Exception as error:  # decoders raise many types of errors on broken files
        raise ImageError(f"{name} cannot be decoded: {error or type(error).__name__}.") from None


def read_file(file: Path, name: str) -> bytes:
    """The content of a regular file. Reading a pipe or a device could wait for ever."""
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{name} is not a regular file, but a pipe or a device.")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"{name} has {status.st_size:,} bytes, more than the {MAX_BYTES:,} that are allowed.")
        return opened.read()


@cache
def _formats() -> tuple[str, ...]:
    """The formats that the installed Pillow can decode; its older versions have no AVIF."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


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
