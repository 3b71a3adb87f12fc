"""FLIC with classes that have an anchor together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.special import softmax

torch = pytest.importorskip("torch")

import intarsia  # noqa: E402  after the skip where torch is missing
from federations import started  # noqa: E402
from intarsia.algorithms.flic import objective as flic_objective  # noqa: E402
from intarsia.algorithms.flic.algorithm import FLIC, Flic  # noqa: E402
from intarsia.algorithms.flic.initial_anchors import meta_of  # noqa: E402
from intarsia.algorithms.networks import client_network  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.maths.matching import distribution_distances  # noqa: E402

KINDS = Labels("multiclass", ("beagle", "collie", "manx", "persian"))
DOGS = (("collie", "beagle"),)
SMALL = {
    "variant": "hl",
    "anchor_scale": 1.0,
    "weight_decay": 0.0,
    "embedding_decay": 0.0,
    "hidden": 8,
    "latent": 3,
    "local_epochs": 1,
    "final_epochs": 1,
    "pretraining_epochs": 2,
    "batch": 20,
    "alignment_weight": 0.1,
    "calibration_weight": 0.1,
    "precision": "double",
    "engine": "loop",
}


def clients(count=40, shift=2.0):
    rng = np.random.default_rng(0)
    centres, made = shift * rng.normal(size=(4, 5)), {}
    for number, width in enumerate((3, 6)):
        y = rng.integers(0, 4, count)
        x = (centres[y] + rng.normal(size=(count, 5))) @ rng.normal(size=(5, width))
        rows = 1000 * number + np.arange(count)
        made[f"c{number}"] = Block(rows, tuple(f"f{j}" for j in range(width)), x, y + 0.0)
    return made


def trained(rounds=2, **given):
    engine, server = started(FLIC, Flic(**{**SMALL, **given}), clients(), KINDS)
    for number in range(1, rounds + 1):
        engine.begin_round(number)
        server, _ = FLIC.round(server, engine, engine.key())
    engine.begin_round(rounds + 1)
    FLIC.conclude(server, engine, engine.key())
    return engine


def largest_difference(one, other):
    return max(
        float(np.abs(values - other.get_states()[name].parameters[key]).max())
        for name, state in one.get_states().items()
        for key, values in state.parameters.items()
    )


def test_listed_groups_come_first_and_then_each_class_that_is_in_none():
    options = Flic(meta_classes=(("persian", "manx"), ("collie",)))
    assert meta_of(options, KINDS) == (2, 1, 0, 0)
    assert meta_of(Flic(), KINDS) == ()
    numbered = Labels("multiclass", ("0", "1", "2"))
    assert meta_of(Flic(meta_classes=((2, 0),)), numbered) == (0, 1, 0)


def test_groups_of_one_class_each_are_no_groups():
    alone = tuple((name,) for name in KINDS.classes)
    assert largest_difference(trained(), trained(meta_classes=alone)) <= 1e-9
    assert (
        largest_difference(
            trained(anchor_classes="all"), trained(anchor_classes="all", meta_classes=alone)
        )
        <= 1e-9
    )


@pytest.mark.parametrize(
    "given", [{}, {"anchor_classes": "all"}, {"alignment": "energy", "scheme": "fedavg-ft"}]
)
def test_clients_that_train_together_come_to_what_each_comes_to_alone(given):
    one, other = (trained(meta_classes=DOGS, engine=kind, **given) for kind in ("loop", "vmap"))
    assert one.get_states()["c0"].parameters["anchors.means"].shape == (3, 3)
    assert largest_difference(one, other) <= 1e-9


@pytest.mark.parametrize("every", [False, True])
def test_the_objective_takes_the_rows_of_a_group_together_and_asks_for_the_group(
    every, monkeypatch
):
    monkeypatch.setattr(distribution_distances.to_gaussians, "__defaults__", (1e-16,))
    state, block = trained(0, meta_classes=DOGS).get_states()["c1"], clients()["c1"]
    options, own = state.options, state.parameters
    assert state.anchors == (0, 0, 1, 2)
    model = client_network.Network(block.shape[1], 4, options.architecture).double()
    model.anchors.means = torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.float64))
    model.load_state_dict({k: torch.from_numpy(v) for k, v in own.items()})
    noise = np.random.default_rng(0).normal(size=(40, 3))
    batch = {
        "x": torch.from_numpy(block.x),
        "y": torch.from_numpy(block.y.astype(int)),
        "noise": torch.from_numpy(noise),
        "weight": torch.ones(40, dtype=torch.float64),
    }
    loss = flic_objective.objective(options, state.anchors, every=every)
    _, penalty = loss(model, batch)

    def chances(points):
        hidden = points @ own["shared.0.weight"].T + own["shared.0.bias"]
        hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        return softmax(hidden @ own["classifier.weight"].T + own["classifier.bias"], axis=1)

    z, expected = options.architecture.outputs(own, block)[0], 0.0
    for anchor, classes in enumerate(((0, 1), (2,), (3,))):
        rows = np.isin(block.y, classes)
        centre = own["anchors.means"][anchor]
        S = np.cov(z[rows].T, ddof=0)
        away = ((z[rows].mean(0) - centre) ** 2).sum()
        away += np.trace(S) + 3 - 2 * np.trace(np.real(sqrtm(S)))
        points = centre + (noise if every else noise[rows])
        right = chances(points)[:, list(classes)].sum(1)
        expected += 0.1 * away - 0.1 * np.log(right).mean()
    assert float(penalty.detach()) == pytest.approx(expected, abs=1e-6)


def tables():
    return {
        name: (one.x, np.array(KINDS.classes)[one.y.astype(int)])
        for name, one in clients(100, shift=4.0).items()
    }


def test_a_run_keeps_which_class_has_which_anchor_and_a_client_can_join(tmp_path):
    settings = {key: one for key, one in SMALL.items() if key != "final_epochs"}
    out = tmp_path / "run"
    found = intarsia.run(
        tables=tables(),
        algorithm="flic",
        meta_classes=[["collie", "beagle"]],
        final_epochs=40,
        rate=0.01,
        rounds=3,
        out=out,
        yardsticks=False,
        **settings,
    )
    assert found.metrics.clients_mean.accuracy > 0.7  # of four
    own = intarsia.load(out).model["c0"].parameters
    assert own["labels.anchors"].tolist() == [0, 0, 1, 2]
    joined = intarsia.join(out, tables()["c1"], name="new", epochs=30)
    assert joined.metrics.clients["new"].accuracy > 0.7


def test_what_no_class_is_and_what_stands_twice_is_said():
    schema = Schema.of(clients(), KINDS)
    for groups, why in (
        ((("colie",),), "'colie', which is no class; use 'collie'"),
        ((("collie",), ("manx", "collie")), "'collie' 2 times"),
    ):
        with pytest.raises(ExperimentError, match=why):
            FLIC.init_server(Flic(meta_classes=groups), schema, RandomKey(()))
