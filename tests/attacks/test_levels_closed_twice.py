"""A server that lets a client of FeMAM close a level again and again, told another worth each time.

Whether a client keeps a level tells on which side of a number its rows for validation lie. The
number follows from what the server says that the level is worth to all. With one answer after the
other, of a round that begins again each time, the server had the mean fall of one client's losses.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.special import chdtri

import four_sites
import sites
from departing_server import NAMES, begin
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_folder import HEAD, LOG
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.engines.remote.declared import Declared
from intarsia.engines.remote.wire import Answer, Call
from intarsia.experiment import config as experiment
from intarsia.maths import shrinkage
from intarsia.results.chained_log import read_chain
from intarsia.training.run import run

pytest.importorskip("torch")

from intarsia.algorithms.femam import client as femam_client
from intarsia.algorithms.femam import state

LEVELS = {
    **{"levels": ["global", "global", "personal"], "level_rounds": 1, "validation": 0.3},
    **{"prune": "pooled", "criterion": "loss"},
}
ROWS = 7  # for validation, of one client


@pytest.fixture
def goes_on(monkeypatch):
    """Let rounds go on without sites that do not answer: they begin again then."""
    monkeypatch.setattr(
        sites, "HASTY", dataclasses.replace(sites.HASTY, absent="continue", quorum=3)
    )


def at_the_second_close(folder):
    return begin(folder / "run", "femam", "femam.close_level", count=2, algorithm=LEVELS)


def worth(bound):
    """Return sums by which a client keeps a level if its mean fall is above a bound."""
    between, clients, rows = 1e-12, 2.0, 2.0 * ROWS
    within = between * ROWS  # so that a client's own rows count for a half
    among = between * (rows - ROWS) + float(chdtri(1, shrinkage.CHANCE)) * within
    of_clients = among + rows * bound**2
    inner = within * (rows - clients)
    return np.array([clients, rows, 2.0 * ROWS**2, -bound * rows, of_clients, of_clients + inner])


def close(made, name, summary, *, back=True, level=2, asked=NAMES):
    """Ask one client to close level 2, from where its round began or as it is."""
    (_, weighed, _), last = made.of("femam.weigh_level", name)[-1], made.last(name)
    latest = wire.decode_as(state.Weigh, weighed.body, *RECORDS)
    made.sequence += 1
    call = Call(
        *(last.run, made.sequence, weighed.anchor if back else last.sequence, weighed.anchor),
        *(weighed.round, weighed.exchange + 1, "ask", "femam.close_level", "train", asked),
        codec.encode(state.Closing(latest.model, level, summary)),
    )
    answer = codec.decode(made.sites[name].handle(codec.encode(call)), Answer)
    made.calls.append((name, call, answer))
    return answer


def keeps(answer):
    assert answer.error == ""
    return codec.decode(answer.body, state.Kept).kept


@pytest.fixture
def falls(monkeypatch):
    """Return the mean falls that clients decided by, one after the other."""
    found, helps = [], femam_client.validation.helps

    def seen(options, fallen, level):
        found.append((len(fallen), float(fallen.mean())))
        return helps(options, fallen, level)

    monkeypatch.setattr(femam_client.validation, "helps", seen)
    return found


def test_where_each_message_is_answered_the_server_reads_a_client_s_mean_fall(
    tmp_path, monkeypatch, falls, goes_on
):
    monkeypatch.setattr(Declared, "check_ended", lambda self, one, message, call, sums, state: sums)
    made, low, high = at_the_second_close(tmp_path), -10.0, 10.0
    for _ in range(25):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(close(made, "bank", worth(middle))) else (low, middle)
    rows, truth = falls[-1]
    assert rows == ROWS
    assert low == pytest.approx(truth, abs=1e-5)


def test_a_round_that_begins_again_asks_by_the_same_message(tmp_path, goes_on):
    made = at_the_second_close(tmp_path)
    first = close(made, "bank", worth(0.1))
    again = close(made, "bank", worth(0.1))
    assert keeps(first) == keeps(again)
    assert close(made, "bank", worth(0.2)).error == "RefusedError"
    # what the site knows of it does not go back with its state, nor with its memory
    made.sites["bank"] = site_in(made.folder / "bank")
    assert close(made, "bank", worth(0.2)).error == "RefusedError"


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory):
    """Return sites of a run whose clients take whole networks, at the second close of a level."""
    levels = {**LEVELS, "level_schedule": "adaptive", "first_rounds": 2, "patience": 1}
    del levels["prune"], levels["criterion"]
    folder = tmp_path_factory.mktemp("adaptive") / "run"
    return begin(folder, "femam", "femam.close_level", count=2, algorithm=levels)


def begin_and_close(made, level, summary):
    """Begin a level that the run has not, and close it; return both errors."""
    start = made.ask("bank", "femam.begin_level", state.Begin(level, True), kind="ask")
    closing = state.Closing(None, level, summary)
    return start.error, made.ask("bank", "femam.close_level", closing, kind="ask").error


@pytest.mark.parametrize("level", [4, 9, 1, 0, -1, 10**12])
def test_no_level_begins_that_the_run_has_not(adaptive, level):
    """With levels of its own, one after the other, a server had as many answers as it liked."""
    told = np.array([4.0, 28.0, 196.0, 9.0, 30.0, 40.0] * 2 + [1.0])
    assert begin_and_close(adaptive, level, told) == ("RefusedError", "RefusedError")


def test_an_answer_that_fails_counts_as_one(tmp_path, monkeypatch, goes_on):
    """Whether it fails is an answer, too, and was given for one message after the other."""

    def fails(*given):
        raise LookupError

    made = at_the_second_close(tmp_path)
    monkeypatch.setattr(femam_client.validation, "helps", fails)
    assert close(made, "bank", worth(0.1)).error == "SiteError"
    assert close(made, "bank", worth(0.2)).error == "RefusedError"
    assert close(made, "bank", worth(0.1)).error == "SiteError"


def test_a_level_is_closed_once_by_a_client_that_does_not_go_back(tmp_path):
    made = at_the_second_close(tmp_path)
    assert close(made, "bank", worth(0.1)).error == "RefusedError"  # back
    keeps(close(made, "bank", worth(0.1), back=False))
    assert close(made, "bank", worth(0.1), back=False).error == "RefusedError"


def test_a_level_is_closed_once_whoever_is_said_to_be_gone(tmp_path, goes_on):
    """Fewer clients may be told another worth, after they went back alone."""
    made = at_the_second_close(tmp_path)
    keeps(close(made, "bank", worth(0.1), back=False))
    fewer = {"back": False, "asked": NAMES[:3]}
    assert close(made, "bank", worth(0.2), **fewer).error == "RefusedError"
    assert "each level is closed once" in (made.folder / "bank" / "errors.log").read_text()


@pytest.mark.parametrize(
    "level",
    [2.0, [2], *(pytest.param(one, marks=pytest.mark.slow) for one in ([[2]], [[[2]]]))],
    ids=str,
)
def test_another_word_for_a_level_is_no_other_level(tmp_path, goes_on, level):
    """2.0, [2], [[2]] and so on were each another level, that was closed by another message."""
    made = at_the_second_close(tmp_path)
    keeps(close(made, "bank", worth(0.1)))
    level = np.array(level) if isinstance(level, list) else level
    assert close(made, "bank", worth(0.2), level=level).error == "RefusedError"


def test_a_run_that_goes_back_to_its_best_round_closes_later_levels_once_more(tmp_path):
    """Levels that were closed after the best round are closed anew from there: of other models."""
    described = four_sites.write_tables("femam", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    settings = {"rounds": 14, "early_stopping": 2, "evaluate_every": 1}
    tree = four_sites.tree("femam", described, tmp_path, **settings)
    levels = {"levels": ["global", "auto", "global", "personal"], "level_schedule": "adaptive"}
    tree["algorithm"] |= {**levels, "level_rounds": 2, "validation": 0.3, "warm_up": 1}
    tree["algorithm"]["patience"] = 1
    tree["split"] = {"stopping": 0.2}
    whole = experiment.from_dict(tree, tmp_path)
    found = {name: site_in(tmp_path / name) for name in described}
    lines = sites.Lines(found, lambda client, number, data, deliver: deliver(data))
    where = lines, NAMES, tmp_path / "server"
    result = remote_running.run_over(whole, *where, patience=sites.HASTY)
    assert result.best_round < result.rounds
    asked = read_chain(tmp_path / "bank" / LOG, tmp_path / "bank" / HEAD)
    closed = [one for one in asked.entries if one.get("function") == "femam.close_level"]
    assert len(closed) > len(tree["algorithm"]["levels"]) - 1
    alone = run(whole, out=None)
    assert alone.best_round == result.best_round
    assert alone.metrics.clients == result.metrics.clients
