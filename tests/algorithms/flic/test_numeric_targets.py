"""FLIC where labels are numbers: anchors along a line, against the formula and through a run."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

torch = pytest.importorskip("torch")

from sklearn.metrics import r2_score  # noqa: E402  after the skip where torch is missing

import intarsia  # noqa: E402
from command_line import one_error, said  # noqa: E402
from federations import started  # noqa: E402
from intarsia.algorithms.flic import objective as flic_trainings  # noqa: E402
from intarsia.algorithms.flic.algorithm import FLIC, Flic  # noqa: E402
from intarsia.algorithms.personalised.fedrep import HETFEDREP, LOCAL, HetFedRep, Local  # noqa: E402
from intarsia.cli.main import main  # noqa: E402
from intarsia.core.block import Block, Labels  # noqa: E402
from intarsia.core.client_functions import RandomKey  # noqa: E402
from intarsia.core.schema import Schema  # noqa: E402
from intarsia.data.table import split  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402
from intarsia.maths.training.local_training import objective  # noqa: E402

NUMBERS = Labels("regression")
SMALL = {"hidden": 8, "latent": 4, "local_epochs": 1, "final_epochs": 1, "batch": 12}
PLAIN = {"variant": "hl", "anchor_scale": 1.0, "weight_decay": 0.0, "embedding_decay": 0.0}
FLIC_SMALL = {
    **{**SMALL, **PLAIN, "pretraining_epochs": 2},
    **{"alignment_weight": 0.1, "calibration_weight": 0.1},
}
DOUBLE = {"precision": "double", "engine": "loop"}
RUN = {
    **DOUBLE,
    "hidden": 8,
    "latent": 4,
    "rate": 0.01,
    "batch": 20,
    "local_epochs": 2,
    "pretraining_epochs": 5,
    "final_epochs": 40,
    "rounds": 4,
    "yardsticks": False,
}


def numbers(name, width, rows=80, shift=100.0, scale=20.0):
    """Return features of a client's own, and labels that three hidden numbers say."""
    rng = np.random.default_rng([7, width])
    hidden = rng.normal(size=(rows, 3))
    y = shift + scale * (hidden @ [1.0, -0.5, 0.3] + 0.1 * rng.normal(size=rows))
    return hidden @ rng.normal(size=(3, width)) + 0.1 * rng.normal(size=(rows, width)), y


def clients(**given):
    made = {}
    for number, (name, width) in enumerate((("a", 3), ("b", 6), ("c", 4))):
        x, y = numbers(name, width, **given)
        rows = 1000 * number + np.arange(len(y))
        made[name] = Block(rows, tuple(f"f{j}" for j in range(width)), x / x.std(0), y)
    return made


def trained(algorithm, options, blocks=None, rounds=2):
    """Return the engine and the conclusion of some rounds."""
    blocks = clients() if blocks is None else blocks
    engine, server = started(algorithm, options, blocks, NUMBERS)
    for number in range(1, rounds + 1):
        engine.begin_round(number, ("a", "c") if number == 1 else None)
        server, _ = algorithm.round(server, engine, engine.key())
    engine.begin_round(rounds + 1)
    return engine, algorithm.conclude(server, engine, engine.key())


def largest_difference(one, other):
    mine, theirs = (
        {name: state.parameters for name, state in engine.get_states().items()}
        for engine in (one, other)
    )
    return max(
        float(np.abs(values - theirs[name][key]).max())
        for name, own in mine.items()
        for key, values in own.items()
        if key in theirs[name]
    )


@pytest.mark.parametrize("bins", [0, 2])
def test_the_objective_is_that_of_the_formula(bins):
    options = Flic(**{**FLIC_SMALL, **DOUBLE, "label_bins": bins, "anchor_variance": 0.5})
    engine, _ = trained(FLIC, options, rounds=0)
    state, block = engine.get_states()["b"], engine.block("b")
    record = flic_trainings.trainings_of(state, block).local
    rows = 9  # two more are filled up and must not count
    y = (block.y[:11] - state.centre) / state.spread
    noise = np.random.default_rng(0).normal(size=(11, 4))
    weight = np.array([1.0] * rows + [0.0] * 2)
    parameters = {key: torch.from_numpy(one) for key, one in state.parameters.items()}
    batch = {
        "x": torch.from_numpy(block.x[:11]),
        "y": torch.from_numpy(y),
        "noise": torch.from_numpy(noise),
        "weight": torch.from_numpy(weight),
    }
    with torch.no_grad():
        found = torch.func.functional_call(
            _Valued(record), {f"model.{key}": one for key, one in parameters.items()}, (batch,)
        ).item()
    own = state.parameters
    layers = ("embedding.0", "embedding.2", "embedding.4")

    def said_of(z):
        h = z @ own["shared.0.weight"].T + own["shared.0.bias"]
        h = np.where(h > 0, h, 0.01 * h)
        return (h @ own["classifier.weight"].T + own["classifier.bias"])[:, 0]

    z = block.x[:rows]
    for layer in layers:
        z = z @ own[f"{layer}.weight"].T + own[f"{layer}.bias"]
        z = z if layer == layers[-1] else np.maximum(z, 0.0)
    y = y[:rows]
    a, b = own["anchors.means"]
    m = np.outer(y, a) + np.outer(1 - y, b)
    points = m + np.sqrt(0.5) * noise[:rows]
    expected = ((said_of(z) - y) ** 2 / 2).mean() + 0.1 * ((said_of(points) - y) ** 2 / 2).mean()
    if bins:
        away = 0.0
        for group in (y < norm.ppf(0.5), y >= norm.ppf(0.5)):
            r = (z - m)[group]
            covariance = np.cov(r.T, ddof=0)
            roots = np.sqrt(0.5 * np.linalg.eigvalsh(covariance).clip(0) + 1e-4) - 1e-2  # smoothed
            away += (r.mean(0) ** 2).sum() + np.trace(covariance) + 0.5 * 4 - 2 * roots.sum()
        assert found == pytest.approx(expected + 0.1 * away, rel=1e-9)
    else:
        away = ((z - m) ** 2).sum(1).mean() + 0.5 * 4
        assert found == pytest.approx(expected + 0.1 * away, rel=1e-12)


