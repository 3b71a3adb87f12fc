"""Networks that users bring, in plain PyTorch: a module for each client or for groups of clients.

    min Σ_i F_i(w_i, s),   F_i = 1/n_i Σ_j l(model_i(w_i, s), x_j, y_j)

Parameters that `shared` names (s) are averaged, all others (w_i) and buffers, such as the running
statistics of BatchNorm, stay with their client. With none
shared every client learns alone; with all ("*") it is federated averaging (McMahan, Moore, Ramage,
Hampson and Agüera y Arcas, AISTATS 2017), with equal weights or by rows (`weights`). A round, at
clients that are there:

1. local training: open s; some epochs on all parameters; send the change of s
2. the server averages the changes, which it never reads

At the end all clients may train w_i once more, with the last s.

Modules and objectives are named, "package.module:name", so that a file can name them and a run that
goes on finds them again. Clients whose module has one name are a group and train at once, if their
modules' shapes agree apart from axes that are named `ragged`; what does not batch is named in a
warning, and its clients train one after the other. See docs/how-to/cohort.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import ClassVar, Literal

from intarsia import core as fl
from intarsia.algorithms.networks import named_modules, targets, user_modules
from intarsia.algorithms.networks import parameter_sharing as sharing
from intarsia.algorithms.networks.architecture import Arrays, as_tensors
from intarsia.algorithms.networks.client_network import check_clients, part_vector, train_learners
from intarsia.algorithms.networks.options import (
    TrainingOptions,
    Weights,
    check_training,
    device_of,
    relative_weight,
    relative_weights,
)
from intarsia.algorithms.networks.parameter_sharing import Change, Client, Server, Shared
from intarsia.algorithms.networks.parameter_sharing import Loss as PartOfLoss
from intarsia.algorithms.networks.training_rows import check_whole, columns, labelled_rows
from intarsia.algorithms.networks.user_modules import Named
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.core.settings import Count, CountOrZero, NotNegative, Positive, check_ranges
from intarsia.errors import ExperimentError, FederationError, nearest
from intarsia.maths.training.local_training import (
    Batch,
    Learner,
    LocalTraining,
    Loss,
    initial_parameters,
)
from intarsia.maths.training.optimisers import SGD, Adam
from intarsia.maths.training.torch_import import Tensor, nn, torch


@dataclass(frozen=True, kw_only=True)
class OwnNetworks(TrainingOptions):
    """Hyperparameters.

    `model` names a function (features, classes) -> nn.Module, such as a class of modules; a module
    gives scores, (rows, classes), for rows of features. `objective` names a function
    (model, batch) -> loss of each row, (rows,), where batch["x"] are the rows and batch["y"] the
    classes as whole numbers; "" = cross-entropy. Columns come in the order of their names, with
    numbers in them by their size: "x2" before "x10", as in the matrix; without the intercept.
    """

    model: str  # "package.module:name"
    loss: ClassVar[str] = "cross_entropy"  # that the scores are evaluated by

    # of single clients, by name
    models: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    objective: str = ""
    shared: tuple[str, ...] = ()  # patterns of parameters, such as "head.*"
    # see `LocalTraining`
    ragged: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    noise: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]], hash=False
    )
    local_epochs: Count = 1
    final_epochs: CountOrZero = 0  # of what is not shared, at all clients after the last round
    weights: Weights = "clients"  # of clients in the average
    optimiser: Literal["adam", "sgd"] = "adam"  # fresh in each round
    rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    batch: Count = 100
    engine: Literal["auto", "loop", "vmap", "compiled"] = "auto"

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in (self.model, *self.models.values(), self.objective or "torch:nn"):
            named_modules.named(name)
        check_training(self, self.optimiser)
        if self.objective and self.label_smoothing:
            raise ExperimentError(
                f"algorithm.label_smoothing is {self.label_smoothing:g} and the objective "
                f"{self.objective!r} is your own; smooth labels there, or leave one of them out."
            )

    def architecture_of(self, client: ClientId) -> Named:
        """Return what a client's network is made of."""
        return Named(self.models.get(client, self.model))

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Return which parameters all clients share."""
        return self.shared


def _drawn(options: OwnNetworks, features: int, outputs: int, rng: fl.RandomKey) -> Arrays:
    module = user_modules.made(options.model, features, outputs, rng.integer())
    arrays = {name: values.numpy() for name, values in initial_parameters(module).items()}
    kind = options.number_type
    return {n: v.astype(kind) if v.dtype.kind == "f" else v for n, v in arrays.items()}


def _own(options: OwnNetworks, client: ClientId) -> OwnNetworks:
    """Return the options with the client's own module."""
    return replace(options, model=options.architecture_of(client).module, models={})


