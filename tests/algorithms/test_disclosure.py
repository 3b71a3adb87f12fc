"""What an algorithm declares to cross is what crosses, no more and no less."""

from __future__ import annotations

import dataclasses
import re
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_array

from federations import BINARY, rectangles, table
from intarsia.core.disclosure import contents, describe
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.errors import AlgorithmError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import differential_privacy, evaluation, inference, preprocessing
from intarsia.results import audit
from intarsia.testing import rules
from intarsia.testing.rules import NOISE
from intarsia.testing.toy_federations import (
    CLASSES,
    NUMBERS,
    ToyFederation,
    rows_apart,
    secrets_of,
)
from intarsia.testing.trials import SEED, Trial
from intarsia.training.registry import BASELINES, algorithm_named, algorithm_names


@dataclasses.dataclass(frozen=True)
class Run:
    """What leads an algorithm through something that it may do."""

    options: dict = dataclasses.field(default_factory=dict)
    kind: str = ""  # of the clients' tables
    away: tuple[int, ...] = ()  # rounds without the first client
    noise: bool = False
    rounds: int = 6
    sealed: bool = False


def grid(kind):
    """Return clients that share rows and columns."""
    x, y = table(60, {"wide": 140, "text": 90, "unlabelled": 90}.get(kind, 8))
    labels = CLASSES if kind == "classes" else BINARY
    y = np.arange(60) % 3 + 0.0 if kind == "classes" else y
    x = csr_array(x * (abs(x) > 0.8)) if kind in ("text", "unlabelled") else x
    if kind in ("columns", "five"):
        return rectangles(x, y, 1, 5 if kind == "five" else 3), labels
    if kind == "amounts":
        y, labels = np.exp(y), NUMBERS
    some = "first" if kind == "unlabelled" else "all"
    made = rectangles(x, y, 2, 2, shared_rows=3, shared_columns=1, labels=some)
    if kind == "weights":
        labels = dataclasses.replace(labels, weighted=True)
        made = {n: dataclasses.replace(b, weights=1.0 + b.samples % 3) for n, b in made.items()}
    return made, labels


def rows(kind):
    """Return clients with rows of their own and the same columns."""
    x, y = table(60, 8)
    return rectangles(x, y, 3, 1), BINARY


def networks(kind):
    """Return clients with rows of their own, classes or numbers, in one block of columns each."""
    return rows_apart(kind or "classes"), NUMBERS if kind == "numbers" else CLASSES


SMALL = {"hidden": 8, "latent": 4, "local_epochs": 1, "batch": 12, "engine": "loop"}
NARROW = {"features": 4, "extractor_hidden": (8,), "hidden": (8,), "steps": 4, "batch": 12}
TUNED = {**SMALL, "final_epochs": 1}
LEVELS = {**TUNED, "first_rounds": 1, "level_rounds": 2, "level_schedule": "paper"}
ADAPTIVE = {"final_epochs": 0, "warm_up": 1, "patience": 1, "candidates": (2,)}
SCHEDULED = {"schedule": "step"}  # of the rate, which has a call of its own in levels
CHOSEN = {"clustering": "loss", "start": "random", "equal_starts": False}
BOTH = ("", "numbers")  # classes, which all algorithms on networks learn, and numbers
ALIGNED = {**TUNED, "pretraining_epochs": 1}
RUNS = {
    "hyfdca": (
        grid,
        [
            Run(),
            Run(kind="wide"),
            Run(kind="classes"),
            Run(kind="text", rounds=30),
            Run(kind="text", rounds=30, sealed=True),
            Run(kind="unlabelled"),
            Run(kind="weights"),
            Run({"loss": "gamma"}, kind="amounts"),
            Run(away=(2, 3)),
            Run(kind="text", away=(5, 6)),
            Run({"frame": False}),
            Run({"regularisation": 1e-6}, rounds=18),
            Run({"regularisation": 1e-4, "frame": False}, rounds=10),
            Run({"system": "shares"}),
            Run({"loss": "logistic", "errors": True}, kind="columns"),
            Run({"l1_ratio": 0.5}),
            Run({"l1_ratio": 0.5, "frame": False}),
            Run({"l1_ratio": 0.9, "regularisation": 1e-6}, rounds=18),
            Run({"system": "shares"}, kind="five"),
            Run({"system": "encrypted"}, kind="five"),
            Run({"method": "ascent"}),
            Run({"method": "ascent"}, kind="columns"),
            Run({"method": "ascent", "step": "fixed"}, kind="columns", away=(2, 3)),
            Run({"method": "ascent", "step": "fixed"}, away=(2, 3)),
            Run(noise=True),
            Run(kind="text", rounds=30, noise=True),
            Run(away=(2, 3), noise=True),
            Run({"method": "ascent"}, noise=True),
        ],
    ),
    "cocoa": (rows, [Run(), Run(noise=True)]),
    "fedavg": (grid, [Run(), Run(noise=True)]),
    **{
        name: (networks, [Run(TUNED, kind=kind) for kind in BOTH])
        for name in ("fedrep", "fedavg-ft", "hetfedrep", "local", "l2gd")
    },
    **{name: (networks, [Run(SMALL, kind=kind) for kind in BOTH]) for name in ("fedprox", "ditto")},
    "pfedme": (
        networks,
        [
            Run({"hidden": 8, "latent": 4, "local_rounds": 1, "batch": 12}, kind=kind)
            for kind in BOTH
        ],
    ),
    "fedhenn": (networks, [Run({**TUNED, "points": 10}, kind=kind) for kind in BOTH]),
    "flic": (
        networks,
        [
            Run(ALIGNED, kind="numbers"),
            Run({**ALIGNED, "anchor_covariance": "learned", "anchor_average": "barycentre"}),
            Run({**ALIGNED, "keep_own": True}),
            Run(ALIGNED, noise=True),
        ],
    ),
    "flic-linear": (networks, [Run({"latent": 2, "rank": 1}, kind="numbers")]),
    "hyfem": (
        networks,
        [
            Run({**NARROW, **own})
            for own in ({}, {"hidden": ()}, {"matching": "rounds"}, {"shares": "nothing"})
        ],
    ),
    "femam": (
        networks,
        [
            Run({**LEVELS, "levels": ("global", "auto", "personal"), "candidates": (2,)}),
            Run({**TUNED, **ADAPTIVE, "separation": 0.0}),
            Run({**TUNED, **ADAPTIVE}),
            Run({**LEVELS, **CHOSEN, "levels": ("global", 2)}),
            Run({**LEVELS, "levels": ("global", "shares"), "final_epochs": 0, **SCHEDULED}),
        ],
    ),
    "fesem": (networks, [Run({**TUNED, "clusters": 2, **more}) for more in ({}, SCHEDULED)]),
    "ifca": (networks, [Run({**TUNED, "clusters": 2, **more}) for more in ({}, SCHEDULED)]),
}
RUNS["fedrep"][1].append(Run({**TUNED, "shared_layers": 0}))