class _Valued(torch.nn.Module):
    """The objective of a record as a function of parameters."""

    def __init__(self, record):
        super().__init__()
        self.model, self.record = record.model, record

    def forward(self, batch):
        return objective(self.record, self.model, {}, {}, batch)


@pytest.mark.parametrize(
    "given",
    [
        {},
        pytest.param({"label_bins": 3}, marks=pytest.mark.slow),
        {"label_bins": 2, "alignment": "transport", "variant": "class"},
        pytest.param(
            {"label_bins": 2, "alignment": "energy", "alignment_epochs": 1}, marks=pytest.mark.slow
        ),
        {"label_bins": 2, "alignment": "sample", "scheme": "l2gd"},
        {"scheme": "fedavg-ft"},
    ],
    ids=lambda given: " ".join(map(str, given.values())) or "plain",
)
def test_clients_that_train_together_come_to_what_each_comes_to_alone(given):
    made = [
        trained(FLIC, Flic(**{**FLIC_SMALL, **DOUBLE, **given, "engine": engine}))[0]
        for engine in ("loop", "vmap")
    ]
    assert largest_difference(made[0], trained(FLIC, Flic(**FLIC_SMALL))[0]) > 0.0
    assert largest_difference(*made) <= 1e-9


@pytest.mark.parametrize(
    ("variant", "algorithm", "options"),
    [("hl", HETFEDREP, HetFedRep), ("class", LOCAL, Local)],
    ids=["hetfedrep", "local"],
)
def test_without_weights_and_pretraining_flic_is_the_baseline_to_the_bit(
    variant, algorithm, options
):
    off = {"alignment_weight": 0.0, "calibration_weight": 0.0, "pretraining_epochs": 0}
    found, conclusion = trained(FLIC, Flic(**SMALL, **{**PLAIN, **off, "variant": variant}))
    baseline, other = trained(algorithm, options(**SMALL))
    assert largest_difference(baseline, found) == 0.0
    assert conclusion.info.loss == other.info.loss


def test_a_client_trains_on_labels_in_units_of_the_federation():
    engine, conclusion = trained(FLIC, Flic(**FLIC_SMALL, **DOUBLE))
    every = np.concatenate([block.y for block in clients().values()])
    for state in engine.get_states().values():
        assert state.centre == pytest.approx(every.mean(), rel=1e-12)
        assert state.spread == pytest.approx(every.std(), rel=1e-12)
    # another unit of the labels gives the same networks, and the loss in its square
    moved = {name: replace(one, y=3.0 * one.y - 7.0) for name, one in clients().items()}
    again, other = trained(FLIC, Flic(**FLIC_SMALL, **DOUBLE), moved)
    assert largest_difference(engine, again) <= 1e-9
    assert other.info.loss == pytest.approx(9 * conclusion.info.loss, rel=1e-9)


def test_the_loss_is_half_the_squared_error_of_what_is_predicted():
    engine, conclusion = trained(FLIC, Flic(**FLIC_SMALL, **DOUBLE))
    errors = [
        FLIC.model.predict(state, engine.block(name))[0] - engine.block(name).y
        for name, state in engine.get_states().items()
    ]
    expected = (np.concatenate(errors) ** 2).mean() / 2
    assert conclusion.info.loss == pytest.approx(expected, rel=1e-9)


def test_pretraining_takes_points_to_the_line():
    def away(epochs):
        given = {"pretraining_epochs": epochs, "pretraining_batch": 12, "rate": 0.01}
        options = Flic(**{**SMALL, **DOUBLE, **given, "final_epochs": 0})
        engine, _ = trained(FLIC, options, rounds=0)
        found = []
        for name, state in engine.get_states().items():
            block = engine.block(name)
            y = ((block.y - state.centre) / state.spread)[:, None]
            a, b = state.parameters["anchors.means"]
            z = state.options.architecture.outputs(state.parameters, block)[0]
            found.append(((z - (y * a + (1 - y) * b)) ** 2).sum(1).mean())
        return np.mean(found)

    assert away(60) < 0.1 * away(0)


