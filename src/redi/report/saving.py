"""Figures as files, written completely or not at all."""

from io import BytesIO
from pathlib import Path
from typing import Any

from redi.records import artifacts


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure of matplotlib in the format of the suffix; a full disk is one line."""
    content = BytesIO()
    figure.savefig(content, format=path.suffix.removeprefix("."), dpi=dpi)
    artifacts.write_bytes(path, content.getvalue())
