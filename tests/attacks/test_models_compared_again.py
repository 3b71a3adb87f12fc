"""A server lets a client of FeMAM compare models of its own making, again and again.

Where "auto" finds groups, a client sends how models err on its rows: their losses on the rows for
validation (the paper's schedule), or how many rows they name wrongly (the adaptive one). The models
are the server's to choose for each client. With as many answers as it liked it had each row; of one
row for validation the losses of a few models are its values and its label.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import brentq

pytest.importorskip("torch")

import federations
import sites
from departing_server import NAMES, begin
from intarsia.algorithms.femam import client as at_client
from intarsia.algorithms.femam import state
from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks import client_network as networks
from intarsia.core.block import Block, Labels
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.remote.declared import Declared
from intarsia.engines.remote.wire import Answer
from intarsia.protocols.early_stopping import Return

LEVELS = {"levels": ["global", "auto", "personal"], "validation": 0.3}
LOOKS = {
    "adaptive": ("femam.compare_groups", {**LEVELS, "level_schedule": "adaptive", "warm_up": 1}),
    "paper": ("femam.compare_models", LEVELS),
}
GIVEN = {"adaptive": 3, "paper": 2}  # level 2, and the first look of it


class Server:
    """A server that has clients compare models, once the run has come to where they do."""

    def __init__(self, folder, schedule, **tree):
        self.function, settings = LOOKS[schedule]
        self.made = begin(folder, "femam", self.function, algorithm=settings, **tree)
        self.schedule = schedule
        _, self.told, answer = self.made.of("femam.send_model", "bank")[-1]
        self.size = codec.decode(answer.body, state.Model).model.size

    def models(self, seed, given=None):
        given = GIVEN[self.schedule] if given is None else given
        made = np.random.default_rng(seed).normal(size=(2, self.size))
        if self.schedule == "adaptive":
            return state.Groupings(made, np.zeros(2), given)
        return state.Candidates(made, given)

    def compare(self, message):
        """Return the error with which the bank answers."""
        call = dataclasses.replace(
            self.told, kind="sum", function=self.function, body=codec.encode(message), asked=NAMES
        )
        return self._send(call, self.made.last("bank").sequence).error

    def go_back(self, *, trained):
        """Let the bank begin its round again: all calls, or those until the level begins."""
        calls = [call for name, call, _ in self.made.calls if name == "bank"]
        own = [
            one for one in calls if one.anchor == self.told.anchor and one.kind in ("ask", "sum")
        ]
        ends = [place for place, one in enumerate(own) if one.function == "femam.begin_level"]
        own = own[: own.index(self.told) + 1 if trained else ends[0] + 1]
        base = self.told.anchor
        for call in own:
            assert self._send(call, base).error == "", call.function
            base = self.made.sequence

    def _send(self, call, base):
        self.made.sequence += 1
        call = dataclasses.replace(call, sequence=self.made.sequence, base=base)
        answer = codec.decode(self.made.sites["bank"].handle(codec.encode(call)), Answer)
        self.made.calls.append(("bank", call, answer))
        return answer


@pytest.fixture(params=LOOKS)
def server(request, tmp_path, monkeypatch):
    """Return it over sites whose rounds begin again where some do not answer."""
    monkeypatch.setattr(
        sites, "HASTY", dataclasses.replace(sites.HASTY, absent="continue", quorum=3)
    )
    return Server(tmp_path / "run", request.param)


def test_where_each_message_is_answered_there_is_no_end(server, monkeypatch):
    monkeypatch.setattr(Declared, "check_ended", lambda self, *given: given[3])
    for seed in range(5):
        assert server.compare(server.models(seed)) == ""


def test_a_level_s_models_are_compared_once(server):
    assert server.compare(server.models(0)) == ""
    assert server.compare(server.models(1)) == "RefusedError"
    # nor for a level that is over, or has not begun, or by another word for the same
    given = GIVEN[server.schedule]
    others = [0, 1, given + 2, 10**9, -given, True, given + 0.0, np.array([given])]
    for other in (*others, np.array([[given]]), np.float32(given), str(given)):
        assert server.compare(server.models(1, other)) != "", other
    # what the site knows of it does not go with its memory
    server.made.sites["bank"] = site_in(server.made.folder / "bank")
    # a client that goes back answers the same question, and no other
    server.go_back(trained=True)
    assert server.compare(server.models(1)) == "RefusedError"
    assert server.compare(server.models(0)) == ""
    # not even this one where it comes to another state by the way
    server.go_back(trained=False)
    assert server.compare(server.models(0)) == "RefusedError"
    if server.schedule == "adaptive":  # there are two looks
        assert server.compare(server.models(1, given + 1)) == ""
        assert server.compare(server.models(2, given + 1)) == "RefusedError"


def test_a_client_at_the_best_round_compares_once_more(tmp_path, monkeypatch):
    """It goes back with early stopping, once, and may be trained on from there."""
    monkeypatch.setattr(
        sites, "HASTY", dataclasses.replace(sites.HASTY, absent="continue", quorum=3)
    )
    stopping = {
        "experiment": {"early_stopping": 2, "evaluate_every": 1},
        "split": {"stopping": 0.2},
    }
    server = Server(tmp_path / "run", "adaptive", **stopping)
    begun = server.made.of("femam.begin_level", "bank")[-1][1]
    begins = dataclasses.replace(server.told, function=begun.function, body=begun.body)
    back = dataclasses.replace(
        server.told, function="early_stopping.return_to_best", body=codec.encode(Return())
    )

    def return_to_best(base):
        assert server._send(back, base).error == ""
        server._send(begins, server.made.sequence)  # refused where the best round had begun it

    assert server.compare(server.models(0)) == ""
    return_to_best(server.made.sequence)
    assert server.compare(server.models(1)) == ""
    assert server.compare(server.models(2)) == "RefusedError"
    assert server._send(back, server.made.last("bank").sequence).error == "RefusedError"
    # and not where its round begins again, and it goes back to the best one again
    return_to_best(server.told.anchor)
    assert server.compare(server.models(2)) == "RefusedError"
    server.go_back(trained=True)
    assert server.compare(server.models(2)) == "RefusedError"


OPTIONS = FeMAM(
    level_schedule="paper", levels=("auto", "personal"), embedding="linear", validation=0.1,
    candidates=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), precision="double", engine="loop",
    first_rounds=1, local_epochs=1, start="random",
)  # fmt: skip
FEATURES = 6
ROWS = {"bank": 12, "shop": 60, "market": 60}


def begun(options):
    """Return an engine and the blocks of clients, of which the bank has one row for validation."""
    rng, blocks = np.random.default_rng(3), {}
    for number, (name, rows) in enumerate(ROWS.items()):
        names = tuple(f"f{place}" for place in range(FEATURES))
        x = rng.normal(size=(rows, FEATURES))
        ids = 1000 * number + np.arange(rows)
        blocks[name] = Block(ids, names, x, np.arange(rows) % 3 + 0.0)
    engine, server = federations.started(
        FEMAM, options, blocks, Labels("multiclass", ("a", "b", "c")), 0
    )
    engine.begin_round(1)
    FEMAM.round(server, engine, engine.key())
    return engine, blocks


def networks_of(start):
    """Return networks that tell a row's label and values by their losses, as they are told."""
    [weight] = [name for name in start if start[name].ndim == 2]
    [bias] = [name for name in start if start[name].ndim == 1]
    found = []
    for at, place in [(None, None), *((bias, n) for n in range(3)),
                      *((weight, (0, n)) for n in range(FEATURES))]:  # fmt: skip
        own = {name: np.zeros(values.shape) for name, values in start.items()}
        if at is not None:
            own[at][place] = 1.0
        parts = [networks.part_vector(one, ("*",)) for one in (own, start)]
        found.append(parts[0] - parts[1])
    return np.stack(found)


