"""The baselines on networks: what they are without their own term, and that term by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import federations  # noqa: E402
import intarsia  # noqa: E402  after the skip where torch is missing
from intarsia.algorithms.networks import (  # noqa: E402
    client_network,
    label_scaling,
    parameter_sharing,
    targets,
)
from intarsia.algorithms.personalised import fedhenn  # noqa: E402
from intarsia.algorithms.personalised.ditto import DITTO, Ditto  # noqa: E402
from intarsia.algorithms.personalised.fedhenn import FEDHENN, FedHeNN  # noqa: E402
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
from intarsia.algorithms.personalised.l2gd import L2GD, L2gd  # noqa: E402
from intarsia.algorithms.personalised.pfedme import PFEDME, PFedMe  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey, client_function  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import (  # noqa: E402
    ConvergenceError,
    ExperimentError,
    FederationError,
    SealedError,
)
from intarsia.maths.training.local_training import Learner, train_alone  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
SMALL = {"hidden": 8, "latent": 4, "local_epochs": 1, "final_epochs": 1, "batch": 12}
ONE_TRAINING = {key: value for key, value in SMALL.items() if key != "final_epochs"}
DOUBLE = {"precision": "double", "engine": "loop"}
PRESENT = {1: ("c1", "c3"), 2: ("c0", "c1", "c2")}  # the clients of a round; else all
EVERY = {
    "fedhenn": (FEDHENN, FedHeNN(**SMALL, points=10, **DOUBLE)),
    "fedrep": (FEDREP, FedRep(**SMALL, **DOUBLE)),
    "fedavg-ft": (FEDAVG_FT, FedAvgFT(**SMALL, **DOUBLE)),
    "l2gd": (L2GD, L2gd(**SMALL, mixing=0.3, **DOUBLE)),
    "fedprox": (FEDPROX, FedProx(**ONE_TRAINING, **DOUBLE)),
    "ditto": (DITTO, Ditto(**ONE_TRAINING, own_epochs=2, **DOUBLE)),
    "pfedme": (
        PFEDME,
        PFedMe(hidden=8, latent=4, batch=12, local_rounds=2, steps=2, **DOUBLE),
    ),
}


def clients(widths=(3, 3, 3, 3), samples=30):
    """Return clients with two or three of three classes, and features of the same names."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(3, 6))
    made = {}
    for number, width in enumerate(widths):
        y = np.arange(samples + 5 * number) % (2 + number % 2)
        x = (centres[y] + rng.normal(size=(len(y), 6))) @ rng.normal(size=(6, width))
        rows = 1000 * number + np.arange(len(y))
        names = tuple(f"f{j}" for j in range(width))
        made[f"c{number}"] = Block(rows, names, x / x.std(0), y + 0.0)
    return made


def started(algorithm, options, blocks=None):
    blocks = clients() if blocks is None else blocks
    return federations.started(algorithm, options, blocks, LABELS)


def run(algorithm, options, blocks=None, last=2, present=PRESENT):
    """Return the engine after some rounds and the conclusion, and this."""
    engine, server = started(algorithm, options, blocks)
    for number in range(1, last + 1):
        engine.begin_round(number, present.get(number))
        server, _ = algorithm.round(server, engine, engine.key())
    engine.begin_round(last + 1)
    return engine, algorithm.conclude(server, engine, engine.key())


def parameters(engine):
    return {name: state.parameters for name, state in engine.get_states().items()}


def difference(one, other):
    return max(
        float(np.abs(own - other[client][name]).max())
        for client, held in one.items()
        for name, own in held.items()
    )


@pytest.mark.parametrize(
    ("algorithm", "without", "with_it"),
    [
        (FEDHENN, FedHeNN(**SMALL, similarity_weight=0.0), FedHeNN(**SMALL)),
        (FEDREP, FedRep(**SMALL, shared_layers=0), FedRep(**SMALL, shared_layers=1)),
        (L2GD, L2gd(**SMALL, mixing=0.0), L2gd(**SMALL, mixing=0.1)),
    ],
    ids=["fedhenn", "fedrep", "l2gd"],
)
def test_without_its_own_term_a_baseline_is_local_to_the_bit(algorithm, without, with_it):
    local, conclusion = run(LOCAL, Local(**SMALL))
    engine, found = run(algorithm, without)
    assert difference(parameters(local), parameters(engine)) == 0.0
    assert found.info.loss == conclusion.info.loss
    assert difference(parameters(local), parameters(run(algorithm, with_it)[0])) > 1e-3


