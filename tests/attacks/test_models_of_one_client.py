"""A server of FeMAM that asks for models of single clients, or for sums that tell them.

Where clusters are to be found the server reads how clients' models of that level differ from level
1. It used to be free to ask at any level, so that it had each client's whole network of level 1,
and its own personal one. And a client's model was added up over any clients as often as was asked:
who opens sums over a and b, a and c, and b and c has each of them, whatever least_clients says.
"""

from __future__ import annotations

import pytest

from departing_server import NAMES, begin
from intarsia.engines import codec

pytest.importorskip("torch")

from intarsia.algorithms.femam.client import Client, send_model
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.femam.state import Ask, Share
from intarsia.core.client_functions import RandomKey
from intarsia.errors import RefusedError


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return sites that trained level 1, before they send their part of its average."""
    return begin(tmp_path_factory.mktemp("femam") / "run", "femam", "femam.send_part")


def test_the_server_reads_no_model_of_a_level_of_all(begun):
    assert begun.of("femam.train_level")
    answer = begun.ask("bank", "femam.send_model", Ask(), kind="ask")
    assert answer.error == "RefusedError"


def test_a_model_is_added_up_over_one_set_of_clients(begun):
    some, others = NAMES[:3], (*NAMES[:2], NAMES[3])
    assert begun.ask("bank", "femam.send_part", Share(some), asked=some).error == ""
    assert begun.ask("bank", "femam.send_part", Share(some), asked=some).error == ""
    assert begun.ask("bank", "femam.send_part", Share(others), asked=others).error == "RefusedError"
    assert begun.ask("bank", "femam.train_level", codec.encode(Ask()), kind="ask").error == ""
    assert begun.ask("bank", "femam.send_part", Share(others), asked=others).error == ""


@pytest.mark.parametrize(("level", "again", "sent"), [
    (1, 0, False), (2, 0, True), (3, 0, False), (3, 2, True), (3, 1, False),
])  # fmt: skip
def test_models_are_sent_at_levels_of_clusters_alone(level, again, sent):
    options = FeMAM(levels=("global", 2, "personal"))
    client = Client(options, 2, {}, {}, None, None, {}, level=level, again=again)
    try:
        send_model.call(client, None, Ask(), RandomKey(()))
        found = True
    except RefusedError:
        found = False
    except ValueError:  # it has no parameters to send
        found = True
    assert found is sent
