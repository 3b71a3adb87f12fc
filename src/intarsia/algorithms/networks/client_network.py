"""The network of a client with a feature space of its own, and how its parts train.

    scores(x) = β(α(φ(x)))

The embedding φ takes the client's own features to a latent space of one width for all, α is a
hidden layer that clients may share (or is not there), β is the classifier. A network may also hold
the means of the anchors that embeddings are aligned to: what trains is then only a matter of names.

Between exchanges parameters are arrays by name, as a state and its checkpoint hold them; parts that
are sent are one vector, in the order of their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from intarsia.algorithms.networks import architecture, embeddings, targets
from intarsia.algorithms.networks.architecture import Architecture, Arrays, Network
from intarsia.algorithms.networks.options import NetworkOptions
from intarsia.algorithms.networks.training_rows import columns
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.client_functions import RandomKey
from intarsia.core.schema import Schema
from intarsia.errors import ConvergenceError, FederationError, listed, several
from intarsia.maths.training import vectorised
from intarsia.maths.training.local_training import Batch, Learner, LocalTraining, initial_parameters
from intarsia.maths.training.locks import drawing_from
from intarsia.maths.training.optimisers import SGD, Adam
from intarsia.maths.training.torch_import import nn


def drawn(features: int, outputs: int, options: NetworkOptions, rng: RandomKey) -> Arrays:
    """Return the parameters of a new network, as torch draws them from this key's stream."""
    with drawing_from(rng.integer()):
        network = Network(features, outputs, options.architecture)
    return {
        name: values.numpy().astype(options.number_type)
        for name, values in initial_parameters(network).items()
    }


def own_cost(engine: str, batch: int, parameters: Arrays) -> float:
    """Return what a step of a client's network costs, beside what it costs whoever trains.

    It is infinite where the network gains nothing from others that train beside it.
    """
    if engine == "compiled":  # each number of networks would be compiled anew
        return 0.0
    if engine == "loop" or (engine == "auto" and vectorised.trains_alone(parameters)):
        return math.inf
    return vectorised.own_cost(parameters, batch)


def features_of(options: NetworkOptions, block: Block) -> int:
    """Return how many features a client's network reads; a user's embedding reads no constant."""
    return architecture.named_width(options.architecture, block) or block.shape[1]


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


@lru_cache(maxsize=256)  # compiled functions belong to a training
def training_of(
    options: NetworkOptions,
    outputs: int,
    loss: Callable[[nn.Module, Batch], Any],
    parts: tuple[str, ...],
    *,
    epochs: int,
    batch: int | None = None,
    noise: int = 0,
    also_ragged: str = "",
    proximal: float = 0.0,
    squared: bool = True,
    features: int = 0,
) -> LocalTraining:
    """Return how some parts of the networks train.

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
        None = that of the options; how many numbers of "noise" a batch holds for each row.
    also_ragged
        What a batch holds beside the rows that runs over the client's own features, on axis 1.
    proximal
        η of η/2 ‖w - r‖² over the parts that move; r is where they start, or what is given.
    squared
        Whether it is that, or else η Σ ‖w - r‖ over the single parameters.
    features
        What the embedding of a user's own takes, see `named_width`; 0: there is none.
    """
    made_of = options.architecture
    drawn = {"noise": (noise,)} if noise else {}
    if made_of.dropout:
        drawn["dropped"] = (embeddings.numbers_of_dropout(made_of.embedding, made_of.hidden),)
    # Adam for algorithms that do not leave the choice
    optimiser: Adam | SGD = Adam(rate=options.rate)
    if getattr(options, "optimiser", "adam") == "sgd":
        optimiser = SGD(rate=options.rate, momentum=options.momentum)
    heads = ["classifier.*", *["shared.*"] * made_of.layer, *["common.*"] * bool(made_of.mixing)]
    decay = dict.fromkeys(heads, options.weight_decay)
    if options.embedding_decay and made_of.embedding != "linear":  # which has no parameters
        decay["embedding.*"] = options.embedding_decay
    return LocalTraining(
        model=architecture.structure(outputs, made_of, features, training=True),
        loss=targets.weighed(loss, options.class_weights),
        optimiser=optimiser,
        gradient_clip=options.clip,
        epochs=max(1, epochs),
        steps=1 if epochs == 0 else None,
        batch_size=options.batch if batch is None else batch,
        bf16=options.precision == "bf16",
        train=parts,
        decay=decay,
        proximal=dict.fromkeys(parts, proximal),
        squared=squared,
        noise=drawn,
        ragged={
            **embeddings.ragged(made_of.embedding),
            **({also_ragged: 1} if also_ragged else {}),
        },
        stacked=embeddings.is_stacked(made_of.embedding),
    )


