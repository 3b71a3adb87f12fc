"""The network of a client with a feature space of its own, and how its parts train.

    scores(x) = β(α(φ(x)))

The embedding φ takes the client's own features to a latent space of one width for all, α is a
hidden layer that clients may share (or is not there), β is the classifier. A network may also hold
the means of the anchors that embeddings are aligned to: what trains is then only a matter of names.

Between exchanges parameters are arrays by name, as a state and its checkpoint hold them; parts that
are sent are one vector, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from intarsia.algorithms.networks.architecture import (
    Architecture,
    Arrays,
    Network,
    outputs_of,
    pictures,
)
from intarsia.algorithms.networks.embeddings import (
    IMAGES,
    numbers_of_dropout,
    ragged,
    width_of_structure,
)
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.algorithms.networks.targets import label_tensor
from intarsia.algorithms.networks.training_rows import labelled_rows
from intarsia.core.algorithm import RandomKey
from intarsia.core.block import Array, Block
from intarsia.core.schema import Schema
from intarsia.errors import ConvergenceError, FederationError, listed
from intarsia.maths.training import vectorised
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining, initial_parameters
from intarsia.maths.training.locks import drawing_from
from intarsia.maths.training.optimisers import SGD, Adam
from intarsia.maths.training.torch_import import Tensor, nn, torch


def drawn(features: int, outputs: int, options: NetworkOptions, rng: RandomKey) -> Arrays:
    """Return the parameters of a new network, as torch draws them from this key's stream."""
    with drawing_from(rng.integer()):
        network = Network(features, outputs, options.architecture)
    kind = np.float64 if options.precision == "double" else np.float32
    return {
        name: values.numpy().astype(kind) for name, values in initial_parameters(network).items()
    }


def part_vector(parameters: Arrays, patterns: Sequence[str]) -> Array:
    """Return the parameters that patterns name as one vector, in the order of their names."""
    names = _named(parameters, patterns)
    return np.concatenate([parameters[name].ravel() for name in names]).astype(np.float64)


def with_parts(parameters: Arrays, patterns: Sequence[str], vector: Array) -> Arrays:
    """Return the parameters with those that patterns name from a vector."""
    names = _named(parameters, patterns)
    ends = np.cumsum([parameters[name].size for name in names])
    pieces = np.split(vector, ends[:-1])
    return {
        **parameters,
        **{
            name: piece.reshape(parameters[name].shape).astype(parameters[name].dtype)
            for name, piece in zip(names, pieces, strict=True)
        },
    }


def _named(parameters: Arrays, patterns: Sequence[str]) -> list[str]:
    return sorted(n for n in parameters if any(fnmatchcase(n, one) for one in patterns))


def changed(before: Arrays, after: Arrays) -> Arrays:
    """Return the change of each parameter in double precision."""
    return {name: values.astype(np.float64) - before[name] for name, values in after.items()}


@lru_cache(maxsize=32)
def _structure(outputs: int, made_of: Architecture) -> Network:
    """Return a network whose own values are not read; its embedding takes any width."""
    return Network(width_of_structure(made_of.embedding), outputs, made_of)


def training_of(
    options: NetworkOptions,
    outputs: int,
    loss: Callable[[nn.Module, Batch], Any],
    parts: Sequence[str],
    *,
    epochs: int,
    batch: int | None = None,
    noise: Mapping[str, tuple[int, ...]] | None = None,
    also_ragged: Mapping[str, int] | None = None,
    proximal: float = 0.0,
    squared: bool = True,
) -> LocalTraining:
    """Return how some parts of the networks train; keep it: compiled functions belong to it.

    Parameters
    ----------
    loss
        As of a `LocalTraining` that takes learners stacked. With dropout a batch also holds its
        numbers, "dropped", for the embedding of the rows.
    parts
        Patterns of the parameters that move.
    epochs
        0 = one step.
    batch, noise
        None = the options' batch, and none.
    also_ragged
        Axes of the client's own features in what a batch holds beside the rows.
    proximal
        η of η/2 ‖w - r‖² over the parts that move; r is where they start, or what is given.
    squared
        Whether it is that, or else η Σ ‖w - r‖ over the single parameters.
    """
    made_of = options.architecture
    drawn = dict(noise or {})
    if made_of.dropout:
        drawn["dropped"] = (numbers_of_dropout(made_of.embedding, made_of.hidden),)
    heads = ["classifier.*", *["shared.*"] * made_of.layer, *["common.*"] * bool(made_of.mixing)]
    return LocalTraining(
        model=_structure(outputs, made_of),
        loss=loss,
        optimiser=_optimiser(options),
        epochs=max(1, epochs),
        steps=1 if epochs == 0 else None,
        batch_size=options.batch if batch is None else batch,
        train=tuple(parts),
        decay=dict.fromkeys(heads, options.weight_decay),
        proximal=dict.fromkeys(parts, proximal),
        squared=squared,
        noise=drawn,
        ragged={**ragged(made_of.embedding), **(also_ragged or {})},
        stacked=made_of.embedding not in IMAGES,
    )


