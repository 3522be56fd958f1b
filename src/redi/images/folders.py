"""Images in folders: one folder per class, or a flat folder without classes."""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from PIL import Image

from redi.errors import CorpusError
from redi.images.decode import load_image, read_file
from redi.images.labelled import SUFFIXES, digest_lines
from redi.images.samples import sample_files

DANGLING = "links that lead nowhere"
REPEATED = "links to a folder that is read anyway"
FORBIDDEN = "entries without permission to read them"
NO_FILE = "pipes and devices"
#: Reasons why a link cannot be followed. Any other failure, such as a lost disk, stops the program.
_BROKEN = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG}


class FolderImages:
    """Images in ``root/<class>/**/<image>``.

    Classes are sorted by folder name and the files of a class by path, both by code point. Hidden files and files
    without an image suffix are ignored. An empty class folder is a class without images. Links are followed, but no
    folder is read twice for one class.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        scan = _Scan(root)
        entries = scan.entries(root, "")
        folders = sorted(name for name, status in entries.items() if stat.S_ISDIR(status.st_mode))
        self.class_names: list[str] = []
        self.files: list[str] = []
        self.labels: list[int] = []
        for name in folders:
            if scan.contains_root(entries[name]):
                scan.left_out[REPEATED].append(name)
                continue
            files = scan.pictures(name)
            self.files += files
            self.labels += [len(self.class_names)] * len(files)
            self.class_names.append(name)
        self.left_out = scan.left_out

    def load(self, index: int) -> Image.Image:
        """Load an image; a file that can no longer be read stops the run.

        Skipping the file, and perhaps a whole lost disk after it, would change the data silently.
        """
        file = self.root / self.files[index]
        try:
            content = read_file(file, str(file))
        except OSError as error:
            raise CorpusError(f"{file} can no longer be read: {error.strerror}.") from None
        return load_image(content, str(file))

    def image_name(self, index: int) -> str:
        return self.files[index]

    def fingerprint(self, indices: Sequence[int] | None = None) -> str:
        files = self.files if indices is None else [self.files[index] for index in indices]
        digests = sample_files([self.root / file for file in files])
        lines = [f"{file} {digest}" for file, digest in zip(files, digests, strict=True)]
        return digest_lines([*self.class_names, "", *lines])


class FlatImages(FolderImages):
    """All pictures below a folder, without classes, sorted by path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self.class_names = []
        scan = _Scan(root)
        self.files = scan.pictures("")
        self.labels = [0] * len(self.files)
        self.left_out = scan.left_out


class _Scan:
    """Finds the pictures below a folder, and notes what looks like pictures but cannot be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.left_out: dict[str, list[str]] = {reason: [] for reason in (DANGLING, REPEATED, FORBIDDEN, NO_FILE)}
        place = root.resolve()
        self._above = {_identity(folder.stat()) for folder in (place, *place.parents)}

    def contains_root(self, status: os.stat_result) -> bool:
        return _identity(status) in self._above

    def pictures(self, folder: str) -> list[str]:
        """Paths of the pictures below ``folder``, relative to the root and sorted.

        Folders come before links to folders, so that each is read once, whatever the links are called.
        """
        files: list[str] = []
        folders, links = [folder], list[str]()
        seen = self._above - {_identity((self.root / folder).stat())}
        while folders or links:
            at = folders.pop() if folders else links.pop()
            path = self.root / at
            identity = _identity(path.stat())
            if identity in seen:
                self.left_out[REPEATED].append(at)
                continue
            seen.add(identity)
            for name, status in self.entries(path, at).items():
                inner = f"{at}/{name}" if at else name
                if stat.S_ISDIR(status.st_mode):
                    (links if (path / name).is_symlink() else folders).append(inner)
                elif _is_picture(name) and stat.S_ISREG(status.st_mode):
                    files.append(inner)
                elif _is_picture(name):
                    self.left_out[NO_FILE].append(inner)
            links.sort(reverse=True)
        return sorted(files)

    def entries(self, folder: Path, relative: str) -> dict[str, os.stat_result]:
        """What lies in a folder, links followed; without hidden entries and what cannot be reached."""
        found: dict[str, os.stat_result] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    try:
                        found[entry.name] = entry.stat()
                    except OSError as error:
                        self._leave_out(error, entry.name, f"{relative}/{entry.name}" if relative else entry.name)
        except PermissionError:
            if not relative:
                raise
            self.left_out[FORBIDDEN].append(relative)
        return found

    def _leave_out(self, error: OSError, name: str, path: str) -> None:
        if error.errno not in _BROKEN and not isinstance(error, PermissionError):
            raise error
        if _is_picture(name) or "." not in name:  # a link without a suffix may have led to a folder
            self.left_out[DANGLING if error.errno in _BROKEN else FORBIDDEN].append(path)


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
