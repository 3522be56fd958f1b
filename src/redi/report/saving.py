"""Figures of matplotlib: made in one place, and written completely or not at all."""

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from redi.errors import ConfigError, one_line
from redi.records import artifacts
from redi.records.outputs import MARK


def new_figure(**settings: Any) -> Any:
    """An empty figure. Settings of the user with which matplotlib cannot be imported are one line."""
    try:
        from matplotlib.figure import Figure
    except Exception as error:  # an unknown backend, a matplotlibrc that cannot be read
        raise ConfigError(
            f"No figure can be drawn, because matplotlib cannot be imported: {one_line(error)}. "
            "Check the variables MPLBACKEND and MATPLOTLIBRC and the file matplotlibrc."
        ) from error
    return Figure(**settings)


#: TrueType fonts: many publishers refuse a PDF with the fonts of Type 3 that matplotlib embeds by default.
FONTS: Any = {"pdf.fonttype": 42, "ps.fonttype": 42}


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure of matplotlib in the format of the suffix; a full disk is one line."""
    from matplotlib import rc_context

    suffix, content = path.suffix.lower().removeprefix("."), BytesIO()
    with warnings.catch_warnings(), rc_context(FONTS):
        # Names of classes may be in a script that the font lacks; they are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(content, format=suffix, dpi=dpi, metadata={"Software" if suffix == "png" else "Creator": MARK})
    artifacts.write_bytes(path, content.getvalue())
