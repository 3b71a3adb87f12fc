"""FeMAM's levels over FLIC's extractors: clients with features of their own that form groups.

No paper has it: `femam` adds levels of models that all read the same columns, `flic` takes columns
of a client's own to a latent space that all have in common, with one layer behind it. Here level 1
is FLIC, and each further level is a head β∘α on the points of its space, of all clients, of a
cluster or of one:

    scores_i(x) = β_i∘α∘φ_i(x) + Σ_l β^l_{C_l(i)}∘α^l_{C_l(i)}(φ_i(x)),   l = 2, 3, …

1. for `first_rounds`, a round of FLIC: its objective, exchanges and random numbers, on the rows
   that are not kept for validation
2. a client that level 1 is over for takes the last α and anchors, trains φ_i and β_i to them if
   FLIC does (`personalise`), and computes the points and scores of its rows once (`close_first`)
3. then a round of FeMAM on the points, whose width is the same for all

So both are taken as they are: with one level and no rows for validation this is FLIC bit for bit,
and what follows is FeMAM on tables of points. A new level starts from FLIC's α with a last layer of
zeros, of which a network of the variant "class" has nothing else: α is that of all clients, so that
the server can tell by how much heads differ, and find clusters, without reading level 1.

With the scheme "fedavg-ft" and no `final_epochs` level 1 has one head for all; with "fedrep", β_i
of the clients' own, level 1 is personal in part, and leaves less to clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.femam import algorithm as femam
from intarsia.algorithms.femam import client as femam_client
from intarsia.algorithms.femam.algorithm import FEMAM, allowed, with_level
from intarsia.algorithms.femam.hyperparameters import FeMAM, given_clusters
from intarsia.algorithms.femam.state import Ask, Server
from intarsia.algorithms.flic import algorithm as flic
from intarsia.algorithms.flic import own_network
from intarsia.algorithms.flic.algorithm import FLIC
from intarsia.algorithms.flic.hyperparameters import Flic
from intarsia.algorithms.networks import parameter_sharing
from intarsia.algorithms.networks.architecture import Architecture, Arrays, as_level
from intarsia.algorithms.networks.client_network import own_cost
from intarsia.algorithms.networks.parameter_sharing import (
    Shared,
    Start,
    opening_shared,
    take_start,
)
from intarsia.algorithms.networks.training_rows import is_labelled
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import ExperimentError

_OF_THE_HEADS = ("embedding", "hidden", "latent", "layer", "precision")  # as level 1 has them


@dataclass(frozen=True, kw_only=True)
class FeMAMFlic:
    """Hyperparameters: a table of FLIC's for level 1, and one of FeMAM's for the levels."""

    loss: ClassVar[str] = "cross_entropy"  # that the scores are evaluated by

    flic: Flic = field(default_factory=Flic)
    femam: FeMAM = field(default_factory=lambda: FeMAM(level_schedule="paper"))

    def __post_init__(self) -> None:
        if self.femam.level_schedule != "paper":
            raise ExperimentError(
                f"algorithm.femam.level_schedule is {self.femam.level_schedule!r}, whose levels "
                "are whole networks, and those over flic are heads on its latent space; set "
                'algorithm.femam.level_schedule = "paper".'
            )
        known = {one.name: one.default for one in fields(FeMAM)}
        for name in _OF_THE_HEADS:
            value = getattr(self.femam, name)
            if value != known[name]:
                raise ExperimentError(
                    f"algorithm.femam.{name} is {value!r}, and the levels over flic are heads on "
                    "its latent space, whose network is flic's; leave it out, and set "
                    "algorithm.flic for the network."
                )
        if self.femam.levels[0] != "global":
            raise ExperimentError(
                f"algorithm.femam.levels begins with {self.femam.levels[0]!r}, and level 1 is "
                'flic, of all clients; begin with "global".'
            )
        if self.flic.scheme == "l2gd":
            raise ExperimentError(
                'algorithm.flic.scheme is "l2gd", whose heads are mixtures, and levels add heads '
                'up; set "fedavg-ft" or "fedrep".'
            )
        if self.flic.keep_own:
            raise ExperimentError(
                "algorithm.flic.keep_own is true, and levels over flic need aligned embeddings; "
                "leave it out: a client keeps the levels that help it."
            )
        if self.flic.scheme == "fedavg-ft" and self.flic.final_epochs and self.femam.levels[1:]:
            raise ExperimentError(
                f"algorithm.flic.final_epochs is {self.flic.final_epochs} with the scheme "
                '"fedavg-ft", and would leave each client an α of its own for the next level to '
                'start from; set it to 0 and add the level "personal".'
            )

    @property
    def heads(self) -> FeMAM:
        """Return FeMAM's hyperparameters for the points of the latent space."""
        return replace(
            self.femam,
            embedding="linear",
            latent=self.flic.latent,
            layer=self.flic.architecture.layer,
            precision=self.flic.precision,
        )

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of: level 1's, of which the others are heads."""
        return replace(self.flic.architecture, additive=self.femam.combination)


