"""Drafts: new files under a name of their own, which take the place of another when they are complete.

This module alone makes temporary files beside others and renames files. The name of a draft begins with that of its
target and has a random part, so nobody can lay a file or a link in its way, and two processes never share one. A
process holds a lock on its drafts. So a draft without a lock was left by a killed process and may be cleared away.

A target that is a link is replaced by the new file; what the link leads to stays as it was.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from redi.errors import ArtifactError

#: Where a draft of a folder keeps the files that it replaces.
_OLD = ".old"
_NAME = re.compile(r"\.(?P<target>.+)\.redi-[0-9a-f]{16}")


def is_draft(path: Path, target: str = "") -> bool:
    """Whether a name is that of a draft: of any, or of one for ``target``."""
    match = _NAME.fullmatch(path.name)
    return match is not None and target in ("", match["target"])


@contextmanager
def draft(target: Path) -> Iterator[Path]:
    """An empty file to write to. It replaces ``target`` at the end, or vanishes if anything fails."""
    with scratch(target) as path:
        yield path
        path.replace(target)


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """An empty file beside ``target`` that vanishes at the end. What killed processes left there is cleared away."""
    for path in target.parent.iterdir():
        if is_draft(path, target.name):
            _clear(path)
    path, descriptor = _create(target)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def clear(folder: Path) -> None:
    """Remove the drafts that killed processes left in a folder of ours and below it."""
    for path in folder.rglob(".*"):
        if is_draft(path):
            _clear(path)


@contextmanager
def folder_draft(folder: Path, last: str) -> Iterator[Path]:
    """A new folder inside ``folder``, whose files :func:`install` puts in place. One process at a time.

    The draft vanishes at the end, or if anything fails before ``install``. If that is cut off, the draft stays until
    the next one has been installed: it shows that the folder is half old and half new.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(f"Another redi process is saving to {folder}: wait for it.") from None
        earlier = [path for path in folder.iterdir() if is_draft(path)]
        path = _name(folder / last)
        path.mkdir()
        try:
            yield path
            for other in earlier:
                _remove(other)
        finally:
            if not (path / _OLD).exists():
                _remove(path)
    finally:
        os.close(descriptor)


def install(draft: Path, folder: Path, earlier: Collection[str], last: str) -> None:
    """Replace the ``earlier`` files of a folder, which are relative paths, by those of a draft.

    The file ``last`` goes first and comes back last. So the folder has it only while it is whole.
    """
    new = [path.relative_to(draft).as_posix() for path in draft.rglob("*") if path.is_file()]
    old = draft / _OLD
    old.mkdir()
    for name in sorted(earlier, key=lambda name: name != last):
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).replace(old / name)
    for name in sorted(new, key=lambda name: name == last):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).replace(folder / name)
    shutil.rmtree(old, ignore_errors=True)


def is_cut_off(folder: Path, last: str) -> bool:
    """Whether a process was killed in :func:`install`, so that the folder is half old and half new."""
    return not (folder / last).exists() and any((path / _OLD).is_dir() for path in folder.iterdir() if is_draft(path))


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Allow one process at a time to work on a file. The lock ends with the process, even if it is killed.

    Threads of one process do not exclude each other. Where the file system knows no locks, nobody is kept out.
    """
    path = target.with_name(f".{target.name}.lock")
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ArtifactError(f"{path} cannot be locked: {error.strerror}. Choose another --out.") from None
        try:
            # lockf instead of flock, whose lock would survive in the forked workers of a killed process.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                os.close(descriptor)
                raise ArtifactError(
                    f"Another redi process is working on {target}: wait for it, or choose another --out."
                ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        os.close(descriptor)  # its last holder has removed it in between
    try:
        yield
    finally:
        if not os.fstat(descriptor).st_size:  # otherwise it is a file of the user with this name
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _name(target: Path) -> Path:
    return target.with_name(f".{target.name}.redi-{token_hex(8)}")


def _create(target: Path) -> tuple[Path, int]:
    """A new file with the permissions that any new file gets, and its descriptor, which holds the lock."""
    while True:
        path = _name(target)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # without locks on this file system, nothing is ever cleared away
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # it was taken for a leftover before it was locked


def _clear(path: Path) -> None:
    """Remove a draft, unless it is locked by the process that writes it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        _clear(path)
