"""Networks that users bring, in plain PyTorch: a module for each client or for groups of clients.

    min Σ_i F_i(w_i, s),   F_i = 1/n_i Σ_j l(model_i(w_i, s), x_j, y_j)

Parameters that `shared` names (s) are averaged, all others (w_i) and buffers, such as the running
statistics of BatchNorm, stay with their client. With none
shared every client learns alone; with all ("*") it is federated averaging (McMahan, Moore, Ramage,
Hampson and Agüera y Arcas, AISTATS 2017) with equal weights. A round, at clients that are there:

1. local training: open s; some epochs on all parameters; send the change of s
2. the server averages the changes, which it never reads

At the end all clients may train w_i once more, with the last s.

Modules and objectives are named, "package.module:name", so that a file can name them and a run that
goes on finds them again. Clients whose module has one name are a group and train at once, if their
modules' shapes agree apart from axes that are named `ragged`; what does not batch is named in a
warning, and its clients train one after the other. See docs/cohort.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from intarsia.algorithms.networks.architecture import Arrays
from intarsia.algorithms.networks.client_network import check_clients, finite, part_vector
from intarsia.algorithms.networks.options import check_device
from intarsia.algorithms.networks.parameter_sharing import (
    Change,
    Client,
    ClientTask,
    Loss,
    Server,
    Shared,
    Start,
    averaged,
    certify,
    change,
    conclude,
    network,
    opened,
    send_start,
    setup,
    shares,
    told,
)
from intarsia.algorithms.networks.targets import (
    cross_entropy,
    label_tensor,
    loss_of_scores,
    odds,
    output_count,
)
from intarsia.algorithms.networks.training_rows import columns, labelled_rows
from intarsia.algorithms.networks.user_modules import Named, made, named, scores, structure
from intarsia.core.algorithm import (
    Algorithm,
    ClientCall,
    Clients,
    Disclosure,
    Model,
    RandomKey,
    Ready,
    RoundMetrics,
    asks,
    client_function,
    evolve,
    sums,
    vectorised_function,
)
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Count, CountOrZero, NotNegative, Positive, check_ranges
from intarsia.errors import ExperimentError, FederationError, nearest
from intarsia.maths.training import vectorised
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining, initial_parameters
from intarsia.maths.training.optimisers import SGD, Adam
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True, kw_only=True)
class OwnNetworks:
    """Hyperparameters.

    `model` names a function (features, classes) -> nn.Module, such as a class of modules; a module
    gives scores, (rows, classes), for rows of features. `objective` names a function
    (model, batch) -> loss of each row, (rows,), where batch["x"] are the rows and batch["y"] the
    classes as whole numbers; "" = cross-entropy. Columns come in the order of their names, with
    numbers in them by their size: "x2" before "x10", as in the matrix; without the intercept.
    """

    model: str  # "package.module:name"
    models: Mapping[str, str] = field(default_factory=dict[str, str])  # of single clients, by name
    objective: str = ""
    shared: tuple[str, ...] = ()  # patterns of parameters, such as "head.*"
    ragged: Mapping[str, int] = field(default_factory=dict[str, int])  # see `LocalTraining`
    noise: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    local_epochs: Count = 1
    final_epochs: CountOrZero = 0  # of what is not shared, at all clients after the last round
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    batch: Count = 100
    precision: Literal["single", "double", "bf16"] = "single"  # bf16: products only
    device: str = "cpu"  # as torch names it: "cuda", "cuda:1"
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in (self.model, *self.models.values(), self.objective or "torch:nn"):
            named(name)
        check_device(self.device)

    @property
    def loss(self) -> str:
        """Return the loss that the scores are graded by."""
        return "cross_entropy"

    def architecture_of(self, client: ClientId) -> Named:
        """Return what a client's network is made of."""
        return Named(self.models.get(client, self.model))

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share."""
        return self.shared


def _drawn(options: OwnNetworks, features: int, outputs: int, rng: RandomKey) -> Arrays:
    module = made(options.model, features, outputs, rng.integer())
    kind = np.float64 if options.precision == "double" else np.float32
    arrays = {name: values.numpy() for name, values in initial_parameters(module).items()}
    return {n: v.astype(kind) if v.dtype.kind == "f" else v for n, v in arrays.items()}


def _own(options: OwnNetworks, client: ClientId) -> OwnNetworks:
    """Return the options with the client's own module."""
    name = options.models.get(client, options.model)
    return replace(options, model=name, models={})


