"""A trained model in a folder: no pickle, the same bits when it is read again.

A linear model is linear.json. Linear models of the clients' own are clients.json (whose model is in
which file) and clients/<number>.json. The networks of clients are networks.json (what the labels
mean, and whose network is in which file), clients/<number>.npz with one client's arrays and the
names of its features, and shared.npz with the arrays that are the same at all clients. In a
federation of real clients each keeps its own file and the shared one.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
from numpy.lib.format import write_array
from numpy.typing import NDArray
from rich.text import Text

from intarsia.core.block import ClientId, Labels
from intarsia.core.files.atomic_files import write_atomically, write_durably
from intarsia.core.files.contained import check_contained
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.core.files.npz import check_npz
from intarsia.core.plugins import check_allowed
from intarsia.core.text_tables import MOST_LINES, Part, add_more, as_html, as_text, new_table
from intarsia.errors import (
    CheckpointError,
    ExperimentError,
    IntarsiaError,
    first_line,
    lacks,
    nearest,
)
from intarsia.models.linear_parameters import LinearParameters, as_lists, levels_of

if TYPE_CHECKING:  # the one imports scikit-learn, the other torch: each is there when it is needed
    from intarsia.algorithms.hyfem.network import Composition
    from intarsia.algorithms.networks.architecture import Architecture
    from intarsia.models.linear import LinearClassifier, LinearRegressor
    from intarsia.models.networks import ClientNetwork, Networks

M = TypeVar("M")
NAME = "linear.json"
NETWORKS = "networks.json"
CLIENTS = "clients.json"

# what a file that this version did not write is found out by
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError),
    zipfile.BadZipFile,
)
_NAMED = 6  # clients in the one line that stands for their models
_SHARED = "shared.npz"
_SERVER = "server.npz"
# beside the parameters in a client's file
_OWN = ("features", "means", "scales", "centres", "levels", "module", "composition")


class ClientModels(Mapping[ClientId, M]):
    """The models of clients with features of their own, by client."""

    kind: ClassVar[str] = "model"

    def __init__(self, algorithm: str, models: Mapping[ClientId, M]) -> None:
        self.algorithm = algorithm
        self._models = models

    def __getitem__(self, client: ClientId) -> M:
        if client not in self._models:
            raise KeyError(
                f"There is no {self.kind} of a client {client!r}; {nearest(client, self._models)}."
            )
        return self._models[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    if not TYPE_CHECKING:  # a checker of types finds what is not there by itself

        def __getattr__(self, name: str) -> Any:
            first = next(iter(self), None) if "_models" in vars(self) else None
            if first is not None and hasattr(type(self[first]), name):
                raise AttributeError(
                    f"Each client has a {self.kind} of its own, and {name!r} is of one of them: "
                    f"take model[{first!r}].{name}, or another client's."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def parts(self) -> list[Part]:
        """Return what shows the models: whose they are, and of how many features."""
        title = f"{len(self):,} {self.kind}s of {self.algorithm}"
        table = new_table(title, "client", "features")
        for name, one in list(self.items())[:MOST_LINES]:
            table.add_row(Text(str(name)), f"{getattr(one, 'n_features_in_', 0):,}")
        add_more(table, len(self))
        return [table]

    def __repr__(self) -> str:
        names = ", ".join(map(repr, list(self)[:_NAMED]))
        more = f" and {len(self) - _NAMED:,} more" if len(self) > _NAMED else ""
        of = f" of {names}{more}" if names else ""
        return f"<{type(self).__name__}: {len(self):,} {self.kind}s by {self.algorithm}{of}>"

    def __str__(self) -> str:
        return as_text(self.parts())

    def _repr_html_(self) -> str:
        return as_html(self.parts())


class LinearModels(ClientModels["LinearRegressor"]):
    """The linear models of all clients, by client."""


if TYPE_CHECKING:
    LinearModel: TypeAlias = LinearClassifier | LinearRegressor
    Model: TypeAlias = LinearModel | LinearModels | Networks
    Trained: TypeAlias = LinearParameters | LinearModels | Networks


def write_model(model: Model | Trained, folder: Path) -> None:
    """Write the model of a run into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, LinearModels):
        _write_clients(model, folder)
    elif isinstance(model, Mapping):
        _write_networks(cast("Networks", model), folder)  # scikit-learn's classes have no types
    else:
        own = model if isinstance(model, LinearParameters) else LinearParameters.of(model)
        _write_json(folder / NAME, own.to_dict())


