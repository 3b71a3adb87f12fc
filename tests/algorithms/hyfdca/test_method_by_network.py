"""A network chooses the method whose measured exchanges and bytes cost the least over it."""

from __future__ import annotations

import pytest

from federations import BINARY, initialise, rectangles, secrets_of, table
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.state import HyFDCA
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import ExperimentError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

METHODS = {
    "exact": {"method": "newton"},
    "gradients": {"method": "newton", "frame": False},
    "ascent": {"method": "ascent"},
}
SAID = {
    "exact": "Newton's method with its whole system",
    "gradients": "Newton's method by gradients (frame = false)",
    "ascent": "dual ascent",
}
MOST = 60  # rounds: what is not done by then costs more than the others already


def cost(blocks, options, network, mode="plain"):
    """Return seconds for exchanges and bytes to a gap of 1e-6, exchanges, the phase and notes."""
    schema, sealing = Schema.of(blocks, BINARY), None
    if mode != "plain":
        settings = Privacy(mode=mode, trust="clients")
        secrets = modes.keys(settings, schema.clients, None, "test")
        sealing = modes.sealing(settings, schema.clients, secrets, fresh=True)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    engine.count_once()
    server = initialise(HYFDCA, options, engine)
    for number in range(1, MOST + 1):
        engine.begin_round(number)
        server, found = HYFDCA.round(server, engine, engine.key())
        if found.gap_relative is not None and found.gap_relative < 1e-6:
            break
    traffic, (latency, rate) = engine.books.traffic, network
    moved, exchanges = sum((*traffic.up.values(), *traffic.down.values())), traffic.exchanges
    told = HYFDCA.conclude(server, engine, engine.key()).notes
    return exchanges * latency + moved / len(blocks) / (1e6 * rate), exchanges, found, told


@pytest.mark.parametrize(
    ("samples", "features", "regularisation", "network", "best"),
    [
        (600, 60, 1e-3, (0.04, 12.5), "exact"),  # far away: few exchanges
        (2000, 200, 1e-2, (0.005, 0.25), "gradients"),  # a thin line: few bytes
        (1200, 300, 20.0, (0.04, 2.5), "ascent"),  # a penalty with which it is done at once
    ],
)
def test_the_choice_is_the_least_of_the_measured_costs(
    samples, features, regularisation, network, best
):
    blocks = rectangles(*table(samples, features), 2, 2)
    given = {"loss": "logistic", "regularisation": regularisation}
    measured = {
        name: cost(blocks, HyFDCA(**given, **own), network) for name, own in METHODS.items()
    }
    assert min(measured, key=lambda name: measured[name][0]) == best
    told = dict(zip(("latency_seconds", "megabytes_per_second"), network, strict=True))
    chosen = cost(blocks, HyFDCA(**given, **told), network)
    assert chosen[:3] == measured[best][:3]  # the same bits
    (why,) = chosen[3]
    assert f"the run takes {SAID[best]}: an estimated" in why
    assert measured[best][3] == ()
    assert chosen[2].gap_relative < 1e-6


def test_what_is_chosen_under_masks_is_what_would_have_been_asked_for():
    blocks, network = rectangles(*table(300, 60), 2, 2), (0.0, 0.25)
    given = {"loss": "logistic", "regularisation": 0.01}
    asked = cost(blocks, HyFDCA(**given, **METHODS["gradients"]), network, "masked")
    told = HyFDCA(**given, megabytes_per_second=0.25)
    chosen = cost(blocks, told, network, "masked")
    assert chosen[1] == asked[1]
    assert chosen[2].primal == pytest.approx(asked[2].primal, rel=1e-9)
    assert chosen[2].gap_relative < 1e-6


@pytest.mark.parametrize(
    "key", [{"method": "ascent"}, {"frame": False}, {"l1_ratio": 0.5}, {"step": "fixed"}]
)
def test_a_method_that_was_chosen_already_is_not_chosen_by_the_network(key):
    with pytest.raises(ExperimentError, match=rf"algorithm\.{next(iter(key))} = .* remove one"):
        HyFDCA(latency_seconds=0.04, **key)
