"""Images in folders: one folder per class, or a flat folder without classes."""

from pathlib import Path

from PIL import Image

from redi.errors import CorpusError
from redi.images.decode import load_image
from redi.images.labelled import SUFFIXES, digest_lines


class FolderImages:
    """Images in ``root/<class>/**/<image>``.

    Classes are sorted by folder name and the files of a class by path, both by code point. Hidden files and files
    without an image suffix are ignored. An empty class folder is a class without images.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        folders = sorted(
            (entry for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."),
            key=lambda folder: folder.name,
        )
        self.class_names: list[str] = [folder.name for folder in folders]
        self.files: list[str] = []
        self.labels: list[int] = []
        self._sizes: list[int] = []
        for label, folder in enumerate(folders):
            files, sizes = _pictures(folder, root)
            self.files += files
            self._sizes += sizes
            self.labels += [label] * len(files)

    def load(self, index: int) -> Image.Image:
        """Load an image; a file that can no longer be read stops the run.

        Skipping the file, and perhaps a whole lost disk after it, would change the data silently.
        """
        file = self.root / self.files[index]
        try:
            content = file.read_bytes()
        except OSError as error:
            raise CorpusError(f"{file} can no longer be read: {error.strerror}.") from None
        return load_image(content, str(file))

    def image_name(self, index: int) -> str:
        return self.files[index]

    def fingerprint(self) -> str:
        lines = [f"{file} {size}" for file, size in zip(self.files, self._sizes, strict=True)]
        return digest_lines([*self.class_names, "", *lines])


class FlatImages(FolderImages):
    """All pictures below a folder, without classes, sorted by path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)
        self.class_names = []
        self.files, self._sizes = _pictures(root, root)
        self.labels = [0] * len(self.files)


def _pictures(folder: Path, root: Path) -> tuple[list[str], list[int]]:
    """Paths of the pictures below ``folder``, relative to ``root``, and their sizes in bytes."""
    files: list[str] = []
    sizes: list[int] = []
    for file in sorted(folder.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.suffix.lower() in SUFFIXES and not hidden and file.is_file():
            files.append(file.relative_to(root).as_posix())
            sizes.append(file.stat().st_size)
    return files, sizes
