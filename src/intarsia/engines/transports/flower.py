"""Transport over Flower: sites are nodes, and the server's calls go over its Grid to a client app.

A call is a message to the action "query.call" of a node, with one array of bytes; which client
function it is about lies in it, and a node runs those of the run's algorithm only. A node says
which client it is when it is asked by "query.name".

The Grid asks Flower's server again and again where that is gone, for ever: a call is given up when
its time is over, so that the run ends, and can be started again.

Flower may run each call in another process, and keeps a `Context` for each node between them. What
a site has lies in its store (`remote.site.StateStore`): on its own disk, or in the context where
the nodes are simulated (`ContextShelf`). The context also says which call was the last, so that a
process that has answered it goes on with what it has in memory, and any other reads the store.

Where nodes are simulated nothing is lost, and one attempt should have all the time that there is
(`RetryPolicy(seconds=600, deadline=600)`): a second message would run beside the first.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from intarsia.core.block import ClientId
from intarsia.engines.remote.given_up import within
from intarsia.engines.remote.site import Site
from intarsia.errors import AbsentError, FederationError, SiteError, listed, shown

_CALL, _NAME = "call", "name"
_RECORD, _DATA = "intarsia", "data"
_POLL = 0.02  # seconds between two looks for an answer, at first
_SLOWEST = 0.25


class GridLine:
    """Carries calls over a server app's Grid to each client's node; a `remote.caller.Transport`."""

    def __init__(self, grid: Grid, nodes: Mapping[ClientId, int]) -> None:
        self._grid, self._nodes = grid, dict(nodes)
        self._lock = threading.Lock()  # calls to sites come from a thread each

    def send(self, client: ClientId, data: bytes, seconds: float) -> bytes:
        """Return what a site answers; OSError (TimeoutError too) if nothing came in time."""
        end = time.monotonic() + seconds
        # what was not taken by then is dropped: the next attempt is a message of its own
        message = _message(data, self._nodes[client], _CALL, ttl=max(seconds, 1.0))
        sent = self._asked(end, self._grid.push_messages, [message])
        if not sent:
            raise ConnectionError(f"Flower did not take a message to {client}")
        pause = _POLL
        while time.monotonic() < end:
            if replies := self._asked(end, self._grid.pull_messages, sent):
                return _data_of(replies[0])
            time.sleep(pause)
            pause = min(1.3 * pause, _SLOWEST)
        raise TimeoutError(f"{client} did not answer within {seconds:g} seconds")

    def _asked(self, end: float, ask: Callable[[Any], Iterable[Any]], what: Any) -> list[Any]:
        """Return all that the grid answers, one call at a time; TimeoutError at the end."""

        def alone() -> list[Any]:
            with self._lock:
                return _all_of(ask, what)

        found: list[Any] = within(max(0.0, end - time.monotonic()), alone)
        return found


def _all_of(ask: Callable[[Any], Iterable[Any]], what: Any) -> list[Any]:
    return list(ask(what))


def _message(data: bytes, node: int, action: str, ttl: float) -> Message:
    return Message(
        RecordDict({_RECORD: ConfigRecord({_DATA: data})}), node, f"query.{action}", ttl=ttl
    )


def _data_of(message: Message) -> bytes:
    if message.has_error():
        raise ConnectionError(f"Flower answered with error {message.error.code}")
    data = message.content.config_records.get(_RECORD, ConfigRecord()).get(_DATA)
    if not isinstance(data, bytes):
        raise ConnectionError("a message over Flower came without the bytes that it is to hold")
    return data


def line_to(
    grid: Grid,
    clients: Sequence[ClientId],
    seconds: float = 60.0,
    nodes: Mapping[ClientId, int] | None = None,
) -> GridLine:
    """Return the line to clients, once a node has answered for each of them.

    Each node is asked once: Flower runs two messages to a node at the same time, and keeps the
    context of the one that ends last. All that are there are waited for, since any may answer for
    a client: who is quicker is not for that the client.

    Parameters
    ----------
    nodes
        Which node each client is: Flower gives each key its number. None: as the nodes say.

    Raises
    ------
    AbsentError
        If there is no node for one of them within so many seconds.
    FederationError
        If two nodes answer for one client, or a node for another than it is.
    """
    if nodes is not None and (odd := nodes.keys() ^ set(clients)):
        raise FederationError(
            f"nodes has {listed([*nodes])}, and the clients are {listed(clients)}: "
            f"{listed(sorted(odd))} stand in one of them alone; name the node of each client."
        )
    named = {} if nodes is None else {node: name for name, node in nodes.items()}
    end = time.monotonic() + seconds
    found: dict[ClientId, int] = {}
    asked, answered = set[int](), set[int]()
    failed: dict[int, str] = {}  # nodes that answered with an error, which Flower says
    again: set[int] = set()  # those of them that are to be asked once more
    waiting: set[str] = set()
    there = set[int]()
    while True:
        absent = [name for name in clients if name not in found]
        left = end - time.monotonic()
        if not absent and (left <= 0 or not (asked & there) - answered - failed.keys()):
            return GridLine(grid, {name: found[name] for name in clients})
        if left <= 0:
            why = f"; {len(failed)} failed: {[*failed.values()][-1]}" if failed else ""
            raise AbsentError(
                f"No node answered for {', '.join(absent)} within {seconds:g} seconds "
                f"({len(answered)} of {len(asked)} nodes did{why}); start these sites, then resume "
                "the run.",
                tuple(absent),
            )
        try:
            there = {node for node in within(left, grid.get_node_ids) if not named or node in named}
            new = [node for node in there if node not in asked or node in again]
            again.difference_update(new)
            questions = [_message(b"", node, _NAME, left) for node in new]
            asked.update(new)
            waiting.update(within(left, partial(_all_of, grid.push_messages, questions)))
            replies = within(left, partial(_all_of, grid.pull_messages, waiting)) if waiting else ()
        except TimeoutError:  # the server of Flower is not there
            continue
        for reply in replies:
            waiting.discard(reply.metadata.reply_to_message_id)
            node = reply.metadata.src_node_id
            if reply.has_error():
                failed[node] = shown(reply.error.reason or reply.error.code, 200)
                again.add(node)  # it may be starting
                continue
            try:
                name = _data_of(reply).decode()
            except (ConnectionError, UnicodeDecodeError) as problem:
                failed[node] = shown(str(problem), 200)
                continue
            failed.pop(node, None)
            answered.add(node)
            if named and named[node] != name:
                raise FederationError(
                    f"The node {node} is that of {named[node]!r}, and answers for {shown(name)}; "
                    "see who runs it, or mend nodes."
                )
            if name in found:
                raise FederationError(
                    f"The nodes {found[name]} and {node} both answer for the client {name!r}; stop "
                    "one of them, or say in nodes which node each client is."
                )
            found[name] = node
        time.sleep(_SLOWEST)


def nodes_of(text: str) -> dict[ClientId, int] | None:
    """Return which node each client is, from "bank=123 shop=456"; None where nothing is said.

    Raises
    ------
    FederationError
        If it is no such list.
    """
    found: dict[ClientId, int] = {}
    for one in text.split():
        name, _, node = one.rpartition("=")
        if not (name and node.isdecimal() and name not in found):
            raise FederationError(
                f"nodes has {shown(one)}; give each client once with the number of its node, as in "
                "'bank=123 shop=456' (flwr supernode list has the numbers)."
            )
        found[name] = int(node)
    return found or None


class Node:
    """A node as its site sees it: what Flower keeps for it, which is given anew with every call."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def shelf(self, run: str) -> ContextShelf:
        """Return the shelf of a run in the node's context."""
        return ContextShelf(self, run)


