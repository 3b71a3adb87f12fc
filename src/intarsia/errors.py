"""Every error that intarsia raises on purpose, and what their sentences are made of.

IntarsiaError
├── UserError                  the user can mend it; the command line exits with status 2
│   ├── TableError             a client's table cannot become a Block
│   ├── ExperimentError        an experiment file or a setting is wrong
│   ├── FederationError        the clients do not fit together
│   ├── CheckpointError        an output folder cannot be resumed or read
│   ├── BusyError              another process works in the folder of a run or of a site
│   ├── VersionError           the server and a site have versions whose calls differ
│   ├── RangeError             a value is too large to be sealed, or no number
│   ├── KeyMaterialError       a key file, a fingerprint or a key exchange is wrong
│   └── AlgorithmError         an algorithm of the user's own is wrong, or breaks a rule of all
├── ConvergenceError           training diverged; names the likely cause
├── SealedError                a sealed total was read without `reveal`
├── TamperedError              a message or a sealed total was altered or cut
│   └── GreetingError          what a site sent another one in the set-up is not for it
├── ReplayError                a message came again or out of order, or a stream was to hide twice
├── StaleError                 a call builds on a state that a site does not have
├── WorkerError                a process that computes for simulated clients is gone
├── SiteError                  a site could not do what it was asked, or its answer is malformed
├── RefusedError               a site was asked for what the run's algorithm does not declare
├── AbsentError                sites did not answer in time; names them
│   ├── PolicyError            a site's owner does not allow the job; names the site and the rule
│   └── PendingError           a site's owner has not decided about the job yet
└── CodecError                 bytes on a wire or a disk are not what was written

Stopped is a KeyboardInterrupt: Ctrl-C in a run that goes on later.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Self


class IntarsiaError(Exception):
    """Any error that intarsia raises on purpose; its sentence is safe to show on a terminal."""

    def __str__(self) -> str:
        return printable(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the sentence, and not the way through the package."""
        return [f"{type(self).__name__}: {self}"]


class Stopped(KeyboardInterrupt):
    """Ctrl-C, or a notebook's interrupt, in a run that goes on later; the sentence says how."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class UserError(IntarsiaError):
    """Something that the user can mend: says the actual values, what was expected, what to do.

    Parameters
    ----------
    problem
        The actual values and what was expected; without `advice` the whole sentence.
    advice
        What to do.
    where
        What the problem is in, such as a client and its file.
    without_settings
        What to do where no experiment file can be changed, if that is something else.
    """

    def __init__(
        self, problem: str, advice: str = "", *, where: str = "", without_settings: str = ""
    ) -> None:
        said = f"{where}: {problem}" if where else problem
        super().__init__(f"{said}; {advice}." if advice else said)
        self.problem, self.advice, self.where = problem, advice, where
        self.without_settings = without_settings or advice

    def retold(self, *, where: str, advice: str) -> Self:
        """Return the error about another place, with another advice."""
        return type(self)(self.problem, advice, where=where)


class TableError(UserError, ValueError):
    """A client's table cannot become a Block."""


class ExperimentError(UserError, ValueError):
    """An experiment file, a setting or an argument is wrong."""


class FederationError(UserError, ValueError):
    """The clients' tables do not fit together."""


class CheckpointError(UserError):
    """An output folder cannot be resumed or read."""


class BusyError(UserError, RuntimeError):
    """Another process works in the folder of a run or of a site."""


class VersionError(UserError, RuntimeError):
    """The server and a site have versions of the package whose calls differ."""


class RangeError(UserError, ValueError):
    """A value is outside the range that sealed sums are set up for, or no number."""


class KeyMaterialError(UserError, ValueError):
    """A key file, a fingerprint or a message of the key exchange is wrong."""


class AlgorithmError(UserError, AssertionError):
    """An algorithm is not written as one is, or breaks rules that all keep; a line for each."""


class ConvergenceError(IntarsiaError, ArithmeticError):
    """Training diverged; the sentence names the likely cause and a remedy."""