def tables(label="price"):
    made = {}
    for name, width in (("a", 3), ("b", 6), ("c", 4)):
        x, y = numbers(name, width)
        made[name] = pd.DataFrame(x, columns=[f"{name}{j}" for j in range(width)])
        made[name][label] = y
        made[name]["row"] = [f"{name}-{i}" for i in range(len(y))]
    return made


@pytest.mark.parametrize(
    "algorithm",
    [
        *("flic", "local", "fedrep"),
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("hetfedrep", "fedhenn", "fedavg-ft", "l2gd")
        ),
    ],
)
def test_every_algorithm_on_networks_learns_numbers(algorithm):
    given = {
        key: one for key, one in RUN.items() if algorithm == "flic" or key != "pretraining_epochs"
    }
    if algorithm in ("fedrep", "fedavg-ft", "l2gd"):
        x, y = numbers("same", 4, rows=240)
        held = {f"p{n}": (x[n::3], y[n::3]) for n in range(3)}
        found = intarsia.run(tables=held, algorithm=algorithm, **given)
    else:
        held = tables()
        found = intarsia.run(tables=held, algorithm=algorithm, label="price", id="row", **given)
    assert found.metrics.server.accuracy is None
    assert found.metrics.server.r2 > 0.6
    assert found.metrics.clients_mean.r2 > 0.5


def test_a_run_on_files_leaves_networks_that_predict_numbers(tmp_path, capfd):
    for name, table in tables().items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    parties = "".join(
        f'[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "row"\nlabel = "price"\n'
        for name in tables()
    )
    settings = "".join(
        f"{key} = {json.dumps(one)}\n"
        for key, one in RUN.items()
        if key not in ("rounds", "yardsticks")
    )
    (tmp_path / "prices.toml").write_text(
        f'[experiment]\nout = "out"\nrounds = 4\nyardsticks = false\n{parties}'
        f'[algorithm]\nname = "flic"\n{settings}'
    )
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "prices.toml")]) == 0
    said(capfd)
    content = json.loads((out / "result.json").read_text())
    assert content["metrics"]["server"]["r2"] > 0.6
    model = intarsia.load(out).model
    table = tables()["b"]
    tested = table["row"].isin(
        split(Block(table["row"].to_numpy(str), (), np.zeros((80, 0))), 0.2)[1].samples
    )
    score = r2_score(table["price"][tested], model["b"].predict(table[tested]))
    assert score == pytest.approx(content["metrics"]["clients"]["b"]["r2"], rel=1e-9)
    assert main(["predict", str(out), str(tmp_path / "b.csv")]) == 0
    rows = list(csv.DictReader(io.StringIO(said(capfd)[0])))
    assert list(rows[0]) == ["id", "score"]
    np.testing.assert_allclose([float(one["score"]) for one in rows], model["b"].predict(table))
    with pytest.raises(ExperimentError, match="no odds"):
        model["b"].predict_proba(table)
    assert main(["embeddings", str(out), "--out", str(tmp_path / "x.png")]) == 2
    assert "numbers to predict" in one_error(said(capfd)[1])


def test_a_new_client_joins_with_the_scale_of_the_run(tmp_path):
    held = tables()
    new = held.pop("c")
    intarsia.run(
        tables=held, algorithm="flic", label="price", id="row", out=tmp_path / "run", **RUN
    )
    joined = intarsia.join(tmp_path / "run", new, name="c", epochs=60)
    first = intarsia.load(tmp_path / "run").model["a"].parameters
    assert joined.model["c"].parameters["labels.centre"] == first["labels.centre"]
    assert joined.model["c"].parameters["labels.spread"] == first["labels.spread"]
    assert joined.metrics.clients["c"].r2 > 0.6


def test_sealed_sums_train_to_what_plain_ones_do():
    given = {**RUN, "final_epochs": 2, "label": "price", "id": "row", "algorithm": "flic"}
    plain = intarsia.run(tables=tables(), **given)
    sealed = intarsia.run(tables=tables(), privacy="masked", **given)
    assert sealed.metrics.server.loss == pytest.approx(plain.metrics.server.loss, rel=1e-4)
    assert sealed.metrics.server.loss != plain.metrics.server.loss  # masks round


def test_what_a_line_of_anchors_does_not_have_is_said():
    schema = Schema.of(clients(), NUMBERS)
    for wrong, why in (
        ({"anchor_covariance": "learned"}, "anchor_covariance"),
        ({"anchor_classes": "all"}, "anchor_classes"),
        ({"alignment": "energy"}, "label_bins"),
        ({"meta_classes": (("1", "2"),)}, "meta_classes lists classes"),
    ):
        with pytest.raises(ExperimentError, match=why):
            FLIC.init_server(Flic(**wrong), schema, RandomKey(()))
