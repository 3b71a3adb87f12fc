"""Modules of the user's own, from settings to a result."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  after the skip where torch is missing
from torch.nn import functional  # noqa: E402

import intarsia  # noqa: E402
from intarsia.algorithms.networks.architecture import Architecture, Network  # noqa: E402
from intarsia.algorithms.networks.client_network import part_vector  # noqa: E402
from intarsia.algorithms.networks.user_modules import columns  # noqa: E402
from intarsia.engines.communication_log import RECORDS  # noqa: E402
from intarsia.errors import ConvergenceError, ExperimentError, FederationError  # noqa: E402
from intarsia.maths.training.vectorised import UnbatchableWarning  # noqa: E402
from intarsia.results.checkpoint import Checkpoints  # noqa: E402
from intarsia.results.run_folder import describe  # noqa: E402
from intarsia.training.registry import kind_of  # noqa: E402

HERE = __name__
SETTINGS = {
    "algorithm": "own-networks",
    "model": f"{HERE}:Same",
    "rate": 0.02,
    "batch": 16,
    "local_epochs": 3,
    "precision": "double",
    "engine": "loop",
    "rounds": 2,
    "participation": 0.7,
    "yardsticks": False,
}


class Same(Network):
    """The network of the baseline `local`."""

    def __init__(self, features, classes):
        super().__init__(features, classes, Architecture(hidden=8, latent=4))

    def forward(self, x):
        return super().forward(x)[1]


def linear(features, classes):
    return nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, classes))


def wide(features, classes):
    return nn.Sequential(nn.Linear(features, 9), nn.Tanh(), nn.Linear(9, classes))


class Remembering(nn.Module):
    """Projects the rows by a buffer, which is as wide as the client's table."""

    def __init__(self, features, classes):
        super().__init__()
        self.register_buffer("projection", torch.randn(features, 4))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.norm(x @ self.projection.to(x.dtype)))


def nameless(features, classes):
    return "a network"


def one_score(features, classes):
    return nn.Linear(features, 1)


def too_narrow(features, classes):
    return nn.Linear(features - 1, classes)


def with_one_hot(model, batch):
    shown = functional.one_hot(batch["y"], 3)
    return -(functional.log_softmax(model(batch["x"]), -1) * shown * batch["y"].max().item()).sum(1)


def tables(widths=(2, 5, 3), seed=0, rows=50):
    rng = np.random.default_rng(seed)
    made = {}
    for name, width in zip("abcdefgh", widths, strict=False):
        y = rng.integers(0, 3, rows)
        x = (4 * np.eye(3)[y] + rng.normal(size=(rows, 3))) @ rng.normal(size=(3, width))
        made[name] = (x / x.std(0), y)
    return made


def run(widths=(2, 5, 3), **settings):
    return intarsia.run(tables=tables(widths), **{**SETTINGS, **settings})


def test_with_nothing_shared_it_is_the_baseline_local():
    sizes = {"hidden": 8, "latent": 4, "weight_decay": 0.0, "final_epochs": 2}
    # one order of columns for both, and no column of ones
    own = run((3, 3, 3), final_epochs=2, intercept=False)
    settings = {key: value for key, value in SETTINGS.items() if key != "model"}
    settings["intercept"] = False
    local = intarsia.run(tables=tables((3, 3, 3)), **{**settings, **sizes, "algorithm": "local"})
    assert own.metrics.clients == local.metrics.clients


def test_what_is_shared_is_the_average_of_what_the_clients_come_to(tmp_path):
    run(shared=["classifier.*"], out=tmp_path, participation=1.0)
    kind = kind_of(describe(tmp_path, allow_modules=[HERE]))
    found = Checkpoints(tmp_path).latest((*kind.states, *RECORDS))
    states = [state.parameters for state in found.clients.values()]
    # as they stood when they had trained: what they open next is the average
    ends = [part_vector(own, ["classifier.*"]) for own in states]
    np.testing.assert_allclose(found.server.shared.value, np.mean(ends, axis=0), atol=1e-12)
    assert (ends[0] != ends[1]).any()
    widths = [own["embedding.0.weight"].shape for own in states]
    assert widths == [(8, 2), (8, 5), (8, 3)]