class SealedError(IntarsiaError, TypeError):
    """A sealed total was read without `Clients.reveal`, or put together from what does not fit."""


class TamperedError(IntarsiaError, ValueError):
    """A message or a sealed total was altered, cut, or made with other keys."""


class GreetingError(TamperedError):
    """A greeting does not fit who reads it; `sender` is the site whose greeting it is."""

    def __init__(self, sentence: str, sender: str = "") -> None:
        super().__init__(sentence)
        self.sender = sender


class ReplayError(IntarsiaError, ValueError):
    """A message was seen before or came out of its order, or a stream was to be used twice."""


class StaleError(IntarsiaError, ValueError):
    """A call builds on a state that a site does not have."""


class WorkerError(IntarsiaError, RuntimeError):
    """A process that computes for simulated clients ended before its work was done."""


class SiteError(IntarsiaError, RuntimeError):
    """A site could not do what it was asked; only the site's own log says with which values."""


class RefusedError(IntarsiaError, PermissionError):
    """A site was asked for what the algorithm of its run does not declare, and refused."""


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


class PolicyError(AbsentError):
    """A site takes no part in a job, or no further, since its owner does not allow it."""


class PendingError(AbsentError):
    """A site's owner is to decide about a job, and has not done so in time."""


class CodecError(IntarsiaError, ValueError):
    """Bytes on a wire or a disk are not what was written."""


def printable(text: str) -> str:
    """Return text that a terminal shows and does not obey, on as many lines.

    Names of columns, levels and clients come from other parties. Control characters, such as those
    that begin an escape sequence, and characters that turn the direction of writing are written
    out; line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(one)[1:-1] if unicodedata.category(one) in _UNSHOWN and one not in "\n\t" else one
        for one in text
    )


# control, direction and other invisible characters, half of a pair, line and paragraph separators
_UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_FEW_COLUMNS = 7  # are all listed in an error about the name of one


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, without the period at its end."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).strip().rstrip(".")[:160]


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names in quotes with commas; beyond `most` names, the first of them and a count."""
    known = list(names)
    shown = ", ".join(repr(name) for name in known[:most])
    return f"{shown} and {len(known) - most} more" if len(known) > most else shown


def lacks(folder: Path, what: str) -> str:
    """Return how an error begins about a folder that lacks something, or that is none."""
    if folder.is_dir():
        return f"{folder} {what}"
    why = "it is a file" if folder.exists() else "there is none of that name"
    return f"{str(folder)!r} is not a folder ({why})"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the advice that ends an error about `name`: the nearest valid name, or all of them.

    All are up to 25, as many as a table of the experiment file has keys.
    """
    known = [str(one) for one in valid]
    shown = listed(known, 25)
    if not known:
        return "remove it"
    lowered = {one.lower(): one for one in reversed(known)}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.55)
    if close:
        return f"use {lowered[close[0]]!r} (the nearest of {shown})"
    return f"use one of {shown}"


def nearest_column(name: str, columns: Iterable[str]) -> str:
    """Return the advice that ends an error about a column's name: those that are near, up to three.

    A table may have many columns: of more than seven their number is told.
    """
    known = [str(one) for one in columns]
    lowered = {one.lower(): one for one in reversed(known)}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.55)
    if not close or len(known) <= _FEW_COLUMNS:
        return nearest(name, known)
    shown, *others = (repr(lowered[one]) for one in close)
    then = f", then {' and '.join(others)}" if others else ""
    return f"use {shown} (the nearest of {len(known)} columns{then})"


def several(number: int, one: str, more: str = "") -> str:
    """Return a number of things, "1 call" or "2 calls"; `more` is not `one` and an "s".

    As in several(rows, "row is", "rows are").
    """
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def shown(value: object, most: int = 80) -> str:
    """Return the start of how Python writes a value, on one line."""
    return " ".join(repr(value).split())[:most]


def shortened(text: str | None, most: int = 80) -> str:
    """Return the start of a text in quotes, on one line."""
    return repr(" ".join((text or "").split())[:most])