def _shared_shapes(options: OwnNetworks, module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that patterns name.

    Patterns fit buffers too, which are not averaged: running statistics and counters are a client's
    own, and their shapes may differ.
    """
    return {
        name: tuple(values.shape)
        for name, values in module.named_parameters()
        if any(fnmatchcase(name, pattern) for pattern in options.shared)
    }


def _plain(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    return targets.cross_entropy(model(batch["x"]), batch["y"], smoothing)


@lru_cache(maxsize=512)  # compiled functions belong to it
def _training(
    options: OwnNetworks, features: int, outputs: int, epochs: int, frozen: tuple[str, ...]
) -> LocalTraining:
    """Return how the clients of a group train."""
    module = user_modules.structure(options.model, features, outputs)
    names = [name for name, _ in module.named_parameters()]
    optimiser: Adam | SGD = Adam(rate=options.rate)
    if options.optimiser == "sgd":
        optimiser = SGD(rate=options.rate, momentum=options.momentum)
    loss: Loss = partial(_plain, smoothing=options.label_smoothing)
    if options.objective:
        loss = named_modules.named(options.objective)
    return LocalTraining(
        model=module,
        loss=targets.weighed(loss, options.class_weights),
        optimiser=optimiser,
        gradient_clip=options.clip,
        epochs=epochs,
        batch_size=options.batch,
        bf16=options.precision == "bf16",
        train=tuple(n for n in names if not any(fnmatchcase(n, one) for one in frozen)),
        decay={"*": options.weight_decay},
        ragged=options.ragged,
        noise=options.noise,
    )


def init_client(
    options: OwnNetworks, schema: Schema, client: ClientId, block: Block, rng: fl.RandomKey
) -> Client:
    """Return a client's state: its module as it is drawn from the client's own key."""
    outputs = targets.output_count(schema)
    own = _own(options, client)
    features = len(columns(block.features))
    check_whole(block)  # a missing value is said before anything trains
    # whether it fits is said before training
    module = user_modules.structure(own.model, features, outputs)
    shared = tuple(_shared_shapes(own, module))
    return Client(
        replace(own, shared=shared),
        outputs,
        _drawn(own, features, outputs, rng),
        weight=relative_weight(options, schema, client),
    )


def _trained(tasks: Sequence[sharing.ClientTask], *, final: bool) -> list[sharing.ClientTask]:
    """Return the clients after a training, each group at once."""
    trainings, learners = [], []
    for client, block, rng, _ in tasks:
        options, own = client.options, columns(block.features)
        features = 1 if "x" in options.ragged else len(own)
        epochs = options.final_epochs if final else options.local_epochs
        frozen = options.shared if final else ()
        alike = fl.evolve(options, shared=())  # names that may differ within a group
        trainings.append(_training(alike, features, client.outputs, epochs, frozen))
        x, y = labelled_rows(block, options.number_type, own)
        tensors = as_tensors(client.parameters)
        like = torch.zeros(0, dtype=x.dtype)
        labels = targets.label_tensor(y, like, client.outputs)
        weights = targets.importance(labels, like, client.outputs, options.class_weights)
        rows = {"x": x, "y": labels, **weights}
        key = rng.fold_in("local").integer()
        learners.append(Learner(parameters=tensors, rows=rows, key=key))
    known = tasks[0].client.options
    rate = None
    if known.schedule != "constant":
        rate = known.rate * known.rate_factor(tasks[0].round)
    found = train_learners(trainings, learners, known.engine, rate, device_of(known))
    return [
        task._replace(client=fl.evolve(task.client, parameters=own))
        for task, own in zip(tasks, found, strict=True)
    ]


@fl.told_the_same
@fl.vectorised_function
def local_training(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, Change]]:
    """Train all parameters; send the change of those that are shared, if any are."""
    # step 1: local training
    before = sharing.open_messages(calls)
    after = _trained(before, final=False)
    return [
        (new.client, sharing.change(old, new) if old.client.options.shared else Change(None))
        for old, new in zip(before, after, strict=True)
    ]


@fl.vectorised_function
def personalise(calls: Sequence[fl.ClientCall[Shared]]) -> list[tuple[Client, fl.Ready]]:
    """Train what is not shared after the last round."""
    return [
        (task.client, fl.Ready()) for task in _trained(sharing.open_messages(calls), final=True)
    ]


def _scores(client: Client, block: Block) -> Array:
    return user_modules.scores(client.options.model, client.parameters, block, client.outputs)


@fl.told_the_same
@fl.client_function
def part_of_loss(
    client: Client, block: Block, message: Shared, rng: fl.RandomKey
) -> tuple[Client, PartOfLoss]:
    """Keep what all share; send this client's part of the loss."""
    client = sharing.open_messages([(client, block, message, rng)])[0].client
    return client, PartOfLoss(targets.loss_of_scores(_scores(client, block), block))


def predict(client: Client, block: Block) -> Array:
    """Return the log-odds of the classes, (outputs, samples)."""
    return targets.odds(_scores(client, block))


def init_server(options: OwnNetworks, schema: Schema, rng: fl.RandomKey) -> Server:
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
            '"flic", or set labels.task (from Python task=) for classes.'
        )
    for name in options.models:
        if name not in schema.holdings:
            raise ExperimentError(
                f"algorithm.models names the client {name!r}; {nearest(name, schema.clients)}."
            )
    if not options.shared:
        return Server(options, sharing.Start())
    outputs = targets.output_count(schema)
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
    start = sharing.Start(part_vector(parameters, tuple(shapes)))
    return Server(options, start, weights=relative_weights(options, schema))


