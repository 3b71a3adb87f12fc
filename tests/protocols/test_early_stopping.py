"""Early stopping: which round is kept, what a run ends with, and that sites come to the same."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

import four_sites
import intarsia
import sites
from intarsia.core.algorithm import Ready
from intarsia.core.block import Block
from intarsia.core.client_functions import RandomKey
from intarsia.data.table import split
from intarsia.deployment.client_setup import site_in
from intarsia.errors import RefusedError, UserError
from intarsia.experiment import config
from intarsia.protocols.early_stopping import Both, Keep, Return, keep_best, return_to_best
from intarsia.results import result
from intarsia.training import run as running
from killed_runs import run_killed
from tests.deployment.test_run import HASTY, history

COLUMNS = list("pqrs")
OWN = {"final_epochs": 0, "rate": 0.02, "hidden": 16, "latent": 8, "engine": "loop"}
STOPS = {"stopping": 0.3, "early_stopping": 4, "evaluate_every": 2, "rounds": 30}


def tables(rows=60, clients=3, noise=2.0):
    """Return clients whose labels are mostly noise, which networks soon learn by heart."""
    rng, found = np.random.default_rng(0), {}
    for number, name in enumerate("abcdef"[:clients]):
        x = rng.normal(size=(rows, 4))
        y = x[:, 0] + noise * rng.normal(size=rows) > 0
        made = pd.DataFrame(x, columns=COLUMNS)
        ids = 1000 * number + np.arange(rows)
        found[name] = made.assign(label=np.where(y, "yes", "no"), row=ids)
    return found


def ran(name="fedavg-ft", data=None, own=OWN, **settings):
    settings = {**STOPS, "yardsticks": False, "seed": 1, **settings}
    shared = {"label": "label", "id": "row", "algorithm": {"name": name, **own}}
    return intarsia.run(tables=data or tables(), **shared, **settings)


def held_out(frame, share=STOPS["stopping"]):
    """Return the rows that neither train nor test: those whose hash with the salt says so."""
    ids = frame["row"].to_numpy()
    rest, _ = split(Block(ids, (), np.zeros((len(ids), 0))), 0.2, "")
    return frame[np.isin(ids, split(rest, share, "stopping ")[1].samples)]


# -- which round is kept


def test_a_run_ends_with_what_it_had_after_the_best_round():
    stopped = ran()
    assert stopped.finished == "early_stopping"
    assert stopped.best_round < stopped.rounds == stopped.best_round + STOPS["early_stopping"]
    shorter = ran(rounds=stopped.best_round)  # the same rounds, and none after the best
    assert (shorter.finished, shorter.best_round) == ("rounds", stopped.best_round)
    assert stopped.metrics == shorter.metrics
    for client in "abc":
        one, other = (found.model[client].parameters for found in (stopped, shorter))
        assert all((values == other[name]).all() for name, values in one.items())


def test_networks_alone_and_of_all_train_as_long_as_the_model_that_is_kept():
    stopped = ran(yardsticks=True)
    shorter = ran(yardsticks=True, rounds=stopped.best_round)
    assert stopped.rounds > shorter.rounds
    assert stopped.metrics.standalone == shorter.metrics.standalone
    assert stopped.metrics.centralised == shorter.metrics.centralised


def test_the_figure_of_the_best_round_is_the_loss_of_the_rows_held_out():
    found, losses = ran(), []
    for client, frame in tables().items():
        held, model = held_out(frame), found.model[client]
        chance = model.predict_proba(held[COLUMNS])
        places = [list(model.classes_).index(one) for one in held["label"]]
        losses += (-np.log(chance[np.arange(len(held)), places])).tolist()
    (note,) = [one for one in found.notes if "early stopping" in one]
    assert f", {np.mean(losses):.4g}, " in note
    assert f"round {found.best_round} of {found.rounds}:" in note


def test_by_accuracy_the_best_round_is_the_first_of_the_best_accuracy(tmp_path):
    found = ran(stop_by="accuracy", out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    told = {one["round"]: one["accuracy"] for one in lines if one["accuracy"] is not None}
    assert found.best_round == max(told, key=told.get)
    assert found.rounds == found.best_round + STOPS["early_stopping"]
    right = sum(
        (found.model[client].predict(held[COLUMNS]) == held["label"]).sum()
        for client, held in ((name, held_out(frame)) for name, frame in tables().items())
    )
    rows = sum(len(held_out(frame)) for frame in tables().values())
    assert told[found.best_round] == pytest.approx(right / rows)
    assert result.load(tmp_path).best_round == found.best_round


def test_the_last_round_is_compared_too():
    """Of 5 rounds with metrics every 2, the fifth is one."""
    found = ran("local", tables(noise=0.0), {**OWN, "rate": 1e-3}, rounds=5)
    assert (found.finished, found.best_round, found.rounds) == ("rounds", 5, 5)


def test_training_ends_where_no_round_is_compared_any_more():
    """By 8 rows, beside those of one client, 4 models: of rounds 2, 4 and 8, and at the end."""
    few = tables(rows=24, clients=2, noise=0.0)
    assert [len(held_out(one)) for one in few.values()] == [8, 8]
    found = ran("local", few, {**OWN, "rate": 1e-3}, rounds=300)
    assert (found.finished, found.best_round, found.rounds) == ("early_stopping", 8, 12)


def test_a_round_by_which_the_algorithm_ends_is_compared_too():
    """No round is evaluated before it, nor is this one due."""
    often = {"rounds": 400, "evaluate_every": 1000, "early_stopping": 400}
    found = ran("femam", own={"engine": "loop"}, **often)
    assert found.finished == "algorithm"
    assert found.best_round == found.rounds < 400


def test_clients_that_are_away_are_compared_and_go_back_too():
    found = ran("ditto", own={"rate": 0.02, "engine": "loop"}, participation=0.34)
    assert found.finished == "early_stopping"
    assert set(found.metrics.clients) == set("abc")


def test_the_server_s_network_is_compared_where_there_is_one():
    own = {"features": 4, "extractor_hidden": [8], "hidden": [12], "engine": "loop", "rate": 0.5}
    stopped = ran("hyfem", own={**own, "decay": 1.0, "steps": 8})
    shorter = ran("hyfem", own={**own, "decay": 1.0, "steps": 8}, rounds=stopped.best_round)
    assert stopped.best_round < stopped.rounds
    one, other = (found.model.server.parameters for found in (stopped, shorter))
    assert all((values == other[name]).all() for name, values in one.items())


def test_a_client_goes_back_once():
    state, key = Both(2, 1), RandomKey(())
    assert keep_best.call(state, None, Keep(), key) == (Both(2, 2), Ready())
    ended, _ = return_to_best.call(state, None, Return(), key)
    assert ended == Both(1, 1, ended=True)
    for fn, message in ((keep_best, Keep()), (return_to_best, Return())):
        with pytest.raises(RefusedError, match="does so once"):
            fn.call(ended, None, message, key)


# -- what is refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stopping": 0.0}, "leaves no rows to compare rounds by"),
        ({"early_stopping": 0}, "held out for nothing"),
        ({"evaluate_every": 0}, "compares no rounds"),
        ({"privacy": {"mode": "masked", "epsilon": 2.0}}, "whose noise does not cover"),
        ({"stopping": 0.05}, "by clients with 5 or more"),
        ({"stopping": 0.999}, "Client 'a': All .* rows to train on are held out"),
    ],
)
def test_what_early_stopping_cannot_do_is_said(settings, said):
    with pytest.raises(UserError, match=said):
        ran(**settings)


@pytest.mark.parametrize("name", ["hyfdca", "fedavg", "centralised"])
def test_algorithms_that_come_to_an_optimum_have_none(name):
    with pytest.raises(UserError, match="has an optimum that it comes to"):
        ran(name, own={})


# -- over sites


def test_over_sites_a_run_comes_to_the_bits_of_the_one_in_this_process(tmp_path):
    check_sites(tmp_path, "flic", {"local_epochs": 1}, mode="plain", rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flic", "femam", "hyfem"])
def test_killed_sites_and_servers_stop_at_the_same_round(tmp_path, name):
    own = {"hyfem": {"rate": 2.0, "decay": 1.0}, "flic": {"rate": 0.1}, "femam": {}}
    found = check_sites(tmp_path, name, own[name], every=41)
    assert found.best_round < found.rounds


def check_sites(folder, algorithm, own, every=0, mode="masked", rounds=12):
    """Run over four sites, killed after `every` calls; hold it against a run in this process."""
    described = four_sites.write_tables(algorithm, folder)
    found = {}
    for name, text in described.items():
        (folder / name).mkdir()
        more = f"plain = {str(mode == 'plain').lower()}\n"
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder, more))
        found[name] = site_in(folder / name)
    tree = four_sites.tree(algorithm, described, folder, mode=mode, rounds=rounds)
    tree["experiment"]["evaluate_every"] = 1
    tree["experiment"]["early_stopping"], tree["split"] = 2, {"stopping": 0.3}
    tree["algorithm"] |= own
    description, out = config.from_dict(tree, folder), folder / "sites"
    over, processes = run_killed(
        found, folder, four_sites.NAMES, description, out, patience=HASTY, every=every
    )
    secrets = sites.in_run_of(out, {name: folder / name for name in four_sites.NAMES})
    alone = running.run(description, out=folder / "one", secrets=secrets)
    assert over.best_round == alone.best_round
    assert (over.rounds, over.finished) == (alone.rounds, alone.finished)
    assert over.metrics == alone.metrics
    assert history(out) == history(folder / "one")
    one, other = (json.loads((at / "audit.json").read_text()) for at in (out, folder / "one"))
    assert one == other
    assert not every or processes > 2
    return over
