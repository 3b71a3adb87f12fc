"""The network of a client with a feature space of its own, and how its parts train.

    scores(x) = β(α(φ(x)))

The embedding φ takes the client's own features to a latent space of one width for all, α is a
hidden layer that clients may share (or is not there), β is the classifier. A network may also hold
the means of the anchors that embeddings are aligned to: what trains is then only a matter of names.

Between exchanges parameters are arrays by name, as a state and its checkpoint hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from intarsia.algorithm import RandomKey
from intarsia.data import Array, Block, Schema
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.maths import cohort
from intarsia.maths.local_training import Batch, Learner, LocalTraining
from intarsia.maths.tensors import Tensor, nn, torch
from intarsia.spelling import listed

__all__ = [
    "RAGGED",
    "Arrays",
    "Network",
    "changed",
    "check_clients",
    "check_sizes",
    "class_count",
    "cross_entropy",
    "drawn",
    "embedded",
    "labelled",
    "log_odds",
    "loss_sum",
    "parameters_in",
    "shared_vector",
    "train_networks",
    "with_shared",
]

Arrays = Mapping[str, NDArray[Any]]  # a network's parameters by their dotted names
RAGGED: Mapping[str, int] = {"x": 1, "embedding.0.weight": 1}  # axes of the client's own features


class _Anchors(nn.Module):
    """The means of the anchors, as parameters."""

    def __init__(self, outputs: int, latent: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.zeros(outputs, latent))


class Network(nn.Module):
    """φ with two hidden layers, α if it is shared, β, and the anchors' means if there are any."""

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        hidden: int,
        latent: int,
        shared: bool,
        anchors: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Sequential(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, latent),
        )
        self.classifier = nn.Linear(latent, outputs)
        if shared:
            self.shared = nn.Sequential(nn.Linear(latent, latent), nn.LeakyReLU())
        if anchors:
            self.anchors = _Anchors(outputs, latent)

    def scores(self, latent: Tensor) -> Tensor:
        """Return the classes' scores of points of the latent space, (..., outputs)."""
        found: Tensor = self.classifier(self.shared(latent) if hasattr(self, "shared") else latent)
        return found


# ---- parameters as arrays


def drawn(features: int, outputs: int, rng: RandomKey, **sizes: Any) -> Arrays:
    """Return the parameters of a new network, as torch draws them from this key's stream."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.integer())
        network = Network(features, outputs, **sizes)
    return {name: values.detach().numpy().copy() for name, values in network.named_parameters()}


def shared_vector(parameters: Arrays) -> Array:
    """Return the parameters of α as one vector, in the order of their names."""
    names = sorted(name for name in parameters if name.startswith("shared."))
    return np.concatenate([parameters[name].ravel() for name in names]).astype(np.float64)


def with_shared(parameters: Arrays, vector: Array) -> Arrays:
    """Return the parameters with those of α from a vector."""
    names = sorted(name for name in parameters if name.startswith("shared."))
    ends = np.cumsum([parameters[name].size for name in names])
    pieces = np.split(vector, ends[:-1])
    return {
        **parameters,
        **{
            name: piece.reshape(parameters[name].shape).astype(parameters[name].dtype)
            for name, piece in zip(names, pieces, strict=True)
        },
    }


def parameters_in(parameters: Arrays, precision: str) -> Arrays:
    """Return the parameters in "single" or "double" precision."""
    kind = np.float64 if precision == "double" else np.float32
    return {name: values.astype(kind) for name, values in parameters.items()}


def changed(before: Arrays, after: Arrays) -> Arrays:
    """Return the change of each parameter in double precision."""
    return {name: values.astype(np.float64) - before[name] for name, values in after.items()}


# ---- training


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Return each row's cross-entropy, (rows,)."""
    found: Tensor = nn.functional.cross_entropy(scores, y, reduction="none")
    return found


def labelled(block: Block) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the values, (rows, features), and the classes, (rows,), of a block's labelled rows.

    Raises
    ------
    TableError
        If a value is missing.
    """
    held = np.zeros(block.shape[0], bool) if block.y is None else ~np.isnan(block.y)
    x = _dense(block)[held]
    y = np.zeros(0) if block.y is None else block.y[held]
    return x, np.maximum(y, 0.0).astype(np.int64)  # of two classes, the first is stored as -1


def train_networks(
    training: LocalTraining,
    clients: Sequence[tuple[Arrays, Block, RandomKey]],
    constants: Sequence[Mapping[str, Tensor]],
    engine: cohort.Engine,
) -> list[Arrays]:
    """Train the clients' networks on their labelled rows; return the parameters they come to."""
    learners: list[Learner] = []
    for (parameters, block, rng), known in zip(clients, constants, strict=True):
        tensors = {name: torch.from_numpy(values) for name, values in parameters.items()}
        x, y = labelled(block)
        like = tensors["classifier.weight"]
        learners.append(
            Learner(
                parameters=tensors,
                rows={"x": torch.from_numpy(x).to(like.dtype), "y": torch.from_numpy(y)},
                key=rng.integer(),
                constants=known,
            )
        )
    return [
        {name: values.detach().numpy() for name, values in one.parameters.items()}
        for one in cohort.train(training, learners, engine=engine)
    ]


