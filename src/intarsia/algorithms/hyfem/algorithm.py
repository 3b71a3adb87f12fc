"""HyFEM: clients hold some feature blocks of some samples of some classes; the server's model, all.

Zhang, Yin, Chen and Hong, "Hybrid Federated Learning for Feature & Sample Heterogeneity:
Algorithms and Implementation", TMLR 2024, and "Hybrid FL: Algorithms and Implementation", 2020
(the variant "avg"). Client m has an extractor Θ_m for each of its blocks and a classifier w_m on
what these give (see `block_network`); the server has extractors Θ_0 of all blocks and w_0. With P_m
choosing the client's blocks, f_m the mean cross-entropy of its rows, weights p_m:

    min Σ_m p_m (f_m(Θ_m, w_m) + μ1/2 ‖Θ_m - P_m Θ_0‖² + μ2/2 ‖w_m - P_m w_0‖²)

A round (Algorithm 1), at clients that are there:

1. `weigh_classes`, where others were there the round before: the weights of those that have a class
   are added up, over all and over the holders of each block, for clients alone to open
2. `local_training`: start from the server's model; Q steps of descent on batches, with the proximal
   terms ("prox") or without ("avg")
3. the server adds up the changes, which it never reads: each extractor and its columns of the first
   layer over those that hold the block (line 7), the rest of the classifier over all

Departures, each an argument: rows of the output layer for classes that a client lacks stay the
server's (`unseen_rows`); what goes into the first layer is scaled by d₀/d_m (`scaling`); blocks of
a row are left out at random, and the others make up for it (`block_dropout`), so that no neuron
rests on blocks that only some clients have together; a row's softmax counts each class by how many
clients have it of the blocks that the row keeps (`softmax`, see `client._loss`), so that a block
does not speak against a class that nobody could teach it; the rate falls from round to round
(`decay`).
Neurons keep their numbers, Π = 1, which from a common start is the best matching; with `matching` =
"rounds" the server asks for the classifiers and matches them in each round (line 8, Algorithm 3),
from classifiers of the clients' own with `start` = "matched" once. A neuron that is opened there
(`growth`) all clients download from then on, not its owner alone.

With one block that all hold this is FedProx, or FedAvg ("avg"), as with `blocks` = "common"; with
`shares` = "extractors" and μ = 0 FedPer; with "nothing" each client learns alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.hyfem import client as at_client
from intarsia.algorithms.hyfem import network
from intarsia.algorithms.hyfem.client import Whole
from intarsia.algorithms.hyfem.extractors import Extractor
from intarsia.algorithms.hyfem.hyperparameters import HyFEM, composition, share_of, used_blocks
from intarsia.algorithms.hyfem.matching import joined
from intarsia.algorithms.hyfem.network import Composition, Parts
from intarsia.algorithms.networks.client_network import check_clients
from intarsia.algorithms.networks.parameter_sharing import mean_loss
from intarsia.core.block import ClientId
from intarsia.core.schema import Schema
from intarsia.errors import FederationError

_PARTS = ("extractors", "columns", "rest")


@dataclass(frozen=True)
class Server:
    """The server's state."""

    options: HyFEM
    made_of: Composition
    owners: Mapping[str, tuple[ClientId, ...]]  # of each block
    shares: Mapping[ClientId, float]  # p_m
    start: Whole
    whole: Whole
    seen: Any = None  # sealed `Seen` of the clients in `counted`
    seen_by_block: Any = None
    counted: tuple[ClientId, ...] = ()
    rounds: int = 0


def init_server(options: HyFEM, schema: Schema, rng: fl.RandomKey) -> Server:
    """Return the server's state before the set-up: it draws the network.

    Raises
    ------
    FederationError
        If labels are numbers to predict, a client has no labels or no block, or a block is cut.
    """
    check_clients(schema, "hyfem", shared_samples=True)
    if schema.labels.task == "regression":
        raise FederationError(
            "The labels are numbers to predict (regression), and hyfem learns classes; set "
            "labels.task (from Python task=) for classes."
        )
    blocks = used_blocks(options, schema)
    made_of = composition(options, schema)
    for client in schema.clients:
        composition(options, schema, client)
    start = Whole()
    if options.shares != "nothing":
        parts = network.parts_of(made_of, network.drawn(made_of, np.float64, rng.fold_in("shared")))
        start = _sent(options, parts.extractors)
        if options.shares == "all":
            start = _sent(options, parts.extractors, parts.columns, parts.rest)
    owners = {name: one.owners for name, one in blocks.items()}
    return Server(options, made_of, owners, share_of(options, schema), start, Whole())


def _sent(options: HyFEM, extractors: Any, columns: Any = None, rest: Any = None) -> Whole:
    """Return a network in the precision that clients have: more digits would say nothing."""
    parts, kind = (extractors, columns, rest), options.number_type
    return Whole(*(None if one is None else network.rounded(one, kind) for one in parts))


