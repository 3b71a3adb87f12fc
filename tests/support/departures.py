"""A server that departs from the algorithm: calls that it makes up, between honest ones."""

from __future__ import annotations

import dataclasses

import sites
from federations import BINARY, rectangles, table
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import declared, wire
from intarsia.engines.remote.wire import Answer, Call, ToOpen
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

KEYS = modes.keys(Privacy(mode="masked"), ("a",), None, "test")


def unguarded(monkeypatch):
    """Take from sites what they hold totals against: what there was before."""
    for name in ("check_asked", "check_clear", "check_readable", "check_message", "check_opening"):
        monkeypatch.setattr(declared.Declared, name, lambda *given, **named: None)
    monkeypatch.setattr(declared.Declared, "check_number", lambda *given: given[-1])

    def sends(self, call):
        named = [one for key, one in self._calls.items() if key[:2] == (call.function, call.part)]
        return named[0]

    monkeypatch.setattr(declared.Declared, "sends", sends)


class Departing:
    """An honest server's federation, of which each call to a victim can be altered.

    `alter(call, message)` gives the message in place of one of a client function. Sums are sealed
    with one key: under keys of pairs most of what a site refuses cannot be opened either.
    """

    def __init__(
        self, algorithm, options, victim, *, mode="masked", trust="clients", labels=BINARY, **more
    ):
        x, y = table(40, 6)
        self.blocks = more.pop("blocks", None) or rectangles(
            x, y, 2, 2, shared_rows=4, shared_columns=1
        )
        self.victim, self.algorithm, self.options = victim, algorithm, options
        self.calls, self.answers = [], {}
        sealing = None
        if mode != "plain":

            def sealing():
                settings = Privacy(mode=mode, trust=trust)
                return modes.sealing(settings, list(self.blocks), KEYS)

        self.made = sites.federation(
            *(algorithm, options, self.blocks, labels),
            sealing=sealing,
            fault=self._line,
            **more,
        )

    def _line(self, client, number, data, deliver):
        answer = deliver(data)
        if data:
            self.calls.append((client, codec.decode(data, Call), answer))
        return answer

    def rounds(self, count=1):
        """Run the set-up and some rounds as they are; return the server's state."""
        engine = self.made.engine
        server = sites.begun(self.made, self.algorithm, self.options)
        for number in range(1, count + 1):
            engine.begin_round(number)
            server, _ = self.algorithm.round(server, engine, engine.key())
        return server

    def of(self, function, client=None):
        """Return the calls of a function to a client, first to last."""
        wanted = client or self.victim
        return [c for name, c, _ in self.calls if name == wanted and c.function == function]

    def sealed(self, function, client):
        """Return what a client sealed in its last call of a function, as the server has it."""
        found = [
            answer for name, c, answer in self.calls if name == client and c.function == function
        ]
        body = codec.decode(found[-1], Answer).body
        return codec.decode(body, wire.SealedReply, *RECORDS)

    def ask(self, call, **changes):
        """Send the victim a call with the next number; return the answer."""
        base = self.made.caller.versions[self.victim]
        number = self.made.caller.sequence + 1
        made = dataclasses.replace(call, sequence=number, base=base, anchor=base, **changes)
        return codec.decode(self.made.lines.sites[self.victim].handle(codec.encode(made)), Answer)

    def message(self, call):
        """Return the message of a call as the server wrote it."""
        name = call.function.split(".")[1]
        fn = next(one for one in self.algorithm.disclosure.functions if one.name == name)
        return wire.decode_as(fn.message, call.body, *RECORDS)

    def open(self, total, cells, **changes):
        """Ask the victim to open cells of a record of a total."""
        call = Call(
            *(self.made.caller.run, 0, 0, 0, 1, 0, "open", "open", "train"),
            *((self.victim,), codec.encode(ToOpen(total, tuple(cells)))),
        )
        return self.ask(call, **changes)


def with_field(message, field, **changes):
    """Return a message with the record in a field changed."""
    record = getattr(message, field)
    return dataclasses.replace(message, **{field: dataclasses.replace(record, **changes)})


def with_total(message, field, **changes):
    """Return a message with the combination behind a field changed."""
    value = getattr(message, field).value
    return with_field(message, field, value=dataclasses.replace(value, **changes))
