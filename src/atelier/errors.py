"""The errors a user can meet, each with the process exit code it leads to.

A message says what is wrong, where (file, key, line) and how to mend it. Anything else that
escapes is a crash: it keeps its traceback and Python's exit code 1.
"""


class AtelierError(Exception):
    """Base of every error that is reported without a traceback."""

    exit_code = 1


class ConfigError(AtelierError):
    """The configuration cannot be used: unknown key, wrong type, impossible value."""

    exit_code = 2


class DataError(AtelierError):
    """A prompt file, dataset or table cannot be read as what it claims to be."""

    exit_code = 2


class CheckpointError(AtelierError):
    """A checkpoint or an exported directory is incomplete, altered or of another run."""

    exit_code = 2


class PlanError(AtelierError):
    """The configuration is well formed but describes a run that cannot work."""

    exit_code = 3


class Stopped(AtelierError):
    """The run stopped itself and can be resumed: missing rewards, a failed gate, a full disk."""

    exit_code = 75
