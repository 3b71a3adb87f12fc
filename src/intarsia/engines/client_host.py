"""What a process has of some clients, and how it runs a client function for them.

The simulation has one host for all clients, or, with several workers, one in each process.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia import core as fl
from intarsia.core.block import Block, ClientId
from intarsia.core.client_functions import ClientFunction, NoiseKey, RandomKey, SecretKey
from intarsia.engines import codec
from intarsia.engines.client_states import Needs, States
from intarsia.errors import IntarsiaError

# Clients of a function for several at once: their networks share each step of Python's, of which 64
# leave little to save, and a federation of more is work for several processes.
_TOGETHER = 64
# Their copies of states and rows, and new states, are there at once, some six times this.
_TOGETHER_BYTES = 1 << 26
_ACCELERATED = 32  # times as many of these where networks train on an accelerator
# By this share at most more groups may slow one process down: so many more processes have work.
_SLOWER = 0.25


@dataclass(frozen=True)
class Moment:
    """Where in a run a function is called: its random numbers are drawn by that."""

    round: int
    exchange: int


@dataclass(frozen=True)
class Release:
    """What the noise of one release is drawn by, beside its client's secret."""

    client: ClientId
    key: RandomKey
    parts: tuple[bytes, ...]  # all that it is computed from beside the client's table


# counts releases with noise, and returns what each draws from
Noise = Callable[[Sequence[Release]], Sequence[NoiseKey]]


def groups_of(
    fn: ClientFunction,
    clients: Sequence[ClientId],
    needs_of: Callable[[ClientId], Needs],
    *,
    accelerated: bool = False,
) -> list[list[ClientId]]:
    """Return the clients in groups, for each of which a function is run at once.

    They are the same wherever it is run: who is in a group may show in the last bits.
    `needs_of` says what a client's state and rows take. Few clients that cost much go in several
    groups, for as many processes. `accelerated` groups are larger: what a step on an accelerator
    costs is mostly there for few clients too.
    """
    if fn.together is None:
        return [[client] for client in clients]
    most, fits = _TOGETHER, _TOGETHER_BYTES
    if accelerated:
        most, fits = len(clients), _ACCELERATED * fits
    found = [(client, needs_of(client)) for client in clients]
    costs = [needs.cost for _, needs in found if needs.cost < math.inf and not accelerated]
    least = 1 + int(_SLOWER * (1 + sum(costs)))  # n groups cost n and this sum
    even = -(-len(clients) // max(1, -(-len(clients) // max(1, most)), min(least, len(costs))))
    groups: list[list[ClientId]] = []
    room = 0
    for client, needs in found:
        alone = needs.cost == math.inf and not accelerated
        if not groups or alone or needs.size > room or len(groups[-1]) == even:
            groups.append([])
            room = fits
        groups[-1].append(client)
        room = 0 if alone else room - needs.size
    return groups


def until_failure(replies: Iterable[Any]) -> tuple[list[Any], Exception | None]:
    """Return the replies up to the first client that failed, and its error; None: none did.

    Which of several clients is named is then the same, however many processes compute.
    """
    found: list[Any] = []
    try:
        for reply in replies:
            found.append(reply)
    except Exception as error:
        return found, error
    return found, None


@dataclass(eq=False)
class Host:
    """Some clients: their blocks, secrets and states.

    Parameters
    ----------
    seed
        The root of every random stream.
    blocks
        Each client's block of each part.
    states
        Each client's state; a call replaces it.
    secrets
        Each client's own.
    own_blocks
        Whether the blocks go where their clients do: no other process has these.
    """

    seed: int
    blocks: dict[ClientId, dict[str, Block]]
    states: States
    secrets: Mapping[ClientId, SecretKey]
    own_blocks: bool = False

    def forget(self, clients: Sequence[ClientId]) -> None:
        """Leave some clients to another process."""
        self.states.forget(clients)
        if self.own_blocks:
            for client in clients:
                del self.blocks[client]

    def releases(
        self, fn: ClientFunction, opened: Mapping[ClientId, Any], now: Moment
    ) -> list[Release]:
        """Return what the noise of a call is drawn by, for each client that has a message."""
        return [
            Release(
                client,
                RandomKey(self._words(fn, client, now)),
                (codec.encode(self.states[client]), codec.encode(message)),
            )
            for client, message in opened.items()
        ]

    def replies(
        self,
        fn: ClientFunction,
        opened: Mapping[ClientId, Any],
        now: Moment,
        noise: Mapping[ClientId, NoiseKey],
    ) -> Iterator[Any]:
        """Yield what clients reply to messages whose totals are open; their states are replaced.

        A function that runs for several clients at once gets all of them, any other each alone.
        `noise` has what each draws from, where the function releases something with noise.
        """
        if fn.together is None:
            for client, message in opened.items():
                state, reply = self.answer(fn, client, message, now, noise)
                self.states.replace(client, state)
                yield reply
            return
        visits = [self._visit(fn, *one, now, noise) for one in opened.items()]
        with _told_where(f"in {fn.name}, which ran for all clients together", now):
            answers = fn.together(visits)
        for client, (state, reply) in zip(opened, answers, strict=True):
            self.states.replace(client, state)
            yield reply

    def answer(
        self,
        fn: ClientFunction,
        client: ClientId,
        message: Any,
        now: Moment,
        noise: Mapping[ClientId, NoiseKey],
    ) -> tuple[Any, Any]:
        """Return a client's new state, and what it replies; parameters as of `replies`."""
        visit = self._visit(fn, client, message, now, noise)
        with _told_where(f"at client {client!r} in {fn.name}", now):
            return fn.answer(*visit)

    def _visit(
        self,
        fn: ClientFunction,
        client: ClientId,
        message: Any,
        now: Moment,
        noise: Mapping[ClientId, NoiseKey],
    ) -> fl.ClientCall[Any]:
        words = self._words(fn, client, now)
        key: Any = RandomKey(words)
        if fn.releases:
            key = noise[client]
        elif fn.secret:
            key = self.secrets[client].fold_in(*words)
        return self.states[client], self.blocks[client][fn.part], message, key

    def _words(self, fn: ClientFunction, client: ClientId, now: Moment) -> tuple[int | str, ...]:
        return self.seed, now.round, now.exchange, client, fn.stream or fn.name


@contextlib.contextmanager
def _told_where(where: str, now: Moment) -> Iterator[None]:
    """Have an error say where a function ran."""
    try:
        yield
    except IntarsiaError as error:
        error.add_note(f"{where}, round {now.round}")
        raise
