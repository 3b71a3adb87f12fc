"""FeSEM and IFCA: one network for each cluster of clients, which are found as it trains.

Xie, Long, Shen, Zhou, Wang, Jiang and Zhang, "Multi-Center Federated Learning: Clients Clustering
for Better Personalization", World Wide Web 2023; Ghosh, Chung, Yin and Ramchandran, "An Efficient
Framework for Clustered Federated Learning", NeurIPS 2020. Client i is in the cluster C(i) of K:

    min Σ_i n_i/n F_i(Θ_{C(i)})

IFCA averages over the clients of a cluster alike (`weights`). They are `femam` with one level of
clusters, and its client and server functions are theirs. A round of FeSEM, at the clients that are
there:

1. open the cluster's network; some epochs on it (`train_level`)
2. from round `first_clustering` on, the server reads the clients' networks, finds clusters by
   K-means (anew in each round, from a common start), and averages over each; in the paper from
   round 1, to the "nearest" centre, from starts of their own

In a round of IFCA each client opens all networks and takes the one with the least loss on its rows
(`try_model`, `choose_model`); averages are sums that the server does not read.

With `final_epochs` each client trains its cluster's network once more, for itself: FeSEM+.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from intarsia import core as fl
from intarsia.algorithms.femam import algorithm as femam
from intarsia.algorithms.femam import client as femam_client
from intarsia.algorithms.femam.algorithm import FEMAM, allowed, opening_models
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.femam.state import Server
from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.core.block import Block, ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Count, CountOrZero

_WITHOUT_END = 2**31  # rounds of the one level
_READ = "each client's network, in every round from first_clustering on"


@dataclass(frozen=True, kw_only=True)
class _OneLevel(NetworkOptions):
    clusters: Count = 5  # K
    # of clients in an average; "equal" is what "clients" was called
    weights: Literal["samples", "clients", "equal"] = "samples"
    local_epochs: Count = 10
    final_epochs: CountOrZero = 0  # at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.level  # says what FeMAM refuses

    @property
    def level(self) -> FeMAM:
        """Return the hyperparameters of FeMAM with one level of clusters."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        if isinstance(self, Ifca):
            known |= {"clustering": "loss", "equal_starts": False, "first_clustering": 1}
        return FeMAM(
            levels=(known.pop("clusters"),),
            level_schedule="paper",
            start="random",
            first_rounds=_WITHOUT_END,
            validation=0.0,
            prune="never",
            **known,
        )

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return self.level.architecture


@dataclass(frozen=True, kw_only=True)
class FeSEM(_OneLevel):
    """Hyperparameters."""

    clustering: Literal["fresh", "nearest"] = "fresh"
    # round in which clusters are found first; until then each client trains alone. 1: the paper
    first_clustering: int = 4
    equal_starts: bool = True
    cluster_on: Literal["all", "last"] = "all"
    proximal: float = 0.0  # λ, of λ/2 ‖w_i - Θ_k‖²


@dataclass(frozen=True, kw_only=True)
class Ifca(_OneLevel):
    """Hyperparameters."""

    # as Algorithm 1 averages: all clients of a cluster alike
    weights: Literal["samples", "clients", "equal"] = "clients"


def init_server(options: _OneLevel, schema: Schema, rng: fl.RandomKey) -> Server:
    """Return the server's state before the set-up; refuse what `femam` refuses."""
    name = "ifca" if isinstance(options, Ifca) else "fesem"
    return femam.init_server(options.level, schema, rng, name=name)


def init_client(
    options: _OneLevel, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> femam_client.Client:
    """Return a client's state before the first round."""
    return femam_client.init_client(options.level, schema, client, block, rng)


_EVERY = opening_models(
    (
        *fl.each(fl.asks(femam_client.begin_level), begins=True),
        *fl.asks(femam_client.train_level, femam_client.fine_tune),
        *fl.each(fl.asks(femam_client.close_level), once_for="level"),
        *fl.each(
            fl.asks(femam_client.train_level_on_schedule),
            needed=lambda options: options.schedule != "constant",
        ),
        *fl.sums(femam_client.open_level, opens=()),  # without rows for validation nobody reads it
        *fl.each(fl.sums(femam_client.part_of_loss, reveals=("at",)), each_round=1),
    )
)

FESEM = replace(
    FEMAM,
    name="fesem",
    hyperparameters=FeSEM,
    init_server=init_server,
    init_client=init_client,
    disclosure=fl.Disclosure(
        sends=(*_EVERY, *fl.asks(femam_client.send_model, tells=lambda options: _READ))
    ),
)

IFCA = replace(
    FESEM,
    name="ifca",
    hyperparameters=Ifca,
    disclosure=fl.Disclosure(
        sends=(
            *_EVERY,
            *fl.each(
                (
                    *opening_models(fl.asks(femam_client.try_model, femam_client.choose_model)),
                    *fl.sums(
                        femam_client.send_part,
                        pooled=lambda options: True,
                        chosen=lambda options: options.clusters > 1,
                    ),
                ),
                repeats=True,  # for each cluster
            ),
        ),
        allowed=allowed,
    ),
)
