"""Clients that note what they are asked, and which totals they open."""

from __future__ import annotations

from intarsia.engines.communication_log import Split


class Listening:
    """The clients of an engine; `called` are functions by name, `opened` totals "Reply.field"."""

    def __init__(self, engine):
        self._engine, self.reveal, self.opened = engine, engine.reveal, set()
        self.called = []

    @property
    def ids(self):
        return self._engine.ids

    @property
    def sealed(self):
        return self._engine.sealed

    def ask(self, fn, messages):
        return self._engine.ask(fn, self._heard(fn, messages))

    def sum(self, fn, messages):
        return self._engine.sum(fn, self._heard(fn, messages))

    def _heard(self, fn, messages):
        self.called.append(fn.name)
        for message in messages.values():
            for _, origins in Split(message).names:
                self.opened |= {*origins.split(" and ")}
        return messages
