"""Every error that intarsia raises on purpose.

IntarsiaError
├── UserError                  the user can mend it; the command line exits with status 2
│   ├── TableError             a party's table cannot become a Block
│   ├── ExperimentError        an experiment file or a setting is wrong
│   ├── FederationError        the parties do not fit together
│   └── CheckpointError        an output folder cannot be resumed or read
├── ConvergenceError           training diverged or stalled; names the likely cause
├── SealedError                a sealed total was read without `reveal`
└── CodecError                 bytes on a wire or a disk are not what was written
"""

__all__ = [
    "CheckpointError",
    "CodecError",
    "ConvergenceError",
    "ExperimentError",
    "FederationError",
    "IntarsiaError",
    "SealedError",
    "TableError",
    "UserError",
]


class IntarsiaError(Exception):
    """Any error that intarsia raises on purpose."""


class UserError(IntarsiaError):
    """Something that the user can mend: says the actual values, what was expected, what to do."""


class TableError(UserError, ValueError):
    """A party's table cannot become a Block."""


class ExperimentError(UserError, ValueError):
    """An experiment file, a setting or an argument is wrong."""


class FederationError(UserError, ValueError):
    """The parties' tables do not fit together."""


class CheckpointError(UserError):
    """An output folder cannot be resumed or read."""


class ConvergenceError(IntarsiaError, ArithmeticError):
    """Training diverged or stalled; the sentence names the likely cause and a remedy."""


class SealedError(IntarsiaError, TypeError):
    """A sealed total was read without `Clients.reveal`."""


class CodecError(IntarsiaError, ValueError):
    """Bytes on a wire or a disk are not what was written."""
