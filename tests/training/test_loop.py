from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import intarsia
from intarsia.core.algorithm import RoundMetrics
from intarsia.data.source import Source
from intarsia.engines.simulation import Simulation
from intarsia.errors import AlgorithmError, ConvergenceError
from intarsia.experiment.config import Experiment, Preprocessing
from intarsia.privacy.settings import Privacy
from intarsia.training import loop as training
from intarsia.training import registry as catalogue
from intarsia.training.loop import TrainingState
from intarsia.training.notes import ending

NAMES = tuple("abcd")


def described(**settings):
    return Experiment(
        name="e", algorithm="hyfdca", clients=(Source(name="a", path="a.csv"),), **settings
    )


def tables(seed=0, clients=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40 * clients, 4))
    y = (x @ [1.0, -1.0, 0.5, 0.0] > 0).astype(int)
    rows = np.array_split(np.arange(len(x)), clients)
    return {name: (x[own], y[own]) for name, own in zip("abcdefgh", rows, strict=False)}


# -- who is there


@pytest.mark.parametrize(
    ("pattern", "share"),
    [("random", share) for share in (1e-9, 0.01, 0.3, 0.5, 0.9)]
    + [("cyclic", share) for share in (1e-9, 0.01, 0.33, 0.5)],
)
def test_somebody_is_always_there_and_all_have_their_turn(share, pattern):
    experiment = described(participation=share, participation_pattern=pattern)
    rounds = [training.present(experiment, NAMES, number) for number in range(1, 60)]
    chosen = [NAMES if names is None else names for names in rounds]
    assert all(chosen)
    assert all(list(names) == sorted(names) for names in chosen)
    assert {name for names in chosen for name in names} == set(NAMES)


def test_a_sum_over_some_clients_is_not_shown_as_the_objective(tmp_path):
    settings = {"method": "ascent", "participation": 0.5, "rounds": 12, "evaluate_every": 4}
    found = intarsia.run(tables=tables(), loss="logistic", out=tmp_path, **settings)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["loss"] is not None] == [4, 8, 12]
    for line in lines:
        if line["loss"] is not None:  # over all clients: above what is known of the optimum
            assert found.certificate.dual <= line["loss"] == line["primal"]


def test_cyclic_turns_go_round():
    experiment = described(participation=0.5, participation_pattern="cyclic")
    found = [training.present(experiment, NAMES, number) for number in (1, 2, 3)]
    assert found == [("a", "c"), ("b", "d"), ("a", "c")]


@pytest.mark.parametrize("name", [*catalogue.ALGORITHMS])
def test_one_client_at_a_time_trains(name):
    found = intarsia.run(
        tables=tables(),
        algorithm=name,
        loss="squared",
        regularisation=0.1,
        rounds=40,
        participation=1e-6,
        participation_pattern="cyclic",
        yardsticks=False,
    )
    assert found.rounds == 40 or found.finished == "tolerance"
    assert found.metrics.server.accuracy > 0.7


# -- when to stop


def judged(standing, gap=None, primal=1.0, finished=False, rounding=0.0, **settings):
    info = RoundMetrics(primal=primal, gap_relative=gap, finished=finished, rounding=rounding)
    return training._judge(described(**settings), standing, info)


def test_the_tolerance_stops():
    assert judged(TrainingState(round=3), 1e-6).finished == "tolerance"
    assert judged(TrainingState(round=3), 2e-6).finished is None


def test_a_gap_below_0_by_more_than_rounding_meets_no_tolerance():
    assert judged(TrainingState(round=3), -1e-11).finished == "tolerance"
    for gap in (-1e-9, -1e-6, -0.5):
        assert judged(TrainingState(round=3), gap).finished is None
        # nor is it the smallest so far
        assert judged(TrainingState(round=3, best=1e-10, best_round=2), gap).best == 1e-10
    assert judged(TrainingState(round=3), -5e-12, tolerance=1e-12).finished is None