def _checked(options: OwnNetworks, schema: Schema, client: ClientId) -> nn.Module:
    """Return a client's module, if the patterns of what is shared fit it."""
    features = len(columns(schema.holdings[client].features))
    name = options.architecture_of(client).module
    module = user_modules.structure(name, features, targets.output_count(schema))
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


OWN_NETWORKS = fl.Algorithm(
    name="own-networks",
    hyperparameters=OwnNetworks,
    init_server=init_server,
    init_client=init_client,
    setup=sharing.setup,
    round=partial(sharing.train_and_average, training=local_training, alone=local_training),
    certify=partial(sharing.certify, part_of_loss=part_of_loss),
    conclude=partial(sharing.conclude, personalise=personalise, part_of_loss=part_of_loss),
    absences=True,
    states=(Server, Client, OwnNetworks, sharing.Start),
    model=fl.Model(
        predict=predict,
        own_feature_space=True,
        network=sharing.network,
        architecture=lambda options, schema, client: options.architecture_of(client),
    ),
    disclosure=fl.Disclosure(
        sends=sharing.opening_shared(
            (
                *fl.sums(sharing.send_start),
                *fl.sums(local_training, pooled=sharing.shares),
                # where nothing is shared a client trains for itself, and has nothing to send
                *fl.each(
                    fl.asks(local_training), needed=lambda options: not sharing.shares(options)
                ),
                *fl.asks(personalise),
                *fl.each(fl.sums(part_of_loss, reveals=("at",)), each_round=1),
            )
        ),
        allowed=sharing.allowed,
    ),
)