@dataclass(frozen=True)
class Combined:
    """A client's state."""

    options: FeMAMFlic
    outputs: int
    levels: femam_client.Client  # the levels from 2 on, and level 1's head, on points
    points: Array | None  # (rows, k) φ of the rows, once level 1 is over
    # the client of FLIC, see `shared_parts.Client`
    parameters: Arrays
    anchors: tuple[int, ...]
    barycentre: tuple[Array, ...]
    aligned: int
    weight: float = 1.0

    @property
    def own_cost(self) -> float:
        """Return what a step of its network costs, beside what it costs whoever trains."""
        return own_cost(self.options.flic.engine, self.options.flic.batch, self.parameters)


@dataclass(frozen=True)
class Both:
    """The server's state."""

    options: FeMAMFlic
    start: Start  # what level 1 starts from, which is no secret
    shared: Any  # sealed (parameters that are shared in level 1,)
    first_rounds: int  # of level 1, so far
    levels: Server
    weights: Mapping[ClientId, float] = field(default_factory=dict[str, float])  # in level 1


_OF_FLIC = ("outputs", "parameters", "anchors", "barycentre", "aligned", "weight")


def _first(client: Combined) -> parameter_sharing.Client:
    """Return the client of FLIC."""
    return parameter_sharing.Client(
        options=client.options.flic, **{name: getattr(client, name) for name in _OF_FLIC}
    )


def _with_first(client: Combined, first: parameter_sharing.Client) -> Combined:
    return fl.evolve(client, **{name: getattr(first, name) for name in _OF_FLIC})


def _trained_rows(client: Combined, block: Block) -> Block:
    """Return the block without the rows for validation."""
    held_out = client.levels.held_out
    if not held_out.any():
        return block
    keep = np.ones(block.shape[0], bool)
    keep[np.flatnonzero(is_labelled(block))[held_out]] = False
    return block.take(np.flatnonzero(keep))


def _of_points(block: Block, points: Array) -> Block:
    """Return a block with the points of its rows as features."""
    return Block(block.samples, _names(points.shape[1]), points, block.y)


def _names(width: int) -> tuple[str, ...]:
    return tuple(f"latent {place:05d}" for place in range(width))


def _embedded(client: Combined, block: Block) -> Block:
    points, _ = client.options.flic.architecture.outputs(client.parameters, block)
    return _of_points(block, points)