def test_an_algorithm_that_ends_at_a_gap_below_0_has_not_reached_the_optimum():
    standing = TrainingState(round=31, best=1e-11, best_round=31)
    assert judged(standing, -5e-11, finished=True, tolerance=1e-12).finished == "algorithm"
    for gap in (-4e-7, -1e-4):
        assert judged(standing, gap, finished=True).finished == "stalled"
    kept = TrainingState(round=400, best=5e-11, best_round=50, first=1.0)
    assert judged(kept, -4e-7).finished == "stalled"
    sealed = {"privacy": Privacy(mode="masked")}
    assert judged(standing, -4e-7, finished=True, **sealed).finished == "algorithm"
    assert judged(standing, -4e-6, finished=True, **sealed).finished == "stalled"


def test_a_dual_above_the_primal_is_said_with_what_helps(monkeypatch):
    assert not training.is_false(RoundMetrics.certified(1.0, 1.0, "ascent"))
    assert not training.is_false(RoundMetrics.certified(1.0, 1.0 + 1e-12, "ascent"))
    false = RoundMetrics.certified(1.0, 1.0 + 4e-6, "ascent")
    assert training.is_false(false)
    raw = described(preprocessing=Preprocessing(standardise=False))
    note = ending.false_bound(raw, false)
    assert note.startswith(
        "The certificate bounds nothing: its dual is above its primal, by 4.0e-06"
    )
    assert "predict the difference from a number near their mean" in note
    assert "set preprocessing.standardise = true" in note
    assert "standardise" not in ending.false_bound(described(), false)
    monkeypatch.setattr(training, "is_false", lambda info: True)
    x = np.random.default_rng(1).normal(size=(60, 2))
    found = intarsia.run(
        tables={"a": (x[:, :1], x.sum(axis=1)), "b": x[:, 1:]},
        id="row",
        task="regression",
        loss="squared",
        test=0,
        yardsticks=False,
    )
    assert [one for one in found.notes if one.startswith("The certificate bounds nothing")]


def test_sealed_sums_end_training_where_their_rounding_hides_the_gap():
    sealed = {"privacy": Privacy(mode="masked"), "tolerance": 1e-11}
    standing = TrainingState(round=80, best=3e-10, best_round=49, first=1.0)
    assert judged(standing, 4e-9, **sealed).finished == "algorithm"
    assert judged(standing, 4e-9, tolerance=1e-11).finished is None  # in the clear they may fall
    assert judged(replace(standing, best=3e-3), 4e-3, **sealed).finished is None
    # of an objective that is as small as the steps of sums
    assert judged(replace(standing, best=0.3), 0.3, rounding=0.2, **sealed).finished == "algorithm"


def test_a_note_says_what_keeps_the_gap_above_the_tolerance():
    def said(gap, mode="masked", rounding=0.0):
        info = RoundMetrics(gap_relative=gap, rounding=rounding)
        return ending.limited(described(privacy=Privacy(mode=mode)), info)

    assert "as far as float64 goes here; the tolerance 1e-06" in said(2e-6, "plain")
    exact = said(2e-6, rounding=1e-12)
    assert "float64" not in exact
    assert "as far as sealed sums go here" in exact
    assert "lower privacy.range" in exact
    assert "power of ten" not in exact
    for gap in (0.2, 3.5):  # labels so small that the objective is as small as the steps of sums
        assert "multiply small numbers to predict by a power of ten" in said(
            gap, rounding=0.5 * gap
        )
    assert "take smaller steps" in said(3.5, "plain")


