"""The addresses of data and checkpoints in a run folder, which must survive a move of either."""

import os
from glob import glob
from pathlib import Path


def absolute(address: str, is_backbone: bool = False) -> str:
    """An address that means the same in every working directory.

    A backbone and a ``hf:`` dataset are names on the Hub, and stay as they are, unless there is such a folder.
    """
    prefix, place, split = parts(address)
    try:
        path = Path(place).expanduser().absolute()
        is_name = bool(is_backbone or prefix) and not path.is_dir()
    except (OSError, RuntimeError, ValueError):  # no such user in ~user, a zero byte: opening it says so
        return address
    return address if is_name or not place else f"{prefix}{path}{split}"


def moved(address: str, out: str, folder: Path) -> str:
    """Where the address of a run that was made in ``out`` leads, now that the run lies in ``folder``.

    What lay inside the run folder still does. What lay elsewhere and is no longer there may have moved together with
    the run folder: then it lies in the same place relative to it. The fingerprint decides whether it is the same.
    """
    prefix, place, split = parts(address)
    if not (Path(place).is_absolute() and Path(out).is_absolute()):
        return address
    relative = os.path.relpath(place, out)
    beside = os.path.normpath(folder.absolute() / relative)
    inside = Path(relative).parts[:1] != (os.pardir,)
    return f"{prefix}{beside}{split}" if inside or (not _exists(place) and _exists(beside)) else address


def parts(address: str) -> tuple[str, str, str]:
    """An address as (``hf:`` or ``timm:`` or nothing, path or name, ``:split`` or nothing)."""
    for prefix in ("hf:", "timm:"):
        if address.startswith(prefix):
            place, colon, split = address.removeprefix(prefix).partition(":")
            return prefix, place, colon + split
    return "", address, ""


def _exists(place: str) -> bool:
    return Path(place).exists() or bool(glob(place))  # shards may be named by a pattern
