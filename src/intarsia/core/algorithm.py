"""An algorithm: a server's `round` over `Clients`, the model that it trains, and what crosses."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import Array, Block, ClientId
from intarsia.core.client_functions import Clients, RandomKey, annotations_of, with_key
from intarsia.core.disclosure import Disclosure, Release
from intarsia.core.schema import Schema
from intarsia.errors import AlgorithmError, FederationError, nearest


@dataclass(frozen=True)
class Ready:
    """What a client answers that has nothing to send: it has what it needs, or is done."""


@dataclass(frozen=True)
class RoundMetrics:
    """What the server knows after a round; goes to the history as it is."""

    finished: bool = False  # the algorithm has nothing left to do
    primal: float | None = None
    dual: float | None = None
    gap_relative: float | None = None  # (primal - dual) / |primal|
    loss: float | None = None  # for algorithms without a certificate
    phase: str = ""
    rounding: float = 0.0  # what gap_relative has beside the gap, as sums are rounded

    @classmethod
    def certified(
        cls, primal: float, dual: float, phase: str, rounding: float = 0.0
    ) -> RoundMetrics:
        """Return the metrics of a model whose objective is at most primal - dual too large.

        `rounding` is what these are apart by because sums are rounded.
        """
        size = max(primal, 1e-300)
        return cls(
            primal=primal,
            dual=dual,
            gap_relative=(primal - dual) / size,
            phase=phase,
            rounding=rounding / size,
        )


@dataclass(frozen=True)
class FinalResult:
    """What a run ends with: the last RoundMetrics and what the server may keep of the model."""

    info: RoundMetrics
    weights: Array | None = None  # (outputs, features) of a linear model, in the schema's order
    errors: Array | None = None  # (outputs, features) standard errors of the weights
    degrees_of_freedom: Array | None = None  # (outputs,) that are left, beside errors
    # (outputs,) standard errors of the score where all columns of the tables are 0
    zero_errors: Array | None = None
    # of models at several levels: for each level the number of the model that a client has there,
    # by client; those without one are left out
    structure: tuple[Mapping[ClientId, int], ...] = ()
    level_words: tuple[str, ...] = ()  # what each of the levels is, in a word or two
    network: Mapping[str, NDArray[Any]] | None = None  # the server's, its parameters by name
    notes: tuple[str, ...] = ()  # what the algorithm chose for itself, in sentences


@dataclass(frozen=True)
class ServerModel:
    """How clients score samples by a network that the server has, on the blocks of all of them.

    Its first layer is a sum over feature blocks: `part(state, block)` gives each block's term of
    it, (units, samples) by block, and `scores(state, total)` the scores, (outputs, samples), of the
    sum over all blocks, (units, samples).
    """

    part: Callable[[Any, Block], Mapping[str, Array]]
    scores: Callable[[Any, Array], Array]


@dataclass(frozen=True)
class LocalBaseline:
    """How each client learns the same alone, for the comparison with what it has of the others.

    By another algorithm, or by the same one without an exchange. It has the hyperparameters of the
    run that both know, but for those that are changed.
    """

    algorithm: str
    changed: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def options(self, hyperparameters: type, of_run: Any) -> Any:
        """Return the hyperparameters of the algorithm that learns alone."""
        names = [one.name for one in dataclasses.fields(hyperparameters) if one.init]
        known = {name: getattr(of_run, name) for name in names if hasattr(of_run, name)}
        return hyperparameters(**{**known, **self.changed})


@dataclass(frozen=True)
class LinearClient:
    """What a client of a linear model starts with, where its algorithm makes no other state."""

    w: Array  # (outputs, features) or (features,) the weights as it was told them last
    labels: Array  # (samples,) its part of the labels: they add up to those of all samples


def _linear_client(options: Any, schema: Schema, client: ClientId, block: Block) -> LinearClient:
    """Return weights of zero, and the client's part of the labels."""
    zeros = np.zeros((schema.labels.outputs, block.shape[1]))
    return LinearClient(zeros, schema.part_of_labels(client, block))


def _linear_scores(state: Any, block: Block) -> Array:
    """Return the scores by the weights in a client's state, (outputs, samples)."""
    if not hasattr(state, "w"):
        raise AlgorithmError(
            f"A client's state, a {type(state).__name__}, has no 'w', by which a linear model "
            "predicts; call its weights w, or give the model a `predict` of its own."
        )
    return np.stack([block.x @ w for w in np.atleast_2d(state.w)])


