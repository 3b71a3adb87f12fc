"""Anchors of classes that networks share: how far apart, and what clients take them for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.core.block import Array, ClientId
from intarsia.errors import UserError
from intarsia.models.serialization import read_model

if TYPE_CHECKING:
    from intarsia.models.networks import ClientNetwork


@dataclass(frozen=True)
class Anchor:
    """One anchor: the mean of the points that all clients draw a class to."""

    name: str  # of its class, or of its classes
    nearest: str  # the anchor that is nearest to it
    distance: float  # to that one
    right: tuple[ClientId, ...]  # clients whose classifier names its class at its mean
    wrong: Mapping[ClientId, str]  # the other clients, and the class that theirs names


def anchors_of(folder: Path, described: Mapping[str, Any]) -> tuple[Anchor, ...]:
    """Return the anchors of a finished run; () where its networks have none that can be read.

    `described` is what the model's file says. Without torch, which reads networks, there
    are none.
    """
    architecture = described.get("architecture")
    if not isinstance(architecture, Mapping) or architecture.get("anchors") is not True:
        return ()
    if importlib.util.find_spec("torch") is None or described.get("task") == "regression":
        return ()
    from intarsia.models.networks import Networks  # here: it takes a while to import

    try:
        model = read_model(folder / "model")
    except UserError:  # such as of networks that somebody's own module makes
        return ()
    if not isinstance(model, Networks) or not model or architecture.get("mixing"):
        return ()
    own, classes = model.any.parameters, [str(one) for one in model.any.classes_]
    if not {"anchors.means", "classifier.weight"} <= own.keys():  # levels that add up have others
        return ()
    means, latent = np.asarray(own["anchors.means"]), own["classifier.weight"].shape[-1]
    # a folder may have come from somebody else
    if means.dtype.kind != "f" or means.ndim != 2 or means.shape[1] != latent:
        return ()
    place = np.asarray(own.get("labels.anchors", np.arange(len(means))))
    if len(means) < 2 or place.shape != (len(classes),) or not np.isfinite(means).all():
        return ()
    means = means.astype(np.float64)
    of = [[classes[at] for at in np.flatnonzero(place == number)] for number in range(len(means))]
    names = [" or ".join(some) for some in of]
    apart = np.linalg.norm(means[:, None] - means[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    said = {client: _named(network, means, classes) for client, network in model.items()}
    return tuple(
        Anchor(
            name,
            names[int(apart[number].argmin())],
            float(apart[number].min()),
            tuple(client for client, one in said.items() if one[number] in of[number]),
            {client: one[number] for client, one in said.items() if one[number] not in of[number]},
        )
        for number, name in enumerate(names)
    )


def _named(network: ClientNetwork, points: Array, classes: list[str]) -> list[str]:
    """Return the class that a client's classifier names at points of the latent space."""
    own = network.parameters
    for layer in ("shared.0", "classifier"):
        if f"{layer}.weight" in own:
            points = points @ own[f"{layer}.weight"].T + own[f"{layer}.bias"]
            if layer != "classifier":
                points = np.where(points > 0, points, 0.01 * points)  # as torch.nn.LeakyReLU
    return [classes[int(at)] for at in points.argmax(axis=1)]
