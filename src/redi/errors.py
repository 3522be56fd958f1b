"""Errors that the user's input causes. Each message is one sentence that a person can act on."""


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
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
