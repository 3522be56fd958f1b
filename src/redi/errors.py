"""What goes wrong on the user's side, as types: each message is one sentence a person can act on."""


class RediError(ValueError):
    """Base of every error that is about the input, not a bug; the CLI prints it as one line."""


class InvalidInput(RediError):
    """Numbers or shapes that the mathematics cannot work with."""


class ImageError(RediError):
    """A file that is not an image we can decode."""


class CorpusError(RediError):
    """Training images or labels from which no vocabulary or table can be built."""


class BackboneError(RediError):
    """A checkpoint that cannot be found, read or used."""


class ArtifactError(RediError):
    """A file of a run that is damaged, belongs to another run, or cannot be written."""


class ConfigError(RediError):
    """A setting that is missing, unknown or impossible."""


class LoaderError(RediError):
    """Images could not be brought to the encoder."""


class ExportError(RediError):
    """A model that could not be written in another format, or does not compute the same there."""