def plain_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropies of a batch."""
    return cross_entropy(model.scores(model.embedding(batch["x"])), batch["y"])


# ---- what a network says


def embedded(parameters: Arrays, block: Block) -> NDArray[Any]:
    """Return the points of the latent space that a block's samples are taken to."""
    z = _dense(block)
    for number in (0, 2, 4):
        z = z @ parameters[f"embedding.{number}.weight"].T + parameters[f"embedding.{number}.bias"]
        z = np.maximum(z, 0.0) if number < 4 else z
    return z


def _scores(parameters: Arrays, block: Block) -> Array:
    """Return the scores of a block's samples, (samples, outputs)."""
    z = embedded(parameters, block)
    if "shared.0.weight" in parameters:
        z = z @ parameters["shared.0.weight"].T + parameters["shared.0.bias"]
        z = np.where(z > 0, z, 0.01 * z)  # the slope of torch's LeakyReLU
    found: Array = z @ parameters["classifier.weight"].T + parameters["classifier.bias"]
    return found


def log_odds(parameters: Arrays, block: Block) -> Array:
    """Return log p/(1-p) of the classes, (outputs, samples); for two classes that of the second.

    The largest is the class that the network names, and the logistic loss takes each as it is.
    """
    scores = _scores(parameters, block).T
    if len(scores) == 2:
        return scores[1:] - scores[:1]
    others = [logsumexp(np.delete(scores, c, axis=0), axis=0) for c in range(len(scores))]
    odds: Array = scores - np.array(others).reshape(scores.shape)
    return odds


def loss_sum(parameters: Arrays, block: Block) -> Array:
    """Return Σ of the cross-entropies over a block's labelled rows, and their number, (2,)."""
    held = np.zeros(block.shape[0], bool) if block.y is None else ~np.isnan(block.y)
    _, y = labelled(block)
    scores = _scores(parameters, block)[held]
    each = logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]
    return np.array([each.sum(), float(len(y))])


def _dense(block: Block) -> Array:
    x: Array = np.asarray(block.x.toarray() if block.sparse else block.x, np.float64)
    if np.isnan(x).any():
        raise TableError(
            f"{int(np.isnan(x).sum())} values are missing, and a network takes none: set "
            "preprocessing.standardise = true, which puts the mean in their place."
        )
    return x


# ---- what is asked of the federation and of the settings


def class_count(schema: Schema) -> int:
    """Return the number of classes."""
    return max(2, len(schema.labels.classes))


def check_clients(schema: Schema, name: str) -> None:
    """Raise where a federation is not one of clients with samples and labels of their own.

    Raises
    ------
    FederationError
        If labels are numbers to predict, a client has none, or a sample is at several clients.
    """
    if schema.labels.task == "regression":
        raise FederationError(
            f"The labels are numbers to predict (regression), and {name} learns classes; set "
            "labels.task for classes."
        )
    bare = [client for client, held in schema.holdings.items() if not held.labelled.any()]
    if bare:
        raise FederationError(
            f"No label is held by {listed(bare)}, and every client of {name} learns from its own; "
            "leave them out."
        )
    shared = next((cell for cell in schema.samples.cells if len(cell.owners) > 1), None)
    if shared is not None:
        raise FederationError(
            f"The sample {schema.samples.ids[shared.start]!r} is at {listed(shared.owners)}, and "
            f"the clients of {name} have samples of their own; give each row an id of its own."
        )


def check_sizes(options: Any, *, counts: Sequence[str], not_negative: Sequence[str]) -> None:
    """Raise where a hyperparameter is too small.

    Raises
    ------
    ExperimentError
        With its value and the smallest that serves.
    """
    for names, least in ((counts, 1), (not_negative, 0)):
        for name in names:
            value = getattr(options, name)
            if not value >= least or value == float("inf"):
                raise ExperimentError(
                    f"algorithm.{name} is {value}; it must be finite and at least {least}."
                )
    if not 0 < options.rate < float("inf"):
        raise ExperimentError(
            f"algorithm.rate is {options.rate}; it must be positive and finite, for example 1e-3."
        )
    for name, known in (
        ("precision", ("single", "double")),
        ("engine", ("auto", "loop", "vmap", "compiled")),
    ):
        if getattr(options, name) not in known:
            raise ExperimentError(
                f"algorithm.{name} is {getattr(options, name)!r}; choose from {', '.join(known)}."
            )
