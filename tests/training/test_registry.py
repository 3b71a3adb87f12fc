"""What every client function declares, of the algorithms by name and of the shared protocols."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter

import pytest

from federations import BINARY, initialise, rectangles, table
from intarsia.core.algorithm import Ready
from intarsia.core.schema import Schema
from intarsia.engines.remote.wire import function_name
from intarsia.engines.simulation import Simulation
from intarsia.errors import CodecError
from intarsia.protocols import differential_privacy, evaluation, inference, preprocessing
from intarsia.training.registry import _PERSONAL, ALGORITHMS

NAMES = (*ALGORITHMS, *_PERSONAL)


def algorithm_of(name):
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    pytest.importorskip("torch")
    module, found = _PERSONAL[name]
    return getattr(importlib.import_module(module), found)


def shared_functions(algorithm):
    """Return the client functions of the protocols that a run of an algorithm may call."""
    x, y = table(12, 3)
    blocks = rectangles(x, y, 2, 1)
    schema = Schema.of(blocks, BINARY)
    found = [
        *preprocessing.sends({"train": schema}),
        *differential_privacy.SENDS,
        *inference.SENDS,
        *evaluation.sends(
            *(algorithm.model.predict, 0, schema), part="train", additive=algorithm.model.additive
        ),
    ]
    if algorithm.model.server_model is not None:
        found += evaluation.server_sends(algorithm.model.server_model, schema, (), 0, part="train")
    return [one.function for one in found]


@pytest.mark.parametrize("name", NAMES)
def test_every_client_function_declares_the_classes_of_its_message_and_its_reply(name):
    algorithm = algorithm_of(name)
    for fn in (*algorithm.disclosure.functions, *shared_functions(algorithm)):
        assert dataclasses.is_dataclass(fn.message), fn.name
        assert dataclasses.is_dataclass(fn.reply), fn.name


@pytest.mark.parametrize("name", NAMES)
def test_no_two_client_functions_of_a_run_have_one_name_in_calls(name):
    algorithm = algorithm_of(name)
    every = (*algorithm.disclosure.functions, *shared_functions(algorithm))
    counts = Counter(function_name(fn, algorithm.name) for fn in every)
    assert {one for one, count in counts.items() if count > 1} == set()
    assert not any(fn.protocol for fn in algorithm.disclosure.functions)
    assert all(fn.protocol for fn in shared_functions(algorithm))


def test_a_message_of_another_class_is_refused_before_a_client_sees_it():
    algorithm = ALGORITHMS["cocoa"]
    x, y = table(12, 3)
    blocks = rectangles(x, y, 2, 1)
    engine = Simulation({"train": (Schema.of(blocks, BINARY), blocks)}, 0)
    initialise(algorithm, algorithm.hyperparameters(regularisation=0.1), engine)
    (fn,) = [one for one in algorithm.disclosure.functions if one.name == "objectives"]
    with pytest.raises(CodecError, match="objectives was given a Ready, but its message is a Wei"):
        engine.ask(fn, dict.fromkeys(engine.ids, Ready()))
