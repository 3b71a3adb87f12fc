"""Train models across parties whose tables overlap only in part; no row leaves a party.

    result = intarsia.run("mine.toml")
    result = intarsia.run(tables={"bank": bank, "shop": shop}, id="customer", label="default")

Names are imported when they are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.api import Inspection, inspect, join, resume, run
    from intarsia.errors import (
        AbsentError,
        BusyError,
        CheckpointError,
        CodecError,
        ConvergenceError,
        ExperimentError,
        FederationError,
        IntarsiaError,
        KeyMaterialError,
        RangeError,
        ReplayError,
        SealedError,
        SiteError,
        StaleError,
        TableError,
        TamperedError,
        UserError,
    )
    from intarsia.linear import LinearClassifier, LinearRegressor
    from intarsia.predictions import Predictions, predict
    from intarsia.report import compare
    from intarsia.result import Certificate, Metrics, Result, Score
    from intarsia.running import load
    from intarsia.training import Progress

__all__ = [
    "AbsentError",
    "BusyError",
    "Certificate",
    "CheckpointError",
    "CodecError",
    "ConvergenceError",
    "ExperimentError",
    "FederationError",
    "Inspection",
    "IntarsiaError",
    "KeyMaterialError",
    "LinearClassifier",
    "LinearRegressor",
    "Metrics",
    "Predictions",
    "Progress",
    "RangeError",
    "ReplayError",
    "Result",
    "Score",
    "SealedError",
    "SiteError",
    "StaleError",
    "TableError",
    "TamperedError",
    "UserError",
    "compare",
    "inspect",
    "join",
    "load",
    "predict",
    "resume",
    "run",
]

__version__ = "0.1.0"

_HOME = {
    "AbsentError": "errors",
    "BusyError": "errors",
    "Certificate": "result",
    "CheckpointError": "errors",
    "CodecError": "errors",
    "ConvergenceError": "errors",
    "ExperimentError": "errors",
    "FederationError": "errors",
    "Inspection": "api",
    "IntarsiaError": "errors",
    "KeyMaterialError": "errors",
    "LinearClassifier": "linear",
    "LinearRegressor": "linear",
    "Metrics": "result",
    "Predictions": "predictions",
    "Progress": "training",
    "RangeError": "errors",
    "ReplayError": "errors",
    "Result": "result",
    "Score": "result",
    "SealedError": "errors",
    "SiteError": "errors",
    "StaleError": "errors",
    "TableError": "errors",
    "TamperedError": "errors",
    "UserError": "errors",
    "compare": "report",
    "inspect": "api",
    "join": "api",
    "load": "running",
    "predict": "predictions",
    "resume": "api",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    return getattr(import_module(f"intarsia.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
