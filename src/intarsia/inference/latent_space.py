"""Embed the samples of a run's clients in two dimensions of the space that their networks share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.core.block import Array, ClientId
from intarsia.errors import CheckpointError, ExperimentError, nearest
from intarsia.experiment import federation
from intarsia.models.networks import Networks
from intarsia.models.serialization import read_model
from intarsia.plots.latent_space import _MOST_CLIENTS, Latent
from intarsia.results import run_folder


def latent_of(
    folder: Path | str,
    *,
    clients: Sequence[ClientId] = (),
    most: int = 60,
    title: str = "",
    allow_modules: Collection[str] = (),
) -> Latent:
    """Return where a finished run takes training samples of some clients.

    Parameters
    ----------
    folder
        The output folder of a run of networks whose clients' tables are there.
    clients
        Their names; none: the first three.
    most
        Samples of each class at each client, the first ones.
    title
        Of its panel; "": the folder's name.
    allow_modules
        Those that networks may be made of, where the folder names some.

    Raises
    ------
    UserError
        If the run has no networks, a client is unknown, or there are too many for a picture.
    """
    folder = Path(folder)
    described = run_folder.describe(folder, allow_modules)
    model = read_model(folder / "model", allow_modules)
    if not isinstance(model, Networks):
        raise CheckpointError(
            f"{folder} holds the model of {described.algorithm!r}, which has no latent space; give "
            "the folder of a run of flic, hetfedrep or another algorithm on networks."
        )
    if model.labels.task == "regression":
        raise ExperimentError(
            f"The labels of the run in {folder} are numbers to predict, and the picture has a "
            "colour for each class; give the folder of a run on classes."
        )
    chosen = tuple(clients) or tuple(model)[:3]
    for name in chosen:
        if name not in model:
            raise ExperimentError(
                f"The run in {folder} has no client {name!r}; {nearest(name, model)}."
            )
    if len(chosen) > _MOST_CLIENTS:
        raise ExperimentError(
            f"{len(chosen)} clients are named, and a picture can tell {_MOST_CLIENTS} apart; name "
            "fewer."
        )
    blocks = federation.build(described).train
    points, names, classes = [], [], []
    anchors: dict[Any, Array] = {}
    for name in chosen:
        network, block = model[name], blocks[name]
        y = np.asarray(block.y)
        for value in np.unique(y[~np.isnan(y)]):
            rows = np.flatnonzero(y == value)[:most]
            label = network.classes_[int(max(value, 0.0))]
            points.append(network.transform(block.take(rows)))
            names += [name] * len(rows)
            classes += [label] * len(rows)
            if "anchors.means" in network.parameters:
                means = network.parameters["anchors.means"]
                place = network.parameters.get("labels.anchors", np.arange(len(means)))
                anchors[label] = np.asarray(means[place[int(max(value, 0.0))]], np.float64)
    return Latent(
        title or folder.name, np.concatenate(points), np.array(names), np.array(classes), anchors
    )