def _naming(options: OwnNetworks, module: nn.Module) -> OwnNetworks:
    """Return the options with the names of parameters in place of patterns.

    Patterns fit buffers too, which are not averaged: running statistics and counters are a client's
    own, and their shapes may differ.
    """
    return replace(options, shared=tuple(_shared_shapes(options, module)))


def _shared_shapes(options: OwnNetworks, module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(values.shape)
        for name, values in module.named_parameters()
        if any(fnmatchcase(name, pattern) for pattern in options.shared)
    }


def _plain(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch["x"]), batch["y"])


def _training(options: OwnNetworks, block: Block, outputs: int, *, final: bool) -> LocalTraining:
    """Return how the clients of a group train."""
    features = 1 if "x" in options.ragged else len(columns(block.features))
    epochs = options.final_epochs if final else options.local_epochs
    frozen = options.shared if final else ()
    settings = (options.objective, options.optimiser, options.rate, options.weight_decay)
    batches = (options.batch, options.precision == "bf16")
    ragged, noise = tuple(options.ragged.items()), tuple(options.noise.items())
    return _kept(options.model, features, outputs, epochs, frozen, settings, batches, ragged, noise)


@lru_cache(maxsize=512)  # compiled functions belong to it
def _kept(
    model: str,
    features: int,
    outputs: int,
    epochs: int,
    frozen: tuple[str, ...],
    settings: tuple[str, str, float, float],
    batches: tuple[int, bool],
    ragged: tuple[tuple[str, int], ...],
    noise: tuple[tuple[str, tuple[int, ...]], ...],
) -> LocalTraining:
    objective, optimiser, rate, decay = settings
    module = structure(model, features, outputs)
    names = [name for name, _ in module.named_parameters()]
    return LocalTraining(
        model=module,
        loss=named(objective) if objective else _plain,
        optimiser=Adam(rate=rate) if optimiser == "adam" else SGD(rate=rate),
        epochs=epochs,
        batch_size=batches[0],
        bf16=batches[1],
        train=tuple(n for n in names if not any(fnmatchcase(n, one) for one in frozen)),
        decay={"*": decay},
        ragged=dict(ragged),
        noise=dict(noise),
    )


def init_client(
    options: OwnNetworks, schema: Schema, client: ClientId, block: Block, rng: RandomKey
) -> Client:
    """Return a client's state: its module as it is drawn from the client's own key."""
    outputs = output_count(schema)
    own = _own(options, client)
    features = len(columns(block.features))
    module = structure(own.model, features, outputs)  # whether it fits is said before training
    return Client(_naming(own, module), outputs, _drawn(own, features, outputs, rng))


def _trained(seats: Sequence[ClientTask], *, final: bool) -> list[ClientTask]:
    """Return the clients after a training, each group at once."""
    groups: dict[Any, list[int]] = {}
    for place, seat in enumerate(seats):
        training = _training(seat.client.options, seat.block, seat.client.outputs, final=final)
        groups.setdefault(training, []).append(place)
    after: dict[int, ClientTask] = {}
    for training, places in groups.items():
        options = seats[places[0]].client.options
        learners = [_learner(seats[place], options.device) for place in places]
        found = vectorised.train(training, learners, engine=options.engine)
        for place, one in zip(places, found, strict=True):
            arrays = {name: values.cpu().numpy() for name, values in one.parameters.items()}
            client = evolve(seats[place].client, parameters=finite(training, arrays))
            after[place] = seats[place]._replace(client=client)
    return [after[place] for place in range(len(seats))]


def _learner(seat: ClientTask, device: str) -> Learner:
    tensors = {n: torch.from_numpy(v).to(device) for n, v in seat.client.parameters.items()}
    x, y = labelled_rows(seat.block)
    x = x[:, columns(seat.block.features)]
    kind = torch.float64 if seat.client.options.precision == "double" else torch.float32
    rows = torch.from_numpy(x).to(device, kind)
    return Learner(
        parameters=tensors,
        rows={
            "x": rows,
            "y": label_tensor(y, rows, seat.client.outputs).to(device),
        },
        key=seat.rng.fold_in("local").integer(),
    )


