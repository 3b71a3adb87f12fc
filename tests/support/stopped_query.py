"""A query that is stopped by Ctrl-C while the database is at work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from intarsia.data.reader import columns_of
from intarsia.data.source import Source


def check_stopped(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Ctrl-C, once the query is asked, ends it before it has its rows."""
    from intarsia.data.formats import sql  # here: it needs a library

    ended, usual = [], sql.interruptible

    def stopped(do, interrupt):
        def asked():
            signal.raise_signal(signal.SIGINT)
            found = do()
            ended.append(found)
            return found

        return usual(asked, interrupt)

    monkeypatch.setattr(sql, "interruptible", stopped)
    with ctrl_c(), pytest.raises(KeyboardInterrupt):
        columns_of(source)
    assert not ended


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, also in a process of tests, which may ignore it."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
