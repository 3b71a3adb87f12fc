"""HyFEM: what it is without what is its own, to float64, and what its server adds up."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402  after the skip where torch is missing

from intarsia.algorithms.hyfem import client as hyfem_client  # noqa: E402
from intarsia.algorithms.hyfem import network as block_network  # noqa: E402
from intarsia.algorithms.hyfem.algorithm import HYFEM  # noqa: E402
from intarsia.algorithms.hyfem.hyperparameters import HyFEM  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.engines import codec  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.engines.simulation import Simulation  # noqa: E402
from intarsia.errors import ExperimentError, FederationError, SealedError  # noqa: E402
from intarsia.maths.training.local_training import batch_order  # noqa: E402
from intarsia.privacy.keys.shared_key import SharedKey  # noqa: E402
from intarsia.privacy.secure_aggregation import setup as modes  # noqa: E402
from intarsia.privacy.settings import Privacy  # noqa: E402
from intarsia.protocols.evaluation import CROSS_ENTROPY, evaluate_own, evaluate_server  # noqa: E402

LABELS = Labels("multiclass", ("a", "b", "c"))
WIDTHS = {"u": 2, "v": 3, "w": 4}
HELD = {"c0": "uv", "c1": "vw", "c2": "uvw", "c3": "v"}
CLASSES = {"c0": (0, 1, 2), "c1": (0, 1), "c2": (1, 2), "c3": (0, 1, 2)}
SMALL = {
    "features": 3,
    "extractor_hidden": (5,),
    "hidden": (6, 4),
    "steps": 4,
    "batch": 8,
    "precision": "double",
    "rate": 0.2,
}
PLAIN = {**SMALL, "block_dropout": 0.0, "scaling": False, "decay": 1.0}


def groups(names):
    return {name: tuple(f"{name}{k}" for k in range(WIDTHS[name])) for name in names}


def held_block(names, classes, start, samples=30):
    """Return a block of the samples from `start` on, whose values are those of one table."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(3, 9))
    y = np.random.default_rng(start).choice(classes, samples)
    x = 2 * centres[y] + np.random.default_rng(start + 1).normal(size=(samples, 9))
    columns = {
        f"{n}{k}": j for j, (n, k) in enumerate((n, k) for n in WIDTHS for k in range(WIDTHS[n]))
    }
    own = groups(names)
    features = tuple(f for some in own.values() for f in some)
    return Block(
        start + np.arange(samples), features, x[:, [columns[f] for f in features]], y + 0.0, own
    )


def clients(held=HELD, classes=CLASSES):
    return {name: held_block(held[name], classes[name], 1000 * at) for at, name in enumerate(held)}


def alike(count=3):
    """Return clients that all hold the one block u, of all classes."""
    names = [f"c{k}" for k in range(count)]
    return clients(dict.fromkeys(names, "u"), dict.fromkeys(names, (0, 1, 2)))


def started(options, blocks, mode="plain", test=None, recorder=None):
    sealing = None
    if mode != "plain":
        keys = modes.in_one_process(SharedKey(bytes(range(32)), "tests"))
        sealing = modes.sealing(Privacy(mode=mode), list(blocks), keys)
    schema = Schema.of(blocks, LABELS)
    parts = {"train": (schema, blocks)}
    if test is not None:
        parts["test"] = (Schema.of(test, LABELS), test)
    engine = Simulation(parts, 0, sealing, recorder)
    engine.make_states(
        lambda name: HYFEM.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = HYFEM.init_server(options, schema, engine.key("init"))
    return engine, HYFEM.setup(server, engine, engine.key("init"))


def run(options, blocks, rounds=3, present=None, **given):
    """Return the engine, the server's state and the conclusion after some rounds."""
    engine, server = started(options, blocks, **given)
    for number in range(1, rounds + 1):
        engine.begin_round(number, (present or {}).get(number))
        server, _ = HYFEM.round(server, engine, engine.key())
    engine.begin_round(rounds + 1)
    return engine, server, HYFEM.conclude(server, engine, engine.key())


def networks(engine):
    return {name: HYFEM.model.network(state) for name, state in engine.get_states().items()}


# ---- an independent plain loop: one perceptron on one block, torch alone


def plain_scores(parameters, x):
    names = ["extractors.u.0", "extractors.u.2", "classifier.0", "classifier.1", "classifier.2"]
    for name in names:
        x = functional.linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])
        if name != names[-1]:
            x = functional.relu(x)
    return x


