"""Simulation engine: run every client in this process, one after the other.

Totals are sealed here too (reading one raises), bytes are counted as the codec would write them,
and client state lives with the engine's clients, never with the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from intarsia.core import algorithm as fl
from intarsia.core.algorithm import ClientFunction, RandomKey, SecretKey
from intarsia.core.block import Block, ClientId
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.client_states import States
from intarsia.engines.communication_log import CommunicationLog, Exchange
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.sums.plain import Geometry, PlainTotals, Totals
from intarsia.engines.sums.sealed import SealedTotal
from intarsia.engines.sums.secure import SecureTotals
from intarsia.engines.transcript import Recorder
from intarsia.errors import AbsentError, IntarsiaError
from intarsia.privacy.secure_aggregation.protocol import Sealing


class Simulation:
    """The in-process engine over aligned blocks.

    Parameters
    ----------
    parts
        For each part ("train", "test"): its schema and each client's block, in any row order.
    seed
        The root of every random stream.
    sealing
        How contributions are sealed; None = not at all, for simulation and tests.
    recorder
        Takes down all that the server could read.
    states
        Where the clients' states lie; None = in memory.
    secrets
        Each client's own; None = drawn from the system, so that what rests on them comes to other
        bits in every engine.
    ledger
        What the clients released with noise; None = nothing so far.
    aligned
        Whether the blocks are in the order of the schemas, as `Schema.align` brings them.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Schema, Mapping[ClientId, Block]]],
        seed: int,
        sealing: Sealing | None = None,
        recorder: Recorder | None = None,
        states: States | None = None,
        secrets: Mapping[ClientId, SecretKey] | None = None,
        ledger: ReleaseLedger | None = None,
        aligned: bool = False,
    ) -> None:
        self._seed = seed
        self._schemas = {part: schema for part, (schema, _) in parts.items()}
        names = tuple(parts["train"][0].clients)
        self._present: tuple[ClientId, ...] = names
        self._secrets = {name: SecretKey.draw() for name in names} if secrets is None else secrets
        # not among the states: these go back to a checkpoint
        self._ledger = ReleaseLedger() if ledger is None else ledger
        self._blocks: dict[ClientId, dict[str, Block]] = {
            name: {
                part: blocks[name] if aligned else schema.align(name, blocks[name])
                for part, (schema, blocks) in parts.items()
                if name in blocks
            }
            for name in names
        }
        self._whole: dict[ClientId, Block] = {}  # training blocks with undivided values
        self._states = States() if states is None else states
        self._states.begin(dict.fromkeys(names).items())
        geometry = Geometry(self._schemas)
        self._totals: Totals = (
            PlainTotals(geometry) if sealing is None else SecureTotals(geometry, sealing)
        )
        self.books = CommunicationLog(names, self._totals, recorder)

    @property
    def ids(self) -> Sequence[ClientId]:
        """Return the clients that are there in this round."""
        return self._present

    @property
    def sealed(self) -> bool:
        """Return whether contributions are hidden from the server."""
        return self.books.mode != "plain"

    def ask(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> dict[ClientId, Any]:
        """Run `fn` at each client that has a message; the server reads each reply."""
        return self._run("ask", fn, messages).replies

    def sum(self, fn: ClientFunction, messages: Mapping[ClientId, Any]) -> SealedTotal:
        """Run `fn` at each client that has a message; the server gets the sealed total."""
        return self._run("sum", fn, messages).total()

    def reveal(self, total: Any) -> Any:
        """Open a sealed total (or one field of it) to the server."""
        return self.books.reveal(total)

    def begin_round(self, number: int, present: Sequence[ClientId] | None = None) -> None:
        """Start a round with the clients that are there (None: all)."""
        self.books.begin_round(number)
        self._present = tuple(self._blocks) if present is None else tuple(present)

    def key(self, *words: int | str) -> RandomKey:
        """Return the server's random key for this round."""
        return RandomKey((self._seed, self.books.round, "server", *words))

    def client_key(self, client: ClientId) -> RandomKey:
        """Return the random key that a client's state is made with."""
        return RandomKey((self._seed, "init", client))

    def block(self, client: ClientId, part: str = "train") -> Block:
        """Return a client's block of one part (simulation and tests only)."""
        return self._blocks[client][part]

    def count_once(self) -> None:
        """Let each training value count once: divide it by its number of holders."""
        for client, own in self._blocks.items():
            once = own["train"].counted_once()
            if once is not own["train"]:
                self._whole[client], own["train"] = own["train"], once

    def transform(self, change: Callable[[ClientId, str, Block], Block]) -> None:
        """Replace every block by what `change(client, part, block)` makes of it, at its client."""
        for name, own in self._blocks.items():
            for part in own:
                own[part] = change(name, part, own[part])

    def whole_block(self, client: ClientId, part: str) -> Block:
        """Return a client's block with undivided values (simulation and tests only)."""
        own = self._blocks[client][part]
        return self._whole.get(client, own) if part == "train" else own

    def schema(self, part: str) -> Schema:
        """Return the public schema of a part."""
        return self._schemas[part]

    @property
    def states(self) -> Mapping[ClientId, Any]:
        """Return every client's state of now, for the checkpoint that the client writes."""
        return self._states

    def get_states(self) -> dict[ClientId, Any]:
        """Return every client's state as it is now, to look at it or to put it back later."""
        return dict(self._states)

    def set_states(self, states: Mapping[ClientId, Any]) -> None:
        """Put back every client's state."""
        self._states.begin(states.items())

    def make_states(self, make: Callable[[ClientId], Any]) -> None:
        """Give each client the state that is made for it, one after the other."""
        self._states.begin((name, make(name)) for name in self._blocks)

    def saved(self) -> None:
        """Take note of a checkpoint: there is nothing to do."""

    def without(self, absent: AbsentError) -> bool:
        """Return whether the round may begin again without some clients: here all are there."""
        return False

    @property
    def away(self) -> bool:
        """Return whether a client did not answer and has not come back."""
        return False

    def return_of(self, *, wait: bool) -> None:
        """Let clients that were away take part again: here none is ever away."""

    def begin(self, algorithm: fl.Algorithm, options: Any) -> None:
        """Give each client the state that it starts an algorithm with."""
        schema = self._schemas["train"]
        self.make_states(
            lambda name: algorithm.init_client(
                options, schema, name, self.block(name), self.client_key(name)
            )
        )

    def _run(
        self, kind: Literal["ask", "sum"], fn: ClientFunction, messages: Mapping[ClientId, Any]
    ) -> Exchange:
        exchange = Exchange(self.books, kind, fn, messages)
        for group in self._groups(fn, list(messages)):
            visits = [self._visit(fn, client, self._opened(client, exchange)) for client in group]
            for client, reply in zip(group, self._replies(fn, group, visits), strict=True):
                exchange.take(client, reply)
        return exchange.end()

    def _groups(self, fn: ClientFunction, clients: list[ClientId]) -> list[list[ClientId]]:
        """Return the clients in groups: each opens its messages, computes, and seals replies."""
        if fn.together is None:
            size = 1 if self._totals.mode == "plain" else _TOGETHER
            return [clients[first : first + size] for first in range(0, len(clients), size)]
        groups: list[list[ClientId]] = []
        room = 0
        for client in clients:
            x = self._blocks[client][fn.part].x
            size = self._states.size(client) + int(x.data.nbytes)
            if not groups or size > room:
                groups.append([])
                room = _TOGETHER_BYTES
            groups[-1].append(client)
            room -= size
        return groups

    def _opened(self, client: ClientId, exchange: Exchange) -> Any:
        """Return a client's message with its totals opened by the client."""
        apart, opened = exchange.split(client), exchange.messages[client]
        exchange.down += apart.size
        if apart.sealed:
            own = dict(apart.plain)
            for field, total in apart.sealed.items():
                own[field], extra = self._totals.own(client, total, exchange.asked)
                exchange.down += extra + codec.size_within(own[field]) - codec.NOTHING
            opened = object.__new__(apart.kind)
            opened.__dict__.update(own)
        return opened

    def _replies(
        self, fn: ClientFunction, clients: Sequence[ClientId], visits: Sequence[fl.ClientCall[Any]]
    ) -> list[Any]:
        """Return what clients reply; their states are replaced.

        A function that runs for several clients at once gets all of them, any other each alone.
        """
        replies: list[Any] = []
        client = ""
        if fn.releases:
            self._ledger.settle()
        try:
            answers = fn.together(visits) if fn.together is not None else ()
            for number, client in enumerate(clients):
                state, reply = answers[number] if answers else fn.call(*visits[number])
                self._states.replace(client, state)
                replies.append(reply)
        except IntarsiaError as error:
            where = f"in {fn.name}, which ran for all clients together"
            if fn.together is None:
                where = f"at client {client!r} in {fn.name}"
            error.add_note(f"{where}, round {self.books.round}")
            raise
        return replies

    def _visit(self, fn: ClientFunction, client: ClientId, opened: Any) -> fl.ClientCall[Any]:
        words = (self._seed, self.books.round, self.books.exchange, client, fn.stream or fn.name)
        state, key = self._states[client], RandomKey(words)
        visit = state, self._blocks[client][fn.part], opened
        if fn.releases:
            parts = [codec.encode(one) for one in (state, opened)]
            return *visit, self._ledger.key(client, self._secrets[client], key, parts)
        return *visit, self._secrets[client].fold_in(*words) if fn.secret else key


# Clients that open, then compute, then seal: one after the other, each would find the processor's
# caches filled with the data of a computation.
_TOGETHER = 16
# Those of a function for several clients: copies of their states and rows, and new states, are
# there at once, some six times this.
_TOGETHER_BYTES = 1 << 26
