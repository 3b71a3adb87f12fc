"""Keep the model of a run over sites: each site its own, the server what it can predict with.

A site keeps its own: its network, or its columns' part of a linear model, in a folder that
`intarsia predict` takes. What the server trains for it has on prepared features; it can predict on
tables where all sites give it the means and scales of their columns, which no site has to.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from intarsia.core.algorithm import Algorithm, FinalResult, RoundMetrics
from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.schema import Schema
from intarsia.engines.remote.wire import shown
from intarsia.errors import listed
from intarsia.experiment import config as experiment
from intarsia.experiment.config import Experiment
from intarsia.models import build
from intarsia.models.serialization import write_model
from intarsia.protocols.preprocessing.preparation import Preparation
from intarsia.training.run import Plan

if TYPE_CHECKING:
    from intarsia.models.serialization import Trained


_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # names no other folder


@dataclass(frozen=True)
class Ended:
    """What the server tells a site at the end."""

    weights: Any = None  # (outputs, the site's features) of a linear model
    gap: float | None = None
    errors: Any = None  # (outputs, the site's features) standard errors of the weights
    degrees_of_freedom: Any = None  # (outputs,)


@dataclass(frozen=True)
class Scales:
    """What a site gives the server of its columns' preparation."""

    mean: Any = None  # (features,)
    scale: Any = None  # (features,)
    average: Any = None  # (features,) means also of what is not centred


def broadcast_end(schema: Schema, conclusion: FinalResult) -> dict[ClientId, Ended]:
    """Return what each site is sent: of a linear model the weights of its own features."""
    weights, gap = conclusion.weights, conclusion.info.gap_relative
    if weights is None:
        return dict.fromkeys(schema.clients, Ended())
    found: dict[ClientId, Ended] = {}
    for name in schema.clients:
        own = schema.features.own(name)
        errors = None if conclusion.errors is None else conclusion.errors[:, own]
        found[name] = Ended(weights[:, own], gap, errors, conclusion.degrees_of_freedom)
    return found


def model_of_site(
    description: Experiment,
    algorithm: Algorithm,
    options: Any,
    schema: Schema,
    client: ClientId,
    state: Any,
    scaling: Preparation,
    ended: Ended,
) -> Trained | None:
    """Return a site's own model, None where it has none."""
    own = {client: scaling}
    if algorithm.model.kind == "networks":
        made_of = partial(algorithm.model.architecture, options, schema)
        networks = {client: algorithm.model.network(state)}
        return build.client_networks(description.algorithm, schema, made_of, networks, own)
    if algorithm.model.kind == "client_linear":
        linear = {client: algorithm.model.own_weights(state)}
        return build.client_models(description.algorithm, schema, linear, own)
    if ended.weights is None:
        return None
    # weights of all features, (outputs, features), of which the client has some
    weights = np.zeros((len(ended.weights), len(schema.features.ids)))
    weights[:, schema.features.own(client)] = ended.weights
    errors = None
    if ended.errors is not None:
        errors = np.full_like(weights, np.nan)
        errors[:, schema.features.own(client)] = ended.errors
    left = ended.degrees_of_freedom
    conclusion = FinalResult(RoundMetrics(gap_relative=ended.gap), weights, errors, left)
    return build.linear_model(schema, conclusion, own, options)


def keep(model: Trained, description: Experiment, folder: Path, run: str) -> Path:
    """Write a site's own model into a folder of its run; return where its experiment's name leads.

    The server names experiments: models/NAME is a link to the model of the last run of a name, and
    trained/RUN has each run's, which no later run writes again.
    """
    kept = folder / "trained" / run
    if not kept.exists():  # it does where the site was stopped between this and its answer
        filling = kept.with_name(f".{run}.tmp")
        shutil.rmtree(filling, ignore_errors=True)
        filling.mkdir(mode=0o700, parents=True)
        write_model(model, filling / "model")
        tree = json.dumps(experiment.to_dict(replace(description, out=".")), indent=2)
        write_atomically(filling / "experiment.json", tree.encode(), private=True)
        filling.rename(kept)
    name = folder / "models" / _file_name(description.name)
    name.parent.mkdir(mode=0o700, exist_ok=True)
    if name.is_dir() and not name.is_symlink():  # an earlier version had the model itself here
        name.rename(kept.with_name(f"before-{run}"))
    link = name.with_name(f".{name.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(Path("..", "trained", run))
    link.replace(name)
    return name


def _problem_of(schema: Schema, scales: Mapping[ClientId, Scales]) -> str:
    """Return what is wrong with what sites give of their columns; "" if nothing is.

    All that have a column trained on it with one mean and one scale. With another one the server's
    model would not be the one that was trained, and no certificate would show it.
    """
    for part in ("mean", "scale", "average"):
        known = np.full(len(schema.features.ids), np.nan)
        for name, one in scales.items():
            value, own = getattr(one, part), schema.features.own(name)
            if value is None and part == "average":  # it was not measured
                continue
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                return f"{name!r} sends {shown(repr(value))[:80]} for each column's {part}"
            if value.shape != own.shape:
                return f"{name!r} sends each column's {part} for {value.shape} of {len(own)}"
            good = np.isfinite(value) & ((value >= 0) | (part != "scale"))
            alike = np.isnan(known[own]) | (known[own] == value)
            if not (good & alike).all():
                at = int(np.argmin(good & alike))
                column = str(schema.features.ids[own[at]])
                said = f"{name!r} says that the {part} of column {column!r} is {value[at]:g}"
                return said + ("" if alike[at] else f", and another site {known[own][at]:g}")
            known[own] = value
    return ""


def _file_name(name: str) -> str:
    """Return an experiment's name as that of a folder, which is another for every name.

    The name is the server's. Of one that could be a path, or is too long, what can be no path is
    taken, and a checksum of the whole.
    """
    if _PLAIN.fullmatch(name):
        return name
    left = "".join(one if one.isascii() and one.isalnum() else "_" for one in name)[:80]
    return f"{left}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


def server_model(
    plan: Plan, schema: Schema, conclusion: FinalResult, scales: Mapping[ClientId, Scales]
) -> tuple[Trained | None, tuple[str, ...]]:
    """Return the server's model, and a note where sites keep to themselves what it lacks."""
    if conclusion.weights is None and conclusion.network is None:
        return None, ()
    silent = [name for name, one in scales.items() if one.mean is None]
    if silent:
        keep = "keep" if len(silent) > 1 else "keeps"
        return None, (
            f"The server has a model of prepared features alone: {listed(silent)} {keep} means "
            "and scales (set scales = true in site.toml); each site has its own model.",
        )
    if odd := _problem_of(schema, scales):
        return None, (
            f"The server has a model of prepared features alone: {odd}; see who runs that site. "
            "Each site has its own model.",
        )
    scaling = {
        name: Preparation(one.mean, one.scale, average=one.average) for name, one in scales.items()
    }
    if conclusion.weights is not None:
        return build.linear_model(schema, conclusion, scaling, plan.options), ()
    assert conclusion.network is not None
    from intarsia.models.networks import Networks  # here: it imports torch

    made_of = plan.algorithm.model.architecture(plan.options, schema, None)
    whole = build.server_network(schema, made_of, conclusion.network, scaling)
    return Networks(plan.description.algorithm, {}, whole), ()