def read_model(folder: Path, allow_modules: Collection[str] = ()) -> Model:
    """Return the model that `write_model` wrote; it names no module but those allowed.

    Raises
    ------
    CheckpointError
        If there is none, a file is not what was written, something in the folder leads out of it,
        or it names another module.
    """
    kinds: Mapping[str, Callable[[Any], Model]] = {
        NETWORKS: lambda content: _networks(content, folder, allow_modules),
        CLIENTS: lambda content: _clients(content, folder),
        NAME: _estimator,
    }
    check_contained(folder)
    name = next((one for one in kinds if (folder / one).is_file()), NAME)
    path = folder / name
    if not folder.is_dir() and (folder.parent / "run.id").is_file():
        raise CheckpointError(
            f"The server of the run over sites in {folder.parent} has no model that predicts on "
            "tables: each site has its own (local/models in its kit). One of all columns it has "
            "where every site gives their means and scales: scales = true in site.toml."
        )
    if not folder.is_dir() and (folder.parent / "result.json").is_file():
        raise CheckpointError(
            f"The run in {folder.parent} is finished and has no model: those of "
            "standalone leave none, as each client's is its own (its scores are in result.json); "
            "where another's was removed, run the experiment again with --overwrite."
        )
    parent = folder.parent
    if not parent.is_dir():
        raise CheckpointError(f"{lacks(parent, '')}; give the output folder of a finished run.")
    begun = (parent / "experiment.json").is_file() and not (parent / "result.json").is_file()
    if not path.is_file() and begun:
        raise CheckpointError(
            f"The run in {parent} is not finished and has no model yet; finish it first: intarsia "
            f"resume {parent}"
        )
    inside = [one.parent for one in sorted(parent.glob("*/result.json"))]
    if not path.is_file() and inside and not folder.is_dir():
        raise CheckpointError(f"{parent} is no run and has {len(inside)}; name one: {inside[0]}.")
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; a finished run writes it: run or resume the experiment first."
        )
    try:
        return kinds[name](parse_json(path.read_text(encoding="utf-8")))
    except _UNREADABLE as problem:
        raise CheckpointError(
            f"{path} is not a model that this version wrote ({type(problem).__name__}: {problem}); "
            "run the experiment again with --overwrite."
        ) from problem


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, ensure_ascii=False).encode())


def _estimator(content: Mapping[str, Any]) -> LinearModel:
    return LinearParameters.from_dict(content).estimator()


def _write_clients(model: LinearModels, folder: Path) -> None:
    (folder / "clients").mkdir(mode=0o700, exist_ok=True)  # each model is its client's own
    files = {name: f"clients/{number:05d}.json" for number, name in enumerate(model)}
    for name, own in model.items():
        _write_json(folder / files[name], LinearParameters.of(own).to_dict())
    # last: it says that the others are there
    _write_json(folder / CLIENTS, {"algorithm": model.algorithm, "clients": files})


def _clients(content: Mapping[str, Any], folder: Path) -> LinearModels:
    from intarsia.models.linear import LinearRegressor

    found: dict[str, LinearRegressor] = {}
    for name, file in content["clients"].items():
        path = _within(folder, file)
        if not path.is_file():
            raise ValueError(f"{file} is not there")
        own = _estimator(parse_json(path.read_text(encoding="utf-8")))
        if not isinstance(own, LinearRegressor):
            raise ValueError(f"{file} is no model of numbers")
        found[name] = own
    return LinearModels(content["algorithm"], found)


def _within(folder: Path, file: str) -> Path:
    """Return a file of a model's folder; ValueError if it lies elsewhere."""
    path = folder / file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file[:80]!r} is no file of the folder")
    return path


def _write_networks(model: Networks, folder: Path) -> None:
    shared = model.shared
    files = {name: f"clients/{number:05d}.npz" for number, name in enumerate(model)}
    (folder / "clients").mkdir(mode=0o700, exist_ok=True)  # each network is its client's own
    write_durably((folder / files[name], _own(network, shared)) for name, network in model.items())
    if shared:
        write_durably([(folder / _SHARED, _arrays(shared))])
    if model.server is not None:
        write_durably([(folder / _SERVER, _own(model.server, {}))])
    # last: it says that the others are there
    content = {
        "algorithm": model.algorithm,
        "task": model.labels.task,
        "classes": list(model.labels.classes),
        "label": model.labels.name,
        "architecture": model.any.architecture.to_dict(),
        "shared": sorted(shared),
        "server": model.server is not None,
        "clients": files,
    }
    _write_json(folder / NETWORKS, content)


def _networks(content: Mapping[str, Any], folder: Path, allow_modules: Collection[str]) -> Networks:
    from intarsia.algorithms.hyfem.network import Composition
    from intarsia.algorithms.networks.architecture import Architecture
    from intarsia.algorithms.networks.user_modules import Named
    from intarsia.models.networks import Networks

    made_of = content["architecture"]
    check_allowed(made_of, allow_modules, folder)
    architecture = None if made_of is None else Architecture(**made_of)
    check_kind(content["classes"], list[str], "classes")
    check_kind(content["clients"], dict[str, str], "clients")
    if architecture is not None:
        check_kind(architecture, Architecture, "architecture")
    labels = Labels(content["task"], tuple(content["classes"]), content["label"])
    check_kind(labels, Labels, "labels")
    shared = _read_arrays(folder / _SHARED) if content["shared"] else {}
    if sorted(shared) != content["shared"]:
        raise ValueError(f"{_SHARED} holds {', '.join(shared)}")
    found = {
        name: _network(_read_arrays(_within(folder, file)), shared, labels, architecture)
        for name, file in content["clients"].items()
    }
    server = None
    if content.get("server"):
        server = _network(_read_arrays(folder / _SERVER), {}, labels, None)
    for network in [*found.values(), *([server] if server else [])]:
        made_of = network.architecture
        if isinstance(made_of, Named):
            check_allowed(f"{made_of.module}:", allow_modules, folder)
        elif isinstance(made_of, Composition):
            check_allowed([one.kind for one in made_of.extractors], allow_modules, folder)
    return Networks(content["algorithm"], found, server)


