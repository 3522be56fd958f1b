"""Digests that say whether images are still the same, from a few kilobytes of each.

Names and sizes do not tell two pictures of an uncompressed format apart, and modification times change with every
copy or checkout. The content tells, but to read all of ImageNet takes many minutes. So three pieces of every image
are read. In a compressed file this notices practically every change, because later bytes depend on earlier pixels
and PNG ends in a checksum. Files of uncompressed formats are read whole.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redi.errors import CorpusError
from redi.images.decode import MAX_BYTES

#: Bytes of one piece. A file of up to three pieces is read whole.
PIECE = 4096
#: First bytes of formats that usually store pixels as they are: BMP, PPM and its relatives, TIFF.
UNCOMPRESSED = (b"BM", *(b"P%d" % kind for kind in range(1, 8)), b"II*\0", b"MM\0*")
#: Threads that read files, most of whose time is spent waiting for the disk.
THREADS = 16
#: Files that a thread takes at a time.
SHARE = 256


def sample(read: Callable[[int, int], bytes], size: int) -> str:
    """A digest of one image of ``size`` bytes; ``read(start, length)`` gives some of them."""
    first = read(0, min(PIECE, size))
    digest = hashlib.blake2b(f"{size} ".encode(), digest_size=16)
    if size <= 3 * PIECE or (bytes(first[:4]).startswith(UNCOMPRESSED) and size <= MAX_BYTES):
        digest.update(read(0, size))
    else:
        for piece in (first, read(size // 2, PIECE), read(size - PIECE, PIECE)):
            digest.update(piece)
    return digest.hexdigest()


def sample_file(file: Path) -> str:
    """The digest of an image in a file of its own."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            size = os.fstat(descriptor).st_size
            return sample(lambda start, length: os.pread(descriptor, length, start), size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CorpusError(f"{file} cannot be read: {error.strerror}.") from None


def sample_files(files: Sequence[Path]) -> list[str]:
    """The digests of many files, in their order."""
    shares = [files[at : at + SHARE] for at in range(0, len(files), SHARE)]
    with ThreadPoolExecutor(THREADS) as pool:
        return [digest for digests in pool.map(lambda share: [*map(sample_file, share)], shares) for digest in digests]