def test_without_a_tolerance_a_note_says_what_keeps_a_wide_gap_wide():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = 1e-6 * (x.sum(axis=1) + rng.normal(size=60))  # small beside the steps of sums
    found = intarsia.run(
        tables={"a": (x[:, :1], y), "b": x[:, 1:]},
        id="row",
        task="regression",
        loss="squared",
        privacy="masked",
        tolerance=0,
        test=0,
        yardsticks=False,
    )
    assert found.certificate.gap_relative > 1e-6
    assert found.finished == "algorithm"
    (note,) = [one for one in found.notes if "as far as sealed sums go here" in one]
    assert "the tolerance 0 is below it" in note


def test_without_a_tolerance_training_goes_on_to_the_rounding():
    assert judged(TrainingState(round=3), 1e-11, tolerance=0.0).finished is None
    assert judged(TrainingState(round=3), 1e-13, tolerance=0.0).finished == "algorithm"
    assert judged(TrainingState(round=3), -1e-16, tolerance=0.0).finished == "algorithm"


def test_a_gap_that_stays_ends_training():
    standing = TrainingState(round=400, best=1e-3, best_round=50, first=1.0)
    assert judged(standing, 1e-3).finished == "stalled"
    assert judged(replace(standing, best=5e-11), 5e-11, tolerance=1e-14).finished == "algorithm"
    assert judged(replace(standing, best_round=300), 1e-3).finished == "rounds"


def test_a_run_whose_gap_stays_ends_with_the_model_that_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "PATIENCE", 20)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 4))
    y = (x @ [1.0, -1.0, 2.0, 0.5] > 0).astype(int)
    # the client without labels is never there together with the one that has them
    found = intarsia.run(
        tables={"a": (x[:, :2], y), "b": x[:, 2:]},
        id="row",
        participation=0.5,
        participation_pattern="cyclic",
        evaluate_every=1,
        rounds=500,
        out=tmp_path / "run",
    )
    assert found.finished == "stalled"
    assert found.rounds < 500
    assert found.certificate.gap_relative > 1e-3
    [note] = [one for one in found.notes if "has not come below" in one]
    assert (
        f"for 20 rounds, above the tolerance 1e-06; the model is that of round {found.rounds}, "
        in note
    )
    assert "raise experiment.participation" in note
    again = intarsia.load(tmp_path / "run")
    assert (again.finished, again.notes) == ("stalled", found.notes)
    assert (again.model.coef_ == found.model.coef_).all()


@pytest.mark.parametrize("primal", [math.nan, math.inf])
def test_an_objective_that_is_no_number_is_an_error(primal):
    algorithm = catalogue.ALGORITHMS["cocoa"]

    def diverging(server, clients, rng):
        server, info = algorithm.round(server, clients, rng)
        return server, replace(info, primal=primal)

    broken = replace(algorithm, round=diverging)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "ALGORITHMS", {"cocoa": broken})
        with pytest.raises(ConvergenceError, match=r"objective is (nan|inf) in round 1: the steps"):
            intarsia.run(tables=tables(), algorithm="cocoa")


def test_a_bound_may_be_infinite_but_not_undefined():
    training._check_finite(7, RoundMetrics(primal=1.0, dual=-math.inf, gap_relative=math.inf))
    with pytest.raises(ConvergenceError, match="gap is nan in round 7"):
        training._check_finite(7, RoundMetrics(primal=1.0, gap_relative=math.nan))


def test_the_algorithm_or_the_limit_stops():
    assert judged(TrainingState(round=7), finished=True).finished == "algorithm"
    assert judged(TrainingState(round=7), rounds=7).finished == "rounds"


def test_an_algorithm_that_ends_above_the_rounding_has_stalled():
    standing = TrainingState(round=9, best=0.04, best_round=7)
    assert judged(standing, 5e-11, finished=True, tolerance=1e-12).finished == "algorithm"
    ended = judged(standing, 0.04, finished=True)
    assert ended.finished == "stalled"
    description = described(
        preprocessing=Preprocessing(standardise=False),
        privacy=Privacy(mode="masked"),
        hyperparameters={"l1_ratio": 0.5},
    )
    assert ending.stall(description, ended) == (
        "The relative duality gap has not come below 4.0e-02 and no step lowers the objective, "
        "above the tolerance 1e-06; the model is that of round 9, with the certificate's gap: "
        "sealed sums are in fixed point, which has too few digits for a problem as badly "
        "conditioned as this; set preprocessing.standardise = true, raise algorithm.regularisation"
        ", lower algorithm.l1_ratio, or raise experiment.tolerance."
    )