def plain_steps(start, block, key, options, pulls):
    """Return the parameters after a client's steps from `start`."""
    rows = np.arange(block.shape[0])
    needed = options.steps * options.batch
    if needed < len(rows):
        rows = np.sort(key.fold_in("rows").generator().permutation(rows)[:needed])
    x, y = torch.from_numpy(block.x[rows]), torch.from_numpy(block.y[rows].astype(int))
    own = {name: values.clone().requires_grad_() for name, values in start.items()}
    descent = torch.optim.SGD(own.values(), lr=options.rate)
    for places in batch_order(key.integer(), len(rows), options.batch, options.steps):
        picked = torch.from_numpy(places[places >= 0])
        descent.zero_grad()
        value = functional.cross_entropy(plain_scores(own, x[picked]), y[picked])
        for name, values in own.items():
            pull = pulls[name.startswith("classifier")]
            value = value + pull / 2 * (values - start[name]).square().sum()
        value.backward()
        descent.step()
    return {name: values.detach() for name, values in own.items()}


def plain_rounds(blocks, options, pulls, rounds, *, personal=False):
    """Return the average that clients come to, and each client's own parameters."""
    engine, server = started(options, blocks)
    drawn = block_network.drawn(server.made_of, np.float64, engine.key("init").fold_in("shared"))
    average = {
        name: torch.from_numpy(values)
        for name, values in block_network.named_by_block(server.made_of, drawn).items()
    }
    heads = {
        client: {n: torch.from_numpy(v) for n, v in own.items() if n.startswith("classifier")}
        for client, own in networks(engine).items()
    }
    aligned = {name: engine.block(name) for name in blocks}
    ends = {}
    for number in range(1, rounds + 1):
        # the exchanges before training in a round count: `weigh_classes` in the first one
        weighed = options.unseen_rows == "kept" or options.softmax == "balanced"
        first = 2 if number == 1 and weighed and not personal else 1
        for client, block in aligned.items():
            key = RandomKey((0, number, first, client, "local_training"))
            start = {**average, **heads[client]} if personal else average
            ends[client] = plain_steps(start, block, key, options, pulls)
            heads[client] = {n: v for n, v in ends[client].items() if n.startswith("classifier")}
        average = {name: sum(one[name] for one in ends.values()) / len(ends) for name in average}
    return average, heads


@pytest.mark.parametrize(
    ("options", "pulls"),
    [
        (HyFEM(**PLAIN, variant="prox", mu1=0.3, mu2=0.3), (0.3, 0.3)),
        (HyFEM(**PLAIN, variant="prox", mu1=0.5, mu2=0.1), (0.5, 0.1)),
        (HyFEM(**PLAIN, variant="avg"), (0.0, 0.0)),
        (HyFEM(**PLAIN, variant="avg", unseen_rows="averaged"), (0.0, 0.0)),
    ],
    ids=["fedprox", "two pulls", "fedavg", "fedavg, all rows"],
)
def test_with_one_block_it_is_fedprox_or_fedavg(options, pulls):
    blocks = alike()
    average, _ = plain_rounds(blocks, options, pulls, 3)
    engine, _, conclusion = run(options, blocks)
    for name, values in average.items():
        np.testing.assert_allclose(conclusion.network[name], values.numpy(), rtol=0, atol=1e-12)
        for own in networks(engine).values():
            np.testing.assert_allclose(own[name], values.numpy(), rtol=0, atol=1e-12)