def read_row(engine):
    """Return label and values of a row by the losses of one client, whom others do not hide."""
    start = {name: np.asarray(one) for name, one in engine.get_states()["bank"].start.items()}
    made = networks_of(start)
    same = np.repeat(made[:1], len(made), axis=0)
    messages = {n: state.Candidates(made if n == "bank" else same, 1) for n in ROWS}
    total = np.asarray(engine.reveal(engine.sum(at_client.compare_models, messages).at))
    rows, losses = total[0], total[1 : 1 + len(made)] - total[1]
    label = int(np.argmin(losses[1:4]))

    def loss(value):
        own = value if label == 0 else 0.0
        return np.log(np.exp(value) + 2) - own - np.log(3)

    if not losses.any():
        return rows, None, None
    values = [brentq(lambda value, one=one: loss(value) - one, -30, 30) for one in losses[4:]]
    return rows, label, np.array(values)


@pytest.mark.parametrize("works", [False, True])
def test_of_few_rows_no_losses_are_sent(works, monkeypatch):
    """Without the least number of rows the server has the row, to the last digit."""
    if works:
        monkeypatch.setattr(at_client, "LEAST_ROWS", 1)
    engine, blocks = begun(OPTIONS)
    held = engine.get_states()["bank"].held_out
    assert held.sum() == 1
    rows, label, values = read_row(engine)
    assert rows == sum(engine.get_states()[n].held_out.sum() for n in ROWS) - (not works)
    if works:
        [row] = np.flatnonzero(held)
        assert label == blocks["bank"].y[row]
        np.testing.assert_allclose(values, blocks["bank"].x[row], atol=1e-6)
    else:
        assert values is None


def test_of_few_rows_no_errors_are_counted():
    """A client of four labelled rows would tell its labels by how many of them models name."""
    options = FeMAM(
        hidden=8, latent=6, validation=0.2, candidates=(2, 3), engine="loop", warm_up=1,
        first_rounds=1, levels=("global", "auto", "personal"),
    )  # fmt: skip
    for rows in (4, 5):
        blocks = {}
        for number, name in enumerate(("small", "large")):
            count = rows if name == "small" else 40
            x = np.random.default_rng(number).normal(size=(count, 3))
            ids = 1000 * number + np.arange(count)
            blocks[name] = Block(ids, ("a", "b", "c"), x, np.arange(count) % 3 + 0.0)
        engine, server = federations.started(
            FEMAM, options, blocks, Labels("multiclass", ("a", "b", "c")), 0
        )
        for number in (1, 2):
            engine.begin_round(number)
            server, _ = FEMAM.round(server, engine, engine.key())
        assert {one.level for one in engine.get_states().values()} == {2}
        size = networks.part_vector(engine.get_states()["small"].start, ("*",)).size
        message = state.Groupings(np.zeros((1, size)), np.zeros(1), 3)
        total = engine.sum(at_client.compare_groups, dict.fromkeys(blocks, message))
        assert engine.reveal(total.at)[2] == 40 + (5 if rows == 5 else 0)