def test_more_rounds_are_advised_only_where_the_last_ones_lowered_the_gap():
    halved = judged(TrainingState(round=30, halved=1.0, halved_round=2), 0.5)
    assert (halved.halved, halved.halved_round) == (0.5, 30)
    assert not ending.barely_moved(replace(halved, round=39))
    assert ending.barely_moved(replace(halved, round=40))
    assert not ending.barely_moved(replace(halved, round=39 * 4, halved_round=118))
    found = intarsia.run(tables=tables(), rounds=12, loss="hinge", method="ascent", sigma=1e4)
    assert found.finished == "rounds"
    said = "the last rounds hardly lowered it, more may not either; raise algorithm.regularisation."
    assert any(note.endswith(said) for note in found.notes)


def test_a_run_to_its_limit_says_how_far_it_came():
    settings = {"loss": "hinge", "method": "ascent", "yardsticks": False}
    found = intarsia.run(tables=tables(), rounds=2, **settings)
    assert (found.finished, found.rounds) == ("rounds", 2)
    assert "above the tolerance 1e-06: raise experiment.rounds" in found.notes[-1]
    exact = intarsia.run(tables=tables(), rounds=400, tolerance=0.0, loss="squared")
    assert exact.finished == "algorithm"
    assert exact.certificate.gap_relative <= 1e-12


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_a_run_that_met_its_tolerance_ends_with_a_certificate_within_it(tolerance):
    # a round of dual ascent reports the gap where it started, which may be narrower than at its end
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 12))
    y = (x[:, :4] @ [1.0, -1.0, 2.0, 0.3] + 0.5 * rng.normal(size=200) > 0).astype(int)
    rows = {name: np.flatnonzero(np.arange(200) % 5 != k) for k, name in enumerate("abc")}
    columns = {name: [c for c in range(12) if c % 3 != k] for k, name in enumerate("abc")}
    found = intarsia.run(
        tables={name: (x[np.ix_(rows[name], columns[name])], y[rows[name]]) for name in rows},
        table_settings={
            name: {"samples": rows[name], "names": [f"f{c}" for c in columns[name]]}
            for name in rows
        },
        loss="logistic",
        method="ascent",
        regularisation=1e-2,
        tolerance=tolerance,
        rounds=100,
        yardsticks=False,
    )
    assert found.finished == "tolerance"
    assert found.certificate.gap_relative <= tolerance


# -- what is evaluated, and what it takes


@pytest.mark.parametrize(("every", "evaluated"), [(0, []), (1, [1, 2, 3, 4]), (2, [2, 4])])
def test_the_test_part_is_looked_at_every_so_often(every, evaluated, tmp_path):
    found = intarsia.run(
        tables=tables(),
        algorithm="cocoa",
        loss="logistic",
        rounds=5,
        tolerance=0.0,
        evaluate_every=every,
        out=tmp_path,
    )
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["accuracy"] is not None] == evaluated
    certified = [line["round"] for line in lines if line["gap_relative"] is not None]
    assert certified == [number for number in range(1, 6) if every and number % every == 0]
    before = {"tables", "preprocessing", "training", "evaluation"}
    parts = {*before, "yardsticks", "checkpoints", "model"}
    assert set(found.seconds) == {*parts, "total"}
    assert found.seconds["total"] == pytest.approx(sum(found.seconds[part] for part in parts))
    assert lines[-1]["seconds"] <= found.seconds["training"]


