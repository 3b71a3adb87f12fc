"""A trained model as an ONNX graph, which takes a table's columns as they are.

Inputs are `numbers`, the numeric columns as one matrix (rows, columns) of float64, in which NaN is
missing, and each column of categories by its name, (rows, 1) text. A missing number, and a level
that is "?", "" or unknown, count as the feature's mean in training, as `predict` has it; an unknown
level counts as "other" where training rows had that. The metadata say the names: `numbers`,
`categories` and `classes`, as JSON.

Outputs of a classifier are `label`, where there are log-odds `probabilities` (rows, classes), and
`scores`, but for networks of more than two classes; of a regressor `prediction`, (rows,).
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia import __version__
from intarsia.errors import ExperimentError, first_line
from intarsia.maths.linear.losses import LOG_LINK, loss_code
from intarsia.models.feature_mapping import MISSING, Levels, RawColumns, counts_as

if TYPE_CHECKING:
    from intarsia.models.networks import ClientNetwork
    from intarsia.models.serialization import LinearModel

Array = NDArray[np.float64]

_OPSET = 18  # what torch writes
_ML_OPSET = 3
_IR = 10  # of the file, which runtimes from 2024 on read
_ROWS = "rows"


def linear_onnx(model: LinearModel) -> bytes:
    """Return the ONNX file of a linear model."""
    graph = _Graph()
    features = [str(name) for name in model.feature_names_in_]
    raw = RawColumns.of(features, getattr(model, "levels_", None))
    order = raw.order(features)
    x = graph.columns(raw, model.means_[order])
    weights = np.atleast_2d(model.coef_)[:, order]
    scores = graph.add("Gemm", x, graph.keep(weights), graph.keep(model.intercept_), transB=1)
    if not hasattr(model, "classes_"):
        if loss_code(model.loss) in LOG_LINK:
            scores = graph.add("Exp", scores)
        graph.output("prediction", graph.add("Reshape", scores, graph.keep([-1], np.int64)))
        return graph.file(raw)
    two = len(weights) == 1
    graph.scores(scores, two=two)
    graph.label(scores, model.classes_, two=two)
    if model.loss == "logistic":
        each = graph.add("Sigmoid", scores)
        if two:
            each = graph.add("Concat", graph.add("Sub", graph.keep(1.0), each), each, axis=1)
        else:
            each = graph.add("Max", each, graph.keep(np.finfo(np.float64).tiny))
            total = graph.add("ReduceSum", each, graph.keep([1], np.int64), keepdims=1)
            each = graph.add("Div", each, total)
        graph.output("probabilities", each, len(model.classes_))
    return graph.file(raw, model.classes_)


def network_onnx(network: ClientNetwork) -> bytes:
    """Return the ONNX file of a client's network.

    Raises
    ------
    ExperimentError
        If torch cannot write what the network is made of.
    """
    graph = _Graph()
    raw = RawColumns.of(network.features, network.levels_)
    order = raw.order(network.features)
    means, scales, taken = (one[order] for one in (network.means, network.scales, network.centres))
    inverse = np.divide(1.0, scales, out=np.zeros(len(scales)), where=scales > 0)
    x = graph.columns(raw, means, network.trained_levels)
    x = graph.add("Mul", graph.add("Sub", x, graph.keep(taken)), graph.keep(inverse))
    # back to the order of the network
    x = graph.add("Gather", x, graph.keep(np.argsort(order), np.int64), axis=1)
    scores = graph.module(x, network)
    scores = graph.add("Cast", scores, to=_onnx().TensorProto.DOUBLE)
    if network.labels.task == "regression":
        told = (float(network.parameters.get(f"labels.{one}", other)) for one, other in _UNIT)
        centre, spread = (graph.keep(one) for one in told)
        found = graph.add("Add", graph.add("Mul", scores, spread), centre)
        graph.output("prediction", graph.add("Reshape", found, graph.keep([-1], np.int64)))
        return graph.file(raw)
    classes = network.classes_
    graph.output("probabilities", graph.add("Softmax", scores, axis=1), max(2, len(classes)))
    if len(classes) == 2:
        first, second = (
            graph.add("Gather", scores, graph.keep([one], np.int64), axis=1) for one in (0, 1)
        )
        scores = graph.add("Sub", second, first)
        graph.scores(scores, two=True)
    graph.label(scores, classes, two=len(classes) == 2)
    return graph.file(raw, classes)


_UNIT = (("centre", 0.0), ("spread", 1.0))


def _onnx() -> Any:
    import onnx

    return onnx


@contextmanager
def _quietly() -> Iterator[None]:
    """Let torch's writer say nothing: of its own future, and of libraries that are not there."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


