"""Draw the pictures of a run in a fork, beside the process that trains, where that is faster.

A fork can begin before its process loads what trains, which takes as long as to load what draws: so
little is imported here, and the rest where it is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intarsia.core.side_by_side import cores
from intarsia.engines import codec
from intarsia.engines.forks import Channel, Fork, can_fork, failure_of
from intarsia.errors import WorkerError

if TYPE_CHECKING:
    from intarsia.plots.runs.pictures import Held, Shown

SMALL_FILES: Final = 1 << 26  # bytes of files, more than tables have that are drawn beside


class Artist:
    """Draws a run's pictures in a fork, which loads their library while this process goes on."""

    def __init__(self) -> None:
        self._fork = Fork("drew pictures", _draw_when_told)

    def begin(self, held: Held) -> None:
        """Let it draw who holds what, while this process goes on."""
        with suppress(WorkerError):  # `draws` says it
            self._fork.send(held)

    def draws(self, folder: Path, shown: Shown) -> bool:
        """Let it draw what a result shows, and write all; return whether it did.

        It did not where the fork is gone.

        Raises
        ------
        Exception
            What went wrong there: a full disk, or a folder that cannot be written to.
        """
        try:
            self._fork.send(str(folder), shown, beside=True)  # the first may be unread
            self._fork.receive()
        except WorkerError:
            return False
        return True

    def close(self) -> None:
        """End the fork, wherever it is: all that it writes is written when it says so."""
        self._fork.close(now=True)


@contextmanager
def artist_ahead() -> Iterator[Callable[[], None]]:
    """Begin to load what draws in a fork, for a run that this process is yet to load itself for.

    The run takes the fork by `artist_beside`; what none took ends with this, or by what is given.
    """
    if cores() > 1 and can_fork(asked=False) and not next(_RUNS):
        with suppress(OSError):  # the system gives no more processes
            _AHEAD.append(Artist())
    try:
        yield _end_ahead
    finally:
        _end_ahead()


def _end_ahead() -> None:
    while _AHEAD:
        _AHEAD.pop().close()


def artist_beside(held: Held, workers: int | None) -> AbstractContextManager[Artist | None]:
    """Return who draws what is held, and then a result, beside this process.

    Where there are cores for it and tables are small; else None, and this process draws.

    A fork holds what large tables leave when they are given back, and further runs of a process
    load the library once. `workers` are the processes that may compute; None: one for each core.
    """
    small = len(held.schema.samples) * len(held.schema.features) <= _SMALL
    spreads = (workers or cores()) > 1 and can_fork(asked=workers is not None)
    if not small or not spreads or (not _AHEAD and next(_RUNS)):
        _end_ahead()
        return nullcontext()
    try:
        artist = _AHEAD.pop() if _AHEAD else Artist()
    except OSError:  # the system gives no more processes
        return nullcontext()
    artist.begin(held)
    return closing(artist)


def _draw_when_told(channel: Channel) -> None:
    """Draw who holds what that comes over the channel, and then what a result shows."""
    answer: list[Any] = [None]
    try:
        from intarsia.plots import overlap, score_curves  # noqa: F401 - while there is time
        from intarsia.plots.runs.pictures import Held, Shown, draw, drawn_holdings, write_holdings
        from intarsia.plots.style import warm_up

        warm_up()
        (written,) = channel.receive()
        picture = drawn_holdings(codec.decode_unchecked(written, *codec.classes_in(Held)))
        place, written = channel.receive()
        folder = Path(codec.decode_unchecked(place))
        write_holdings(folder, picture)
        draw(folder, codec.decode_unchecked(written, *codec.classes_in(Shown)))
    except EOFError:  # nobody asks any more
        return
    except Exception as error:
        answer = [failure_of(error)]
    channel.send(answer)


_SMALL = 1 << 21  # values of all tables: 16 MB
_RUNS = itertools.count()  # of this process whose pictures could be drawn beside it
_AHEAD: list[Artist] = []  # one at most, for the run that comes