def test_buffers_stay_with_their_clients_whatever_is_shared():
    found = run((2, 5), model=f"{HERE}:Remembering", shared=["*"], participation=1.0).model
    a, b = (found[name].parameters for name in "ab")
    for name in ("norm.weight", "norm.bias", "head.weight", "head.bias"):
        np.testing.assert_array_equal(a[name], b[name])
    assert [own["projection"].shape for own in (a, b)] == [(2, 4), (5, 4)]
    assert (a["norm.running_mean"] != b["norm.running_mean"]).all()
    with pytest.raises(ExperimentError, match=r"'proj\*', which fits no parameter of 'a'"):
        run((2, 5), model=f"{HERE}:Remembering", shared=["proj*"])


def test_a_last_training_of_nothing_is_refused_before_the_first_round():
    with pytest.raises(
        ExperimentError, match=r"final_epochs is 1.*shared \(\*\) leaves none of 'a'"
    ):
        run((3, 3), shared=["*"], final_epochs=1, progress=lambda _: pytest.fail("it trained"))


def test_groups_with_modules_of_their_own_train_beside_each_other():
    models = {"b": f"{HERE}:wide", "d": f"{HERE}:wide"}
    # tables that share names of columns would be standardised alike
    settings = {**SETTINGS, "participation": 1.0, "rounds": 20, "standardise": False}
    everyone = tables((2, 3, 2, 3), rows=80)
    together = {**settings, "model": f"{HERE}:linear", "models": models}
    mixed = intarsia.run(tables=everyone, **together).metrics.clients
    for name in "abcd":
        model = models.get(name, f"{HERE}:linear")
        own = {name: everyone[name]}
        alone = intarsia.run(tables=own, **{**settings, "model": model})
        assert alone.metrics.clients[name] == mixed[name]


@pytest.mark.parametrize("shared", [[], ["classifier.*"]])
def test_batched_engines_train_to_what_the_loop_does(shared):
    ragged = {"x": 1, "embedding.0.weight": 1}
    loop = run((2, 5, 3, 4), shared=shared, participation=1.0)
    batched = run((2, 5, 3, 4), shared=shared, participation=1.0, engine="vmap", ragged=ragged)
    assert batched.metrics.server.loss == pytest.approx(loop.metrics.server.loss, rel=1e-9)


def test_what_does_not_batch_is_named_and_trains_all_the_same():
    with pytest.warns(UnbatchableWarning, match=r"item\(\)"):
        run(engine="vmap", objective=f"{HERE}:with_one_hot")


class StopError(Exception):
    pass


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    settings = {"shared": ["classifier.*"], "checkpoint_seconds": 0}
    whole = run(**settings)

    def stop(progress):
        if progress.round == 1:
            raise StopError

    with pytest.raises(StopError):
        run(out=tmp_path / "run", progress=stop, **settings)
    again = intarsia.resume(tmp_path / "run", tables=tables(), allow_modules=[HERE])
    assert again.metrics == whole.metrics


def test_the_trained_modules_are_in_the_result_and_in_its_folder(tmp_path):
    models = {"b": f"{HERE}:wide"}
    settings = {"model": f"{HERE}:linear", "models": models, "rounds": 30, "rate": 0.05}
    found = run(**settings, out=tmp_path, standardise=True)
    assert found.model["b"].parameters["0.weight"].shape == (9, 5)
    again = intarsia.load(tmp_path, allow_modules=[HERE]).model
    for name, (x, y) in tables().items():
        frame = pandas.DataFrame(x, columns=[f"x{k}" for k in range(x.shape[1])])
        one = found.model[name]
        assert (one.predict(frame) == y).mean() > 0.6
        np.testing.assert_array_equal(again[name].predict_proba(frame), one.predict_proba(frame))
    with pytest.raises(ExperimentError, match="linear, of which only you know"):
        found.model["a"].transform(frame)