def test_a_note_says_which_rounds_are_scored_where_test_rows_are_few(tmp_path):
    how = {"algorithm": "cocoa", "loss": "logistic", "tolerance": 0.0, "yardsticks": False}
    how = {**how, "rounds": 40, "evaluate_every": 1, "out": tmp_path, "overwrite": True}
    found = intarsia.run(tables=tables(), test=0.15, **how)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    evaluated = [line["round"] for line in lines if line["accuracy"] is not None]
    (note,) = [one for one in found.notes if one.startswith("Progress has scores")]
    shown = note.partition("after the rounds ")[2].partition(" alone")[0]
    assert [int(one) for one in re.findall(r"\d+", shown)] == evaluated
    assert f"the metrics of {len(evaluated)} models at most" in note
    found = intarsia.run(tables=tables(), test=0.6, **{**how, "rounds": 10})
    assert not [one for one in found.notes if one.startswith("Progress has scores")]


def test_a_round_that_returns_its_state_alone_is_named():
    cocoa = catalogue.ALGORITHMS["cocoa"]
    algorithm = replace(cocoa, name="mine", round=lambda server, clients, rng: server)
    with pytest.raises(AlgorithmError, match=r"round of mine returns a \w+; return the server's"):
        intarsia.run(tables=tables(), algorithm=algorithm, loss="logistic", yardsticks=False)


@pytest.mark.parametrize(("change", "said"), [(-0.02, True), (-0.0004, False), (0.01, False)])
def test_a_finished_model_that_is_worse_than_progress_showed_says_so(change, said, monkeypatch):
    shown, once = [], training._metrics

    def metrics(task, part, **how):
        every, own = once(task, part, **how)
        if how.get(
            "with_figures"
        ):  # the finished model, which an algorithm may have changed after its rounds
            every = replace(every, accuracy=shown[-1] + change)
        shown.append(every.accuracy)
        return every, own

    monkeypatch.setattr(training, "_metrics", metrics)
    how = {"algorithm": "cocoa", "loss": "logistic", "tolerance": 0.0, "yardsticks": False}
    found = intarsia.run(tables=tables(), rounds=5, evaluate_every=2, **how)
    notes = [one for one in found.notes if "finished model" in one]
    assert bool(notes) == said
    if said:
        before, after = (f"{100 * one:.2f} %" for one in shown[-2:])
        assert notes[0].startswith(
            f"The finished model has an accuracy of {after}, and progress showed {before} at "
            "round 4: the rounds up to 5 and what cocoa does"
        )


def test_an_evaluated_round_keeps_the_phase_that_it_was_trained_in(tmp_path):
    pytest.importorskip("torch")
    intarsia.run(
        tables=tables(), algorithm="fedrep", rounds=3, evaluate_every=2, tolerance=0.0, out=tmp_path
    )
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["averaging"] * 3
    assert lines[1]["accuracy"] is not None


def test_cocoa_stops_at_its_tolerance():
    found = intarsia.run(
        tables=tables(), algorithm="cocoa", loss="squared", regularisation=0.1, rounds=500
    )
    assert found.finished == "tolerance"
    assert found.certificate.gap_relative <= 1e-6


def test_training_reports_its_progress():
    seen = []
    intarsia.run(tables=tables(), loss="hinge", method="ascent", rounds=12, progress=seen.append)
    assert [one.round for one in seen] == list(range(1, len(seen) + 1))
    assert all(one.seconds >= 0 for one in seen)
    assert all(one.seconds_left is None or one.seconds_left >= 0 for one in seen)
    assert seen[0].seconds_left is None
    assert seen[-1].seconds_left == 0
    assert seen[8].accuracy is None
    assert seen[9].accuracy is None or 0 <= seen[9].accuracy <= 1


