"""A server that tells one client of FeMAM a model of its own making out of totals.

Clients open a level's model, which the server holds sealed, and send parts of losses. The model
could be told times a factor, or less another, and to one client alone: what the sealed loss then
differs by is that client's. Of many factors it is each row's margin, and with a client that opens
the models, its rows. Nor was a total bound to its level: a client told level 1's at a level of
clusters sent it to the server. And what a level is worth, or how many rows it names rightly, was
told for a client of one row, of models that the server makes.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import sites
from intarsia.algorithms.femam import client as at_client
from intarsia.algorithms.femam import state
from intarsia.algorithms.femam.algorithm import FEMAM
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.networks.targets import loss_of_scores
from intarsia.core.block import Block, Labels
from intarsia.engines import communication_log
from intarsia.engines.remote import site
from intarsia.engines.remote.declared import NO_SUMS, Sums
from intarsia.engines.sums.secure import REFRESH
from intarsia.errors import RefusedError, TamperedError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols.early_stopping import keeping_best

ROWS = {"bank": 12, "shop": 40, "market": 40}
NAMES = list(ROWS)
ALL = tuple(NAMES)
NETWORK = {"embedding": "linear", "engine": "loop", "precision": "double", "local_epochs": 2}
OF_ALL = FeMAM(levels=("global", "personal"), validation=0.2, **NETWORK)
CLUSTERS = FeMAM(
    levels=("global", "auto", "personal"), validation=0.1, warm_up=1, first_rounds=1, **NETWORK
)


class Server:
    """A server of sites in this process, after some rounds of the algorithm."""

    def __init__(self, options, rounds):
        rng, self.blocks = np.random.default_rng(3), {}
        for number, (name, rows) in enumerate(ROWS.items()):
            x = rng.normal(size=(rows, 3))
            y = np.where(x[:, 0] + rng.normal(size=rows) > 0, 1.0, -1.0)
            self.blocks[name] = Block(1000 * number + np.arange(rows), ("a", "b", "c"), x, y)
        keys = modes.keys(Privacy(mode="masked"), ("bank",), None, "test")
        self.made = sites.federation(
            *(FEMAM, options, self.blocks, Labels("binary", ("no", "yes"))),
            complete=True,
            sealing=lambda: modes.sealing(Privacy(mode="masked", trust="pairs"), NAMES, keys),
        )
        self.engine, self.server = self.made.engine, sites.begun(self.made, FEMAM, options)
        self.models = []  # sealed, of level 1
        for number in range(1, rounds + 1):
            self.engine.begin_round(number)
            self.server, _ = FEMAM.round(self.server, self.engine, self.engine.key())
            self.models.append(self.server.levels[0].models[0])

    def sum(self, fn, message, **others):
        messages = {name: others.get(name, message) for name in NAMES}
        return np.asarray(self.engine.reveal(self.engine.sum(fn, messages).at))

    def tell(self, fn, message):
        return self.engine.ask(fn, dict.fromkeys(NAMES, message))

    def client(self, name="bank"):
        states = self.made.lines.sites[name]._run._states.values()
        return [one for one in states if hasattr(one, "held_out")][-1]


def test_a_model_is_told_as_it_is():
    server = Server(OF_ALL, 2)
    one, other = server.models
    for made in (one * 3.0, one * 0.0, one * -1.0, one + other * -1.0, one * 0.5 + other * 0.5):
        with pytest.raises(RefusedError):
            server.sum(at_client.open_level, state.Latest(made))
    assert server.sum(at_client.open_level, state.Latest(one))[1] > 0


def told_apart():
    """Return what the loss of all differs by, and the bank's, with the bank at another model."""
    server, losses, own = Server(OF_ALL, 2), [], []
    first, second = (state.Latest(one) for one in server.models)
    for mine in (first, second):
        try:
            server.sum(at_client.open_level, second, bank=mine)
        except TamperedError:  # the server goes on: the clients have opened what they were told
            assert mine is first
        client = server.client()
        own.append(loss_of_scores(at_client._scores(client, server.blocks["bank"]),
                                  server.blocks["bank"]))  # fmt: skip
        losses.append(server.sum(at_client.part_of_loss, state.Ask()))
    return np.ravel(losses[0] - losses[1])[0], np.ravel(own[0] - own[1])[0]


def test_losses_of_models_told_apart_do_not_add_up():
    with pytest.raises(TamperedError):
        told_apart()