def train_learners(
    trainings: Sequence[LocalTraining],
    learners: Sequence[Learner],
    engine: vectorised.Engine,
    rate: float | None = None,
    device: str = "cpu",
) -> list[Arrays]:
    """Train each learner, those of one training at once; return the parameters they come to.

    They train on a device, and come back from there.

    Raises
    ------
    ConvergenceError
        If one that moved is not finite: it would spread to all others by the average.
    """
    found: dict[int, Arrays] = {}
    if device != "cpu":
        kept: dict[int, Any] = {}  # what is one for all learners stays one
        learners = [_moved(one, device, kept) for one in learners]
    for training in dict.fromkeys(trainings):
        places = [place for place, one in enumerate(trainings) if one is training]
        alike = [learners[place] for place in places]
        after = vectorised.train(training, alike, engine=engine, rate=rate)
        for place, one in zip(places, after, strict=True):
            arrays = {
                name: values.detach().cpu().numpy() for name, values in one.parameters.items()
            }
            found[place] = arrays
            for name in training.trained:
                if not np.isfinite(arrays[name]).all():
                    raise ConvergenceError(
                        f"The parameter {name} of a client's network is not finite after training; "
                        "lower algorithm.rate, or standardise the features."
                    )
    return [found[place] for place in range(len(learners))]


def _moved(learner: Learner, device: str, kept: dict[int, Any]) -> Learner:
    """Return a learner on a device."""

    def there(tensors: Mapping[str, Any]) -> dict[str, Any]:
        for values in tensors.values():
            if id(values) not in kept:
                kept[id(values)] = values.to(device)
        return {name: kept[id(values)] for name, values in tensors.items()}

    return replace(
        learner,
        parameters=there(learner.parameters),
        rows=there(learner.rows),
        constants=there(learner.constants),
        references=None if learner.references is None else there(learner.references),
    )


def rate_of(options: NetworkOptions, number: int) -> float | None:
    """Return the rate of a round, None: that of the options, in every round."""
    if options.schedule == "constant":
        return None
    return options.rate * options.rate_factor(number)


def network_scores(
    parameters: Arrays, made_of: Architecture, block: Block, device: str = "cpu"
) -> Array:
    """Return the scores of a block's samples by one network, (samples, outputs)."""
    return architecture.outputs_of(parameters, made_of, block, device)[1]


def check_clients(schema: Schema, name: str, *, shared_samples: bool = False) -> None:
    """Raise FederationError unless all clients have labels, and samples of their own.

    With `shared_samples` a sample may be at several clients.
    """
    bare = [client for client, held in schema.holdings.items() if not held.labelled.any()]
    if bare:
        them, rest = "it" if len(bare) == 1 else "them", len(schema.clients) - len(bare)
        raise FederationError(
            f"No label is held by {listed(bare)}, and every client of {name} learns from its own; "
            "use hyfdca, whose linear model learns from the columns of rows that others label"
            f"{f', or leave {them} out' if rest > 1 else ''}."
        )
    shared = next((cell for cell in schema.samples.cells if len(cell.owners) > 1), None)
    if shared is not None and not shared_samples:
        raise FederationError(
            f"The sample {schema.samples.ids[shared.start].item()!r} is at "
            f"{listed(shared.owners)}, and the clients of {name} have samples of their own; use "
            "hyfdca, whose linear model learns from the columns of all of them, or, if it is not "
            "the same, give each row an id of its own."
        )


def check_same_features(schema: Schema, name: str, options: NetworkOptions) -> int:
    """Raise FederationError where clients have different features; return how many are read."""
    first, *others = schema.clients
    features = set(schema.holdings[first].features)
    for other in others:
        odd = features ^ set(schema.holdings[other].features)
        if odd:
            raise FederationError(
                f"Clients {first!r} and {other!r} differ in {several(len(odd), 'feature')} "
                f"({listed(sorted(odd), 4)}); {name} shares layers that read the features, and "
                'needs the same everywhere: use "flic" or "hetfedrep".'
            )
    return features_in(options, schema, first)


def features_in(options: NetworkOptions, schema: Schema, client: ClientId) -> int:
    """Return how many features a client's network reads."""
    features = schema.holdings[client].features
    named = embeddings.is_named(options.embedding)
    return len(columns(features) if named else features)