def _architecture(options: Any, schema: Schema, client: ClientId | None) -> Any:
    return options.architecture


_TASKS: Final = ("binary", "multiclass", "regression")


@dataclass(frozen=True, kw_only=True)
class Model:
    """What an algorithm trains.

    `predict` gives a client's scores of the samples of a block, (outputs, samples); where it is
    `additive` the clients' scores of a sample add up to the model's, and training blocks hold each
    value divided by its number of holders. Of linear models it may be left out: the scores are then
    those by the weights `w` of a client's state.

    Raises
    ------
    AlgorithmError
        If `predict` is left out and the model is not linear, or a task is none.
    """

    predict: Callable[[Any, Block], Array] = _linear_scores
    additive: bool = False
    # one linear model of all columns, linear models or networks of each client
    kind: Literal["linear", "client_linear", "networks"] = "networks"
    tasks: tuple[str, ...] = _TASKS  # of the labels it learns
    own_feature_space: bool = False  # whether each client may have columns of its own alone
    row_weights: bool = False  # whether the weights of rows multiply their losses
    # state -> the parameters of the client's own network by name
    network: Callable[[Any], Mapping[str, NDArray[Any]]] = lambda state: {}
    # state -> weights, (features,), and intercept of the client's own linear model
    own_weights: Callable[[Any], tuple[Array, float]] = lambda state: (state.w[0], 0.0)
    # (options, schema, client) -> what its network is made of; for the server (client = None) None
    # if it has none
    architecture: Callable[[Any, Schema, ClientId | None], Any] = _architecture
    server_model: ServerModel | None = None  # None: the server has no network
    # state -> which classes the client has in training, (classes,): its scores are told apart by
    # them; None: they are not
    trained_classes: Callable[[Any], NDArray[np.bool_]] | None = None
    local_baseline: LocalBaseline | None = None  # None: the comparison is with linear models
    # (clients, options, what all share) -> None: new clients learn from it; None: by other means
    join: Callable[[Clients, Any, Array], None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tasks, str):
            raise AlgorithmError(
                f"tasks is the text {self.tasks!r}; write a tuple: tasks=({self.tasks!r},)."
            )
        for task in self.tasks:
            if task not in _TASKS:
                raise AlgorithmError(f"tasks names {task!r}; {nearest(task, _TASKS)}.")
        if self.kind != "linear" and self.predict is _linear_scores:
            raise AlgorithmError(f"A model of kind {self.kind!r} needs its own `predict`; give it.")


def _only_options(options: Any, schema: Schema) -> Any:
    """Return the hyperparameters: the set-up makes the server's state of them."""
    return options


def _as_it_is(server: Any, clients: Clients) -> Any:
    """Return the server's state as it is."""
    return server


def _uncertified(server: Any, clients: Clients) -> tuple[Any, RoundMetrics]:
    """Return the server's state, of which nothing is known."""
    return server, RoundMetrics()


def _concluded(server: Any, clients: Clients, rng: RandomKey) -> FinalResult:
    """Return what a run ends with whose models are the clients' own."""
    return FinalResult(RoundMetrics())


def _linear_concluded(
    server: Any,
    clients: Clients,
    rng: RandomKey,
    *,
    certify: Callable[..., tuple[Any, RoundMetrics]],
) -> FinalResult:
    """Certify the final model and reveal it: the weights `w` of the server's state."""
    server, info = certify(server, clients, rng)
    if not hasattr(server, "w"):
        raise AlgorithmError(
            f"The server's state, a {type(server).__name__}, has no 'w', with which a linear model "
            "ends; call its weights w, or give the algorithm a `conclude` of its own."
        )
    # discloses the model: the server may predict with it
    w = server.w if isinstance(server.w, np.ndarray) else clients.reveal(server.w)
    return FinalResult(info, np.atleast_2d(w))