def client_app(site: Callable[[Node], Site]) -> ClientApp:
    """Return the app of a node.

    `site` makes the node's site; it may read the node's configuration, `node.context.node_config`.
    """
    app = ClientApp()

    def named(node: Node) -> Site:
        try:
            return site(node)
        except Exception as problem:  # Flower tells its server what an error says
            logging.getLogger(__name__).error("%s", problem, exc_info=problem)
            raise SiteError(
                f"The site of a node cannot begin ({type(problem).__name__}); the node's own log "
                "says why."
            ) from None

    def call(message: Message, context: Context) -> Message:
        node, own = _known(named, context)
        node.context = context
        answer = own.handle(_data_of(message))
        last = secrets.token_hex(8)
        context.state[_RECORD] = ConfigRecord({"last": last})
        _kept()[context.run_id, context.node_id] = last, node, own
        return _said(answer, message)

    def name(message: Message, context: Context) -> Message:
        return _said(named(Node(context)).client.encode(), message)

    app.query(_CALL)(call)
    app.query(_NAME)(name)
    return app


def _said(data: bytes, message: Message) -> Message:
    return Message(RecordDict({_RECORD: ConfigRecord({_DATA: data})}), reply_to=message)


def _known(make: Callable[[Node], Site], context: Context) -> tuple[Node, Site]:
    """Return the node's site: that of this process, if it has answered the node's last call."""
    last = context.state.config_records.get(_RECORD, ConfigRecord()).get("last")
    kept = _kept().get((context.run_id, context.node_id))
    if kept is not None and kept[0] == last:
        return kept[1], kept[2]
    node = Node(context)
    return node, make(node)


@functools.cache
def _kept() -> dict[tuple[int, int], tuple[str, Node, Site]]:
    """Return the sites that this process has in memory, by run and node, and their last calls.

    An app is sent anew with every call where nodes are simulated: it can keep nothing itself.
    """
    return {}


class ContextShelf:
    """A shelf in a node's context, which Flower keeps as long as the node lives."""

    def __init__(self, node: Node, run: str) -> None:
        self._node, self._name = node, f"{_RECORD}.{run}"

    def read(self, name: str) -> bytes | None:
        """Return what lies under a name, None if nothing does."""
        data = self._record().get(name)
        return data if isinstance(data, bytes) else None

    def write(self, name: str, data: bytes) -> None:
        """Put something under a name, and come back when it is durable."""
        record = self._record()
        record[name] = data
        self._node.context.state[self._name] = record

    def remove(self, name: str) -> None:
        """Take away what lies under a name, if anything does."""
        record = self._record()
        if name in record:
            del record[name]
            self._node.context.state[self._name] = record

    def _record(self) -> ConfigRecord:
        return self._node.context.state.config_records.get(self._name, ConfigRecord())
