"""Write a finished run's model in a format that needs nothing of this package.

    onnx         a graph that takes a table's columns, see `models.onnx_model`
    skops        a pipeline of scikit-learn, see `models.scikit_model`; linear models alone
    safetensors  the arrays, and beside them a JSON file with the names

The first two are read again and compared with the model on made-up rows, some of whose values are
missing, where the library that runs them is installed.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import RARE, Block, ClientId
from intarsia.core.files.atomic_files import write_over
from intarsia.errors import ConvergenceError, ExperimentError, nearest
from intarsia.maths.linear.losses import SHAPES, shape_of
from intarsia.models.feature_mapping import RawColumns, counts_as
from intarsia.models.serialization import read_model
from intarsia.results.result import load

if TYPE_CHECKING:
    from intarsia.models.serialization import LinearModel

Array = NDArray[np.float64]
Format = Literal["onnx", "skops", "safetensors"]
FORMATS: Final = get_args(Format)
_ROWS: Final = 256  # made up, that the export is compared on
_UNSEEN: Final = "a level that training did not see"
_SERVER: Final = "server"
_NEEDED: Final = {
    "onnx": ("onnx",),
    "skops": ("skops", "pandas"),
    "safetensors": ("safetensors",),
}
# of float64, and of networks, most of which are float32
_LINEAR, _NETWORK = 1e-9, 1e-4


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    path: Path
    format: Format
    # the greatest difference of scores or predictions, relative to their size where that is above 1
    difference: float | None = None  # None: nothing compared them
    rows: int = 0  # that were compared
    names: Path | None = None  # the JSON file beside arrays

    @property
    def sentence(self) -> str:
        """Return what came out of the comparison."""
        if self.difference is None and self.format == "onnx":
            return "not compared: onnxruntime is not installed"
        if self.difference is None:
            return f"names of the arrays: {self.names}"
        return (
            f"on {self.rows} made-up rows the greatest difference to the model is "
            f"{self.difference:.1e}"
        )


def export(
    folder: str | Path,
    format: Format,
    *,
    out: str | Path | None = None,
    client: ClientId | None = None,
    allow_modules: Collection[str] = (),
) -> Exported:
    """Write a finished run's model for use elsewhere; return where, and how it compares.

    Parameters
    ----------
    folder
        The output folder of the run.
    format
        "onnx", "skops" (linear models alone) or "safetensors".
    out
        The file; None: model.FORMAT in the folder.
    client
        Whose model, where each client has its own; "server": the server's network.
    allow_modules
        Those that networks may be made of, where the folder names some.

    Raises
    ------
    UserError
        If the folder holds no model, a library is missing, or the model has no such form.
    ConvergenceError
        If what was written predicts something else than the model.
    """
    if format not in FORMATS:
        raise ExperimentError(f"format is {format!r}; {nearest(format, FORMATS)}.")
    folder = Path(folder)
    load(folder)  # refuses what is no finished run, in its words
    path = Path(out) if out is not None else folder / f"model.{format}"
    if path.is_dir() or not path.parent.is_dir():
        raise ExperimentError(
            f"out is {str(path)!r}, which is no file in a folder that is there; name one."
        )
    if path.suffix.lower() != f".{format}":
        raise ExperimentError(
            f"out is {str(path)!r}, which does not end in .{format}, the format's ending; name it "
            "so."
        )
    for one in _NEEDED[format]:
        _library(one, format)
    model = _model_of(read_model(folder / "model", allow_modules), client, folder)
    if format == "safetensors":
        return _write_arrays(model, path)
    network = not hasattr(model, "coef_")
    if format == "skops" and network:
        raise ExperimentError(
            "The model is a network, which scikit-learn has no estimator for; use the format onnx, "
            "or safetensors for its arrays."
        )
    data = _onnx(model) if format == "onnx" else _skops(model)
    rows = _trial_rows(model)
    said = _said_by_onnx(data, rows) if format == "onnx" else _said_by_skops(data, rows)
    if said is None:
        write_over(path, data)
        return Exported(path, format)
    difference = _difference(model, rows, said)
    if not difference <= (_NETWORK if network else _LINEAR):
        raise ConvergenceError(
            f"What was made for the format {format} differs from the model by {difference:.1e} on "
            "made-up rows; nothing was written: export the arrays with the format safetensors."
        )
    write_over(path, data)
    return Exported(path, format, difference, _ROWS)


def _library(name: str, format: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        raise ExperimentError(
            f"The format {format} needs the library {problem.name}, which is not installed; run "
            'pip install "intarsia[export]".'
        ) from None


def _model_of(model: Any, client: ClientId | None, folder: Path) -> Any:
    """Return the model of all clients, or that of one."""
    if not isinstance(model, Mapping):
        if client is not None:
            raise ExperimentError(
                f"client is {client!r}, and the model in {folder} is one of all; leave it out."
            )
        return model
    server = getattr(model, "server", None)
    known = [*model, *([_SERVER] if server is not None and _SERVER not in model else [])]
    if client is None and len(known) > 1:
        raise ExperimentError(
            f"The run in {folder} has a model for each client; name whose as client: "
            f"{nearest('', known)}."
        )
    chosen = client or known[0]
    if chosen not in known:
        raise ExperimentError(
            f"client is {chosen!r}, which has no model; {nearest(chosen, known)}."
        )
    return model.get(chosen, server)


def _onnx(model: Any) -> bytes:
    from intarsia.models.onnx_model import linear_onnx, network_onnx

    if hasattr(model, "coef_"):
        return linear_onnx(model)
    _library("onnxscript", "onnx")
    return network_onnx(model)


def _skops(model: LinearModel) -> bytes:
    from intarsia.models.scikit_model import scikit_pipeline

    data: bytes = _library("skops.io", "skops").dumps(scikit_pipeline(model))
    return data


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of raw columns, and the same as features."""

    numbers: Array  # (rows, numeric columns)
    names: tuple[str, ...]
    categories: Mapping[str, NDArray[Any]]  # (rows,) text
    block: Block


