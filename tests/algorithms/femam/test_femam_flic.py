"""FeMAM's levels over FLIC: FLIC where there is one level, FeMAM on the points of what follows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

import federations  # noqa: E402
import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.algorithms.femam.class_priors import offsets  # noqa: E402
from intarsia.algorithms.femam.femam_flic import FEMAM_FLIC, FeMAMFlic  # noqa: E402
from intarsia.algorithms.femam.hyperparameters import FeMAM  # noqa: E402
from intarsia.algorithms.flic.algorithm import FLIC, Flic  # noqa: E402
from intarsia.algorithms.networks.architecture import levels_of  # noqa: E402
from intarsia.algorithms.networks.targets import odds  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.core.settings import hyperparameters  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import ExperimentError, FederationError, SealedError  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
DOUBLE = {"precision": "double", "engine": "loop"}
SMALL = {
    **{"hidden": 8, "latent": 4, "local_epochs": 2, "batch": 100, "pretraining_epochs": 3},
    **{"variant": "hl", "anchor_scale": 1.0, "weight_decay": 0.0, "embedding_decay": 0.0},
}
GLOBAL = Flic(scheme="fedavg-ft", final_epochs=0, rate=0.01, **SMALL, **DOUBLE)
LEVELS = {
    "local_epochs": 2, "batch": 100, "rate": 0.05, "optimiser": "adam", "window": 0,
    "engine": "loop",
}  # fmt: skip
WHOLE = {"validation": 0.0, "prune": "never", **LEVELS}
WIDTHS = (3, 2, 5, 4)


def clients(samples=24, permuted=lambda number: (0, 1, 2), seed=0):
    """Return four clients of three classes, with columns of their own."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(3, 6))
    made = {}
    for number, width in enumerate(WIDTHS):
        y = np.arange(samples + 2 * number) % 3
        x = (centres[y] + rng.normal(size=(len(y), 6))) @ rng.normal(size=(6, width))
        rows = 1000 * number + np.arange(len(y))
        names = tuple(f"f{number}{place}" for place in range(width))
        made[f"c{number}"] = Block(rows, names, x / x.std(0), np.array(permuted(number))[y] + 0.0)
    return made


def started(algorithm, options, blocks=None, labels=LABELS, seed=0):
    blocks = clients() if blocks is None else blocks
    return federations.started(algorithm, options, blocks, labels, seed)


def run(algorithm, options, blocks=None, rounds=20, present=lambda number: None):
    """Return the engine after some rounds, the server's state and the conclusion."""
    engine, server = started(algorithm, options, blocks)
    for number in range(1, rounds + 1):
        engine.begin_round(number, present(number))
        server, info = algorithm.round(server, engine, engine.key())
        if info.finished:
            break
    engine.begin_round(number + 1)
    return engine, server, algorithm.conclude(server, engine, engine.key())


def level(number, network):
    return levels_of({n: v for n, v in network.items() if n.startswith("levels.")})[number]


