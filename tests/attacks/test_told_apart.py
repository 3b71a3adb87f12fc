"""A server that tells one site of another experiment: its part stands apart in every total."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import four_sites
import sites
from intarsia.core.block import Labels
from intarsia.data.encoding import Encoding
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import ENCODE, READ, site_in
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import RefusedError, TamperedError
from intarsia.experiment import config as experiment

TOLD = {
    "range": ("privacy", {"range": 2.0**-14}),
    "epsilon": ("privacy", {"epsilon": 1e6}),
    "least_clients": ("privacy", {"least_clients": 1}),
    "rounds": ("experiment", {"rounds": 7}),
    "seed": ("experiment", {"seed": 5}),
    "regularisation": ("algorithm", {"regularisation": 1.0}),
}


def run(folder, change, trust="pairs"):
    """Run fedavg with noise, where `change` alters what the branch is told; return the calls."""
    described = four_sites.write_tables("femam", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        more = f'trust = "{trust}"\n'
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder, more))
    found = {name: site_in(folder / name) for name in described}
    answered = []

    def line(client, number, data, deliver):
        if not data:
            return deliver(data)
        call = codec.decode(data, Call)
        if client == "branch":
            call = change(call)
        answer = deliver(codec.encode(call))
        if not codec.decode(answer, Answer).error:
            answered.append((call.kind, call.function))
        return answer

    tree = four_sites.tree("hyfdca", described, folder)
    tree["algorithm"] = {"name": "fedavg", "loss": "logistic", "regularisation": 0.01}
    tree["preprocessing"] = {"standardise": False}
    tree["privacy"] |= {"trust": trust, "least_clients": 3, "epsilon": 1.0, "delta": 1e-5}
    tree["experiment"]["rounds"] = 1
    given = experiment.from_dict(tree, folder), sites.Lines(found, line), four_sites.NAMES
    try:
        remote_running.run_over(*given, folder / "server", patience=sites.HASTY)
    finally:
        run.answered = answered
    return answered


def told(table, changes):
    def change(call):
        if call.function != READ:
            return call
        tree = json.loads(call.body)
        tree[table] = {**tree[table], **changes}
        return replace(call, body=json.dumps(tree).encode())

    return change


@pytest.mark.parametrize("what", TOLD)
def test_a_site_that_is_told_of_another_experiment_seals_nothing(tmp_path, what):
    with pytest.raises(TamperedError, match="At client '"):
        run(tmp_path, told(*TOLD[what]))
    assert not [one for one in run.answered if one[0] != "stage"]


def test_a_site_that_is_told_of_more_clients_seals_nothing(tmp_path):
    def change(call):
        return replace(call, asked=(*call.asked, "shop")) if call.function == READ else call

    # one that the site was let in with and does not meet is refused before the greetings
    with pytest.raises(RefusedError, match="At client 'branch' in settle"):
        run(tmp_path, change)
    said = (tmp_path / "branch" / "errors.log").read_text()
    assert "let in with the clients bank, branch, retailer, shop" in said
    assert not [one for one in run.answered if one[0] != "stage"]


def test_sites_that_are_told_of_other_encodings_seal_nothing(tmp_path):
    def change(call):
        return replace(call, body=_other_encoding(call.body)) if call.function == ENCODE else call

    with pytest.raises(TamperedError, match="At client '"):
        run(tmp_path, change)
    assert not [one for one in run.answered if one[0] != "stage"]


def _other_encoding(body):
    """Return an encoding that comes to the same holdings: with a column that nobody has."""
    told = codec.decode(body, Encoding, Labels)
    return codec.encode(replace(told, levels={**told.levels, "nobody's": ("a", "b")}))


def test_where_all_have_one_key_nothing_of_different_jobs_is_opened(tmp_path):
    with pytest.raises(TamperedError):
        run(tmp_path, told("privacy", {"range": 2.0**21}), trust="clients")
    assert ("open", "open") not in run.answered