@vectorised_function
def local_training(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train all parameters; send the change of those that are shared, if any are."""
    # step 1: local training
    before = opened(visits)
    after = _trained(before, final=False)
    return [
        (new.client, change(old, new) if old.client.options.shared else Change(None))
        for old, new in zip(before, after, strict=True)
    ]


@vectorised_function
def personalise(visits: Sequence[ClientCall[Shared]]) -> list[tuple[Client, Ready]]:
    """Train what is not shared after the last round."""
    return [(seat.client, Ready()) for seat in _trained(opened(visits), final=True)]


def _scores(client: Client, block: Block) -> Array:
    return scores(client.options.model, client.parameters, block, client.outputs)


@client_function
def part_of_loss(
    client: Client, block: Block, message: Shared, rng: RandomKey
) -> tuple[Client, Loss]:
    """Keep what all share; send this client's part of the loss."""
    client = opened([(client, block, message, rng)])[0].client
    return client, Loss(loss_of_scores(_scores(client, block), block))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return odds(_scores(client, block))


def init_server(options: OwnNetworks, schema: Schema, rng: RandomKey) -> Server:
    """Return the server's state before the set-up: it draws what all share.

    Raises
    ------
    ExperimentError
        If a client that is named is not there, a pattern fits no parameter, or the last training
        has none to train.
    FederationError
        If what is shared has not one shape at all clients, clients have samples in common, or one
        has no labels, or labels are numbers to predict.
    """
    check_clients(schema, "own-networks")
    if schema.labels.task == "regression":
        raise FederationError(
            "The labels are numbers to predict (regression), and own-networks learns classes; use "
            '"flic", or set labels.task for classes.'
        )
    for name in options.models:
        if name not in schema.holdings:
            raise ExperimentError(
                f"algorithm.models names the client {name!r}; {nearest(name, schema.clients)}."
            )
    if not options.shared:
        return Server(options, Start())
    outputs = output_count(schema)
    first, *others = schema.clients
    features = len(columns(schema.holdings[first].features))
    shapes = _shared_shapes(options, _checked(options, schema, first))
    for client in others:
        own = _shared_shapes(options, _checked(options, schema, client))
        if own != shapes:
            name = next(n for n in sorted({*own, *shapes}) if own.get(n) != shapes.get(n))
            raise FederationError(
                f"The shared parameter {name} is {shapes.get(name, 'missing')} at {first!r} and "
                f"{own.get(name, 'missing')} at {client!r}, and what is averaged has one shape: "
                "take it out of algorithm.shared, or change a module."
            )
    parameters = _drawn(_own(options, first), features, outputs, rng.fold_in("shared"))
    return Server(options, Start(part_vector(parameters, tuple(shapes))))


def _checked(options: OwnNetworks, schema: Schema, client: ClientId) -> nn.Module:
    """Return a client's module, if the patterns of what is shared fit it."""
    features = len(columns(schema.holdings[client].features))
    module = structure(options.models.get(client, options.model), features, output_count(schema))
    names = [name for name, _ in module.named_parameters()]
    for pattern in options.shared:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ExperimentError(
                f"algorithm.shared has {pattern!r}, which fits no parameter of {client!r}; it has "
                f"{', '.join(names)}."
            )
    if options.final_epochs and len(_shared_shapes(options, module)) == len(names):
        raise ExperimentError(
            f"algorithm.final_epochs is {options.final_epochs}, of parameters that are not shared, "
            f"and algorithm.shared ({', '.join(options.shared)}) leaves none of {client!r}; set "
            "final_epochs = 0, or share fewer."
        )
    return module


def round(server: Server, clients: Clients, rng: RandomKey) -> tuple[Server, RoundMetrics]:
    """Let the clients that are there train; average the changes of what all share."""
    server = evolve(server, rounds=server.rounds + 1)
    if not server.options.shared:
        clients.ask(local_training, told(server, clients))
        return server, RoundMetrics(phase="local")
    # step 1: local training
    total = clients.sum(local_training, told(server, clients))
    # step 2: averages
    return averaged(server, total, clients), RoundMetrics(phase="averaging")


OWN_NETWORKS = Algorithm(
    name="own-networks",
    hyperparameters=OwnNetworks,
    init_server=init_server,
    init_client=init_client,
    setup=setup,
    round=round,
    certify=partial(certify, part_of_loss=part_of_loss),
    conclude=partial(conclude, personalise=personalise, part_of_loss=part_of_loss),
    states=(Server, Client, OwnNetworks, Start),
    model=Model(
        predict=predict,
        own_feature_space=True,
        network=network,
        architecture=lambda options, schema, client: options.architecture_of(client),
    ),
    disclosure=Disclosure(
        sends=(
            *sums(send_start),
            *sums(local_training, pooled=shares),
            *asks(local_training, personalise),
            *sums(part_of_loss, reveals=("at",)),
        )
    ),
)