@pytest.mark.parametrize(
    "flic",
    [
        {},
        pytest.param({"variant": "class"}, marks=pytest.mark.slow),
        pytest.param({"scheme": "fedavg-ft"}, marks=pytest.mark.slow),
        {"final_epochs": 0, "meta_classes": (("a", "b"),)},
        {"anchor_covariance": "learned", "anchor_average": "barycentre"},
        pytest.param({"alignment": "sample", "alignment_epochs": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda known: ", ".join(known) or "as it is",
)
def test_one_level_is_flic_bit_for_bit(flic):
    present = {1: ("c1", "c3"), 2: ("c0", "c1", "c2")}.get
    first = Flic(**{**SMALL, "batch": 12, **flic})
    options = FeMAMFlic(
        flic=first, femam=FeMAM(level_schedule="paper", levels=("global",), **WHOLE)
    )
    one, _, expected = run(FLIC, first, rounds=3, present=present)
    other, _, found = run(FEMAM_FLIC, options, rounds=3, present=present)
    assert found.info.loss == expected.info.loss
    for name, block in clients().items():
        before, after = one.get_states()[name], other.get_states()[name]
        network = level(1, FEMAM_FLIC.model.network(after))
        for key, values in before.parameters.items():
            np.testing.assert_array_equal(values, network[key], err_msg=key)
        np.testing.assert_array_equal(
            FEMAM_FLIC.model.predict(after, block), FLIC.model.predict(before, block)
        )


def descended(z, y, base, w, epochs, rate):
    """Return a head after full-batch descent on the cross-entropy, beside frozen scores."""
    for _ in range(epochs):
        w = {name: values.detach().requires_grad_() for name, values in w.items()}
        loss = torch.nn.functional.cross_entropy(base + said(w, z), y)
        for (name, values), slope in zip(
            w.items(), torch.autograd.grad(loss, list(w.values())), strict=True
        ):
            w[name] = values - rate * slope
    return {name: values.detach() for name, values in w.items()}


def said(w, z):
    if "shared.0.weight" in w:
        z = torch.nn.functional.leaky_relu(z @ w["shared.0.weight"].T + w["shared.0.bias"])
    return z @ w["classifier.weight"].T + w["classifier.bias"]


@pytest.mark.parametrize("variant", ["hl", "class"])
def test_later_levels_are_averages_of_heads_on_the_points_of_flic(variant):
    """Against plain PyTorch: FLIC's points, then descent and averages over each group."""
    regions = {"c0": "north", "c1": "south", "c2": "north", "c3": "south"}
    flic = dataclasses.replace(GLOBAL, variant=variant)
    femam = FeMAM(
        level_schedule="paper",
        levels=("global", "region"), groups={"region": regions}, first_rounds=2, level_rounds=2,
        **{**WHOLE, "optimiser": "sgd"},
    )  # fmt: skip
    blocks = clients()
    before, _, _ = run(FLIC, flic, rounds=2)
    engine, _, conclusion = run(FEMAM_FLIC, FeMAMFlic(flic=flic, femam=femam))
    assert conclusion.structure == (dict.fromkeys(blocks, 0), {"c0": 0, "c1": 1, "c2": 0, "c3": 1})
    for members in (("c0", "c2"), ("c1", "c3")):
        own, start = {}, {}
        for name in members:
            network = before.get_states()[name].parameters
            own[name] = (
                torch.from_numpy(flic.architecture.outputs(network, blocks[name])[0]),
                torch.from_numpy(blocks[name].y.astype(int)),
                torch.from_numpy(flic.architecture.outputs(network, blocks[name])[1]),
            )
            start = {
                key: torch.from_numpy(values) * (0.0 if key.startswith("classifier") else 1.0)
                for key, values in network.items()
                if key.startswith(("shared", "classifier"))
            }
        for _ in range(2):
            each = [descended(*rows, start, 2, 0.05) for rows in own.values()]
            shares = [len(blocks[name].y) for name in members]
            start = {
                key: sum(s * w[key] for s, w in zip(shares, each, strict=True)) / sum(shares)
                for key in start
            }
        for name, (z, _, base) in own.items():
            state = engine.get_states()[name]
            for key, values in level(2, FEMAM_FLIC.model.network(state)).items():
                np.testing.assert_allclose(values, start[key], atol=1e-12, err_msg=key)
            np.testing.assert_allclose(
                FEMAM_FLIC.model.predict(state, blocks[name]),
                odds((base + said(start, z)).numpy()),
                atol=1e-9,
            )


def test_a_level_of_shares_moves_the_scores_of_flic():
    femam = FeMAM(
        level_schedule="paper",
        levels=("global", "shares"), first_rounds=3, calibrated=False,
        **{**WHOLE, "validation": 0.3},
    )  # fmt: skip
    blocks = {
        name: block.take(np.flatnonzero((block.y != number % 3) | (np.arange(len(block.y)) < 6)))
        for number, (name, block) in enumerate(clients(60).items())
    }
    engine, server, _ = run(FEMAM_FLIC, FeMAMFlic(flic=GLOBAL, femam=femam), blocks)
    prior = server.levels.levels[1].offset
    assert prior.weight > 0
    for name, block in blocks.items():
        state = engine.get_states()[name]
        own = np.bincount(block.y[~state.levels.held_out].astype(int), minlength=3) + 0.0
        moved = prior.weight * offsets(own, prior.shares, prior.correlation)
        network = FEMAM_FLIC.model.network(state)
        np.testing.assert_allclose(level(2, network)["classifier.bias"], moved, rtol=1e-12)
        first = GLOBAL.architecture.outputs(level(1, network), block)[1]
        np.testing.assert_allclose(
            FEMAM_FLIC.model.predict(state, block), odds(first + moved), atol=1e-9
        )


PLAN = {"levels": ("global", 2, "personal"), "first_rounds": 2, "level_rounds": 2}
OPTIONS = FeMAMFlic(
    flic=GLOBAL, femam=FeMAM(level_schedule="paper", **PLAN, **{**LEVELS, "validation": 0.25})
)


def test_rows_for_validation_train_neither_level():
    """Other labels there change no network, but for what is pruned and calibrated."""
    levels = dataclasses.replace(OPTIONS.femam, prune="never", calibrated=False)
    options = dataclasses.replace(OPTIONS, femam=levels)
    blocks = clients()
    one, _, _ = run(FEMAM_FLIC, options, blocks)
    changed = {}
    for name, block in blocks.items():
        held_out = one.get_states()[name].levels.held_out
        assert held_out.sum() == round(0.25 * len(block.y))
        y = np.where(held_out, (block.y + 1) % 3, block.y)
        changed[name] = Block(block.samples, block.features, block.x, y)
    other, _, _ = run(FEMAM_FLIC, options, changed)
    for name in blocks:
        found = FEMAM_FLIC.model.network(other.get_states()[name])
        for key, values in FEMAM_FLIC.model.network(one.get_states()[name]).items():
            np.testing.assert_array_equal(values, found[key], err_msg=key)


def test_a_client_that_was_away_makes_up_for_level_1_and_those_after():
    options = dataclasses.replace(OPTIONS, flic=Flic(**{**SMALL, "final_epochs": 1}, **DOUBLE))
    here = ("c0", "c1", "c2")
    engine, server, conclusion = run(
        FEMAM_FLIC, options, present=lambda number: here if number > 1 else None
    )
    assert server.levels.closed["c3"] == 0
    assert conclusion.structure[0] == dict.fromkeys(clients(), 0)
    assert all(state.points is not None for state in engine.get_states().values())


@pytest.mark.parametrize(
    "rounds", [2, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 3, 5))]
)
def test_a_run_goes_on_from_written_states_to_the_same_bits(rounds):
    classes = (*FEMAM_FLIC.states, *RECORDS)
    engine, server = started(FEMAM_FLIC, OPTIONS)
    for number in range(1, 7):
        engine.begin_round(number)
        server, _ = FEMAM_FLIC.round(server, engine, engine.key())
        if number == rounds:
            server = engine.books.unseal(
                codec.decode(codec.encode(engine.books.seal(server)), *classes)
            )
            states = {
                name: codec.decode(codec.encode(state), *classes)
                for name, state in engine.get_states().items()
            }
            engine, _ = started(FEMAM_FLIC, OPTIONS)
            engine.set_states(states)
    engine.begin_round(7)
    found = FEMAM_FLIC.conclude(server, engine, engine.key())
    other, _, expected = run(FEMAM_FLIC, OPTIONS)
    assert found == expected
    for name, state in engine.get_states().items():
        for key, values in FEMAM_FLIC.model.network(other.get_states()[name]).items():
            np.testing.assert_array_equal(values, FEMAM_FLIC.model.network(state)[key], err_msg=key)


def test_the_server_reads_heads_at_levels_of_clusters_only():
    engine, server = started(FEMAM_FLIC, OPTIONS)
    for number in range(1, 7):
        engine.begin_round(number)
        server, _ = FEMAM_FLIC.round(server, engine, engine.key())
        with pytest.raises(SealedError):
            np.asarray(server.shared)
    read = [one.models for one in server.levels.levels]
    assert read[0] == (None,)
    assert read[2] == (None,)
    heads = 4 * 4 + 4 + 4 * 3 + 3  # α and β, no φ
    assert all(model.shape == (heads,) for model in read[1] if model is not None)


def test_names_of_client_functions_are_unique():
    names = [fn.name for fn in FEMAM_FLIC.disclosure.functions]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"femam": {"levels": ["global"]}}, 'set algorithm.femam.level_schedule = "paper"'),
        ({"femam": {"level_schedule": "paper", "levels": [2]}}, 'begin with "global"'),
        ({"femam": {"level_schedule": "paper", "hidden": 8}}, "algorithm.femam.hidden is 8"),
        ({"femam": {"validation": 2.0}}, "algorithm.femam.validation is 2.0"),
        ({"flic": {"scheme": "l2gd"}}, 'algorithm.flic.scheme is "l2gd"'),
        ({"flic": {"keep_own": True}}, "algorithm.flic.keep_own is true, and levels over flic"),
        ({"flic": {"scheme": "fedavg-ft"}}, "algorithm.flic.final_epochs is 10"),
        ({"flic": {"rate": -1.0}}, "algorithm.flic.rate is -1.0"),
        ({"flic": {"variant": "h"}}, "[algorithm.flic] variant"),
        ({"flic": {"levels": [1]}}, "[algorithm.flic] has the unknown key 'levels'"),
        ({"flic": 3}, "flic is 3"),
    ],
)
def test_settings_that_do_not_fit_are_named(known, words):
    with pytest.raises(ExperimentError) as caught:
        hyperparameters(FeMAMFlic, known)
    assert words in str(caught.value)