def _trial_rows(model: Any) -> _Rows:
    """Return rows around the means, a tenth of whose values are missing or unknown."""
    features = tuple(str(name) for name in model.feature_names_in_)
    raw, rng = RawColumns.of(features, model.levels_), np.random.default_rng(0)
    trained = getattr(model, "trained_levels", None)  # of networks
    if hasattr(model, "coef_"):
        means, size = model.means_, np.abs(np.atleast_2d(model.coef_)).max(axis=0)
        scales = np.divide(1.0, size, out=np.ones(len(size)), where=size > 0)
    else:
        means, scales = model.means, model.scales
    order = raw.order(features)[: len(raw.numbers)]
    numbers = means[order] + scales[order] * rng.normal(size=(_ROWS, len(order)))
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    parts, categories = [numbers], {}
    for name, levels in raw.categories.items():
        # the last two are a new level, and a missing one
        texts = np.array([*levels, _UNSEEN, ""], object)
        drawn = rng.integers(len(levels), size=_ROWS)
        drawn = np.where(rng.random(_ROWS) < 0.1, rng.integers(-2, 0, _ROWS), drawn)
        known, new = counts_as(levels, None if trained is None else trained[name])
        each = np.vstack([np.eye(len(levels)), np.full(len(levels), np.nan)])[[*known, new, -1]]
        categories[name] = texts[drawn]
        parts.append(each[drawn])
    block = Block(np.arange(_ROWS), raw.features, np.hstack(parts))
    return _Rows(numbers, raw.numbers, categories, block)