def test_on_the_common_blocks_it_is_fedavg_on_these():
    blocks = clients()
    common = {name: block.take(None, np.array([block.features.index(f"v{k}") for k in range(3)]))
              for name, block in blocks.items()}  # fmt: skip
    options = HyFEM(**PLAIN, variant="avg")
    found = run(dataclasses.replace(options, blocks="common"), blocks)[2].network
    expected = run(options, common)[2].network
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_with_classifiers_that_stay_at_the_clients_it_is_fedper():
    options = HyFEM(**PLAIN, variant="avg", shares="extractors")
    blocks = alike()
    average, heads = plain_rounds(blocks, options, (0.0, 0.0), 3, personal=True)
    engine, _, conclusion = run(options, blocks)
    assert conclusion.network is None
    for client, own in networks(engine).items():
        for name, values in {**average, **heads[client]}.items():
            np.testing.assert_allclose(own[name], values.numpy(), rtol=0, atol=1e-12)


def test_sharing_nothing_each_client_learns_as_if_alone():
    options = HyFEM(**SMALL, shares="nothing")
    every = networks(run(options, clients())[0])
    for name, block in clients().items():
        [alone] = networks(run(options, {name: block})[0]).values()
        for key, values in alone.items():
            np.testing.assert_allclose(every[name][key], values, rtol=0, atol=1e-12)


# ---- what the server adds up


class Spied:
    """Clients whose parts of a change are kept, with what they trained from."""

    def __init__(self, engine):
        self.engine, self.trained, self.ids = engine, {}, engine.ids

    def sum(self, fn, messages):
        def call(state, block, message, rng):
            before = hyfem_client._opened(state, message) if fn.name == "local_training" else state
            after, reply = fn.call(state, block, message, rng)
            if fn.name == "local_training":
                self.trained[block.samples[0] // 1000] = (before, after)
            return after, reply

        return self.engine.sum(dataclasses.replace(fn, call=call, together=None), messages)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])
@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_each_part_is_the_mean_of_those_that_have_it(hidden, weights):
    """In particular columns of the first layer are not diluted by clients without the block."""
    options = HyFEM(**{**SMALL, "hidden": hidden}, weights=weights)
    blocks = clients()
    blocks["c1"] = held_block("vw", CLASSES["c1"], 1000, samples=75)
    engine, server = started(options, blocks)
    there = ("c0", "c1", "c2")
    engine.begin_round(1, there)
    spied = Spied(engine)
    before = server
    server, _ = HYFEM.round(server, spied, engine.key())
    old = hyfem_client.Parts(
        *(engine.reveal(getattr(before.whole, n)) for n in ("extractors", "columns", "rest"))
    )
    new = hyfem_client.Parts(
        *(engine.reveal(getattr(server.whole, n)) for n in ("extractors", "columns", "rest"))
    )
    made = {f"c{at}": block_network.parts_of(after.made_of, after.parameters)
            for at, (_, after) in spied.trained.items()}  # fmt: skip
    p = {"c0": 30.0, "c1": 75.0, "c2": 30.0} if weights == "samples" else dict.fromkeys(there, 1.0)
    units = (*hidden, 3)
    seen = {name: np.isin(range(3), CLASSES[name]) for name in there}

    def mean(values, masks=None):
        """Return the weighted mean over clients, or nan where nobody counts."""
        masks = masks or {name: np.ones_like(one, bool) for name, one in values.items()}
        total = sum(p[n] * masks[n] for n in values)
        return sum(p[n] * np.where(masks[n], values[n], 0.0) for n in values) / total

    for block in "uvw":
        holding = [n for n in there if block in HELD[n]]
        np.testing.assert_allclose(
            new.extractors[block], mean({n: made[n].extractors[block] for n in holding}), atol=1e-12
        )
        columns = {n: made[n].columns[block] for n in holding}
        masks = None
        if not hidden:
            masks = {n: np.repeat(seen[n][:, None], 3, 1) for n in holding}
            assert all(sum(masks[n] for n in holding).ravel() > 0)
        np.testing.assert_allclose(new.columns[block], mean(columns, masks), atol=1e-12)
    biases, layers = zip(
        *(block_network.split_rest(made[n].rest, units) for n in there), strict=True
    )
    found_biases, found_layers = block_network.split_rest(new.rest, units)
    for layer in range(len(units)):
        last = layer == len(units) - 1
        own = {n: biases[at][layer] for at, n in enumerate(there)}
        np.testing.assert_allclose(
            found_biases[layer], mean(own, seen if last else None), atol=1e-12
        )
        if layer:
            own = {n: layers[at][layer - 1] for at, n in enumerate(there)}
            masks = {n: np.repeat(seen[n][:, None], units[layer - 1], 1) for n in there}
            np.testing.assert_allclose(
                found_layers[layer - 1], mean(own, masks if last else None), atol=1e-12
            )
    assert np.abs(new.rest - old.rest).max() > 1e-3