def test_numbers_to_predict_are_refused():
    blocks = clients()
    with pytest.raises(FederationError, match="femam-flic learns classes"):
        FEMAM_FLIC.init_server(
            OPTIONS, Schema.of(blocks, Labels("regression", ())), RandomKey((0,))
        )


# ---- from an experiment to a saved model

ALGORITHM = {
    "name": "femam-flic",
    "flic": {
        "scheme": "fedavg-ft", "final_epochs": 0, "hidden": 8, "latent": 4, "rate": 0.02,
        "pretraining_epochs": 2, "local_epochs": 2, "engine": "loop",
    },
    "femam": {
        "level_schedule": "paper", "levels": ["global", 2, "personal"], "first_rounds": 2,
        "level_rounds": 2,
        "optimiser": "adam", "rate": 0.02, "prune": "never", "engine": "loop",
    },
}  # fmt: skip


def frames():
    """Return three clients' DataFrames with columns of their own, not in order."""
    rng = np.random.default_rng(0)
    made = {}
    for name, width in {"north": 2, "south": 5, "west": 3}.items():
        y = rng.integers(0, 3, 60)
        x = (4 * np.eye(3)[y] + rng.normal(size=(60, 3))) @ rng.normal(size=(3, width)) + 7
        names = [f"{name}{place}" for place in reversed(range(width))]
        made[name] = pd.DataFrame(x, columns=names)
        made[name]["kind"] = np.array(["p", "q", "r"])[y]
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels") / "run"
    found = intarsia.run(
        tables=frames(), label="kind", algorithm=ALGORITHM, rounds=20, yardsticks=False, out=folder,
        test=0.0,
    )  # fmt: skip
    return folder, found


def test_the_saved_model_says_what_the_clients_said(finished):
    folder, result = finished
    assert result.rounds == 6
    again = intarsia.load(folder)
    for name, table in frames().items():
        network = again.model[name]
        assert {key.split(".")[1] for key in network.parameters} == {"1", "2", "3"}
        right = network.predict(table.drop(columns="kind")) == table["kind"]
        assert right.mean() == pytest.approx(result.metrics.clients[name].accuracy, abs=1e-12)
        shuffled = table.drop(columns="kind").sort_index(axis=1)
        np.testing.assert_array_equal(network.predict(shuffled), network.predict(table))
        points = network.transform(table)
        assert points.shape == (60, 4)


def test_a_new_client_does_not_join_it(finished):
    with pytest.raises(ExperimentError, match="is of femam-flic"):
        intarsia.join(finished[0], frames()["north"], label="kind", name="east")
