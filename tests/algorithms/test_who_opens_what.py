"""The table of privacy/who-opens-what.md, against declarations and transcripts."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest

from federations import initialise
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.engines.sums.sealed import layouts
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing.watched_clients import Listening
from intarsia.training.registry import algorithm_named
from tests.algorithms.test_disclosure import RUNS, used_by

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")


@cache
def page():
    """Return the script that writes the table, and what the page has."""
    path = ROOT / "docs" / "scripts" / "who_opens_what.py"
    spec = importlib.util.spec_from_file_location("who_opens_what", path)
    module = sys.modules["who_opens_what"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.section(module.PAGE.read_text(encoding="utf-8"))


def test_the_page_has_the_table_of_the_declarations():
    module, section = page()
    assert section == module.table(), "python docs/scripts/who_opens_what.py --write"
    assert module.read(section) == module.by_algorithm()


class Kept:
    """What the server could read: replies, contributions and totals, as a transcript has them."""

    def __init__(self):
        self.records = []

    def record(self, crossed):
        self.records.append(crossed)

    def readable(self, kind):
        """Return the fields that the server read of a kind, as "Reply.field"."""
        found = set()
        for one in self.records:
            if one.kind != kind:
                continue
            if kind == "reveal":
                found |= {*one.type.split(" and ")}
                continue
            names = [name for name, value in one.fields.items() if not _is_sealed(value)]
            found |= {f"{one.type}.{name}" for name in names}
        return found


def _is_sealed(value):
    """Return whether a field is words or ciphertexts by cell; one that was left out is nothing."""
    return value is None or (
        isinstance(value, dict) and all(isinstance(one, bytes) for one in value.values())
    )


def opened(name, run, mode):
    """Return what the server read in a short run, and which totals clients opened."""
    used, (make, _) = used_by(name, run.noise), RUNS[name]
    blocks, labels = make(run.kind)
    schema, sealing = Schema.of(blocks, labels), None
    if mode != "plain":
        keys = modes.keys(Privacy(mode=mode), tuple(blocks), None, "test")
        sealing = modes.sealing(Privacy(mode=mode), tuple(blocks), keys)
        if mode == "ckks":  # ciphertexts for few values, which a run would put under masks
            sealing = dataclasses.replace(sealing, long=10)
    recorder = Kept()
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, recorder)
    clients = Listening(engine)
    server = initialise(used, used.hyperparameters(**run.options), engine, clients)
    # a run with clients away needs its rounds
    for number in range(1, (run.rounds if run.away else min(run.rounds, 4)) + 1):
        engine.begin_round(number, schema.clients[1:] if number in run.away else None)
        server, info = used.round(server, clients, engine.key())
        if info.finished:
            break
    engine.begin_round(run.rounds + 1)
    used.conclude(server, clients, engine.key())
    return recorder, clients.opened


def added_for_nobody(name):
    """Return the fields that are added up and that nobody opens but where sums are not sealed."""
    sums = [one for one in algorithm_named(name).disclosure.sends if one.call == "sum"]
    return {
        f"{one.reply.__name__}.{name}"
        for one in sums
        if not one.reveals and not one.opens
        for name, _ in layouts(one.reply)
    }


# over all runs of an algorithm, and every mode: the first run of each under masks is quick
CASES = [
    pytest.param(
        *(name, number, mode),
        marks=()
        if number == 0 and mode != "ckks" and name not in ("femam", "flic", "fedhenn", "pfedme")
        else pytest.mark.slow,
    )
    for name, (_, runs) in RUNS.items()
    for number in range(len(runs))
    for mode in ("plain", "masked", "ckks")
]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # a dual outside its box is -inf
@pytest.mark.parametrize(("name", "number", "mode"), CASES)
def test_runs_open_what_the_table_says(name, number, mode):
    module, section = page()
    table, run = module.read(section)[name], RUNS[name][1][number]
    recorder, totals = opened(name, run, mode)
    assert recorder.readable("ask") <= table.replies
    assert recorder.readable("reveal") <= table.totals
    assert totals <= table.clients
    contributions = recorder.readable("sum")
    if mode == "plain":
        assert contributions
        assert contributions - table.replies - added_for_nobody(name) <= table.added
    else:
        assert contributions <= table.replies  # counts of samples, which it needs to add