def test_fedavg_with_one_client_is_plain_training():
    blocks = {"c0": clients()["c0"]}
    options = FedAvgFT(**{**SMALL, "final_epochs": 2}, weight_decay=0.01, **DOUBLE)
    engine, server = started(FEDAVG_FT, options, blocks)
    state, block = engine.get_states()["c0"], blocks["c0"]
    drawn = client_network.with_parts(state.parameters, ("*",), server.start.shared)
    learner = {name: torch.from_numpy(values) for name, values in drawn.items()}
    rows = {"x": torch.from_numpy(block.x), "y": torch.from_numpy(block.y.astype(int))}
    for number, name, epochs in ((1, "whole_training", 1), (2, "whole_training", 1),
                                 (3, "fine_tune", 2)):  # fmt: skip
        training = client_network.training_of(options, 3, targets.plain_loss, ("*",), epochs=epochs)
        key = RandomKey((0, number, 1, "c0", name)).fold_in("local").integer()
        learner = train_alone(training, Learner(parameters=learner, rows=rows, key=key)).parameters
    found = parameters(run(FEDAVG_FT, options, blocks, present={})[0])["c0"]
    for name, values in learner.items():
        np.testing.assert_allclose(found[name], values.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("weights", ["samples", "clients"])
@pytest.mark.parametrize(
    ("algorithm", "kind", "parts"),
    [(FEDREP, FedRep, ("embedding.*",)), (FEDAVG_FT, FedAvgFT, ("*",))],
    ids=["fedrep", "fedavg-ft"],
)
def test_what_is_shared_is_the_mean_of_the_clients_that_were_there(algorithm, kind, parts, weights):
    options = kind(**{**SMALL, "final_epochs": 0}, weights=weights, **DOUBLE)
    share = {"samples": {0: 30 / 45, 2000: 40 / 45}, "clients": {0: 1.0, 2000: 1.0}}[weights]
    engine, server = started(algorithm, options)
    engine.begin_round(1, ("c0", "c2"))
    spied = {}

    class Watched:
        ids = engine.ids

        def sum(self, fn, messages):
            def call(state, block, message, rng):
                state, reply = fn.call(state, block, message, rng)
                at = block.samples[0]
                spied[at] = message.shared + reply.shared / share[at]
                return state, reply

            return engine.sum(dataclasses.replace(fn, call=call, together=None), messages)

    server, _ = algorithm.round(server, Watched(), engine.key())
    mean = (30 * spied[0] + 40 * spied[2000]) / 70
    if weights == "clients":
        mean = (spied[0] + spied[2000]) / 2
    np.testing.assert_allclose(engine.reveal(server.shared), mean, atol=1e-12)
    engine.begin_round(2)
    algorithm.conclude(server, engine, engine.key())
    for own in parameters(engine).values():
        np.testing.assert_allclose(client_network.part_vector(own, parts), mean, atol=1e-12)
    heads = [own["classifier.weight"] for own in parameters(engine).values()]
    assert np.allclose(heads[0], heads[1]) == (algorithm is FEDAVG_FT)


def test_in_fedrep_the_embedding_stays_while_the_classifier_trains():
    engine, server = started(FEDREP, FedRep(**SMALL, **DOUBLE))
    before = client_network.part_vector(parameters(engine)["c1"], ("classifier.*",))
    engine.begin_round(1, ("c1",))
    FEDREP.round(server, engine, engine.key())
    own = parameters(engine)["c1"]
    assert np.abs(client_network.part_vector(own, ("classifier.*",)) - before).max() > 1e-4
    # c1 saw one total: what all started from, as its own change is sent and not kept
    embedding = client_network.part_vector(own, ("embedding.*",))
    np.testing.assert_array_equal(embedding, server.start.shared)


def test_fine_tuning_starts_from_what_is_shared_and_stays_at_the_client():
    tuned = parameters(run(FEDAVG_FT, FedAvgFT(**SMALL, **DOUBLE))[0])
    plain = parameters(run(FEDAVG_FT, FedAvgFT(**{**SMALL, "final_epochs": 0}, **DOUBLE))[0])
    assert difference({"c0": plain["c0"]}, {"c0": plain["c1"]}) == 0.0
    assert difference({"c0": tuned["c0"]}, {"c0": tuned["c1"]}) > 1e-4
    assert difference(tuned, plain) < 0.1  # four steps of 1e-3 from there


@pytest.mark.parametrize("mixing", [0.25, 1.0])
def test_l2gd_steps_towards_the_mean_of_the_clients_that_are_there(mixing):
    options = L2gd(**{**SMALL, "final_epochs": 0}, mixing=mixing, **DOUBLE)
    engine, server = started(L2GD, options)
    assert difference({"c0": parameters(engine)["c0"]}, {"c0": parameters(engine)["c3"]}) == 0.0
    other, told = started(L2GD, dataclasses.replace(options, aggregation=0.0))
    for one, state in ((engine, server), (other, told)):
        one.begin_round(1, ("c0", "c2"))
        L2GD.round(state, one, one.key())
    trained = {
        name: client_network.part_vector(own, ("*",)) for name, own in parameters(other).items()
    }
    mean = (trained["c0"] + trained["c2"]) / 2
    for name in ("c0", "c2"):
        found = client_network.part_vector(parameters(engine)[name], ("*",))
        expected = (1 - mixing) * trained[name] + mixing * mean
        np.testing.assert_allclose(found, expected, atol=1e-12)
    untouched = client_network.part_vector(parameters(engine)["c1"], ("*",))
    np.testing.assert_array_equal(untouched, trained["c1"])


def test_l2gd_steps_to_the_mean_in_a_share_of_the_rounds():
    engine, server = started(L2GD, L2gd(**SMALL, mixing=0.1, aggregation=0.3, engine="loop"))
    phases = []
    for number in range(1, 41):
        engine.begin_round(number, ("c0",))
        server, info = L2GD.round(server, engine, engine.key())
        phases.append(info.phase)
    assert 5 <= phases.count("averaging") <= 19  # 12 expected, deviation 2.9


def cka(one, other):
    """Return centred kernel alignment as Kornblith et al. define it, (3) of "Similarity ..."."""
    n = len(one)
    centring = np.eye(n) - np.ones((n, n)) / n

    def hsic(k, h):
        return np.trace(k @ centring @ h @ centring)

    return hsic(one, other) / np.sqrt(hsic(one, one) * hsic(other, other))


def test_the_similarity_is_centred_kernel_alignment():
    rng = np.random.default_rng(0)
    options = FedHeNN(**SMALL, points=9, similarity_weight=0.7, **DOUBLE)
    model = client_network.Network(3, 3, options.architecture).double()
    points, other = rng.normal(size=(9, 3)), rng.normal(size=(9, 5))
    batch = {
        "x": torch.from_numpy(rng.normal(size=(6, 3))),
        "y": torch.zeros(6, dtype=torch.int64),
        "weight": torch.ones(6, dtype=torch.float64),
        "points": torch.from_numpy(points),
        "kernel": torch.from_numpy(fedhenn._normed(other @ other.T)),
    }
    with torch.no_grad():
        latent = model.embedding(batch["points"]).numpy()
    _, penalty = fedhenn._objective(options)(model, batch)
    expected = 0.7 * (1 - cka(latent @ latent.T, other @ other.T))
    assert float(penalty.detach()) == pytest.approx(expected, abs=1e-12)


def test_points_that_all_have_one_embedding_are_like_no_others_and_have_a_slope():
    options = FedHeNN(**SMALL, points=9, **DOUBLE)
    model = client_network.Network(3, 3, options.architecture).double()
    for values in model.embedding.parameters():
        torch.nn.init.zeros_(values)
    rng = np.random.default_rng(0)
    kernel = torch.from_numpy(fedhenn._normed(np.cov(rng.normal(size=(9, 5)))))
    points = torch.from_numpy(rng.normal(size=(9, 3)))
    unlike = fedhenn._unlikeness(model, {"points": points, "kernel": kernel})
    unlike.backward()
    assert unlike.item() == 1.0
    assert all(not values.grad.any() for values in model.embedding.parameters())


def test_points_of_a_smaller_space_are_those_of_a_larger_one_cut():
    options = FedHeNN(**SMALL, points=7)
    small, large = (fedhenn._points(options, features, 3) for features in (2, 5))
    assert (small.shape, large.shape) == ((7, 2), (7, 5))
    np.testing.assert_array_equal(small, large[:, :2])
    images = dataclasses.replace(options, embedding="convolutional")
    small, large = (fedhenn._points(images, side * side, 3) for side in (16, 28))
    corner = large.reshape(7, 28, 28)[:, :16, :16]
    np.testing.assert_array_equal(small.reshape(7, 16, 16), corner)
    assert abs(np.corrcoef(large)[0, 1]) < 0.2


def test_fedhenn_makes_embeddings_more_alike():
    """The authors' code has the other sign and drives them apart."""
    found = []
    for weight in (0.0, 3.0):
        given = {**SMALL, "local_epochs": 10, "rate": 0.01, "points": 30}
        options = FedHeNN(**given, similarity_weight=weight, engine="vmap")
        engine, _ = run(FEDHENN, options, clients(widths=(2, 3, 5)), last=4, present={})
        kernels = []
        for name, state in engine.get_states().items():
            block = engine.block(name)
            message = fedhenn.Points(99)
            kernels.append(fedhenn.send_kernel.call(state, block, message, None)[1].at)
        found.append(np.mean([cka(kernels[a], kernels[b]) for a, b in ((0, 1), (0, 2), (1, 2))]))
    assert found[1] > found[0] + 0.1


@pytest.mark.parametrize("name", [*EVERY])
def test_clients_that_train_together_come_to_what_each_comes_to_alone(name):
    algorithm, options = EVERY[name]
    loop = parameters(run(algorithm, options)[0])
    together = parameters(run(algorithm, dataclasses.replace(options, engine="vmap"))[0])
    assert difference(loop, together) < 1e-10


def test_clients_of_other_widths_train_together_in_fedhenn():
    options, blocks = EVERY["fedhenn"][1], clients(widths=(3, 2, 5, 4))
    loop = parameters(run(FEDHENN, options, blocks)[0])
    vmap = dataclasses.replace(options, engine="vmap")
    assert difference(loop, parameters(run(FEDHENN, vmap, blocks)[0])) < 1e-10


@pytest.mark.parametrize("name", [*EVERY])
def test_images_train_by_convolutions(name):
    rng = np.random.default_rng(0)
    blocks = {}
    for number, side in enumerate((16, 18) if name == "fedhenn" else (16, 16)):
        y = np.arange(9) % 3
        x = rng.normal(size=(9, side * side)) + y[:, None]
        names = tuple(f"p{j}" for j in range(side * side))
        blocks[f"c{number}"] = Block(100 * number + np.arange(9), names, x, y + 0.0)
    algorithm, options = EVERY[name]
    options = dataclasses.replace(options, embedding="convolutional")
    engine, _ = run(algorithm, options, blocks, last=1, present={})
    for client, state in engine.get_states().items():
        assert "embedding.first.weight" in state.parameters
        assert algorithm.model.predict(state, blocks[client]).shape == (3, 9)


@pytest.mark.parametrize("name", [*EVERY])
def test_a_run_read_back_from_bytes_goes_on_to_the_same_bits(name):
    algorithm, options = EVERY[name]
    engine, expected = run(algorithm, options)
    other, server = started(algorithm, options)
    other.begin_round(1, PRESENT[1])
    server, _ = algorithm.round(server, other, other.key())
    written = codec.encode((other.books.seal(server), other.get_states()))
    sealed, states = codec.decode(written, *algorithm.states, *RECORDS)
    again, _ = started(algorithm, options)
    again.set_states(states)
    again.begin_round(2, PRESENT[2])
    server, _ = algorithm.round(again.books.unseal(sealed), again, again.key())
    again.begin_round(3)
    assert algorithm.conclude(server, again, again.key()) == expected
    assert difference(parameters(engine), parameters(again)) == 0.0


@pytest.mark.parametrize("name", [*EVERY])
def test_messages_come_back_from_bytes_and_all_functions_are_named(name):
    algorithm, options = EVERY[name]
    engine, _ = started(algorithm, options)
    watched = federations.ThroughBytes(engine)
    server = algorithm.init_server(options, engine.schema("train"), engine.key())
    server = algorithm.setup(server, watched, engine.key())
    server, _ = algorithm.round(server, watched, engine.key())
    algorithm.conclude(server, watched, engine.key())
    numbers_only = {one.function.name for one in label_scaling.SENDS}
    alone = {"train_alone"} if name == "fedrep" else set()  # is asked where nothing is shared
    assert (
        watched.called == {fn.name for fn in algorithm.disclosure.functions} - numbers_only - alone
    )


def test_the_server_cannot_read_what_is_shared():
    for name in ("fedrep", "fedavg-ft", "fedprox", "ditto", "pfedme"):
        _, server = started(*EVERY[name])
        with pytest.raises(SealedError):
            np.asarray(server.shared)


def test_a_loss_that_is_not_finite_is_said_with_its_remedy():
    engine, _ = started(*EVERY["fedavg-ft"], clients(widths=(3, 3)))

    @client_function
    def part(client, block, message, rng):
        return client, parameter_sharing.Loss(np.array([message.round, len(block.y)]))

    def loss(value):
        messages = dict.fromkeys(engine.ids, parameter_sharing.Shared(None, value))
        return parameter_sharing.mean_loss(engine, part, messages, 7)

    engine.begin_round(1)
    rows = [len(engine.block(name).y) for name in engine.ids]
    assert loss(3.0) == pytest.approx(3.0 * len(rows) / sum(rows))
    with pytest.raises(
        ConvergenceError, match=r"loss is inf after 7 rounds; lower algorithm\.rate"
    ):
        loss(np.inf)


SAME_FEATURES = ["fedrep", "fedavg-ft", "l2gd", "fedprox", "ditto", "pfedme"]


@pytest.mark.parametrize("name", SAME_FEATURES)
def test_other_columns_are_named(name):
    algorithm, options = EVERY[name]
    schema = Schema.of(clients(widths=(3, 4)), LABELS)
    with pytest.raises(FederationError, match=r"'c0' and 'c1' differ in 1 feature \('f3'\)"):
        algorithm.init_server(options, schema, RandomKey((0,)))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (FedHeNN, {"similarity_weight": -1.0}),
        (FedHeNN, {"points": 1}),
        (FedRep, {"shared_layers": 4}),
        (FedAvgFT, {"rate": 0.0}),
        (L2gd, {"mixing": 1.5}),
        (L2gd, {"aggregation": -0.1}),
        (FedProx, {"proximal": -0.1}),
        (Ditto, {"pull": -0.1}),
        (PFedMe, {"local_rounds": 0}),
    ],
)
def test_a_wrong_hyperparameter_is_named(kind, wrong):
    with pytest.raises(ExperimentError, match=rf"algorithm\.{next(iter(wrong))} is "):
        kind(**wrong)


@pytest.mark.parametrize("name", [*EVERY])
def test_masked_sums_train_to_what_plain_ones_do(name):
    blocks = clients(widths=(3, 3))
    tables = {client: (block.x, block.y.astype(int)) for client, block in blocks.items()}
    options = EVERY[name][1]
    epochs = {"local_epochs", "final_epochs"} & {one.name for one in dataclasses.fields(options)}
    settings = dict.fromkeys(sorted(epochs), 1)
    settings |= {"rounds": 2, "hidden": 8, "latent": 4, "engine": "loop", "yardsticks": False}
    settings["precision"] = "double"  # in single precision what masks round is lost
    plain = intarsia.run(tables=tables, algorithm=name, classes=["0", "1", "2"], **settings)
    sealing = {"mode": "masked", "least_clients": 2}
    sealed = intarsia.run(
        tables=tables, algorithm=name, classes=["0", "1", "2"], privacy=sealing, **settings
    )
    assert sealed.metrics.server.loss == pytest.approx(plain.metrics.server.loss, rel=1e-4)
    # words with masks are longer; what they round may be below the digits of a loss
    assert sealed.bytes["up"] > plain.bytes["up"]