_ARGUMENTS: Final = MappingProxyType(  # of an algorithm's functions; the last is random numbers
    {"init_server": 3, "init_client": 5, "setup": 3, "round": 3, "certify": 3, "conclude": 3}
)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated algorithm as pure functions; `hyperparameters` is its own frozen dataclass.

    `setup` runs once with all clients, `round` with those that are there, `certify` and
    `conclude` with all clients again. A function that draws no random numbers need not take a key.

    `private` gives the same algorithm with noise in what it releases, which hides the data of one
    of the disclosure's units; where these are samples, rows are clipped before training.

    What is left out: `init_server` returns the hyperparameters, of which `setup` then makes the
    server's state; without `setup` nothing changes. `certify` knows nothing. Of linear models
    `init_client` returns a `LinearClient`, and `conclude` certifies and reveals the weights `w` of
    the server's state: totals that these come from are declared as `reveals` and `model`. Of other
    models it knows nothing. `states` are the hyperparameters, and what
    `init_server`, `setup` and `init_client` are annotated to return.

    Raises
    ------
    AlgorithmError
        If `init_client` is left out and the model is not linear.
    """

    name: str
    hyperparameters: type
    round: Callable[..., tuple[Any, RoundMetrics]]  # (server, clients, key)
    model: Model
    disclosure: Disclosure
    init_server: Callable[..., Any] = _only_options  # (options, schema, key)
    # (options, schema, name of the client, its training block, key)
    init_client: Callable[..., Any] = _linear_client
    # (server, clients, key), each
    setup: Callable[..., Any] = _as_it_is
    certify: Callable[..., tuple[Any, RoundMetrics]] = _uncertified
    conclude: Callable[..., FinalResult] = _concluded
    absences: bool = False  # whether a round may go on without some of the clients
    # the dataclasses that a checkpoint of this algorithm may hold
    states: tuple[type, ...] = ()
    private: Callable[[Release], Algorithm] | None = None
    federated: ClassVar[Literal[True]] = True  # a baseline has the data in one place

    def __post_init__(self) -> None:
        linear = self.model.kind == "linear"
        if not linear and inspect.unwrap(self.init_client) is _linear_client:
            raise AlgorithmError(f"{self.name} trains no linear model: give its own `init_client`.")
        for name, arguments in _ARGUMENTS.items():
            object.__setattr__(self, name, with_key(getattr(self, name), arguments))
        if linear and getattr(self.conclude, "func", self.conclude) in (
            _concluded,
            _linear_concluded,  # of an algorithm that this one differs from by `certify`
        ):
            conclude = partial(_linear_concluded, certify=self.certify)
            object.__setattr__(self, "conclude", conclude)
        if not self.states:
            steps = (self.init_server, self.setup, self.init_client)
            whole = (getattr(inspect.unwrap(one), "func", one) for one in steps)  # of a partial
            made = (annotations_of(one, 0)[1] for one in whole)
            known = (*made, self.hyperparameters)
            found = dict.fromkeys(one for one in known if dataclasses.is_dataclass(one))
            object.__setattr__(self, "states", tuple(found))

    def begin(self, options: Any, schema: Schema, rng: RandomKey) -> Any:
        """Return the server's state before the set-up.

        Raises
        ------
        FederationError
            If the algorithm does not learn labels as they are, or what it raises itself.
        """
        labels, tasks = schema.labels, self.model.tasks
        if labels.task not in tasks:
            of = f", {len(labels.classes)} classes" if labels.classes else ""
            raise FederationError(
                f"The task of the labels is {labels.task!r}{of}, and {self.name} learns "
                f"{' or '.join(tasks)}; set labels.task (from Python task=), or use another "
                "algorithm."
            )
        return self.init_server(options, schema, rng)

    def prepare(self, server: Any, clients: Clients, rng: RandomKey) -> Any:
        """Return the server's state after the set-up.

        Raises
        ------
        AlgorithmError
            If the set-up returns none.
        """
        found = self.setup(server, clients, rng)
        if found is None:
            raise AlgorithmError(
                f"setup of {self.name} returns nothing; return the server's state, with which the "
                "first round begins."
            )
        return found

    def check_present(self, present: int, clients: int) -> None:
        """Refuse a round with some of the clients, if the algorithm needs all.

        Raises
        ------
        FederationError
            If it does.
        """
        if present < clients and not self.absences:
            raise FederationError(
                f"{present} of {clients} clients take part in a round, and {self.name} needs all; "
                'set experiment.participation = 1, and absent = "wait" where it is set otherwise.'
            )
