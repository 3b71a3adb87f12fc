"""Every error that intarsia raises on purpose.

IntarsiaError
├── UserError                  the user can mend it; the command line exits with status 2
│   ├── TableError             a party's table cannot become a Block
│   ├── ExperimentError        an experiment file or a setting is wrong
│   ├── FederationError        the parties do not fit together
│   ├── CheckpointError        an output folder cannot be resumed or read
│   ├── BusyError              another process works in the folder of a run or of a site
│   ├── RangeError             a value is too large to be sealed, or no number
│   └── KeyMaterialError       a key file, a fingerprint or a key exchange is wrong
├── ConvergenceError           training diverged; names the likely cause
├── SealedError                a sealed total was read without `reveal`
├── TamperedError              a message or a sealed total was altered or cut
├── ReplayError                a message came again or out of order, or a stream was to hide twice
├── StaleError                 a call builds on a state that a site does not have
├── SiteError                  a site could not do what it was asked
├── AbsentError                sites did not answer in time; names them
└── CodecError                 bytes on a wire or a disk are not what was written
"""

__all__ = [
    "AbsentError",
    "BusyError",
    "CheckpointError",
    "CodecError",
    "ConvergenceError",
    "ExperimentError",
    "FederationError",
    "IntarsiaError",
    "KeyMaterialError",
    "RangeError",
    "ReplayError",
    "SealedError",
    "SiteError",
    "StaleError",
    "TableError",
    "TamperedError",
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


class BusyError(UserError, RuntimeError):
    """Another process works in the folder of a run or of a site."""


class RangeError(UserError, ValueError):
    """A value is outside the range that sealed sums are set up for, or no number."""


class KeyMaterialError(UserError, ValueError):
    """A key file, a fingerprint or a message of the key exchange is wrong."""


class ConvergenceError(IntarsiaError, ArithmeticError):
    """Training diverged; the sentence names the likely cause and a remedy."""


class SealedError(IntarsiaError, TypeError):
    """A sealed total was read without `Clients.reveal`, or put together from what does not fit."""


class TamperedError(IntarsiaError, ValueError):
    """A message or a sealed total was altered, cut, or made with other keys."""


class ReplayError(IntarsiaError, ValueError):
    """A message was seen before or came out of its order, or a stream was to be used twice."""


class StaleError(IntarsiaError, ValueError):
    """A call builds on a state that a site does not have."""


class SiteError(IntarsiaError, RuntimeError):
    """A site could not do what it was asked; only the site's own log says with which values."""


class AbsentError(IntarsiaError, TimeoutError):
    """Sites did not answer in time.

    Parameters
    ----------
    sentence
        What is said to the user.
    clients
        Those that did not answer.
    """

    def __init__(self, sentence: str, clients: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.clients = clients


class CodecError(IntarsiaError, ValueError):
    """Bytes on a wire or a disk are not what was written."""