def _optimiser(options: NetworkOptions) -> Adam | SGD:
    """Return the options' optimiser: Adam for algorithms that do not leave the choice."""
    plain = getattr(options, "optimiser", "adam") == "sgd"
    return SGD(rate=options.rate) if plain else Adam(rate=options.rate)


def train_networks(
    training: LocalTraining,
    clients: Sequence[tuple[Arrays, Block, RandomKey]],
    constants: Sequence[Mapping[str, Tensor]],
    engine: vectorised.Engine,
    references: Sequence[Arrays] | None = None,
) -> list[Arrays]:
    """Train the clients' networks on their labelled rows; return the parameters they come to.

    `references` are what proximal terms pull to; None: where each starts.

    Raises
    ------
    ConvergenceError
        If a parameter is not finite.
    """
    learners: list[Learner] = []
    pulled: Sequence[Arrays | None] = [None] * len(clients) if references is None else references
    for (parameters, block, rng), known, to in zip(clients, constants, pulled, strict=True):
        tensors = {name: torch.from_numpy(values) for name, values in parameters.items()}
        x, y = labelled_rows(block)
        x = pictures(training.model, x, block)
        like = tensors["classifier.weight"]
        learners.append(
            Learner(
                parameters=tensors,
                rows={
                    "x": torch.from_numpy(x).to(like.dtype),
                    "y": label_tensor(y, like, len(parameters["classifier.bias"])),
                },
                key=rng.integer(),
                constants=known,
                references=None if to is None else {n: torch.from_numpy(v) for n, v in to.items()},
            )
        )
    return [
        finite(training, {name: values.detach().numpy() for name, values in one.parameters.items()})
        for one in vectorised.train(training, learners, engine=engine)
    ]


def finite(training: LocalTraining, parameters: Arrays) -> Arrays:
    """Return the parameters that a training came to.

    Raises
    ------
    ConvergenceError
        If one that it moved is not finite: it would spread to all others by the average.
    """
    for name in training.trained:
        if not np.isfinite(parameters[name]).all():
            raise ConvergenceError(
                f"The parameter {name} of a client's network is not finite after training; lower "
                "algorithm.rate, or standardise the features."
            )
    return parameters


def network_scores(parameters: Arrays, made_of: Architecture, block: Block) -> Array:
    """Return the scores of a block's samples by one network, (samples, outputs)."""
    return outputs_of(parameters, made_of, block)[1]


def embedded(parameters: Arrays, options: NetworkOptions, block: Block) -> Array:
    """Return the points of the latent space that a block's samples are taken to, (samples, k)."""
    return options.architecture.outputs(parameters, block)[0]


def scores(parameters: Arrays, options: NetworkOptions, block: Block) -> Array:
    """Return what a network says of a block's samples, (samples, outputs)."""
    return options.architecture.outputs(parameters, block)[1]


def check_clients(schema: Schema, name: str, *, shared_samples: bool = False) -> None:
    """Raise where a federation is not one of clients with samples and labels of their own.

    With `shared_samples` a sample may be at several clients.

    Raises
    ------
    FederationError
        If a client has no labels, or a sample is at several clients.
    """
    bare = [client for client, held in schema.holdings.items() if not held.labelled.any()]
    if bare:
        raise FederationError(
            f"No label is held by {listed(bare)}, and every client of {name} learns from its own; "
            "leave them out."
        )
    shared = next((cell for cell in schema.samples.cells if len(cell.owners) > 1), None)
    if shared is not None and not shared_samples:
        raise FederationError(
            f"The sample {schema.samples.ids[shared.start]!r} is at {listed(shared.owners)}, and "
            f"the clients of {name} have samples of their own; give each row an id of its own."
        )


def check_same_features(schema: Schema, name: str) -> int:
    """Raise where clients have different features; return how many they have.

    Raises
    ------
    FederationError
        With the first that one client has and another lacks.
    """
    first, *others = schema.clients
    features = set(schema.holdings[first].features)
    for other in others:
        odd = features ^ set(schema.holdings[other].features)
        if odd:
            raise FederationError(
                f"Clients {first!r} and {other!r} differ in {len(odd)} features "
                f"({listed(sorted(odd), 4)}); {name} shares layers that read the features, and "
                'needs the same everywhere: use "flic" or "hetfedrep".'
            )
    return len(features)
