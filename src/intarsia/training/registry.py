"""The algorithms by name: of federations, baselines that pool the data, those of other packages.

An experiment may also hold an algorithm itself (`Experiment.own_algorithm`).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import traceback
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.linear.cocoa import COCOA
from intarsia.algorithms.linear.fedavg import FEDAVG
from intarsia.core import plugins
from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Array
from intarsia.core.disclosure import Release
from intarsia.core.settings import check_ranges, hyperparameters
from intarsia.engines import codec
from intarsia.engines.sums.sealed import layouts
from intarsia.errors import (
    AlgorithmError,
    ExperimentError,
    IntarsiaError,
    SealedError,
    first_line,
    listed,
    nearest,
)
from intarsia.experiment.config import Experiment, keys_elsewhere
from intarsia.protocols.early_stopping import keeping_best
from intarsia.training.baselines import BASELINES, Baseline
from intarsia.training.timing import Limit

_LINEAR = (COCOA, FEDAVG, HYFDCA)
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({one.name: one for one in _LINEAR})

# Each client has a model of its own features. Name → module and object: imported by those who ask
# for it, as the library torch, which all but one need, is an extra.
_PERSONAL: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ditto": ("intarsia.algorithms.personalised.ditto", "DITTO"),
        "fedavg-ft": ("intarsia.algorithms.personalised.fedrep", "FEDAVG_FT"),
        "fedhenn": ("intarsia.algorithms.personalised.fedhenn", "FEDHENN"),
        "femam": ("intarsia.algorithms.femam.algorithm", "FEMAM"),
        "femam-flic": ("intarsia.algorithms.femam.femam_flic", "FEMAM_FLIC"),
        "fedprox": ("intarsia.algorithms.personalised.fedrep", "FEDPROX"),
        "fedrep": ("intarsia.algorithms.personalised.fedrep", "FEDREP"),
        "fesem": ("intarsia.algorithms.femam.fesem", "FESEM"),
        "flic": ("intarsia.algorithms.flic.algorithm", "FLIC"),
        "flic-linear": ("intarsia.algorithms.flic.linear", "FLIC_LINEAR"),
        "hetfedrep": ("intarsia.algorithms.personalised.fedrep", "HETFEDREP"),
        "hyfem": ("intarsia.algorithms.hyfem.algorithm", "HYFEM"),
        "ifca": ("intarsia.algorithms.femam.fesem", "IFCA"),
        "l2gd": ("intarsia.algorithms.personalised.l2gd", "L2GD"),
        "local": ("intarsia.algorithms.personalised.fedrep", "LOCAL"),
        "own-networks": ("intarsia.algorithms.personalised.custom_networks", "OWN_NETWORKS"),
        "pfedme": ("intarsia.algorithms.personalised.pfedme", "PFEDME"),
    }
)


def kind_of(description: Experiment) -> Algorithm | Baseline:
    """Return the algorithm that an experiment holds or names; errors as for `algorithm_named`."""
    own = description.own_algorithm
    return algorithm_named(description.algorithm) if own is None else own


def algorithm_named(name: str) -> Algorithm | Baseline:
    """Return the algorithm of a name, of this package or of another that is installed.

    Raises
    ------
    ExperimentError
        If there is none of that name, or a package's cannot be used.
    """
    plugin = plugins.named("algorithm", name, built_in())
    if plugin is not None:
        return checked_algorithm(plugin.load(), f"{plugin.said}, and", name)
    known: dict[str, Algorithm | Baseline] = {**ALGORITHMS, **BASELINES}
    if name in known:
        return known[name]
    if name in _PERSONAL:
        module, found = _PERSONAL[name]
        algorithm: Algorithm = getattr(importlib.import_module(module), found)
        return algorithm
    raise ExperimentError(f"[algorithm] name is {name!r}; {nearest(name, algorithm_names())}.")


def keys_of(name: str) -> frozenset[str]:
    """Return the hyperparameters of an algorithm by its name; errors as for `algorithm_named`."""
    return frozenset(one.name for one in dataclasses.fields(algorithm_named(name).hyperparameters))


def algorithm_names() -> list[str]:
    """Return the names of all algorithms and baselines, those of installed packages too."""
    return plugins.names("algorithm", built_in())


def checked_algorithm(found: Any, said: str, name: str = "") -> Algorithm:
    """Return an algorithm from outside of this package, if a run can use it.

    Parameters
    ----------
    said
        How the sentence of an error begins.
    name
        That it must have; "": any but those of this package.

    Raises
    ------
    ExperimentError
        If it is no `Algorithm`, has another name, or its hyperparameters lack what each run reads.
    """
    if not isinstance(found, Algorithm):
        raise ExperimentError(
            f"{said} is {type(found).__name__}; it must be an intarsia.core.Algorithm."
        )
    if name and found.name != name:
        raise ExperimentError(f"{said} calls itself {found.name!r}; give both the same name.")
    if found.name in built_in():
        raise ExperimentError(
            f"{said} has the name {found.name!r}, which is that of one of intarsia; give it a name "
            "of its own."
        )
    if lacking := lacking_keys(found):
        raise ExperimentError(
            f"{said} has hyperparameters without {listed(lacking)}, by which models are evaluated "
            "and compared; make them a frozen dataclass with these fields."
        )
    return found


def raised_at(error: BaseException, algorithm: Algorithm) -> str:
    """Return where the code of an algorithm raised an error, "FILE:LINE, in NAME: "; "": nowhere.

    It is what its functions are, and what they call that lies beside them.
    """
    own = [algorithm.init_server, algorithm.init_client, algorithm.setup, algorithm.round]
    own += [algorithm.certify, algorithm.conclude, algorithm.model.predict]
    own += [one.call for one in algorithm.disclosure.functions]
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in own]
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    folders = {Path(code.co_filename).parent for code, _ in frames if code in codes}
    found = [(code, line) for code, line in frames if Path(code.co_filename).parent in folders]
    if not found:
        return ""
    code, line = found[-1]
    return f"{Path(code.co_filename).name}:{line}, in {code.co_name}: "


_CALL = re.compile(r"\w+\.(ask|sum|reveal)\(\) (.*)")  # as Python tells of missing arguments


def said_of(error: BaseException, algorithm: Algorithm) -> str:
    """Return the kind of an error and its first line, with calls as an algorithm writes them.

    Of arrays that do not fit, in a client function, it says which reach each client whole.
    """
    line = first_line(error)
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    for fn in algorithm.disclosure.functions if isinstance(error, ValueError | IndexError) else ():
        known = dataclasses.is_dataclass(fn.message)
        if known and getattr(inspect.unwrap(fn.call), "__code__", None) in frames:
            hints: Any = typing.get_type_hints(fn.message)
            whole = [
                f"{fn.message.__name__}.{name}"
                for name, layout in layouts(fn.message)
                if layout is None and hints[name] == Array
            ]
            if whole:
                line += (
                    f"; {' and '.join(whole)} {'is' if len(whole) == 1 else 'are'} declared "
                    "without a layout, so that each client has all of it: declare fl.PerFeature or "
                    "fl.PerSample where it is to have its own entries"
                )
    if isinstance(error, TypeError) and (found := _CALL.fullmatch(line)):
        given = "a sealed total" if found[1] == "reveal" else "a client function and its message"
        return f"clients.{found[1]}() {found[2]}; it takes {given}"
    return f"{type(error).__name__}: {line}"


@contextmanager
def errors_placed(description: Experiment) -> Iterator[None]:
    """Raise AlgorithmError for what the code of an algorithm from outside of this package raises.

    It says where; the error itself is its cause.
    """
    try:
        yield
    except Exception as problem:  # whatever that code raises
        if isinstance(problem, IntarsiaError) and not isinstance(problem, SealedError):
            raise
        algorithm = kind_of(description)
        if not isinstance(algorithm, Algorithm) or algorithm.name in built_in():
            raise
        place = raised_at(problem, algorithm)
        if not place:
            raise
        raise AlgorithmError(
            f"{place}{said_of(problem, algorithm)}; mend the algorithm "
            f"{algorithm.name!r}, and see what intarsia.testing.check_algorithm says of it."
        ) from problem


def lacking_keys(algorithm: Algorithm) -> list[str]:
    """Return which fields that each run reads an algorithm's hyperparameters lack."""
    cls: Any = algorithm.hyperparameters
    keys = [one.name for one in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    needed = ("loss", "regularisation") if algorithm.model.kind == "linear" else ("loss",)
    return [key for key in needed if key not in keys and not hasattr(cls, key)]


def built_in() -> set[str]:
    """Return the names of this package's own algorithms and baselines."""
    return {*ALGORITHMS, *BASELINES, *_PERSONAL}


def choose(description: Experiment) -> tuple[Algorithm | Baseline, Any]:
    """Return the algorithm that an experiment names, and its hyperparameters.

    Raises
    ------
    ExperimentError
        If there is no such algorithm, a hyperparameter is wrong, or early stopping is not for it.
    """
    algorithm = kind_of(description)
    given = description.hyperparameters
    elsewhere = keys_elsewhere()
    if algorithm.model.kind != "linear":  # as where only the name was changed in a file
        told = "linear models: take it out (intarsia init --algorithm NAME writes a file without)"
        elsewhere = {**dict.fromkeys(keys_of("hyfdca"), told), **elsewhere}
    options: Any = hyperparameters(
        algorithm.hyperparameters, given, "[algorithm]", elsewhere=elsewhere
    )
    check_ranges(options)
    if not description.early_stopping:
        return algorithm, options
    if not algorithm.federated or algorithm.model.kind == "linear":
        raise ExperimentError(
            f"[experiment] early_stopping is {description.early_stopping}, and "
            f"{description.algorithm!r} has an optimum that it comes to; leave it out with "
            "stopping of [split], or choose an algorithm on networks."
        )
    return keeping_best(algorithm), options


@dataclass(frozen=True)
class Named:
    """An algorithm as another process of this package finds it."""

    name: str
    keeps_best: bool  # whether it stops early
    release: Release | None  # with how much noise; None: without


NAMED = "intarsia.training.registry:at_node"  # who reads it there


def at_node(made_of: bytes) -> Algorithm:
    """Return the algorithm that a `Named`, as the codec writes it, says; one thread computes."""
    named: Named = codec.decode(made_of, Named, Release)
    algorithm = algorithm_named(named.name)
    assert isinstance(algorithm, Algorithm)
    Limit(1).set()
    algorithm = keeping_best(algorithm) if named.keeps_best else algorithm
    if named.release is None or algorithm.private is None:
        return algorithm
    return algorithm.private(named.release)