def test_what_nobody_there_has_stays_as_it_was():
    options = HyFEM(**SMALL)
    engine, server = started(options, clients())
    before = server
    engine.begin_round(1, ("c1",))  # with v and w, and no row of the third class
    server, _ = HYFEM.round(server, engine, engine.key())
    for name in ("extractors", "columns"):
        old, new = (engine.reveal(getattr(one.whole, name)) for one in (before, server))
        np.testing.assert_array_equal(new["u"], old["u"])
        assert np.abs(new["w"] - old["w"]).max() > 1e-4
    old, new = (engine.reveal(one.whole.rest) for one in (before, server))
    (_, old_layers), (_, new_layers) = (
        block_network.split_rest(one, (6, 4, 3)) for one in (old, new)
    )
    np.testing.assert_array_equal(new_layers[-1][2], old_layers[-1][2])
    assert np.abs(new_layers[-1][:2] - old_layers[-1][:2]).max() > 1e-4


def test_the_server_cannot_read_what_it_adds_up():
    _, server = started(HyFEM(**SMALL), clients())
    for name in ("extractors", "columns", "rest"):
        with pytest.raises(SealedError):
            np.asarray(getattr(server.whole, name))


def test_sealed_sums_come_to_those_in_the_clear():
    options = HyFEM(**SMALL)
    present = {2: ("c0", "c3")}
    plain = run(options, clients(), present=present)[2]
    sealed = run(options, clients(), present=present, mode="masked")[2]
    assert abs(plain.info.loss - sealed.info.loss) < 1e-8
    for name, values in plain.network.items():
        np.testing.assert_allclose(sealed.network[name], values, atol=1e-8)


def test_a_run_that_is_cut_goes_on_to_the_same_bits():
    options = HyFEM(**SMALL)
    expected = run(options, clients())[2]
    engine, server = started(options, clients())
    engine.begin_round(1)
    server, _ = HYFEM.round(server, engine, engine.key())
    written = codec.encode((engine.books.seal(server), engine.get_states()))
    again, _ = started(options, clients())
    sealed, states = codec.decode(written, *HYFEM.states, *RECORDS)
    again.set_states(states)
    server = again.books.unseal(sealed)
    for number in (2, 3):
        again.begin_round(number)
        server, _ = HYFEM.round(server, again, again.key())
    again.begin_round(4)
    found = HYFEM.conclude(server, again, again.key())
    for name, values in expected.network.items():
        np.testing.assert_array_equal(found.network[name], values)


@pytest.mark.parametrize("options", [HyFEM(**SMALL), HyFEM(**SMALL, softmax="held")])
def test_clients_that_train_at_once_come_to_what_they_do_one_by_one(options):
    held = {f"c{k}": "uv" if k % 2 else "vw" for k in range(6)}
    blocks = clients(held, {name: (0, 1 + at % 2) for at, name in enumerate(held)})
    loop = run(dataclasses.replace(options, engine="loop"), blocks)[2]
    at_once = run(dataclasses.replace(options, engine="vmap"), blocks)[2]
    for name, values in loop.network.items():
        np.testing.assert_allclose(at_once.network[name], values, rtol=0, atol=1e-11)