def used_by(name, noise):
    """Return an algorithm as its runs with noise, or those without, use it."""
    return algorithm_named(name).private(NOISE) if noise else algorithm_named(name)


class SealedTrial(Trial):
    """A trial whose sums are under masks."""

    def engine(self, blocks=None, ledger=None, workers=1):
        own = self.federation.blocks if blocks is None else blocks
        settings = Privacy(mode="masked")
        sealing = modes.sealing(settings, list(own), modes.keys(settings, list(own), None, "test"))
        parts = {"train": (Schema.of(own, self.federation.labels), own)}
        return Simulation(parts, SEED, sealing, secrets=secrets_of(own), ledger=ledger)


def trials(name, noise):
    """Return the algorithm on the clients of each of its runs, with noise or without."""
    used, (make, runs) = used_by(name, noise), RUNS[name]
    for run in (one for one in runs if one.noise is noise):
        blocks, labels = make(run.kind)
        toy = ToyFederation(run.kind, blocks, labels, run.rounds, run.away)
        yield (SealedTrial if run.sealed else Trial)(used, used.hyperparameters(**run.options), toy)


@cache
def crossed(name, noise=False):
    """Return all that crosses in the runs of an algorithm, with noise or without.

    In each round a function is called again only where that is declared.
    """
    found = set()
    for trial in trials(name, noise):
        assert [*rules.a_round_can_be_counted(trial)] == []
        found |= rules.crossings(trial.plain)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_what_crosses_is_what_is_declared(name):
    if name not in ("hyfdca", "cocoa", "fedavg", "flic-linear"):
        pytest.importorskip("torch")
    found, declared = crossed(name), audit.list_declared(algorithm_named(name).disclosure.sends)
    assert not found - declared, "crosses and is not declared"
    assert not declared - found, "is declared and never crosses"


@pytest.mark.parametrize("name", ["hyfdca", "cocoa", "fedavg", "flic"])
def test_what_crosses_in_a_private_run_is_what_is_declared(name):
    if name == "flic":
        pytest.importorskip("torch")
    found = crossed(name, noise=True)
    declared, without = (
        audit.list_declared(used_by(name, noise).disclosure.sends) for noise in (True, False)
    )
    assert not found - declared, "crosses and is not declared"
    assert declared - without, "nothing has noise"
    assert not declared - without - found, "is declared and never crosses"