def init_client(
    options: FeMAMFlic, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> Combined:
    """Return a client's state: that of FLIC's client, and no level yet."""
    first = flic.init_client(options.flic, schema, client, block, rng)
    blank = _of_points(block, np.zeros((block.shape[0], options.flic.latent)))
    levels = femam_client.init_client(options.heads, schema, client, blank, rng.fold_in("levels"))
    own = {name: getattr(first, name) for name in _OF_FLIC}
    return Combined(options=options, levels=levels, points=None, **own)


@fl.client_function
def close_first(client: Combined, block: Block, message: Ask) -> tuple[Combined, fl.Ready]:
    """Take the points and the scores of the client's rows for good: level 1 is frozen."""
    parameters = client.parameters
    points, scores = client.options.flic.architecture.outputs(parameters, block)
    own = np.flatnonzero(is_labelled(block))
    kind = client.levels.base.dtype
    head = {name: w for name, w in parameters.items() if name.startswith(("shared", "classifier"))}
    levels = fl.evolve(
        client.levels, base=scores[own].astype(kind), kept=as_level(1, head), count=1, level=1
    )
    return fl.evolve(client, levels=levels, points=points.astype(kind)), fl.Ready()


def predict(client: Combined, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    if client.points is None:
        return FLIC.model.predict(_first(client), block)
    return FEMAM.model.predict(client.levels, _embedded(client, block))


def network(client: Combined) -> Arrays:
    """Return FLIC's network as level 1, and the heads of the levels that the client keeps."""
    labels: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for name, values in parameter_sharing.network(_first(client)).items():
        (labels if name.startswith("labels.") else first)[name] = values
    # the head as later levels have calibrated it, once level 1 is closed
    return {**as_level(1, first), **client.levels.kept, **labels}


def init_server(options: FeMAMFlic, schema: Schema, rng: fl.RandomKey) -> Both:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, one has no labels, or labels are numbers to predict.
    ExperimentError
        If anchors or given clusters do not fit.
    """
    names = _names(options.flic.latent)
    held = {one: fl.evolve(own, features=names, groups={}) for one, own in schema.holdings.items()}
    levels = femam.init_server(
        options.heads, Schema(held, schema.labels), rng.fold_in("levels"), name="femam-flic"
    )
    # level 1 is FLIC's: FeMAM's server has no model of it
    levels = fl.evolve(levels, levels=(fl.evolve(levels.levels[0], models=(None,)),))
    first = flic.init_server(options.flic, schema, rng)
    return Both(options, first.start, first.shared, 0, levels, first.weights)


def _server_of_first(server: Both) -> parameter_sharing.Server:
    return parameter_sharing.Server(
        *(server.options.flic, server.start, server.shared, server.first_rounds),
        weights=server.weights,
    )


def setup(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> Both:
    """Set up FLIC."""
    first = flic.setup(_server_of_first(server), fl.ClientsInPart(clients, _of_first), rng)
    return fl.evolve(server, shared=first.shared)


def round(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Both, fl.RoundMetrics]:
    """Go on with level 1 by a round of FLIC, or with a later one by a round of FeMAM."""
    options = server.options.femam
    if server.first_rounds < options.first_rounds:
        first, _ = flic.round(_server_of_first(server), fl.ClientsInPart(clients, _of_first), rng)
        server = fl.evolve(server, shared=first.shared, first_rounds=first.rounds)
        info = fl.RoundMetrics(phase="level 1")
        if server.first_rounds < options.first_rounds:
            return server, info
        if len(options.levels) == 1:
            return server, fl.evolve(info, finished=True)
        return fl.evolve(server, levels=with_level(server.levels)), info
    server = _first_closed(server, clients)
    levels, info = femam.round(server.levels, fl.ClientsInPart(clients, _of_levels), rng)
    return fl.evolve(server, levels=levels), info


def _first_closed(server: Both, clients: fl.Clients) -> Both:
    """Let the clients that are there close level 1, if they have not yet."""
    levels = server.levels
    late = [one for one in clients.ids if levels.closed[one] < 1]
    if not late:
        return server
    final = flic.personalise if server.options.flic.final_epochs else take_start
    told = Shared(server.shared, server.first_rounds, len(late))
    fl.ClientsInPart(clients, _of_first).ask(final, dict.fromkeys(late, told))
    clients.ask(close_first, dict.fromkeys(late, Ask()))
    done = dict.fromkeys(late, 1)
    first = fl.evolve(levels.levels[0], kept={**levels.levels[0].kept, **dict.fromkeys(late, 0)})
    levels = fl.evolve(
        levels,
        levels=(first, *levels.levels[1:]),
        begun={**levels.begun, **done},
        closed={**levels.closed, **done},
    )
    return fl.evolve(server, levels=levels)


def certify(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Both, fl.RoundMetrics]:
    """Return the cross-entropy over all clients' samples with the levels as they are now."""
    if len(server.levels.levels) == 1:
        first = _server_of_first(server)
        return server, FLIC.certify(first, fl.ClientsInPart(clients, _of_first), rng)[1]
    server = _first_closed(server, clients)
    levels, info = FEMAM.certify(server.levels, fl.ClientsInPart(clients, _of_levels), rng)
    return fl.evolve(server, levels=levels), info


def conclude(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let every client close the last level; the networks stay at the clients."""
    if len(server.levels.levels) == 1:
        found = flic.conclude(_server_of_first(server), fl.ClientsInPart(clients, _of_first), rng)
        everybody = dict.fromkeys(server.levels.clients, 0)
        return fl.evolve(found, structure=(everybody,), level_words=("global",))
    server = _first_closed(server, clients)
    return femam.conclude(server.levels, fl.ClientsInPart(clients, _of_levels), rng)


def _part_of(
    sends: fl.Sends, function: fl.ClientFunction, options_of: Callable[[FeMAMFlic], Any]
) -> fl.Sends:
    """Return what a client function of one of the two sends, as one of both."""
    return replace(
        sends,
        function=function,
        pooled=lambda options: sends.pooled(options_of(options)),
        chosen=lambda options: sends.chosen(options_of(options)),
        tells=lambda options: sends.tells(options_of(options)),
        needed=lambda options: sends.needed(options_of(options)),
    )


def _of_first(fn: fl.ClientFunction) -> fl.ClientFunction:
    return _FIRST[fn.name]


def _of_levels(fn: fl.ClientFunction) -> fl.ClientFunction:
    return _LEVELS[fn.name]


_ALONE = {one.function.name for one in own_network.SENDS}
_ALIGNED = tuple(one for one in FLIC.disclosure.sends if one.function.name not in _ALONE)
_FIRST: Mapping[str, fl.ClientFunction] = {
    fn.name: fl.on_part(
        fn,
        lambda client, block: (_first(client), _trained_rows(client, block)),
        _with_first,
        "part_of_first_loss" if fn.name == "part_of_loss" else "",
    )
    for fn in (*dict.fromkeys(one.function for one in _ALIGNED), take_start)
}
_LEVELS: Mapping[str, fl.ClientFunction] = {
    fn.name: fl.on_part(
        fn,
        lambda client, block: (client.levels, _of_points(block, client.points)),
        lambda client, own: fl.evolve(client, levels=own),
    )
    for fn in FEMAM.disclosure.functions
}
_FIRST_SENDS = tuple(
    _part_of(one, _FIRST[one.function.name], lambda options: options.flic)
    for one in (*_ALIGNED, *opening_shared(fl.asks(take_start)))
)
_LEVEL_SENDS = tuple(
    _part_of(one, _LEVELS[one.function.name], lambda options: options.femam)
    for one in FEMAM.disclosure.sends
)

FEMAM_FLIC = fl.Algorithm(
    name="femam-flic",
    hyperparameters=FeMAMFlic,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    absences=True,
    states=(Both, Combined, FeMAMFlic, *FEMAM.states, Flic, Start),
    model=fl.Model(predict=predict, own_feature_space=True, network=network),
    disclosure=fl.Disclosure(
        sends=(*_FIRST_SENDS, *fl.asks(close_first), *_LEVEL_SENDS),
        groups=lambda options, schema: given_clusters(options.femam, schema),
        allowed=lambda server, client: {
            **parameter_sharing.allowed(_server_of_first(server), client),
            **allowed(server.levels, client),
        },
    ),
)