def _said_by_onnx(data: bytes, rows: _Rows) -> dict[str, Array] | None:
    """Return the outputs of the graph; None: nothing is there that runs it."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    given = {name: one[:, None] for name, one in rows.categories.items()}
    if rows.names:
        given["numbers"] = rows.numbers
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def _said_by_skops(data: bytes, rows: _Rows) -> dict[str, Array]:
    import pandas as pd
    import skops.io

    unknown = skops.io.get_untrusted_types(data=data)
    pipeline = skops.io.loads(data, trusted=unknown)  # it was made here
    frame = pd.DataFrame(rows.numbers, columns=list(rows.names)).assign(**rows.categories)
    if not hasattr(pipeline, "classes_"):
        return {"prediction": pipeline.predict(frame)}
    found = {"label": pipeline.predict(frame), "scores": pipeline.decision_function(frame)}
    if hasattr(pipeline, "predict_proba"):
        found["probabilities"] = pipeline.predict_proba(frame)
    return found


def _difference(model: Any, rows: _Rows, said: Mapping[str, Array]) -> float:
    """Return the greatest difference; where labels differ by more than a tie, infinity."""
    if "prediction" in said:
        return _greatest(model.predict(rows.block), said["prediction"])
    found = [
        _greatest(own(rows.block), said[name])
        for name, own in (
            ("scores", model.decision_function),
            ("probabilities", getattr(model, "predict_proba", None)),
        )
        if name in said and own is not None
    ]
    scores: Array = np.atleast_2d(model.decision_function(rows.block).T)
    if len(scores) == 1:  # of the second class, against 0
        scores = np.concatenate([scores, 0 * scores])
    top = np.sort(scores, axis=0)
    clear = np.abs(top[-1] - top[-2]) > max([*found, 0.0]) * 4
    labels = model.predict(rows.block).astype(str) == np.asarray(said["label"]).astype(str)
    return max(found) if labels[clear].all() else np.inf


def _greatest(model: Array, said: Array) -> float:
    apart = np.abs(np.asarray(said, np.float64) - model)
    return float((apart / np.maximum(np.abs(model), 1.0)).max())


def _write_arrays(model: Any, path: Path) -> Exported:
    """Write a model's arrays, and beside them what they are of."""
    from safetensors.numpy import save

    told: dict[str, Any] = {"features": [str(name) for name in model.feature_names_in_]}
    if model.levels_ is not None:
        told["levels"] = {name: list(own) for name, own in model.levels_.items()}
    if hasattr(model, "coef_"):
        arrays = {
            "coef": np.atleast_2d(model.coef_),
            "intercept": np.atleast_1d(model.intercept_),
            "means": model.means_,
        }
        shape = {SHAPES[model.loss]: shape_of(model)} if model.loss in SHAPES else {}
        told |= {"kind": "linear", "loss": model.loss, **shape}
        told["says"] = (
            "score = coef @ value + intercept; a missing value is its mean; a new level is "
            f"{RARE!r} where that is a level, and else missing"
        )
    else:
        arrays = {**model.parameters, "means": model.means, "scales": model.scales}
        arrays["centres"] = model.centres
        made_of = model.architecture
        inner = made_of.to_dict() or {name: str(one) for name, one in made_of.to_arrays().items()}
        told |= {"kind": "network", "architecture": inner}
        told["says"] = (
            "the network takes (value - centre) / scale, and 0 where the scale is 0; a missing "
            f"value is its mean; a level whose scale is 0, or a new one, is {RARE!r} where that is "
            "a level with a scale, and else missing"
        )
    if hasattr(model, "classes_") and (not hasattr(model, "labels") or model.labels.classes):
        told["classes"] = model.classes_.tolist()
    plain = {name: np.ascontiguousarray(one) for name, one in arrays.items()}
    told["arrays"] = {name: [str(one.dtype), list(one.shape)] for name, one in plain.items()}
    names = path.with_name(f"{path.name}.json")
    write_over(path, save(plain))
    text = json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False)
    write_over(names, f"{text}\n".encode())
    return Exported(path, "safetensors", names=names)