_OWN = "intarsia/"  # before the names of nodes and constants
_TAKEN = frozenset({"numbers", "label", "prediction", "probabilities", "scores"})


class _Graph:
    """Nodes and constants of a graph that grows from its inputs to its outputs."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._functions: list[Any] = []
        self._opsets = {"": _OPSET, "ai.onnx.ml": _ML_OPSET}

    def add(self, operator: str, *given: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; return the name of what it gives."""
        name = f"{_OWN}{operator.lower()}_{len(self._nodes)}"
        node = _onnx().helper.make_node
        self._nodes.append(node(operator, list(given), [name], domain=domain, **attributes))
        return name

    def keep(self, value: Any, kind: Any = np.float64) -> str:
        """Add a constant; return its name."""
        name = f"{_OWN}constant_{len(self._constants)}"
        array = np.asarray(value, kind)
        self._constants.append(_onnx().numpy_helper.from_array(array, name))
        return name

    def columns(self, raw: RawColumns, means: Array, trained: Levels = None) -> str:
        """Add the inputs; return the features, (rows, features), with means where some are missing.

        They and their means are in the order of `raw.features`. `trained` are the levels of which
        training had rows; None: all.
        """
        parts: list[str] = []
        if raw.numbers:
            self._input("numbers", np.float64, len(raw.numbers))
            own = self.keep(means[: len(raw.numbers)])
            parts.append(self.add("Where", self.add("IsNaN", "numbers"), own, "numbers"))
        at = len(raw.numbers)
        for name, levels in raw.categories.items():
            if name in _TAKEN or not name or name.startswith((_OWN, "network/")):
                raise ExperimentError(
                    f"The column of categories {name!r} cannot be an input of an ONNX file, where "
                    f"{', '.join(sorted(_TAKEN))} are names of its own; rename the column in the "
                    "experiment, or export the model with --format skops or safetensors."
                )
            self._input(name, np.str_, 1)
            table = np.vstack([np.eye(len(levels)), means[at : at + len(levels)]])
            known, new = counts_as(levels, None if trained is None else trained[name])
            gaps = [text for text in MISSING if text not in levels]
            number = self.add(
                *("LabelEncoder", name),
                domain="ai.onnx.ml",
                keys_strings=[*levels, *gaps],
                # the last row of the table are the means
                values_int64s=[at % len(table) for at in (*known, *(-1 for _ in gaps))],
                default_int64=new % len(table),
            )
            flat = self.add("Reshape", number, self.keep([-1], np.int64))
            parts.append(self.add("Gather", self.keep(table), flat, axis=0))
            at += len(levels)
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def scores(self, scores: str, *, two: bool) -> None:
        """Let the scores be an output: (rows,) of the second of two classes, or (rows, classes)."""
        if two:
            self.output("scores", self.add("Reshape", scores, self.keep([-1], np.int64)))
        else:
            self.output("scores", scores, None)

    def label(self, scores: str, classes: NDArray[Any], *, two: bool) -> None:
        """Let the class of each row be an output."""
        if two:
            above = self.add("Greater", scores, self.keep(0.0))
            number = self.add("Cast", above, to=_onnx().TensorProto.INT64)
            number = self.add("Reshape", number, self.keep([-1], np.int64))
        else:
            number = self.add("ArgMax", scores, axis=1, keepdims=0)
        kind = classes.dtype.type
        named = classes.astype(object) if issubclass(kind, np.str_) else classes
        constant = self.keep(named, named.dtype)
        self.output("label", self.add("Gather", constant, number, axis=0), kind=kind)

    def module(self, x: str, network: ClientNetwork) -> str:
        """Add what torch writes of a network; return its scores, (rows, outputs)."""
        from intarsia.maths.training.torch_import import torch

        regression = network.labels.task == "regression"
        outputs = 1 if regression else max(2, len(network.labels.classes))
        made_of, own = network.architecture, network.parameters
        module = made_of.as_module(own, network.features, outputs)
        kind = next(iter(module.parameters())).dtype
        example = torch.zeros((3, network.n_features_in_), dtype=kind)
        try:
            with _quietly(), torch.no_grad():
                program = torch.onnx.export(
                    *(module, (example,)),
                    input_names=["x"],
                    output_names=["scores"],
                    dynamic_shapes=({0: torch.export.Dim(_ROWS)},),
                    opset_version=_OPSET,
                    dynamo=True,
                    verbose=False,
                )
        except ModuleNotFoundError as problem:
            raise ExperimentError(
                f"torch {torch.__version__} needs another version of the library onnxscript "
                f"({first_line(problem)}); run pip install --upgrade onnxscript."
            ) from problem
        except Exception as problem:  # whatever torch makes of a module of the user's
            raise ExperimentError(
                f"torch cannot write this network as ONNX ({first_line(problem)}); export its "
                "parameters: --format safetensors."
            ) from problem
        found = _onnx().compose.add_prefix(program.model_proto, "network/")
        cast = self.add("Cast", x, to=found.graph.input[0].type.tensor_type.elem_type)
        self._nodes.append(
            _onnx().helper.make_node("Identity", [cast], [found.graph.input[0].name])
        )
        self._nodes += found.graph.node
        self._constants += found.graph.initializer
        self._functions += found.functions
        self._opsets |= {one.domain: one.version for one in found.opset_import if one.domain}
        return str(found.graph.output[0].name)

    def _input(self, name: str, kind: Any, width: int) -> None:
        self._inputs.append(self._value(name, kind, [_ROWS, width]))

    def output(self, name: str, value: str, width: int | None = 0, kind: Any = np.float64) -> None:
        """Let a value be an output, (rows,), or (rows, width); None: of another width."""
        self._nodes.append(_onnx().helper.make_node("Identity", [value], [name]))
        shape: list[Any] = [_ROWS] if width == 0 else [_ROWS, width or "outputs"]
        self._outputs.append(self._value(name, kind, shape))

    def _value(self, name: str, kind: Any, shape: Sequence[Any]) -> Any:
        helper, types = _onnx().helper, _onnx().TensorProto
        if issubclass(kind, np.str_ | np.object_):
            code = types.STRING
        else:
            code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return helper.make_tensor_value_info(name, code, list(shape))

    def file(self, raw: RawColumns, classes: NDArray[Any] | None = None) -> bytes:
        """Return the file's bytes, once the graph was checked."""
        onnx = _onnx()
        graph = onnx.helper.make_graph(
            *(self._nodes, "intarsia", self._inputs, self._outputs, self._constants)
        )
        model = onnx.helper.make_model(
            graph,
            producer_name="intarsia",
            producer_version=__version__,
            ir_version=_IR,
            functions=self._functions,
            opset_imports=[onnx.helper.make_opsetid(*one) for one in self._opsets.items()],
        )
        told: dict[str, Any] = {"numbers": raw.numbers, "categories": raw.categories}
        if classes is not None:
            told["classes"] = classes.tolist()
        texts = {name: json.dumps(one, ensure_ascii=False) for name, one in told.items()}
        onnx.helper.set_model_props(model, texts)
        onnx.checker.check_model(model)
        data: bytes = model.SerializeToString()
        return data