def test_blocks_are_left_out_and_the_others_make_up_for_them():
    drawn = torch.tensor([[-3.0, -2.0, -1.0], [-1.0, 1.0, 2.0], [1.0, 1.0, 1.5]])
    expected = [[0.0, 0.0, 3.0], [0.0, 1.5, 1.5], [1.0, 1.0, 1.0]]
    assert hyfem_client._factors(drawn, 0.5).tolist() == expected
    many = hyfem_client._factors(torch.randn(4000, 2, generator=torch.manual_seed(0)), 0.5)
    # each alone in a third of the rows that keep one, both kept in a quarter
    assert abs((many == 1.0).all(1).double().mean() - 0.25) < 0.03
    assert set(many.unique().tolist()) == {0.0, 1.0, 2.0}


def test_the_rate_falls_from_round_to_round():
    falling = HyFEM(**{**PLAIN, "decay": 0.5})
    for rounds in (1, 2):
        constant = run(HyFEM(**PLAIN), alike(), rounds)[2].network
        found = run(falling, alike(), rounds)[2].network
        same = all(np.array_equal(found[name], constant[name]) for name in constant)
        assert same is (rounds == 1)


def test_a_softmax_over_the_held_classes_moves_no_row_of_another():
    names = ["c0", "c1"]
    # nobody has the third class, and rows count as if trained
    blocks = clients(dict.fromkeys(names, "uv"), dict.fromkeys(names, (0, 1)))
    start = HyFEM(**PLAIN, unseen_rows="averaged", softmax="held", variant="avg")
    drawn = started(start, blocks)[1].start.rest
    for softmax, moved in (("held", False), ("all", True)):
        options = dataclasses.replace(start, softmax=softmax)
        row = run(options, blocks, 1)[2].network["classifier.2.bias"][2]
        assert bool(row != drawn[-1]) is moved


def test_a_balanced_softmax_counts_who_has_a_class_of_the_blocks_that_a_row_keeps():
    """Log-loss of z_k + the mean of log(holders of k / mean over classes) over the row's blocks.

    A class that nobody has of some of them is left out; of all of them: it is told as if it were
    the row's own with chance 1/(2 K).
    """
    held = {"c0": "uv", "c1": "vw", "c2": "uw"}
    classes = {"c0": (0, 1), "c1": (0, 1), "c2": (1, 2)}  # v of class 2 is with nobody
    engine, server = started(HyFEM(**SMALL), clients(held, classes))
    engine.begin_round(1)
    told = engine.reveal(HYFEM.round(server, engine, engine.key())[0].seen_by_block)
    found = hyfem_client._by_block(engine.get_states()["c0"], told)
    np.testing.assert_allclose(np.exp(found["beside"]), [[3 / 4, 3 / 2, 3 / 4], [1, 1, 1]])
    np.testing.assert_array_equal(found["unknown"], [[0, 0, 0], [0, 0, 1]])
    rng = np.random.default_rng(0)
    scores, drawn, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2)), rng.integers(2, size=40)
    expected = []
    for z, number, label in zip(scores, drawn, y, strict=True):
        kept = (number >= 0) | (number == number.max())
        odds = np.exp(z + found["beside"][kept].mean(0))
        target = np.eye(3)[label]
        if kept.all():
            odds[2] = 0.0
        elif kept[1]:  # v alone
            target = target * 5 / 6 + [0, 0, 1 / 6]
        there = target > 0
        expected.append(-(target[there] * np.log(odds[there] / odds.sum())).sum())
    batch = {"x0": scores, "x1": scores, "y": y, "drawn": drawn, **found}
    batch = {key: torch.from_numpy(values) for key, values in batch.items()}
    value = hyfem_client._loss(0.5, 0.0, lambda values, factors: values[0], batch)
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12)


