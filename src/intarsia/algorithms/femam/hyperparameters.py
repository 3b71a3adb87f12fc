"""The hyperparameters of `femam`, and what they say of its levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from intarsia.algorithms.networks.architecture import Architecture
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.core.block import ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Count, CountOrZero, FractionBelowOne, NotNegative, Positive
from intarsia.errors import ExperimentError, listed, nearest

LevelKind = Literal["global", "clusters", "given", "personal", "shares"]

_KINDS: dict[str, LevelKind] = {"global": "global", "personal": "personal", "shares": "shares"}
_WORDS = ("global", "auto", "personal", "shares")
_OF_SCHEDULE: Any = None  # a default that the schedule says
_DEFAULTS: dict[str, tuple[Any, Any]] = {  # of "adaptive", of "paper"
    "levels": (("global", "auto", "global", "personal"), ("global", 5, 5, 5, "personal")),
    "candidates": ((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (2, 3, 4, 5, 6, 8, 10)),
    "local_epochs": (10, 2),
    "optimiser": ("adam", "sgd"),
    "rate": (1e-3, 0.01),
    "batch": (100, 32),
    "weight_decay": (1e-2, 0.0),
    "embedding_decay": (1e-2, 0.0),
}
_REMEDIES = {
    "validation": "set validation = 0.1",
    "levels": 'begin with "global" and leave "shares" out',
    "clustering": "leave it out",
    "start": "leave it out",
    "prune": "leave it out",
    "final_epochs": "leave it out",
}


@dataclass(frozen=True, kw_only=True)
class FeMAM(NetworkOptions):
    """Hyperparameters, with the defaults of the paper or, where it says little, the better ones.

    `levels` names each level's models: "global" is one for all, a number that many clusters, "auto"
    as many of `candidates` as the rows for validation call for, "personal" one for each client,
    "shares" one for each that is the bias of its shares of the classes (`class_priors`), and any
    other word an entry of `groups`, which says for each client the name of its cluster.
    """

    levels: tuple[int | str, ...] = _OF_SCHEDULE
    groups: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]], hash=False
    )  # word in `levels` → client → its cluster
    # "paper": each level learns what those before it leave, for a number of rounds; "adaptive":
    # each is a whole network, begins when the one before gains no more, and stays where it pays
    level_schedule: Literal["adaptive", "paper"] = "adaptive"
    warm_up: Count = 4  # rounds of level 1 before "adaptive" looks for groups of clients
    patience: Count = 6  # rounds without a better accuracy after which "adaptive" ends a level
    separation: FractionBelowOne = 0.14  # "adaptive": least share of errors that groups correct
    combination: Literal["sum", "mean"] = "sum"  # of the levels' scores
    # of a new level: level 1's model with the last layer 0, that model, or one drawn at random
    start: Literal["zero-output", "level-1", "random"] = "zero-output"
    equal_starts: bool = True  # of a level's models that are drawn
    # of clients' models: k-means++ anew in each round, or Eq. (4); or each takes that of least loss
    clustering: Literal["fresh", "nearest", "loss"] = "fresh"
    # round of a level in which clusters are found first, at the latest its last; before it, each
    # client trains a model of its own, so that what tells clients apart outweighs chance
    first_clustering: Count = 4
    # numbers of clusters that "auto" tries: each up to 12, with the paper's schedule fewer
    candidates: tuple[int, ...] = _OF_SCHEDULE
    cluster_on: Literal["all", "last"] = "all"  # parameters that are clustered; the last layer's
    scaled: bool = False  # each of them to deviation 1 before
    # of clients in an average; "equal" is what "clients" was called
    weights: Literal["samples", "clients", "equal"] = "samples"
    proximal: NotNegative = 0.0  # λ, of λ/2 ‖θ_i - Θ_k‖² …
    personal_pull: NotNegative = 0.3  # the same at a personal level of "adaptive", to its parent
    proximal_norm: Literal["squared", "plain"] = "squared"  # … or of λ Σ ‖·‖ of each parameter
    proximal_levels: Literal["clusters", "all"] = "clusters"  # which levels have it
    validation: FractionBelowOne = 0.1  # share of a client's labelled rows kept from training
    # what keeps a level at a client: a fall, over the rows of all clients unless they differ, by
    # `evidence` standard errors; over its own by 1.64; over its own by `margin`, …
    prune: Literal["pooled", "paired", "margin", "never"] = "pooled"
    evidence: NotNegative = 1.0  # standard errors; "auto" takes fewer clusters within as many
    # … of the share of wrong classes, or of the loss, of which one row can be most
    criterion: Literal["errors", "loss"] = "errors"
    margin: NotNegative = 0.02  # ε of Eq. (9)
    # whether scores are multiplied, before a level begins, by what suits the rows for validation
    calibrated: bool = True
    first_rounds: Count = 400  # of level 1
    level_rounds: Count = 75  # of each other level, at most
    window: CountOrZero = 50  # rounds in which a converged level's accuracy is steady; 0: never
    steadiness: NotNegative = 1.0  # variance of the accuracy in percent below which it is
    # by default 10 epochs of Adam with the rate 1e-3 in batches of 100, as in other algorithms on
    # networks; with the paper's schedule 2 of "sgd" with 0.01 in batches of 32
    local_epochs: Count = _OF_SCHEDULE
    final_epochs: CountOrZero = 0  # of the last level, each client for itself, after the last round
    # "adaptive": rounds after the last one, on all rows, of the levels that are kept
    final_rounds: CountOrZero = 3
    optimiser: Literal["sgd", "adam"] = _OF_SCHEDULE
    rate: Positive = _OF_SCHEDULE
    batch: Count = _OF_SCHEDULE
    # of the layers behind the embedding, and of the embedding: by default 1e-2, with the paper's
    # schedule 0. "adaptive" has none until groups are found, …
    weight_decay: NotNegative = _OF_SCHEDULE
    embedding_decay: NotNegative = _OF_SCHEDULE
    decay_rows: Count = 2000  # … and above so many rows of all clients less, in proportion, …
    decay_clients: Count = 8  # … or so many clients
    layer: bool = False  # a hidden layer between embedding and classifier

    def __post_init__(self) -> None:
        for name, (adaptive, paper) in _DEFAULTS.items():
            if getattr(self, name) is _OF_SCHEDULE:
                object.__setattr__(self, name, adaptive if self.adaptive else paper)
        super().__post_init__()
        if self.adaptive:
            self._check_adaptive()
        if self.validation == 0 and self.prune != "never":
            raise ExperimentError(
                f"algorithm.validation is 0 and algorithm.prune is {self.prune!r}, which needs "
                'rows that no model was trained on; set prune = "never", or validation = 0.1.'
            )
        if self.clustering == "loss" and (self.start != "random" or self.equal_starts):
            raise ExperimentError(
                'algorithm.clustering is "loss", by which clients choose among models that differ '
                'from the first; set start = "random" and equal_starts = false.'
            )
        self._check_levels()

    def _check_adaptive(self) -> None:
        wrong: dict[str, bool] = {
            "validation": self.validation == 0,
            "levels": "shares" in self.levels or self.levels[:1] != ("global",),
            "clustering": self.clustering != "fresh",
            "start": self.start == "random",
            "prune": self.prune != "pooled",
            "final_epochs": self.final_epochs > 0,
        }
        for name in (one for one, holds in wrong.items() if holds):
            value = getattr(self, name)
            shown = list(value) if isinstance(value, tuple) else value
            raise ExperimentError(
                f'algorithm.{name} is {shown!r} with the schedule "adaptive", whose levels begin '
                'with "global" and are whole networks that rows for validation choose among; '
                f'{_REMEDIES[name]}, or set level_schedule = "paper".'
            )

    def _check_levels(self) -> None:
        for given in self.groups:
            if given in _WORDS:
                raise ExperimentError(
                    f"algorithm.groups has {given!r}, which in levels means something else; give "
                    "these clusters another name."
                )
        if not self.levels:
            raise ExperimentError(
                'algorithm.levels is empty; name at least one, for example ["global"].'
            )
        for word in self.levels:
            if isinstance(word, int) and word < 1:
                raise ExperimentError(
                    f"algorithm.levels has {word}; a level has at least 1 cluster."
                )
            if isinstance(word, str) and word not in (*_WORDS, *self.groups):
                known = (*_WORDS, *self.groups)
                raise ExperimentError(
                    f"algorithm.levels has {word!r}; {nearest(word, known)}, or write a number of "
                    "clusters or name an entry of algorithm.groups."
                )
        if "auto" in self.levels:
            self._check_candidates()
        self._check_shares()
        averaged = [word for word in self.levels[1:] if word not in ("personal", "shares")]
        if self.start != "random" and self.levels[0] != "global" and averaged:
            raise ExperimentError(
                f"algorithm.levels begins with {self.levels[0]!r} and algorithm.start is "
                f"{self.start!r}, from a model of level 1 that all clients have; begin with "
                '"global", or set start = "random".'
            )

    def _check_shares(self) -> None:
        if "shares" not in self.levels:
            return
        if self.levels.count("shares") > 1:
            raise ExperimentError(
                f"algorithm.levels has {list(self.levels)}; a client has one level of its shares: "
                'name "shares" once.'
            )
        if self.levels[0] == "shares":
            raise ExperimentError(
                'algorithm.levels begins with "shares"; begin with "global", whose scores it moves.'
            )
        if self.validation == 0:
            raise ExperimentError(
                'algorithm.levels has "shares" with validation = 0, and rows that no model was '
                'trained on say how much it counts; set validation = 0.1, or leave "shares" out.'
            )
        if self.levels[-1] == "shares" and self.final_epochs:
            raise ExperimentError(
                f'algorithm.levels ends with "shares", and final_epochs is {self.final_epochs}, of '
                'a last level that trains; set final_epochs = 0, or put "personal" last.'
            )

    def _check_candidates(self) -> None:
        tried = list(self.candidates)
        if not tried or tried != sorted({max(one, 1) for one in tried}):
            raise ExperimentError(
                f"algorithm.candidates is {tried}; give numbers of clusters from the fewest to the "
                "most, each once, for example [2, 3, 5]."
            )
        if self.validation == 0 or self.clustering != "fresh":
            raise ExperimentError(
                f'algorithm.levels has "auto" with validation = {self.validation} and clustering = '
                f"{self.clustering!r}; rows for validation choose among numbers of clusters of "
                'K-means: set validation = 0.1 and clustering = "fresh", or write the number.'
            )

    def kind(self, number: int) -> LevelKind:
        """Return what a level is, counted from 1."""
        word = self.levels[number - 1]
        if isinstance(word, int) or word == "auto":
            return "clusters"
        return _KINDS.get(word, "given")

    def rounds(self, number: int) -> int:
        """Return for how many rounds a level trains at most; "shares" is found in one."""
        if number == 1:
            return self.first_rounds
        return 1 if self.kind(number) == "shares" else self.level_rounds

    @property
    def adaptive(self) -> bool:
        """Return whether levels are whole networks, each as long as it gains."""
        return self.level_schedule == "adaptive"

    @property
    def alone_until(self) -> int:
        """Return the round of a level in which clusters are found first."""
        return 1 if self.adaptive else self.first_clustering

    @property
    def pools(self) -> bool:
        """Return whether some level has sums over clients of what is their own."""
        kinds = {self.kind(number) for number in range(1, len(self.levels) + 1)}
        return bool(kinds & {"global", "given", "shares"}) or self.clustering == "loss"

    @property
    def chooses(self) -> bool:
        """Return whether clients choose among the models of several clusters."""
        counts = [word for word in self.levels if isinstance(word, int)]
        return self.clustering == "loss" and max(counts, default=1) > 1

    @property
    def read_of_clients(self) -> str:
        """Return what the server reads of single clients in every mode."""
        found = any(self.kind(n) == "clusters" for n in range(1, len(self.levels) + 1))
        if not found or self.clustering == "loss":
            return ""
        return "each client's model at the levels whose clusters it finds, in every round of these"

    @property
    def architecture(self) -> Architecture:
        """Return what a client's network is made of."""
        return replace(
            super().architecture,
            layer=self.layer,
            additive="mean" if self.adaptive else self.combination,
        )


def check_groups(options: FeMAM, schema: Schema) -> None:
    """Raise ExperimentError where a given level has no cluster for a client, or an unknown one."""
    clients: tuple[ClientId, ...] = tuple(schema.clients)
    for word in dict.fromkeys(options.levels):
        if word not in options.groups:
            continue
        given = options.groups[str(word)]
        missing = [client for client in clients if client not in given]
        if missing:
            raise ExperimentError(
                f"algorithm.groups.{word} has no cluster for {listed(missing)}; name one for each "
                "client."
            )
        for client in given:
            if client not in clients:
                raise ExperimentError(
                    f"algorithm.groups.{word} names the client {client!r}; "
                    f"{nearest(client, clients)}."
                )


def given_clusters(options: FeMAM, schema: Schema) -> dict[str, tuple[ClientId, ...]]:
    """Return the members of each cluster that is given; that of one client no other opens."""
    found: dict[str, tuple[ClientId, ...]] = {}
    for word in dict.fromkeys(options.levels):
        given = options.groups.get(str(word), {})
        for name in dict.fromkeys(given.values()):
            members = tuple(one for one in schema.clients if given.get(one) == name)
            if len(members) > 1:
                found[f"the model of the cluster {name!r} of {word!r}"] = members
    return found