def _network(
    own: Mapping[str, NDArray[Any]],
    shared: Mapping[str, NDArray[Any]],
    labels: Labels,
    architecture: Architecture | None,
) -> ClientNetwork:
    from intarsia.algorithms.hyfem.network import composition_of
    from intarsia.algorithms.networks.user_modules import Named
    from intarsia.models.networks import ClientNetwork

    parameters = {**{key: own[key] for key in own if key not in _OWN}, **shared}
    if own["features"].dtype.kind != "U":
        raise ValueError("names of features are no text")
    features = tuple(own["features"].tolist())
    # of a perceptron: patches fit any width, and of a module of the user's own nobody knows
    first = None if "module" in own else parameters.get("embedding.0.weight")
    width = len(features) if first is None else first.shape[1]
    if not width == len(features) == len(own["means"]) == len(own["scales"]):
        raise ValueError(f"a network takes {width} features and {len(features)} are named")
    made_of: Architecture | Named | Composition | None = architecture
    if "module" in own:
        made_of = Named(str(own["module"]))
    elif "composition" in own:
        made_of = composition_of(parse_json(str(own["composition"])))
        # modules of the user's own are found when the network predicts, or said to be missing
        if not any(":" in one.kind for one in made_of.extractors):
            parameters = _fitting(parameters, made_of)
    if made_of is None:
        raise ValueError("a network has no architecture")
    outputs = 1 if labels.task == "regression" else max(2, len(labels.classes))
    taken = [own["centres"]] if "centres" in own else []
    numbers = (*parameters.values(), own["means"], own["scales"], *taken)
    if any(one.dtype.kind not in "fiub" or not np.isfinite(one).all() for one in numbers):
        raise ValueError("a parameter of a network is no number")
    for one in (own["means"], own["scales"], *taken):
        if one.shape != (len(features),) or one.dtype.kind != "f":
            raise ValueError(f"means and scales are not of {len(features)} features")
    if made_of is architecture and architecture is not None:
        try:
            architecture.check(parameters, len(features), outputs)
        except (RuntimeError, IntarsiaError) as problem:  # of sizes that no network has
            raise ValueError(f"a network cannot be made ({first_line(problem)})") from problem
    stored = parse_json(str(own["levels"])) if "levels" in own else None
    return ClientNetwork(
        *(labels, features, own["means"], own["scales"], made_of, parameters),
        levels_=levels_of(stored, features),
        centres_=own.get("centres"),
    )


def _fitting(
    parameters: Mapping[str, NDArray[Any]], made_of: Composition
) -> dict[str, NDArray[Any]]:
    """Return the parameters of a network; ValueError where they are not those that it names.

    A file that names layers of many units, and has the parameters of few, takes no memory.
    """
    layers = len(made_of.hidden) + sum(1 + len(one.hidden) for one in made_of.extractors)
    if layers > len(parameters):
        raise ValueError(f"a network has {layers} layers and {len(parameters)} parameters")
    try:
        wanted = made_of.shapes
    except (RuntimeError, AttributeError, ExperimentError) as problem:
        raise ValueError(f"a network cannot be made ({first_line(problem)})") from problem
    for name, shape in wanted.items():
        if parameters[name].shape != shape:
            raise ValueError(f"{name!r} has the shape {parameters[name].shape}, not {shape}")
        if parameters[name].dtype.kind != "f":
            raise ValueError(f"{name!r} is an array of {parameters[name].dtype}")
    return {name: parameters[name] for name in wanted}


def _own(network: ClientNetwork, shared: Mapping[str, NDArray[Any]]) -> bytes:
    """Return what is in a client's file."""
    own = {key: values for key, values in network.parameters.items() if key not in shared}
    features = np.array(network.features, np.str_)
    extra = {"features": features, "means": network.means, "scales": network.scales}
    if network.centres_ is not None:
        extra["centres"] = network.centres_
    if network.levels_ is not None:
        text = json.dumps(as_lists(network.levels_), ensure_ascii=False)
        extra["levels"] = np.array(text, np.str_)
    return _arrays({**own, **extra, **network.architecture.to_arrays()})


def _arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:  # as np.savez does, which would pickle objects
        for name, values in arrays.items():
            with file.open(f"{name}.npy", "w") as member:
                write_array(member, values, allow_pickle=False)
    return data.getvalue()


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise ValueError(f"{path.name} is not there")
    check_npz(path, packed=False)
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
        return dict(file)