def test_columns_come_in_the_order_of_the_matrix():
    names = tuple(sorted(f"a:x{k}" for k in range(120)))
    assert [names[k] for k in columns(names)] == [f"a:x{k}" for k in range(120)]
    assert list(columns(("(intercept)", "b"))) == [1]
    assert [("b", "a", "a1b")[k] for k in columns(("b", "a", "a1b"))] == ["a", "a1b", "b"]


def test_products_in_bfloat16_come_close():
    settings = {"precision": "single", "participation": 1.0, "rounds": 5}
    single, half = run(**settings), run(**{**settings, "precision": "bf16"})
    assert half.metrics.server.loss != single.metrics.server.loss
    assert half.metrics.server.loss == pytest.approx(single.metrics.server.loss, abs=0.05)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "nothing"}, "write the module and the name in it"),
        ({"model": "no_such_module:Network"}, "There is no module 'no_such_module'"),
        ({"model": f"{HERE}:Sane"}, "has no 'Sane'; .*Same"),
        ({"objective": f"{HERE}:with_one_hots"}, "with_one_hot"),
        ({"model": f"{HERE}:nameless"}, "is str; it must be a torch.nn.Module"),
        ({"model": f"{HERE}:one_score"}, r"one_score\(2, 3\) gives \(2, 1\) for 2 rows"),
        ({"model": f"{HERE}:too_narrow"}, "cannot take 2 rows of 2 features"),
        ({"shared": ["head.*"]}, "'head.*', which fits no parameter of 'a'; it has embedding.0"),
        ({"models": {"z": f"{HERE}:wide"}}, "names the client 'z'"),
        ({"device": "cuda:99"}, "device is 'cuda:99', which torch cannot use here"),
        ({"device": "abacus"}, "device is 'abacus', which torch cannot use here"),
        ({"precision": "half"}, "single"),
    ],
)
@pytest.mark.filterwarnings("ignore:Can't initialize NVML")
def test_what_is_wrong_is_said(given, said):
    with pytest.raises(ExperimentError, match=said):
        run(**given)


SEALING = {"mode": "masked", "least_clients": 2}  # each of two can tell the other's part


@pytest.mark.parametrize("shared", [[], ["classifier.*"]])
def test_training_that_diverges_ends_in_a_sentence(shared):
    with pytest.raises(
        ConvergenceError, match=r"is not finite.*lower algorithm\.rate, or standard"
    ):
        run(rate=1e300, shared=shared, privacy=SEALING, optimiser="sgd")


def test_shapes_that_differ_cannot_be_shared():
    with pytest.raises(FederationError, match=r"2.weight is \(3, 4\) at 'a' and \(3, 9\) at 'b'"):
        run(model=f"{HERE}:linear", models={"b": f"{HERE}:wide"}, shared=["2.*"])


def test_the_example_does_better_together_than_alone(capsys):
    path = Path(__file__).parents[3] / "examples" / "own_networks.py"
    spec = importlib.util.spec_from_file_location("own_networks_example", path)
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example
    spec.loader.exec_module(example)
    together, alone = np.mean(list(example.main(rounds=15).values()), axis=0)
    assert together > alone
    assert "large 2: accuracy" in capsys.readouterr().out


@pytest.mark.gpu
def test_an_accelerator_trains_to_what_the_processor_does():
    settings = {"shared": ["classifier.*"], "participation": 1.0}
    here = run(**settings)
    there = run(**settings, device="cuda", engine="vmap")
    assert there.metrics.server.loss == pytest.approx(here.metrics.server.loss, rel=1e-6)
