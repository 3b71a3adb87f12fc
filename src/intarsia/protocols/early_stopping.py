"""Keep what a run has after its best round so far, and end with it: early stopping.

Rows are held out by which rounds are compared (Prechelt, "Early stopping - but when?", 1998).
`keeping_best` makes of an algorithm one whose states are each two: that of now, with which it goes
on as it would, and that of the best round.

1. `keep_best`, after a round that is evaluated best: each client keeps its state of now
2. `return_to_best`, once, after the last round: each client goes back to what it kept

Neither sends anything. The server keeps its own state beside theirs, so that what a run ends with
is what it would have ended with after the best round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import RefusedError


@dataclass(frozen=True)
class Both:
    """A state, and that of the best round: before one was evaluated, that of the start."""

    now: Any
    best: Any
    ended: bool = False  # whether it went back to the best round: it does so once


@dataclass(frozen=True)
class Keep:
    """Ask to keep the state of now as that of the best round."""


@dataclass(frozen=True)
class Return:
    """Ask to go back to the best round."""


def _keep_best(state: Both, block: Block, message: Keep) -> tuple[Both, fl.Ready]:
    _check_goes_on(state)
    return Both(state.now, state.now), fl.Ready()


def _return_to_best(state: Both, block: Block, message: Return) -> tuple[Both, fl.Ready]:
    _check_goes_on(state)
    return Both(state.best, state.best, ended=True), fl.Ready()


def _check_goes_on(state: Both) -> None:
    if state.ended:
        raise RefusedError(
            "The client went back to the best round, and a run does so once, at its end; run the "
            "algorithm as it is at the server."
        )


keep_best = fl.client_function(_keep_best, name="keep_best", protocol="early_stopping")
return_to_best = fl.client_function(
    _return_to_best, name="return_to_best", protocol="early_stopping"
)


def keep(server: Both, clients: fl.Clients) -> Both:
    """Let server and clients keep their states of now as those of the best round."""
    clients.ask(keep_best, Keep())
    return Both(server.now, server.now)


def go_back(server: Both, clients: fl.Clients) -> Both:
    """Let server and clients go back to the best round."""
    clients.ask(return_to_best, Return())
    return Both(server.best, server.best, ended=True)


def _of_now_alone(clients: fl.Clients) -> fl.Clients:
    """Return clients as the algorithm sees them: each with its state of now."""
    return fl.ClientsInPart(clients, _on_now)


@lru_cache(maxsize=512)
def _on_now(fn: fl.ClientFunction) -> fl.ClientFunction:
    """Return a client function that changes the state of now alone."""
    return fl.on_part(
        fn, lambda state, block: (state.now, block), lambda state, now: fl.evolve(state, now=now)
    )


@lru_cache(maxsize=64)
def keeping_best(algorithm: fl.Algorithm) -> fl.Algorithm:
    """Return an algorithm whose states hold that of the best round, too."""

    def init_server(options: Any, schema: Schema, rng: fl.RandomKey) -> Both:
        made = algorithm.begin(options, schema, rng)
        return Both(made, made)

    def init_client(
        options: Any, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
    ) -> Both:
        made = algorithm.init_client(options, schema, client, block, rng)
        return Both(made, made)

    def setup(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> Both:
        return fl.evolve(server, now=algorithm.setup(server.now, _of_now_alone(clients), rng))

    def round(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Both, fl.RoundMetrics]:
        now, info = algorithm.round(server.now, _of_now_alone(clients), rng)
        return fl.evolve(server, now=now), info

    def certify(
        server: Both, clients: fl.Clients, rng: fl.RandomKey
    ) -> tuple[Both, fl.RoundMetrics]:
        now, info = algorithm.certify(server.now, _of_now_alone(clients), rng)
        return fl.evolve(server, now=now), info

    def conclude(server: Both, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
        return algorithm.conclude(server.now, _of_now_alone(clients), rng)

    sends = (
        *(replace(one, function=_on_now(one.function)) for one in algorithm.disclosure.sends),
        # of all: a total of those that went back and others is of two models
        *fl.each(fl.asks(keep_best), keeps=True, together="all", parties=_all),
        *fl.each(fl.asks(return_to_best), restores=True, together="all", parties=_all),
    )
    return replace(
        algorithm,
        init_server=init_server,
        init_client=init_client,
        setup=setup,
        round=round,
        certify=certify,
        conclude=conclude,
        states=(*algorithm.states, Both),
        model=_of_now(algorithm.model),
        disclosure=replace(
            algorithm.disclosure,
            sends=sends,
            allowed=lambda server, client: algorithm.disclosure.allowed(server.now, client),
        ),
        private=None,  # which round is best is told by no noise
    )


def _all(schema: Schema, message: Any) -> tuple[ClientId, ...]:
    return schema.clients


def _of_now(model: fl.Model) -> fl.Model:
    """Return what is trained, of the state of now."""

    def predict(state: Both, block: Block) -> Array:
        return model.predict(state.now, block)

    server, join, trained = model.server_model, model.join, model.trained_classes
    return replace(
        model,
        predict=predict,
        network=lambda state: model.network(state.now),
        own_weights=lambda state: model.own_weights(state.now),
        server_model=None
        if server is None
        else fl.ServerModel(
            lambda state, block: server.part(state.now, block),
            lambda state, total: server.scores(state.now, total),
        ),
        trained_classes=None if trained is None else lambda state: trained(state.now),
        join=None
        if join is None
        else lambda clients, options, shared: join(_of_now_alone(clients), options, shared),
    )