def setup(server: Server, clients: fl.Clients) -> Server:
    """Start from what the server drew, as a total that it cannot read from then on."""
    start = server.start
    if start.extractors is None:
        return server
    options = server.options
    if options.start != "common":
        server = fl.evolve(server, whole=_given(server, clients, Whole(start.extractors)))
        return _with_classifiers(_with_classes(server, clients), clients)
    if options.matching == "rounds":
        whole = _given(server, clients, Whole(start.extractors))
        return fl.evolve(server, whole=fl.evolve(start, extractors=whole.extractors))
    return fl.evolve(server, whole=_given(server, clients, start))


def _given(server: Server, clients: fl.Clients, parts: Whole) -> Whole:
    """Return a network that the server has as a total of all clients."""
    total = clients.sum(at_client.send_start, _starts(server, clients.ids, parts))
    return Whole(**{key: getattr(total, key) for key in _PARTS if getattr(parts, key) is not None})


def _starts(server: Server, clients: Sequence[ClientId], parts: Whole) -> dict[ClientId, Whole]:
    """Return the message of a network that the server has to each client."""
    fields = [one for one in _PARTS if getattr(parts, one) is not None]
    messages: dict[ClientId, Whole] = {}
    for place, client in enumerate(clients):
        # the first of its holders sends a block
        own = [name for name, owners in server.owners.items() if owners[0] == client]
        sent = {
            key: {name: getattr(parts, key)[name] for name in own}
            for key in ("extractors", "columns")
            if key in fields
        }
        messages[client] = Whole(**sent, rest=parts.rest if place == 0 else None)
    return messages


def _allowed(server: Server, client: ClientId) -> dict[str, tuple[Any, ...]]:
    """Return what the server may tell in the clear: what it drew, unless it reads classifiers."""
    own = _starts(server, tuple(server.shares), server.start)[client]
    found: dict[str, tuple[Any, ...]] = {"Whole.extractors": (None, {}, own.extractors)}
    if _read_of_clients(server.options):
        return found
    return {
        **found,
        "Whole.columns": (None, own.columns),
        "Whole.rest": (None, own.rest),
        "Told.columns": (None,),
        "Told.rest": (None,),
    }


def _with_classifiers(server: Server, clients: fl.Clients) -> Server:
    """Let the clients that are there train; put their classifiers together, neuron by neuron.

    The extractors are averaged as they are in other rounds.
    """
    options, first = server.options, server.whole.rest is None
    total = clients.sum(at_client.local_training, _broadcast(server, clients))
    # discloses each client's classifier and its classes: once, or in every round
    replies = clients.ask(at_client.send_classifier, fl.Ready())
    before = server.start if first else server.whole
    assert server.start.extractors is not None
    assert before.columns is not None
    assert before.rest is not None
    made_of, found = joined(
        server.made_of,
        replies,
        server.shares,
        Parts(server.start.extractors, before.columns, before.rest),
        cost=options.matching_cost,
        in_order=first and options.start == "unmatched",
        again=not first,
        passes=options.passes,
        widest=options.widest,
        outgoing=options.matched_layers == "together",
    )
    put = _sent(options, {}, found.columns, found.rest)
    whole = Whole(server.whole.extractors + total.extractors, put.columns, put.rest)
    if options.matching == "none":  # from here on sums, of what the server does not read
        sealed = _given(server, clients, Whole(None, put.columns, put.rest))
        whole = fl.evolve(sealed, extractors=whole.extractors)
    return fl.evolve(server, made_of=made_of, whole=whole)


def _broadcast(server: Server, clients: fl.Clients) -> dict[ClientId, at_client.Told]:
    """Return the message of the server's network to each client that is there."""
    whole, hidden = server.whole, server.made_of.hidden
    grown = () if hidden == server.options.hidden else hidden
    return {
        client: at_client.Told(
            extractors=whole.extractors,
            columns=_own_columns(server, client),
            rest=whole.rest,
            classes=server.seen,
            by_block=server.seen_by_block,
            present=tuple(clients.ids),
            number=server.rounds,
            hidden=grown,
        )
        for client in clients.ids
    }


def _own_columns(server: Server, client: ClientId) -> Any:
    """Return the first layer's columns of the client's blocks; of sealed ones it opens these."""
    columns = server.whole.columns
    if not isinstance(columns, Mapping):
        return columns
    return {name: columns[name] for name, owners in server.owners.items() if client in owners}


