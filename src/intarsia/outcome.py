"""What training came to → the fitted model and the `Result`."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from intarsia import __version__
from intarsia.algorithm import Conclusion, Info
from intarsia.algorithms.evaluation import Grades
from intarsia.algorithms.preparation import INTERCEPT, Preparation
from intarsia.data import Array, ClientId, Schema
from intarsia.experiment import Experiment
from intarsia.labels import as_in_tables
from intarsia.result import (
    Certificate,
    Finished,
    Guarantee,
    Metrics,
    Result,
    Score,
    deciles,
    mean,
    worst,
)
from intarsia.structure import Structures

if TYPE_CHECKING:
    from intarsia.algorithms.client_network import Arrays
    from intarsia.client_models import LinearModels
    from intarsia.model_file import LinearModel, Model
    from intarsia.networks import ClientNetwork, Networks

__all__ = [
    "Outcome",
    "client_models",
    "client_networks",
    "environment",
    "linear_model",
    "result_of",
]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What training came to, and how good it is."""

    rounds: int
    finished: Finished
    conclusion: Conclusion
    every: Grades | None  # of the model on every party's columns
    own: Mapping[ClientId, Grades]  # on each client's own samples
    notes: tuple[str, ...] = ()
    centralised: Grades | None = None
    standalone: Mapping[ClientId, Grades] = field(default_factory=dict[ClientId, Grades])


def result_of(
    description: Experiment,
    options: Any,
    outcome: Outcome,
    *,
    model: Model | None,
    seconds: Mapping[str, float],
    traffic: Mapping[str, Any],
    exchanges: int,
    started: datetime,
    folder: Path | None,
    privacy: Guarantee | None = None,
    structure: Structures | None = None,
) -> Result:
    """Return the result of a run."""
    clients = {name: _score(grades) for name, grades in outcome.own.items()}
    standalone = {name: _score(grades) for name, grades in outcome.standalone.items()}
    info = outcome.conclusion.info
    notes = (*outcome.notes, *outcome.conclusion.notes)
    gap = info.gap_relative
    if gap is not None and gap > description.tolerance > 0:
        notes = (*notes, *_above(outcome, gap, description.tolerance))
    return Result(
        algorithm=description.algorithm,
        experiment=description.name,
        seed=description.seed,
        rounds=outcome.rounds,
        finished=outcome.finished,
        seconds={**seconds, "total": sum(seconds.values())},
        bytes=traffic,
        exchanges=exchanges,
        certificate=_certificate(info),
        metrics=Metrics(
            server=None if outcome.every is None else _score(outcome.every),
            clients=clients,
            clients_mean=mean(clients),
            clients_worst=worst(clients),
            clients_deciles=deciles(clients),
            centralised=None if outcome.centralised is None else _score(outcome.centralised),
            standalone=standalone,
            standalone_mean=mean(standalone),
        ),
        environment=environment(started),
        hyperparameters=dataclasses.asdict(options),
        notes=notes,
        model=model,
        folder=folder,
        privacy=privacy or Guarantee(),
        structure=structure or Structures(),
    )


def _above(outcome: Outcome, gap: float, tolerance: float) -> tuple[str, ...]:
    """Return why the certificate is above the tolerance, where the algorithm does not say it."""
    if outcome.finished == "rounds":
        return (
            f"Stopped after {outcome.rounds} rounds at a relative gap of {gap:.1e}, above the "
            f"tolerance {tolerance:.0e}: raise experiment.rounds.",
        )
    if outcome.finished == "tolerance":
        return (
            f"The relative gap was within the tolerance {tolerance:.0e} after round "
            f"{outcome.rounds}; measured once more it is {gap:.2e}: the difference is rounding.",
        )
    return ()


def linear_model(
    schema: Schema, conclusion: Conclusion, scaling: Mapping[ClientId, Preparation], options: Any
) -> LinearModel | None:
    """Return the model that was revealed, on the features as the parties' tables have them."""
    if conclusion.weights is None:
        return None
    # here: it imports scikit-learn, whose memory the parties' values may need until now
    from intarsia.linear import LinearClassifier, LinearRegressor

    names = [str(name) for name in schema.features.ids]
    weights = dict(zip(names, conclusion.weights.T, strict=True))
    means: dict[str, float] = {}
    scales: dict[str, float] = {}
    for client, state in scaling.items():
        own = schema.features.ids[schema.features.own(client)]
        for name, average, scale in zip(own, state.mean, state.scale, strict=True):
            means[str(name)], scales[str(name)] = float(average), float(scale) or 1.0
    intercept = weights.pop(INTERCEPT, np.zeros(len(conclusion.weights)))
    known = {"means": means, "scales": scales, "regularisation": options.regularisation}
    gap = conclusion.info.gap_relative
    if schema.labels.task == "regression":
        plain = {name: float(weight[0]) for name, weight in weights.items()}
        return LinearRegressor.from_weights(plain, intercept=float(intercept[0]), gap=gap, **known)
    classes = as_in_tables(schema.labels.classes)
    return LinearClassifier.from_weights(
        weights, intercept=intercept, classes=classes, loss=options.loss, gap=gap, **known
    )


