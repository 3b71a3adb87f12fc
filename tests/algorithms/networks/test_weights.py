"""What averages weigh clients by: labelled rows or all alike, by hand, in plain and masked sums."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from federations import secrets_of  # noqa: E402
from intarsia.algorithms.networks import client_network, parameter_sharing  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.disclosure import Release  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.privacy.keys.shared_key import SharedKey  # noqa: E402
from intarsia.privacy.secure_aggregation import setup as modes  # noqa: E402
from intarsia.privacy.settings import Privacy  # noqa: E402
from intarsia.training.registry import _PERSONAL, algorithm_named  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
ROWS = {"c0": 6, "c1": 15, "c2": 42}
SHORT = {
    "hidden": 5,
    "latent": 3,
    "local_epochs": 1,
    "final_epochs": 0,
    "pretraining_epochs": 0,
    "variant": "hl",  # with a layer that all share, beside the anchors
    "anchor_scale": 1.0,
    "own_epochs": 1,
    "local_rounds": 1,
    "precision": "double",
    "engine": "loop",
    "model": f"{__name__}:linear",
    "shared": ("*",),
}
SHARING = [
    *("ditto", "fedavg-ft", "fedprox", "fedrep", "flic", "hetfedrep", "l2gd", "own-networks"),
    "pfedme",
]
# as each paper averages; HyFEM's p_m and FLIC's ω_i are free there, and all alike by default
PAPERS = {
    "ditto": "clients",
    "fedavg-ft": "samples",
    "fedhenn": "clients",
    "femam": "samples",
    "fedprox": "samples",
    "fedrep": "clients",
    "fesem": "samples",
    "flic": "clients",
    "hetfedrep": "clients",
    "hyfem": "clients",
    "ifca": "clients",
    "l2gd": "clients",
    "own-networks": "clients",
    "pfedme": "clients",
}


def linear(features, classes):
    return torch.nn.Linear(features, classes)


def clients():
    rng = np.random.default_rng(0)
    made = {}
    for number, (name, count) in enumerate(ROWS.items()):
        y = np.arange(count) % 3
        x = rng.normal(size=(3, 4))[y] + rng.normal(size=(count, 4))
        rows = 100 * number + np.arange(count)
        made[name] = Block(rows, tuple(f"f{j}" for j in range(4)), x, y + 0.0)
    return made


def begun(name, mode, **settings):
    algorithm, blocks = algorithm_named(name), clients()
    known = {one.name for one in dataclasses.fields(algorithm.hyperparameters)}
    given = {key: value for key, value in SHORT.items() if key in known}
    options = algorithm.hyperparameters(**{**given, **settings})
    schema = Schema.of(blocks, LABELS)
    sealing = None
    if mode != "plain":
        keys = modes.in_one_process(SharedKey.draw("weights"))
        sealing = modes.sealing(Privacy(mode=mode, range=2.0**10), list(blocks), keys, fresh=True)
    engine = Simulation({"train": (schema, blocks)}, 0, sealing, secrets=secrets_of(blocks))
    engine.begin(algorithm, options)
    server = algorithm.init_server(options, schema, engine.key("init"))
    return algorithm, options, engine, algorithm.setup(server, engine, engine.key("init"))


def share_of(name, weights, there):
    count = ROWS if weights == "samples" else dict.fromkeys(ROWS, 1)
    return count[name] / sum(count[one] for one in there)


def shared_after(name, there, mode="plain", **settings):
    """Return what all share, as a client opens it after a round of the clients that are there."""
    algorithm, _, engine, server = begun(name, mode, **settings)
    engine.begin_round(1, there)
    server, _ = algorithm.round(server, engine, engine.key())
    engine.begin_round(2)
    if name != "l2gd":  # whose clients stepped to the mean in the round
        engine.ask(parameter_sharing.take_start, parameter_sharing.broadcast(server, engine))
    state = engine.get_states()["c0" if "c0" in there else there[0]]
    return client_network.part_vector(state.parameters, state.options.shared_parts)


@pytest.mark.parametrize(
    ("weights", "mode"),
    [
        ("samples", "plain"),
        ("clients", "masked"),
        pytest.param("samples", "masked", marks=pytest.mark.slow),
        pytest.param("clients", "plain", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", SHARING)
def test_what_all_share_is_the_average_by_hand(name, weights, mode):
    """What a round of one client alone comes to is that client's part of the average."""
    settings = {"weights": weights, **({"mixing": 1.0} if name == "l2gd" else {})}
    for there in (tuple(ROWS), ("c0", "c2")):
        by_hand = sum(
            share_of(one, weights, there) * shared_after(name, (one,), **settings) for one in there
        )
        found = shared_after(name, there, mode, **settings)
        np.testing.assert_allclose(found, by_hand, atol=1e-12 if mode == "plain" else 1e-5)
        other = "clients" if weights == "samples" else "samples"
        unlike = shared_after(name, there, **{**settings, "weights": other})
        assert np.abs(found - unlike).max() > 1e-4


@pytest.mark.parametrize("weights", ["samples", "clients"])
def test_a_clients_noisy_change_is_within_the_clip_whatever_it_counts(weights):
    """So that what the accountant takes for one client's largest part of a total stays true."""
    algorithm, options, engine, server = begun("flic", "plain", weights=weights)
    private = algorithm.private(Release(deviation=0.0, clip=1e-3))
    schema = engine.schema("train")
    engine.make_states(
        lambda name: private.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    sent = {}

    class Watched:
        ids = engine.ids

        def sum(self, fn, messages):
            def call(state, block, message, rng):
                state, reply = fn.call(state, block, message, rng)
                sent[len(block.samples)] = float(np.linalg.norm(reply.shared))
                return state, reply

            return engine.sum(dataclasses.replace(fn, call=call, together=None), messages)

    engine.begin_round(1)
    private.round(server, Watched(), engine.key())
    assert max(sent.values()) <= 1e-3 * (1 + 1e-9)
    assert len(sent) == len(ROWS)


def test_defaults_are_the_papers():
    found = {}
    for name in _PERSONAL:
        kind = algorithm_named(name).hyperparameters
        fields = {one.name: one.default for one in dataclasses.fields(kind)}
        if "weights" in fields:
            found[name] = fields["weights"]
    assert found == PAPERS


def test_other_weights_are_refused():
    tables = {name: (block.x, block.y.astype(int)) for name, block in clients().items()}
    with pytest.raises(ExperimentError, match="weights"):
        intarsia.run(tables=tables, algorithm={"name": "fedavg-ft", "weights": "rows"}, rounds=1)