def round(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there train; add up their parts of the change."""
    server = fl.evolve(server, rounds=server.rounds + 1)
    if server.options.shares == "nothing":
        clients.ask(at_client.train_alone, _broadcast(server, clients))
        return server, fl.RoundMetrics(phase="local")
    # step 1: the classes' weights
    server = _with_classes(server, clients)
    if server.options.matching == "rounds":
        return _with_classifiers(server, clients), fl.RoundMetrics(phase="matching")
    # step 2: local training
    total = clients.sum(at_client.local_training, _broadcast(server, clients))
    # step 3: the server's network
    whole = server.whole
    moved = fl.evolve(whole, extractors=whole.extractors + total.extractors)
    if server.options.shares == "all":
        moved = fl.evolve(
            moved, columns=whole.columns + total.columns, rest=whole.rest + total.rest
        )
    return fl.evolve(server, whole=moved), fl.RoundMetrics(phase="averaging")


def _with_classes(server: Server, clients: fl.Clients) -> Server:
    """Return the server with the classes' weights over the clients that are there."""
    options, there = server.options, tuple(clients.ids)
    balanced = options.softmax == "balanced"
    # where neurons are matched, or at the start, the rows of the output layer are averaged there
    summed = server.whole.rest is not None and options.matching == "none"
    needed = balanced or (summed and options.unseen_rows == "kept")
    if options.shares != "all" or not needed or server.counted == there:
        return server
    total = clients.sum(at_client.weigh_classes, dict.fromkeys(there, at_client.Weight()))
    by_block = total.by_block if balanced or not server.made_of.hidden else None
    return fl.evolve(server, seen=total.classes, seen_by_block=by_block, counted=there)


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Return the cross-entropy of the clients' networks over all their samples."""
    messages = _broadcast(server, clients)
    return server, fl.RoundMetrics(
        loss=mean_loss(clients, at_client.part_of_loss, messages, server.rounds)
    )


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Give every client the server's network, and open it to the server, whose model it is."""
    _, info = certify(server, clients)
    whole = server.whole
    if whole.rest is None:
        return fl.FinalResult(info)
    # discloses the server's network, which is what it trains for
    extractors, columns, rest = clients.reveal(whole.extractors), whole.columns, whole.rest
    if server.options.matching == "none":
        columns, rest = clients.reveal(columns), clients.reveal(rest)
    assert columns is not None
    parts = Parts(extractors, columns, rest)
    like = network.drawn(server.made_of, np.float64, fl.RandomKey(()))
    found = {
        name: values.astype(server.options.number_type)
        for name, values in network.assembled(server.made_of, parts, like).items()
    }
    return fl.FinalResult(info, network=network.named_by_block(server.made_of, found))


def _architecture(options: HyFEM, schema: Schema, client: ClientId | None) -> Composition | None:
    """Return what a client's network is made of, or the server's, None where it has none."""
    if client is None and options.shares != "all":
        return None
    return composition(options, schema, client)


def _read_of_clients(options: HyFEM) -> str:
    """Return what the server reads of single clients in every mode."""
    if options.matching == "rounds":
        return "each client's classifier and which classes it has, in every round"
    if options.start != "common":
        return "each client's classifier and which classes it has, before the first round"
    return ""


def _blocks_of_several(options: HyFEM, schema: Schema) -> dict[str, tuple[ClientId, ...]]:
    """Return the holders of each block; what one client alone holds no other downloads."""
    return {
        f"the feature block {name!r}": one.owners
        for name, one in used_blocks(options, schema).items()
        if len(one.owners) > 1
    }


# nothing is shared, and nothing matched
_ALONE = {
    "shares": "nothing",
    "blocks": "all",
    "start": "common",
    "matching": "none",
    "growth": "none",
    "most_hidden": (),
}

HYFEM = fl.Algorithm(
    name="hyfem",
    hyperparameters=HyFEM,
    init_server=init_server,
    init_client=at_client.init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    absences=True,
    states=(Server, at_client.Client, HyFEM, Whole, Composition, Extractor),
    model=fl.Model(
        predict=at_client.predict,
        network=at_client.network,
        architecture=_architecture,
        server_model=at_client.SERVER_MODEL,
        trained_classes=lambda client: client.classes,
        local_baseline=fl.LocalBaseline("hyfem", _ALONE),
    ),
    disclosure=fl.Disclosure(
        sends=fl.opening(
            {
                "Told.by_block": "Seen.by_block",
                "Told.classes": "Seen.classes",
                "Told.columns": ("Change.columns", "Whole.columns", fl.PUBLIC),
                "Told.extractors": ("Change.extractors", "Whole.extractors"),
                "Told.rest": ("Change.rest", "Whole.rest", fl.PUBLIC),
            },
            (
                *fl.each(fl.sums(at_client.send_start, reveals=_PARTS, opens=_PARTS), model=_PARTS),
                *fl.each(
                    fl.sums(
                        at_client.local_training,
                        reveals=_PARTS,
                        opens=_PARTS,
                        pooled=lambda options: options.shares != "nothing",
                    ),
                    present="present",
                    model=_PARTS,
                    trains=True,
                ),
                *fl.sums(at_client.weigh_classes),
                *fl.each(
                    fl.asks(at_client.send_classifier, tells=_read_of_clients),
                    needed=lambda options: bool(_read_of_clients(options)),
                ),
                *fl.asks(at_client.train_alone),
                *fl.each(fl.sums(at_client.part_of_loss, reveals=("at",)), each_round=1),
            ),
        ),
        groups=_blocks_of_several,
        rows=lambda options: options.steps * options.batch,
        allowed=_allowed,
    ),
)