def client_models(
    algorithm: str,
    schema: Schema,
    weights: Mapping[ClientId, tuple[Array, float]],
    scaling: Mapping[ClientId, Preparation],
) -> LinearModels:
    """Return the clients' own linear models, on the features as their tables have them."""
    # here: it imports scikit-learn, as above
    from intarsia.client_models import LinearModels
    from intarsia.linear import LinearRegressor

    found: dict[ClientId, LinearRegressor] = {}
    for client, (own, intercept) in weights.items():
        names = [str(name) for name in schema.features.ids[schema.features.own(client)]]
        weight = dict(zip(names, own.tolist(), strict=True))
        plain = {names[place]: weight[names[place]] for place in _in_table(schema, client)}
        # a feature that is constant has no direction in which samples vary, and no weight
        scales = [scale or 1.0 for scale in scaling[client].scale.tolist()]
        found[client] = LinearRegressor.from_weights(
            plain,
            means=dict(zip(names, scaling[client].mean.tolist(), strict=True)),
            scales=dict(zip(names, scales, strict=True)),
            intercept=intercept + weight.get(INTERCEPT, 0.0),
            regularisation=0.0,
        )
    return LinearModels(algorithm, found)


def client_networks(
    algorithm: str,
    schema: Schema,
    architecture: Callable[[ClientId | None], Any],
    parameters: Mapping[ClientId, Arrays],
    scaling: Mapping[ClientId, Preparation],
    server: Arrays | None = None,
) -> Networks:
    """Return the clients' networks and the server's, on the features as the tables have them.

    `architecture` gives that of a client, or of the server (None).
    """
    # here: it imports torch
    from intarsia.algorithms.block_network import Composition
    from intarsia.algorithms.client_network import Architecture
    from intarsia.networks import ClientNetwork, Networks, in_order, without_constant

    def as_trained(made_of: Any, own: Arrays) -> Any:
        """Return what a network is made of; one over blocks may have grown in training."""
        return made_of.grown(own) if isinstance(made_of, Composition) else made_of

    found: dict[ClientId, ClientNetwork] = {}
    for client, own in parameters.items():
        names = [str(name) for name in schema.features.ids[schema.features.own(client)]]
        kept = np.array([name != INTERCEPT for name in names], bool)
        made_of, order = architecture(client), _in_table(schema, client)
        if isinstance(
            made_of, Architecture
        ):  # other networks name their columns, and get no constant
            own = in_order(without_constant(own, ~kept), np.cumsum(kept)[order] - 1)
        found[client] = ClientNetwork(
            labels=schema.labels,
            features=tuple(names[place] for place in order),
            means=scaling[client].mean[order],
            scales=scaling[client].scale[order],
            architecture=as_trained(made_of, own),
            parameters=own,
        )
    if server is None:
        return Networks(algorithm, found)
    means = {name: mean for one in found.values() for name, mean in _by_name(one, one.means)}
    scales = {name: scale for one in found.values() for name, scale in _by_name(one, one.scales)}
    whole = ClientNetwork(
        labels=schema.labels,
        features=tuple(means),
        means=np.array(list(means.values())),
        scales=np.array(list(scales.values())),
        architecture=as_trained(architecture(None), server),
        parameters=server,
    )
    return Networks(algorithm, found, whole)


def _by_name(network: ClientNetwork, values: Array) -> Iterator[tuple[str, float]]:
    return zip(network.features, values.tolist(), strict=True)


def _in_table(schema: Schema, client: ClientId) -> NDArray[np.intp]:
    """Return the places of a client's features, in the order that its table has them.

    An array without names is read in this order: it is that of the array that trained.
    """
    own = schema.features.ids[schema.features.own(client)]
    place = {str(name): number for number, name in enumerate(own)}
    known = [place[name] for name in schema.holdings[client].features if name != INTERCEPT]
    return np.array(known, np.intp)


def _certificate(info: Info) -> Certificate | None:
    if info.primal is None or info.dual is None or info.gap_relative is None:
        return None
    return Certificate(info.primal, info.dual, info.gap_relative)


def _score(grades: Grades) -> Score:
    return Score(grades.loss, grades.accuracy, grades.r2, grades.macro_f1)


def environment(started: datetime) -> dict[str, Any]:
    """Return where a result was made."""
    return {
        "version": __version__,
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": max(
            (pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"),
            default=1,
        ),
        "started": started.isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit of the checkout that this code runs from, None for an installed copy."""
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():  # an environment inside somebody's own repository
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