def test_where_everybody_has_all_classes_a_balanced_softmax_is_the_plain_one():
    everything = dict.fromkeys(HELD, (0, 1, 2))
    found, expected = (
        run(HyFEM(**SMALL, softmax=softmax), clients(classes=everything))[2].network
        for softmax in ("balanced", "all")
    )
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12)


def test_blocks_are_left_out_in_training():
    with_all, fewer = (
        run(HyFEM(**{**PLAIN, "block_dropout": share}), clients(), 1)[2].network
        for share in (0.0, 0.5)
    )
    assert any(not np.allclose(fewer[name], with_all[name]) for name in fewer)
    # a client of one block leaves out none
    with_all, fewer = (
        run(HyFEM(**{**PLAIN, "block_dropout": share}), alike(), 1)[2].network
        for share in (0.0, 0.5)
    )
    assert all(np.array_equal(fewer[name], with_all[name]) for name in fewer)


# ---- matching


# wide enough to tell neurons apart, and no farther from the common start than a round takes them
NEAR = HyFEM(**{**SMALL, "features": 8, "hidden": (24,), "rate": 0.05})
MATCHED = dataclasses.replace(NEAR, matching="rounds")


@pytest.mark.parametrize(
    "settings",
    [
        {"cost": "squared"},
        {"cost": "pfnm"},
        {"cost": "pfnm", "matched_layers": "successive"},  # FedMA's
    ],
)
def test_from_a_common_start_matching_in_each_round_changes_nothing(settings):
    present = {2: ("c0", "c3"), 3: ("c1", "c2", "c3")}
    # with all rows there is no exchange before training, and the batches are the same
    plain = run(dataclasses.replace(NEAR, unseen_rows="averaged"), clients(), present=present)[2]
    matched = dataclasses.replace(MATCHED, **settings, unseen_rows="averaged")
    found = run(matched, clients(), present=present)[2]
    for name, values in plain.network.items():
        np.testing.assert_allclose(found.network[name], values, rtol=0, atol=1e-12)