@pytest.mark.parametrize(
    "name",
    [
        *("cocoa", "fedavg", "flic-linear", "fesem"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in RUNS
            if name not in ("cocoa", "fedavg", "flic-linear", "fesem")
        ),
    ],
)
def test_sites_refuse_nothing_of_a_run_as_it_is_declared(name):
    """Over sites with masks, where each holds what it is asked against the declaration."""
    if name not in ("hyfdca", "cocoa", "fedavg", "flic-linear"):
        pytest.importorskip("torch")
    for noise in {run.noise for run in RUNS[name][1]}:
        for trial in trials(name, noise):
            assert [*rules.sites_refuse_nothing(trial)] == []


def test_what_all_runs_share_is_declared():
    found, declared = set(), set()
    for intercept, (make, kind) in enumerate([(grid, "weights"), (networks, "")]):
        blocks, labels = make(kind)
        schema = Schema.of(blocks, labels)
        engine = Simulation({"train": (schema, blocks)}, 0)
        engine.make_states(
            lambda name, engine=engine: preprocessing.initial(name, engine.block(name))
        )
        schemas = {"train": schema}
        preprocessing.prepare(engine, schemas, standardise=True)
        differential_privacy.clip_rows(engine, 1.0)
        loss = evaluation.evaluation_loss("cross_entropy" if intercept else "hinge")

        def predict(state, block, outputs=labels.outputs):
            return np.ones((outputs, len(block.samples)))

        evaluation.evaluate(engine, schema, predict, loss, part="train", with_figures=True)
        evaluation.evaluate(engine, schema, predict, loss, part="train", totals_only=True)
        found |= audit.list_crossings(engine.books.crossings.summary())
        sent = evaluation.sends(predict, loss, schema, part="train", additive=True)
        declared |= audit.list_declared(sent)
        declared |= audit.list_declared(preprocessing.sends(schemas))
    declared |= audit.list_declared(differential_privacy.SENDS)
    assert not found - declared, "crosses and is not declared"
    assert not declared - found, "is declared and never crosses"


def test_a_baseline_declares_nothing():
    assert all(not one.disclosure.sends for one in BASELINES.values())


@pytest.mark.parametrize("field", ["reveals", "opens"])
def test_a_declaration_that_is_taken_away_is_missed(field):
    whole = algorithm_named("hyfdca").disclosure.sends
    less = [dataclasses.replace(one, **{field: ()}) for one in whole]
    assert crossed("hyfdca") - audit.list_declared(less)
    for one in whole:
        assert crossed("hyfdca") - audit.list_declared(set(whole) - {one})


# -- in plain words


def shared_sends():
    """Return what the steps that all runs share declare."""
    blocks, labels = grid("")
    schema = Schema.of(blocks, labels)
    loss = evaluation.evaluation_loss("hinge")
    metrics = [
        one
        for additive in (True, False)
        for one in evaluation.sends(len, loss, schema, part="train", additive=additive)
    ]
    server = algorithm_named("hyfem").model.server_model
    metrics += evaluation.server_sends(server, schema, (), loss, part="train")
    sends = (preprocessing.sends({"train": schema}), differential_privacy.SENDS, inference.SENDS)
    return (*metrics, *(one for some in sends for one in some))


@pytest.mark.parametrize("name", sorted({*algorithm_names()} - {*BASELINES}))
def test_what_is_declared_is_described_in_plain_words(name):
    """A field is described once in a run: its words are found by "Reply.field"."""
    if name not in ("hyfdca", "cocoa", "fedavg"):
        pytest.importorskip("torch")
    algorithm = algorithm_named(name)
    sends = [*algorithm.disclosure.sends]
    if algorithm.private is not None:
        sends += algorithm.private(NOISE).disclosure.sends
    found = {}
    for one in (*sends, *(shared_sends() if name == "hyfem" else ())):
        words = contents(one.reply)
        for field in dataclasses.fields(one.reply):
            place = f"{one.reply.__name__}.{field.name}"
            assert words.get(field.name), f"{place}: describe it, in its class's `fl.describe`"
            plain = re.fullmatch(r"[a-z][a-z' -]*(F1)?[a-z' -]*", words[field.name])
            assert plain, f"{place}: {words[field.name]!r} has more than words"
            assert len(words[field.name].split()) <= 10, place
            if one.function.protocol in ("", "preprocessing", "evaluation"):
                assert found.setdefault(place, words[field.name]) == words[field.name]


def test_a_reply_that_is_described_in_part_is_an_error():
    def reply():
        class Reply:
            at: float
            more: float

        return Reply

    for words in ((), ("counts of rows",)):
        with pytest.raises(AlgorithmError, match="Reply has the fields"):
            describe(*words, att="counts of rows")(reply())
    with pytest.raises(AlgorithmError, match=r"\['more'\]"):
        describe(at="counts of rows")(reply())
    with pytest.raises(AlgorithmError, match="take its @dataclass away"):
        describe("losses")(dataclasses.dataclass(frozen=True)(reply()))
    assert contents(reply()) == {}
    described = contents(describe("losses", at="counts of rows")(reply()))
    assert described == {"at": "counts of rows", "more": "losses"}