def test_without_that_the_server_reads_how_one_client_s_loss_differs(monkeypatch):
    for module in (site, communication_log):
        monkeypatch.setattr(module, "told_alike", lambda *_: "")
    read, truth = told_apart()
    assert abs(truth) > 1e-4
    assert read == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize("name", [
    "open_level", "weigh_level", "part_of_loss", "send_part", "calibrate"
])  # fmt: skip
def test_what_clients_send_is_bound_to_the_models_before(name):
    functions = {fn.name: fn for fn in FEMAM.disclosure.functions}
    client = at_client.Client(OF_ALL, 2, {}, {}, None, None, {}, told={"1": "one", "2": ""})
    assert functions[name].told_before(client, None) == {"1": "one", "2": ""}


def test_a_model_of_level_1_is_not_opened_at_level_2():
    """Level 2 is of clusters, whose models the server reads: it had level 1 by them."""
    server = Server(CLUSTERS, 1)
    [model] = server.models
    server.tell(at_client.close_level, state.Closing(model, 1, None))
    server.tell(at_client.begin_level, state.Begin(2, False, None))
    with pytest.raises(RefusedError):
        server.sum(at_client.open_level, state.Latest(model))
    told = server.tell(at_client.send_model, state.Ask())["bank"].model
    assert not told.any()  # the start, and nothing of level 1


def test_a_level_that_trains_on_begins_anew():
    """Level 1's average after it trained on would be opened at the next level, and sent."""
    begins = {one.function.name for one in FEMAM.disclosure.sends if one.begins}
    assert begins == {"begin_level", "train_again"}


def test_no_client_seals_a_model_anew():
    """A client that works with the server would make a model for the others."""
    server = Server(OF_ALL, 1)
    run = server.made.lines.sites["bank"]._run
    declared, call = run._place.declared(), SimpleNamespace(run="any", sequence=9, asked=ALL)
    cells = SimpleNamespace(name=("any", 8, REFRESH, "Model.model"), pieces={})
    content = SimpleNamespace(terms=((1.0, cells),))
    total = SimpleNamespace(part="train", layout=None, content=content)
    [one] = [one for one in FEMAM.disclosure.sends if one.function.name == "open_level"]
    with pytest.raises(RefusedError, match="sealed anew"):
        declared.check_message(one, "model", total, NO_SUMS, call)
    with pytest.raises(RefusedError, match="no message is declared"):
        declared.check_opening(content, (0,), NO_SUMS, call, "Model.model")


def test_a_site_knows_where_it_began_when_it_goes_back():
    sums = Sums({}, {}, begun=(3, 9), kept=(5, 12))
    assert Sums.of(sums.to_text()) == Sums({}, {}, begun=(3, 9), kept=(5, 12))
    assert (sums.back_to(8).begun, sums.back_to(8).kept) == ((3,), (5,))
    assert sums.back_to(12) == sums
    known, *rest = json.loads(NO_SUMS.to_text())
    assert Sums.of(json.dumps([known, *rest[:-2]])) == NO_SUMS  # of an earlier version


def at_the_best_round(kept, begun):
    """Return where a site began that goes back to the best round."""
    server = Server(OF_ALL, 1)
    declared = server.made.lines.sites["bank"]._run._place.declared()
    [one] = [one for one in keeping_best(FEMAM).disclosure.sends if one.restores]
    return declared.check_ended(one, None, None, Sums({}, {}, begun=begun, kept=kept), bytes).begun


def test_a_site_that_goes_back_to_the_best_round_began_before_it():
    assert at_the_best_round((5, 12), (3, 9, 14)) == (3, 9)
    assert at_the_best_round((), (3,)) == ()
    keeps = [one.function.name for one in keeping_best(FEMAM).disclosure.sends if one.keeps]
    assert keeps == ["keep_best"]


def test_a_level_of_models_that_the_server_makes_is_weighed_once_of_enough_rows():
    server = Server(CLUSTERS, 2)
    assert {server.client(name).level for name in NAMES} == {2}
    held = {name: int(server.client(name).held_out.sum()) for name in NAMES}
    assert held == {"bank": 1, "shop": 5, "market": 5}
    assert server.sum(at_client.open_level, state.Latest(None))[1] == 10  # none of the bank's
    for level in (1, 3):
        with pytest.raises(RefusedError):
            server.sum(at_client.weigh_level, state.Weigh(None, level))
    worth = server.sum(at_client.weigh_level, state.Weigh(None, 2))
    assert worth.shape == (13,)
    assert worth[:2].tolist() == [2, 10]  # clients and rows
    with pytest.raises(RefusedError):
        server.sum(at_client.weigh_level, state.Weigh(np.zeros(8), 2))
