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
        VersionError,
    )
    from intarsia.inference.predict import Predictions, predict
    from intarsia.models.linear import LinearClassifier, LinearRegressor
    from intarsia.results.comparison import compare
    from intarsia.results.result import Certificate, Metrics, Result, Score
    from intarsia.training.loop import Progress
    from intarsia.training.run import load

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
    "VersionError",
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
    "Certificate": "results.result",
    "CheckpointError": "errors",
    "CodecError": "errors",
    "ConvergenceError": "errors",
    "ExperimentError": "errors",
    "FederationError": "errors",
    "Inspection": "api",
    "IntarsiaError": "errors",
    "KeyMaterialError": "errors",
    "LinearClassifier": "models.linear",
    "LinearRegressor": "models.linear",
    "Metrics": "results.result",
    "Predictions": "inference.predict",
    "Progress": "training.loop",
    "RangeError": "errors",
    "ReplayError": "errors",
    "Result": "results.result",
    "Score": "results.result",
    "SealedError": "errors",
    "SiteError": "errors",
    "StaleError": "errors",
    "TableError": "errors",
    "TamperedError": "errors",
    "UserError": "errors",
    "VersionError": "errors",
    "compare": "results.comparison",
    "inspect": "api",
    "join": "api",
    "load": "training.run",
    "predict": "inference.predict",
    "resume": "api",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    return getattr(import_module(f"intarsia.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