def test_permuting_a_clients_hidden_neurons_changes_nothing_after_matching():
    order = np.random.default_rng(0).permutation(24)

    class Permuting:
        """Clients of which c2 sends its classifier with its neurons in another order."""

        def __init__(self, engine):
            self.ids, self.sum, self.ask_them = engine.ids, engine.sum, engine.ask

        def ask(self, fn, messages):
            replies = self.ask_them(fn, messages)
            own = replies["c2"]
            biases, weights = block_network.split_rest(own.rest, (24, 3))
            pieces = [biases[0][order], weights[0][:, order], biases[1]]
            rest = np.concatenate([piece.ravel() for piece in pieces])
            columns = {name: values[order] for name, values in own.columns.items()}
            return {**replies, "c2": dataclasses.replace(own, rest=rest, columns=columns)}

    found = []
    for through in (lambda engine: engine, Permuting):
        engine, server = started(MATCHED, clients())
        engine.begin_round(1)
        whole = HYFEM.round(server, through(engine), engine.key())[0].whole
        biases, weights = block_network.split_rest(whole.rest, (24, 3))
        neurons = np.hstack([*whole.columns.values(), biases[0][:, None], weights[0].T])
        # which number a neuron of the server has means nothing
        found.append((neurons[np.argsort(neurons[:, 0])], biases[1]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-12)


def test_a_matched_run_that_is_cut_goes_on_to_the_same_bits():
    expected = run(MATCHED, clients(), rounds=2)[2]
    engine, server = started(MATCHED, clients())
    engine.begin_round(1)
    server, _ = HYFEM.round(server, engine, engine.key())
    written = codec.encode((engine.books.seal(server), engine.get_states()))
    again, _ = started(MATCHED, clients())
    sealed, states = codec.decode(written, *HYFEM.states, *RECORDS)
    again.set_states(states)
    again.begin_round(2)
    server, _ = HYFEM.round(again.books.unseal(sealed), again, again.key())
    again.begin_round(3)
    found = HYFEM.conclude(server, again, again.key())
    for name, values in expected.network.items():
        np.testing.assert_array_equal(found.network[name], values)


# ---- the server's network on full samples


def test_the_servers_network_is_evaluated_on_samples_of_which_all_blocks_are_held():
    whole = held_block("uvw", (0, 1, 2), 9000, samples=40)

    def part(names, rows):
        places = [whole.features.index(f) for n in names for f in groups([n])[n]]
        return whole.take(np.arange(40)[rows], np.array(places))

    # the last ten samples lack the block w
    rows = slice(0, 40)
    test = {"c0": part("uv", rows), "c1": part("vw", slice(0, 30)), "c2": part("uvw", slice(0, 5)),
            "c3": part("v", rows)}  # fmt: skip
    options = HyFEM(**SMALL)
    engine, _, conclusion = run(options, clients(), rounds=5, test=test)
    made_of = HYFEM.model.architecture(options, engine.schema("train"), None)
    schema = engine.schema("test")
    found = evaluate_server(
        engine, schema, HYFEM.model.server_model, made_of.blocks, CROSS_ENTROPY, part="test"
    )
    _, own = evaluate_own(engine, schema, HYFEM.model.predict, CROSS_ENTROPY, part="test")
    parameters = block_network.numbered(made_of, conclusion.network)
    first = whole.take(np.arange(30))
    scores = block_network.scores(made_of, parameters, first)
    assert found.accuracy == pytest.approx((scores.argmax(1) == first.y).mean(), abs=1e-12)
    alone = engine.get_states()["c1"]
    mine = block_network.scores(alone.made_of, alone.parameters, test["c1"])
    assert own["c1"].accuracy == pytest.approx((mine.argmax(1) == test["c1"].y).mean(), abs=1e-12)


class Records(list):
    """What crosses, as a transcript has it."""

    def record(self, crossed):
        self.append(crossed)


def test_of_samples_that_are_not_evaluated_no_score_crosses():
    whole = held_block("uvw", (0, 1, 2), 9000, samples=20)

    def part(names, rows, labelled):
        places = [whole.features.index(f) for n in names for f in groups([n])[n]]
        block = whole.take(np.array(rows, int), np.array(places))
        known = np.isin(rows, labelled)
        return dataclasses.replace(block, y=np.where(known, block.y, np.nan))

    # of 0 to 14 all blocks are held; labels are there of 5 to 9 at c0, of 10 to 19 at c1
    test = {"c0": part("uv", range(20), range(5, 10)), "c1": part("vw", range(15), range(10, 20)),
            "c2": part("uvw", [], []), "c3": part("v", range(17), [])}  # fmt: skip
    records = Records()
    engine, _, conclusion = run(HyFEM(**SMALL), clients(), test=test, recorder=records)
    records.clear()
    made_of = HYFEM.model.architecture(HyFEM(**SMALL), engine.schema("train"), None)
    evaluate_server(
        *(engine, engine.schema("test"), HYFEM.model.server_model, made_of.blocks, CROSS_ENTROPY),
        part="test",
    )
    schema = engine.schema("test")
    sent = {one.client: one.fields["z"] for one in records if one.type == "PartialScores"}
    assert set(sent) == {"c0", "c1", "c3"}
    for client, z in sent.items():
        ids = schema.samples.ids[schema.samples.own(client)]
        evaluated = np.isin(ids, range(9005, 9015))
        assert evaluated.sum() == 10
        assert (z[:, ~evaluated] == 0).all()
        assert (z[:, evaluated] != 0).any(axis=0).all()
    assert conclusion.network


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rate": 0.0}, "algorithm.rate is 0"),
        ({"decay": 1.5}, "algorithm.decay is 1.5"),
        ({"block_dropout": 1.0}, "block_dropout is 1.0"),
        ({"hidden": (0,)}, r"algorithm.hidden is \[0\]"),
        ({"extractor": "perceptrn"}, "'perceptrn'; use 'perceptron'"),
        ({"extractors": {"u": "resnet"}}, "algorithm.extractors.u is 'resnet'"),
        ({"variant": "proximal"}, "variant is 'proximal'"),
        ({"matched_layers": "successive"}, "nothing is matched; set start"),
        ({"device": "abacus"}, "algorithm.device is 'abacus', which torch cannot use here"),
    ],
)
def test_a_wrong_hyperparameter_is_refused(change, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        HyFEM(**{**SMALL, **change})


def refused(options, blocks, error, sentence):
    schema = Schema.of(blocks, LABELS)
    with pytest.raises(error, match=sentence):
        HYFEM.init_server(options, schema, RandomKey((0,)))


def test_clients_that_cannot_take_part_are_named():
    blocks = clients()
    bare = {**blocks, "c4": dataclasses.replace(held_block("u", (0,), 5000), y=None)}
    refused(HyFEM(**SMALL), bare, FederationError, "No label is held by 'c4'")
    empty = {**blocks, "c4": held_block("u", (0,), 5000).take(None, np.zeros(0, int))}
    refused(HyFEM(**SMALL), empty, FederationError, "'c4' has no column")
    apart = {**blocks, "c4": held_block("u", (0,), 5000)}
    refused(HyFEM(**SMALL, blocks="common"), apart, FederationError, "held by all 5 clients")
    named = HyFEM(**SMALL, extractors={"vv": "linear"})
    refused(named, blocks, ExperimentError, "feature block 'vv'; use 'v'")
    images = HyFEM(**SMALL, extractors={"v": "convolutional"})
    refused(images, blocks, FederationError, r"'v' has values of shape \(3,\)")


def test_a_block_of_one_client_a_client_apart_and_a_client_of_one_class_all_train():
    held = {"c0": "uv", "c1": "uv", "c2": "w"}  # w is at one client, which shares no block
    blocks = clients(held, {"c0": (0, 1, 2), "c1": (1,), "c2": (0, 2)})
    for softmax in ("balanced", "all", "held"):
        options = HyFEM(**SMALL, softmax=softmax)
        engine, _, conclusion = run(options, blocks, rounds=0)
        first, loss = networks(engine)["c2"], conclusion.info.loss
        engine, _, conclusion = run(options, blocks, rounds=6)
        assert conclusion.info.loss < loss
        last = networks(engine)["c2"]
        moved = [name for name in last if not np.array_equal(first[name], last[name])]
        assert sorted(moved) == sorted(last)  # its own block too, which nobody else trains
        assert all(np.isfinite(v).all() for own in networks(engine).values() for v in own.values())


@pytest.mark.parametrize(("precision", "bytes_each"), [("single", 4), ("double", 8)])
def test_parameters_cross_in_the_precision_that_networks_have(precision, bytes_each):
    options = HyFEM(**{**SMALL, "precision": precision})
    engine, server = started(options, clients())
    held = server.start.extractors["u"].size
    assert server.start.extractors["u"].nbytes == bytes_each * held
    engine.begin_round(1)
    spied = Spied(engine)
    sent = {}
    listen = spied.sum

    def told(fn, messages):
        def call(state, block, message, rng):
            state, reply = fn.call(state, block, message, rng)
            if fn.name == "local_training":
                sent[state.name] = (message, reply)
            return state, reply

        return listen(dataclasses.replace(fn, call=call, together=None), messages)

    spied.sum = told
    server, _ = HYFEM.round(server, spied, engine.key())
    for message, reply in sent.values():
        for part in (*message.extractors.values(), *message.columns.values(), message.rest):
            assert part.itemsize == bytes_each
        for part in (*reply.extractors.values(), *reply.columns.values(), reply.rest):
            assert part.itemsize == bytes_each
    assert len(sent) == len(HELD)
    assert engine.reveal(server.whole.rest).itemsize == bytes_each
