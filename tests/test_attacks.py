"""Attacks on what the server of a real run has: they succeed in the clear, and fail when sealed.

The inner-product attack solves x_{k,i}ᵀ w = z_{k,i} for one sample, from the weights and the
client's part of its score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from intarsia import experiment
from intarsia.engines.transcript import read_transcript
from intarsia.privacy import modes
from intarsia.running import run

ROUNDS = 150
SAMPLES, FEATURES = 449, 31  # breast_cancer, training part, with the intercept
CLIENT = "r0c0"
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Server:
    """What the server of one run has, and what it is not to find out."""

    records: tuple  # the transcript
    block: object  # the attacked client's block, as it trains on it
    rows: np.ndarray  # the client's positions among all samples, public
    columns: np.ndarray
    gap: float | None


def trained(folder, mode, method, watch, rounds=ROUNDS, long=None):
    """Run an experiment in a mode with a transcript; return what the server has."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        if long is not None:
            from dataclasses import replace

            whole = modes.sealing
            patch.setattr(modes, "sealing", lambda *args: replace(whole(*args), long=long))
        watch(patch, seen)
        tree = {
            "experiment": {
                "rounds": rounds,
                "tolerance": 0,
                "yardsticks": False,
                "evaluate_every": 0,
                "out": str(folder),
            },
            "privacy": {"mode": mode, "transcript": True},
            "algorithm": {
                "name": "hyfdca",
                "method": method,
                "loss": "logistic" if method == "ascent" else "hinge",  # no dual stays at 0
                "regularisation": 1e-3,
                # other samples step in each round, so that the rounds tell them apart
                "local_samples": 0.2 if method == "ascent" else 1.0,
            },
            "dataset": {"name": "breast_cancer"},
            "partition": {"kind": "grid", "rows": 8, "columns": 2},
        }
        result = run(experiment.from_dict(tree, folder), overwrite=True)
    engine = seen["engine"]
    schema = engine.schema("train")
    return Server(
        tuple(read_transcript(folder / "transcript.bin")),
        engine.block(CLIENT),
        schema.samples.own(CLIENT),
        schema.features.own(CLIENT),
        result.certificate.gap_relative,
    )


def engine_of(patch, seen):
    """Keep the engine of the run that follows, to compare with what the attack finds."""
    from intarsia import training

    start = training.start

    def kept(task):
        seen["engine"] = task.engine
        return start(task)

    patch.setattr(training, "start", kept)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Return a function from a mode to what the server of one run in it has."""
    folder = tmp_path_factory.mktemp("attacks")
    found = {}

    def server(mode):
        if mode not in found:
            # ciphertexts for the 56 samples of a party, which a run would put under masks
            long = 50 if mode == "ckks" else None
            found[mode] = trained(folder / mode, mode, "ascent", engine_of, long=long)
        return found[mode]

    return server


# -- what a server can make of what it has


def numbers(value, count):
    """Return a field as the server would read it: arrays as they are, bytes as words or numbers."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1)
    while isinstance(value, tuple):  # a combination: its last term
        value = value[-1][1] if isinstance(value[-1], tuple) else value[-1]
    data = b"".join(value.values()) if isinstance(value, dict) else value
    words = np.frombuffer(data[-8 * (count + 2) :][: 8 * count], np.uint64)
    found = words.view(np.int64) * 2.0**-40
    return np.pad(found, (0, count - len(found)))


def of(records, kind, function, client=""):
    return [
        one for one in records if (one.kind, one.function, one.client) == (kind, function, client)
    ]


def inner_product_attack(server, sample):
    """Return x_{k,i} of one sample, from the parts of its score and the weights they came from."""
    sent = of(server.records, "sum", "inner_products", CLIENT)
    changes, counted, trial = [], np.zeros(FEATURES), np.zeros(FEATURES)
    for one in server.records:
        if one.kind == "message" and isinstance(one.fields.get("taken"), float):
            counted = trial = counted + one.fields["taken"] * (trial - counted)
        if (one.kind, one.function) == ("message", "inner_products"):
            trial = np.resize(numbers(one.fields["w"], FEATURES), FEATURES)
            changes.append((trial - counted)[server.columns])
    z = np.stack([numbers(one.fields["z"], len(server.rows)) for one in sent])
    assert len(changes) == len(z) > 2 * len(server.columns)
    found, *_ = np.linalg.lstsq(np.stack(changes), z[:, sample], rcond=None)
    return found


def error(found, truth):
    return np.linalg.norm(found - truth) / np.linalg.norm(truth)


# Guessing from the Schema: features are standardised, so that their mean 0 is the best guess.
GUESS = 1.0


@pytest.mark.parametrize("sample", [0, 41])
def test_the_inner_product_attack_recovers_a_sample_in_the_clear(servers, sample):
    server = servers("plain")
    assert error(inner_product_attack(server, sample), server.block.x[sample]) < 1e-3


@pytest.mark.parametrize("mode", ["masked", "ckks"])
@pytest.mark.parametrize("sample", [0, 41])
def test_the_inner_product_attack_is_no_better_than_a_guess_on_sealed_sums(servers, mode, sample):
    server = servers(mode)
    assert error(inner_product_attack(server, sample), server.block.x[sample]) >= GUESS


# -- the Newton phase


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_the_server_of_newtons_method_reads_scalars_only(tmp_path, mode):
    server = trained(tmp_path, mode, "auto", engine_of, rounds=25)
    assert server.gap < 1e-6
    shapes = {}
    for one in server.records:
        if one.kind == "ask":
            assert not one.fields or one.function == "grade", one.function
        if one.kind == "reveal":
            shapes[one.type] = max(np.size(one.fields["value"]), shapes.get(one.type, 0))
        if one.kind == "sum":
            assert not [
                name
                for name, value in one.fields.items()
                if isinstance(value, np.ndarray | float) and not name.startswith("counts")
            ]
    # the model once, at the end, and which features are constant, before
    assert {name: size for name, size in shapes.items() if size > 12} == {
        "OwnWeights.w": FEATURES,
        "Constant.features": FEATURES,
    }


def test_the_newton_transcript_gives_a_party_away_in_the_clear(tmp_path):
    """The parts of the weights and the duals of each point: the least-squares attack on them.

    Fewer points than samples: the rows that they determine are recovered together.
    """
    server = trained(tmp_path, "plain", "auto", engine_of, rounds=40)
    duals, weights = newton_points(server)
    truth = duals @ server.block.x / (1e-3 * SAMPLES)
    np.testing.assert_allclose(weights, truth, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_the_newton_transcript_gives_nothing_away_when_sealed(tmp_path, mode):
    server = trained(tmp_path, mode, "auto", engine_of, rounds=40)
    duals, weights = newton_points(server)
    truth = duals @ server.block.x / (1e-3 * SAMPLES)
    assert error(weights, truth) >= GUESS
    found, *_ = np.linalg.lstsq(duals, weights, rcond=None)
    assert error(found * 1e-3 * SAMPLES, server.block.x) >= GUESS


def newton_points(server):
    """Return the duals (points, own samples) and a client's parts of the weights, as read."""
    asked = of(server.records, "message", "gather_point")
    sent = of(server.records, "sum", "gather_point", CLIENT)
    assert len(asked) == len(sent) > 10
    duals = np.stack([np.resize(numbers(one.fields["alpha"], SAMPLES), SAMPLES) for one in asked])
    weights = np.stack([numbers(one.fields["w"], len(server.columns)) for one in sent])
    return duals[:, server.rows], weights
