"""What sites and the server exchange is of the version that they compare before a run.

Two versions whose calls differ and whose number of them (`wire.PROTOCOL`) is the same would begin a
run together, and end in its middle by what looks like an attack. So `calls.json` knows what calls
hold. Where a test fails, raise the number, say in the comment above it what differs, and write the
file anew by `python -m tests.deployment.test_calls`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.data.encoding import Encoding
from intarsia.deployment.client_setup import Dealt, Settled
from intarsia.deployment.table_metadata import Held, TableMetadata
from intarsia.engines.remote import wire
from intarsia.training.registry import BASELINES, algorithm_named, algorithm_names
from tests.algorithms.test_disclosure import shared_sends

FILE = Path(__file__).with_name("calls.json")
SET_UP = (Dealt, Encoding, Held, Holding, Labels, Schema, Settled, TableMetadata)
CALLS = (wire.Answer, wire.Call, wire.SealedReply, wire.Version)
# of a client function that decide what its calls and answers hold, or what sealed parts add up
FLAGS = ("part", "secret", "releases", "stream", "alone", "beside", "alike", "apart")
LINEAR = ("cocoa", "fedavg", "hyfdca")


def fields_of(kind):
    """Return what a class of messages holds, as its source has it."""
    known = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    assert all(type(one.type) is str for one in known), kind  # not as some Python shows it
    return [(one.name, one.type) for one in known]


def digest(*what):
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def calls_of(sends):
    """Return by name a digest of what each call, its answer and its sums hold."""
    found = {}
    for one in sends:
        fn = one.function
        flags = [(flag, getattr(fn, flag)) for flag in FLAGS]
        named = fn.told_before is not None, one.call, one.reveals, one.opens, one.takes
        held = digest(fields_of(fn.message), fields_of(fn.reply), flags, named, one.together)
        found.setdefault(fn.name, set()).add(held)
    return {name: sorted(some) for name, some in sorted(found.items())}


def groups():
    """Return what is looked at, by the name under which the file has it."""
    return ["set-up", "all runs", *sorted({*algorithm_names()} - {*BASELINES})]


def known_of(group):
    if group == "set-up":
        return {one.__name__: [digest(fields_of(one))] for one in (*SET_UP, *CALLS)}
    if group == "all runs":
        return calls_of(shared_sends())
    return calls_of(algorithm_named(group).disclosure.sends)


@pytest.mark.parametrize("group", groups())
def test_calls_that_differ_from_those_before_are_of_another_version(group):
    if group not in ("set-up", *LINEAR):
        pytest.importorskip("torch")
    written = json.loads(FILE.read_text())
    advice = "raise wire.PROTOCOL if it is the same as before, and see the first lines of this file"
    assert written["protocol"] == wire.PROTOCOL, advice
    assert known_of(group) == written["calls"][group], advice


def test_a_flag_or_a_field_that_is_another_is_another_call():
    (one, *_) = algorithm_named("hyfdca").disclosure.sends
    before = calls_of([one])
    for changed in (
        dataclasses.replace(one.function, alike=not one.function.alike),
        dataclasses.replace(one.function, message=wire.Version),
    ):
        assert calls_of([dataclasses.replace(one, function=changed)]) != before


if __name__ == "__main__":
    content = {"protocol": wire.PROTOCOL, "calls": {one: known_of(one) for one in groups()}}
    FILE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
