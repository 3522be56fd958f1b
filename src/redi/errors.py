"""Errors that the user's input causes. Each message is one sentence that a person can act on."""

import re

#: Characters that a terminal obeys or cannot show: controls except the tab, line separators, changes of the writing
#: direction, and the surrogates that stand for bytes which are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class RediError(ValueError):
    """Base class of all errors in this module; the command line prints them as one line."""


class InvalidInput(RediError):
    """Numbers or shapes that a function cannot work with."""


class ImageError(RediError):
    """An image file that cannot be decoded."""


class CorpusError(RediError):
    """Training images or labels from which no vocabulary or table can be built."""


class BackboneError(RediError):
    """A checkpoint that cannot be found, read or used."""


class ArtifactError(RediError):
    """A file of a run that is damaged, belongs to another run, or cannot be written."""


class ConfigError(RediError):
    """A setting that is missing, unknown or impossible."""


class LoaderError(RediError):
    """Images that could not be loaded for the encoder."""


class RanksError(RediError):
    """Processes of one run that cannot join or no longer hear each other."""


class ExportError(RediError):
    """A model that could not be exported, or whose export computes something else."""


def one_line(error: BaseException) -> str:
    """The type and the first line of an error that another library raised."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # of a class that cannot write its own message
        lines = []
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def printable(text: object) -> str:
    """One line of text in which file and class names can neither move the cursor nor break the encoding.

    A character that does not print appears as its escape: a bell is ``\\x07``, the byte 0xff of a name that is not
    UTF-8 is ``\\xff``.
    """
    return _UNPRINTABLE.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # Python's stand-in for a single byte
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
