"""Baselines of personalised learning against plain PyTorch, in float64, and what they reduce to.

The plain versions take steps on all rows, on a table of parameters of their own.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from intarsia.algorithms.personalised.ditto import DITTO, Ditto  # noqa: E402  after the skip
from intarsia.algorithms.personalised.fedrep import (  # noqa: E402  # noqa: E402
    FEDAVG_FT,
    FEDPROX,
    FEDREP,
    LOCAL,
    FedAvgFT,
    FedProx,
    FedRep,
    Local,
)
from intarsia.algorithms.personalised.pfedme import PFEDME, PFedMe  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from plain_descent import loss, mean, split, stepped, tensors  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
WIDTH, ROUNDS, RATE = 4, 3, 0.1
NETWORK = {"hidden": 5, "latent": 3, "precision": "double", "engine": "loop"}
STEPS = {"optimiser": "sgd", "rate": RATE, "batch": 1000}
THERE = {2: ("c0", "c2")}  # the clients of a round; else all


def clients():
    rng = np.random.default_rng(0)
    made = {}
    for number in range(3):
        y = np.arange(12 + number) % 3
        x = rng.normal(size=(3, WIDTH))[y] + rng.normal(size=(len(y), WIDTH))
        rows = 100 * number + np.arange(len(y))
        made[f"c{number}"] = Block(rows, tuple(f"f{j}" for j in range(WIDTH)), x, y + 0.0)
    return made


def run(algorithm, options, rounds=ROUNDS):
    """Return what all clients started from, their networks at the end, and the engine."""
    blocks = clients()
    schema = Schema.of(blocks, LABELS)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(
        lambda name: algorithm.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = algorithm.init_server(options, schema, engine.key("init"))
    begin = server.start.shared
    server = algorithm.setup(server, engine, engine.key("init"))
    drawn = engine.get_states()["c0"].parameters
    shared = "embedding." if algorithm is FEDREP else ""
    start = split(begin, {name: one for name, one in drawn.items() if name.startswith(shared)})
    for number in range(1, rounds + 1):
        engine.begin_round(number, THERE.get(number))
        server, _ = algorithm.round(server, engine, engine.key())
    engine.begin_round(rounds + 1)
    algorithm.conclude(server, engine, engine.key())
    return start, {name: one.parameters for name, one in engine.get_states().items()}, engine


def rows():
    return {
        name: (torch.from_numpy(block.x), torch.from_numpy(block.y.astype(int)))
        for name, block in clients().items()
    }


def close(found, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values.numpy(), atol=1e-12, err_msg=name)


def there(number):
    return THERE.get(number, ("c0", "c1", "c2"))


def counts(number):
    return [len(rows()[name][1]) for name in there(number)]


@pytest.mark.parametrize("pull", [0.0, 0.7])
def test_fedprox_is_averaged_descent_that_is_pulled_to_the_average(pull):
    options = FedProx(local_epochs=3, proximal=pull, **NETWORK, **STEPS)
    w, found, _ = run(FEDPROX, options)
    for number in range(1, ROUNDS + 1):
        each = [stepped(w, *rows()[name], 3, RATE, pull=pull, to=w) for name in there(number)]
        w = mean(each, counts(number))
    for own in found.values():
        close(own, w)


def test_fedavg_is_averaged_descent_and_fine_tuning_goes_on_from_it():
    options = FedAvgFT(local_epochs=3, final_epochs=2, **NETWORK, **STEPS)
    w, found, _ = run(FEDAVG_FT, options)
    for number in range(1, ROUNDS + 1):
        each = [stepped(w, *rows()[name], 3, RATE) for name in there(number)]
        w = mean(each, counts(number))
    for name, own in found.items():
        close(own, stepped(w, *rows()[name], 2, RATE))


def test_fedrep_is_descent_on_own_classifiers_and_then_on_an_averaged_embedding():
    options = FedRep(local_epochs=2, shared_epochs=3, final_epochs=4, **NETWORK, **STEPS)
    common, found, engine = run(FEDREP, options)
    own = {  # as each client draws it: only the embedding is one for all
        name: tensors(
            FEDREP.init_client(
                options, Schema.of(clients(), LABELS), name, block, engine.client_key(name)
            ).parameters
        )
        for name, block in clients().items()
    }
    for number in range(1, ROUNDS + 1):
        each = []
        for name in there(number):
            w = stepped({**own[name], **common}, *rows()[name], 2, RATE, only="classifier.")
            own[name] = stepped(w, *rows()[name], 3, RATE, only="embedding.")
            each.append({key: own[name][key] for key in common})
        common = mean(each)
    for name, w in own.items():
        close(found[name], stepped({**w, **common}, *rows()[name], 4, RATE, only="classifier."))


def test_ditto_is_averaged_descent_and_own_networks_that_are_pulled_to_it():
    options = Ditto(local_epochs=3, own_epochs=2, pull=0.7, **NETWORK, **STEPS)
    w, found, _ = run(DITTO, options)
    own = dict.fromkeys(found, w)
    for number in range(1, ROUNDS + 1):
        for name in there(number):
            own[name] = stepped(own[name], *rows()[name], 2, RATE, pull=0.7, to=w)
        w = mean([stepped(w, *rows()[name], 3, RATE) for name in there(number)])
    for name, values in own.items():
        close(found[name], values)


@pytest.mark.parametrize("mixing", [1.0, 0.6])
def test_pfedme_is_descent_on_moreau_envelopes(mixing):
    known = {"pull": 2.0, "local_rounds": 3, "steps": 2, "step_size": 0.1}
    w, found, _ = run(PFEDME, PFedMe(mixing=mixing, **known, **NETWORK, **STEPS))
    own = dict.fromkeys(found, w)
    for number in range(1, ROUNDS + 1):
        each = []
        for name in there(number):
            common = own[name] = w
            for _ in range(3):
                own[name] = stepped(own[name], *rows()[name], 2, RATE, pull=2.0, to=common)
                common = {
                    key: values - 0.1 * 2.0 * (values - own[name][key])
                    for key, values in common.items()
                }
            each.append(common)
        average = mean(each)
        w = {key: (1 - mixing) * values + mixing * average[key] for key, values in w.items()}
    for name, values in own.items():
        close(found[name], values)


def test_ditto_without_a_pull_is_each_client_alone():
    """Apart from where it starts: here from one network for all."""
    options = Ditto(local_epochs=1, own_epochs=2, pull=0.0, **NETWORK, **STEPS)
    w, found, _ = run(DITTO, options)
    for name, own in found.items():
        close(own, stepped(w, *rows()[name], 2 * sum(name in there(n) for n in (1, 2, 3)), RATE))


def test_local_takes_plain_steps_too():
    options = Local(local_epochs=2, final_epochs=0, **NETWORK, **STEPS)
    blocks = clients()
    schema = Schema.of(blocks, LABELS)
    engine = Simulation({"train": (schema, blocks)}, 0)
    engine.make_states(
        lambda name: LOCAL.init_client(options, schema, name, blocks[name], engine.client_key(name))
    )
    start = tensors(engine.get_states()["c1"].parameters)
    server = LOCAL.init_server(options, schema, engine.key("init"))
    engine.begin_round(1)
    LOCAL.round(server, engine, engine.key())
    close(engine.get_states()["c1"].parameters, stepped(start, *rows()["c1"], 2, RATE))


def test_an_own_network_answers_for_the_client():
    for algorithm, options in (
        (DITTO, Ditto(local_epochs=1, own_epochs=2, **NETWORK, **STEPS)),
        (PFEDME, PFedMe(local_rounds=1, **NETWORK, **STEPS)),
    ):
        _, found, engine = run(algorithm, options)
        state = engine.get_states()["c1"]
        values = tensors(found["c1"])
        x, y = rows()["c1"]
        odds = algorithm.model.predict(state, engine.block("c1"))
        probability = 1 / (1 + np.exp(-odds[y.numpy(), np.arange(len(y))]))
        assert -np.log(probability).mean() == pytest.approx(float(loss(values, x, y)), abs=1e-10)