def test_the_time_left_is_shown_once_a_round_s_length_is_known():
    assert training._pace(0, 0.0) is None
    assert training._pace(1, 30.0) is None
    assert training._pace(900, 0.9) is None
    assert training._pace(4, 6.0) == 1.5
    experiment = described(rounds=100, evaluate_every=10, tolerance=1e-6)
    left = training._seconds_left
    assert left(experiment, TrainingState(round=20), None) is None
    assert left(experiment, TrainingState(round=5), 2.0) is None  # the first gap may tell more
    assert left(experiment, TrainingState(round=20), 2.0) == 160.0  # to the limit of rounds
    # from 1 to 1e-3 in 20 rounds: 20 more to 1e-6, also in a round without a gap
    falling = TrainingState(round=20, first=1.0, best=1e-3, best_round=20)
    assert left(experiment, falling, 2.0) == pytest.approx(40.0)
    assert left(experiment, replace(falling, round=25), 2.0) == pytest.approx(30.0)
    assert left(experiment, replace(falling, round=99), 2.0) == pytest.approx(2.0)
    assert left(experiment, replace(falling, finished="tolerance"), None) == 0.0
    assert left(replace(experiment, tolerance=0.0), TrainingState(round=5), 2.0) == 190.0


@pytest.mark.parametrize(
    ("seconds", "since", "taken", "size", "due", "at_end"),
    [
        (1.0, 0.9, 0.0, 0.0, False, True),
        (1.0, 1.0, 0.09, 0.0, True, True),
        (1.0, 29.0, 3.0, 0.0, False, True),  # of very many clients: a tenth of the time at most
        (1.0, 31.0, 3.0, 0.0, True, True),
        (60.0, 50.0, 3.0, 0.0, False, True),
        (0.0, 0.0, 3.0, 3.0, True, True),  # after every round
        (1.0, 29.0, math.inf, 0.0, False, True),  # the disk takes the one before
        (1.0, 29.0, 0.0, 3.0, False, False),  # states that take three seconds to write
        (1.0, 31.0, 0.0, 3.0, True, True),
    ],
)
def test_checkpoints_take_a_tenth_of_the_time_at_most(
    monkeypatch, seconds, since, taken, size, due, at_end
):
    engine = Simulation.__new__(Simulation)
    states = {name: np.zeros(round(size * 5e5)) for name in "ab"}
    engine._host, engine._workers = SimpleNamespace(states=states), None
    store = SimpleNamespace(seconds=taken)
    task = SimpleNamespace(description=described(checkpoint_seconds=seconds), engine=engine)
    monkeypatch.setattr(training, "_DISK", 8e6)
    assert training._due(task, store, since, ended=False) is due
    assert training._due(task, store, since, ended=True) is at_end
    sites = SimpleNamespace(description=task.description, engine=None)
    assert training._due(sites, store, 0.0, ended=True)  # they do not answer twice


def test_a_run_whose_checkpoints_cost_more_than_its_rounds_begins_again_to_the_same_bits(
    tmp_path, monkeypatch
):
    how = {"tables": tables(), "algorithm": "hyfdca", "rounds": 4, "tolerance": 0.0}
    kept = intarsia.run(out=tmp_path / "kept", yardsticks=False, **how)
    monkeypatch.setattr(training, "_DISK", 1.0)  # byte a second
    stopped, found = tmp_path / "stopped", tmp_path / "found"
    intarsia.run(out=found, yardsticks=False, **how)
    assert not (found / "checkpoints").exists()

    def kill(now):
        if now.round == 2:
            raise MemoryError

    with pytest.raises(MemoryError):
        intarsia.run(out=stopped, yardsticks=False, progress=kill, **how)
    assert not (stopped / "checkpoints").exists()
    assert len((stopped / "history.jsonl").read_text().splitlines()) == 2
    again = intarsia.resume(stopped, tables=how["tables"])
    assert again.rounds == kept.rounds == 4
    models = [(folder / "model/linear.json") for folder in (tmp_path / "kept", stopped, found)]
    model = [path.read_bytes() for path in models]
    assert model[0] == model[1] == model[2]
