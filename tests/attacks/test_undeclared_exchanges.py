"""A server that asks for exchanges that an algorithm makes with other hyperparameters alone.

A declaration used to hold for all hyperparameters. With sealed sums and the defaults a server could
ask each client of `hyfem` for its classifier and classes, each of `femam` for its model at levels
whose clusters are given, and each of `own-networks` for its update in the clear; and it could have
rows in a frame opened in a run of `hyfdca` that shares Newton's system.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from departing_server import begin
from departures import Departing, unguarded
from intarsia.algorithms.hyfdca.newton.interior_point import CountInside
from intarsia.core.algorithm import Ready
from intarsia.engines import codec
from intarsia.engines.remote.declared import Declared
from intarsia.training.registry import ALGORITHMS, algorithm_named

HYFDCA = ALGORITHMS["hyfdca"]


def test_hyfem_sends_no_classifier_unless_neurons_are_matched(tmp_path):
    pytest.importorskip("torch")
    made = begin(tmp_path / "run", "hyfem", "hyfem.part_of_loss")
    answer = made.ask("bank", "hyfem.send_classifier", Ready(), kind="ask")
    assert answer.error == "StaleError"
    named = {one.function.name for one in algorithm_named("hyfem").disclosure.sends}
    assert "send_classifier" in named  # with other hyperparameters it does


def test_femam_sends_no_model_unless_the_server_finds_clusters(tmp_path):
    pytest.importorskip("torch")
    from intarsia.algorithms.femam.state import Ask, Candidates

    made = begin(
        *(tmp_path / "run", "femam", "femam.send_part"),
        algorithm={"levels": ["global", "personal"]},
    )
    assert made.ask("bank", "femam.send_model", Ask(), kind="ask").error == "StaleError"
    for function, message in (
        ("count_rows", Ask()),  # of each class
        ("compare_models", Candidates(np.zeros((1, 2)), 1)),
        ("try_offsets", Ask()),
    ):
        assert made.ask("bank", f"femam.{function}", message).error == "StaleError"


def test_own_networks_send_no_update_in_the_clear_where_parameters_are_shared():
    pytest.importorskip("torch")
    disclosure = algorithm_named("own-networks").disclosure
    for shared, calls in ((("linear.*",), {"sum"}), ((), {"sum", "ask"})):
        options = SimpleNamespace(shared=shared, shared_parts=shared)
        found = {one.call for one in disclosure.needed(options) if "training" in one.function.name}
        assert found == calls


@pytest.mark.parametrize("works", [False, True])
def test_no_rows_in_a_frame_where_newton_s_system_is_shared(works, monkeypatch):
    if works:
        unguarded(monkeypatch)
    made = Departing(HYFDCA, HYFDCA.hyperparameters(loss="logistic", regularisation=0.1), "r0c0")
    made.rounds(1)
    call = made.of("hyfdca.gather_point")[-1]
    framed = dataclasses.replace(made.message(call), framed=True)
    answer = made.ask(call, body=codec.encode(framed))
    assert (answer.error == "RefusedError") is not works


@pytest.mark.parametrize("works", [False, True])
def test_no_interior_point_method_where_sums_are_sealed(works, monkeypatch):
    # all owners of a sample would open its dual and curvature, which tell the score
    refused = Declared.check_clear
    unguarded(monkeypatch)
    if not works:
        monkeypatch.setattr(Declared, "check_clear", refused)
    made = Departing(HYFDCA, HYFDCA.hyperparameters(loss="hinge", regularisation=0.1), "r0c0")
    made.rounds(1)
    call = made.of("hyfdca.gather_point")[-1]
    opened = made.message(call).alpha
    body = codec.encode(CountInside(opened, opened, opened, np.zeros(1)))
    answer = made.ask(call, function="hyfdca.count_inside", body=body)
    assert (answer.error == "RefusedError") is not works
