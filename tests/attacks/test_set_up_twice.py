"""A server that has a run set up again: of two totals the difference is a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import four_sites
import sites
from departing_server import begin
from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.deployment import client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import SETTLE, Settled, site_in
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import RefusedError

FIRST = "hyfdca.mask_rows"


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Return sites in a round, and the calls that the bank answered."""
    made = begin(tmp_path_factory.mktemp("twice"), "hyfdca", FIRST, count=2)
    return made, [call for name, call, answer in made.calls if name == "bank" and not answer.error]


def asked(made, call):
    return codec.decode(made.sites["bank"].handle(codec.encode(call)), Answer)


@pytest.mark.parametrize("step", ["read", "encode", "settle", "meet", "transform", "begin"])
@pytest.mark.parametrize("back", [False, True])
def test_a_step_of_the_set_up_is_done_once_in_a_run(training, step, back):
    made, calls = training
    last = calls[-1]
    again = next(call for call in calls if call.kind == "stage" and call.function == step)
    base = last.anchor if back else last.sequence
    assert base != last.sequence or not back
    made.sequence += 1
    answer = asked(made, replace(again, sequence=made.sequence, base=base, anchor=last.anchor))
    assert answer.error == "RefusedError"
    said = (made.folder / "bank" / "errors.log").read_text().splitlines()
    assert any(f"'{step}' of the set-up" in one for one in said[-3:]) or not back
    assert back or any("a run is set up once" in one for one in said[-3:])
    # the last call comes again, and is answered as before
    assert not asked(made, last).error


@pytest.mark.parametrize("way", ["kept", "schema alone", "schema, one row twice"])
def test_rows_whose_labels_a_site_has_are_not_left_out(tmp_path, way):
    described = four_sites.write_tables("hyfdca", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    found, seen = {name: site_in(tmp_path / name) for name in described}, []

    def line(client, number, data, deliver):
        call = codec.decode(data, Call)
        if call.function == SETTLE:
            told = codec.decode(call.body, Settled, Schema, Holding, Labels)
            call = replace(call, body=codec.encode(without_a_row(told, client, way)))
        seen.append(call.function)
        return deliver(codec.encode(call))

    with pytest.raises(RefusedError, match="At client 'bank' in settle"):
        remote_running.run_over(
            *(four_sites.experiment_of("hyfdca", described, tmp_path), sites.Lines(found, line)),
            *(four_sites.NAMES, tmp_path / "server"),
            patience=sites.HASTY,
        )
    assert seen[-1] == SETTLE
    said = (tmp_path / "bank" / "errors.log").read_text()
    assert ("leaves out training rows" if way == "kept" else "has other rows") in said


@pytest.mark.parametrize("checked", [True, False])
def test_a_server_that_says_there_are_no_test_rows_has_none_of_training_evaluated(
    tmp_path, monkeypatch, checked
):
    described = four_sites.write_tables("hyfdca", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    found, evaluated = {name: site_in(tmp_path / name) for name in described}, []
    if not checked:
        monkeypatch.setattr(client_setup, "_check_own", lambda *given: None)

    def line(client, number, data, deliver):
        call, answer = codec.decode(data, Call), deliver(data)
        if call.function.endswith(".send_metrics") and not codec.decode(answer, Answer).error:
            evaluated.append(call.part)
        return answer

    whole = four_sites.experiment_of("hyfdca", described, tmp_path)
    build = remote_running.AtSites.build

    def without_test(self, description):
        schema = build(self, description)
        self._schemas = {"train": self._schemas["train"]}
        return schema

    monkeypatch.setattr(remote_running.AtSites, "build", without_test)
    given = whole, sites.Lines(found, line), four_sites.NAMES, tmp_path / "server"
    if checked:
        with pytest.raises(RefusedError, match="At client 'bank' in settle"):
            remote_running.run_over(*given, patience=sites.HASTY)
        assert "leaves out the test part" in (tmp_path / "bank" / "errors.log").read_text()
    else:
        remote_running.run_over(*given, patience=sites.HASTY)
    assert bool(evaluated) != checked
    assert set(evaluated) <= {"train"}


def without_a_row(told, client, way):
    """Return a set-up of which all sites are told, without a row of the bank's."""
    train = told.schemas["train"]
    own = train.holdings["bank"]
    kept = np.ones(len(own.samples), bool)
    kept[7] = False
    some = kept if way != "schema, one row twice" else np.where(kept, np.arange(len(kept)), 6)
    one = replace(own, samples=own.samples[some], labelled=own.labelled[some])
    schemas = {**told.schemas, "train": Schema({**train.holdings, "bank": one}, train.labels)}
    mine = kept if way == "kept" and client == "bank" else told.kept
    return Settled(schemas, mine)


@pytest.mark.parametrize("step", ["prepared", "clipped", "counted once"])
def test_training_does_not_begin_on_rows_of_which_a_step_is_left_out(tmp_path, monkeypatch, step):
    described = four_sites.write_tables("hyfdca", tmp_path)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    found = {name: site_in(tmp_path / name) for name in described}
    whole = remote_running.AtSites.transform
    monkeypatch.setattr(
        remote_running.AtSites, "transform", lambda self, one: one == step or whole(self, one)
    )
    description = four_sites.experiment_of("hyfdca", described, tmp_path, tolerance=1e-6)
    privacy = replace(description.privacy, epsilon=5.0, delta=1e-5)
    as_they_are = replace(description.preprocessing, standardise=False)
    description = replace(description, privacy=privacy, preprocessing=as_they_are)
    given = description, sites.Lines(found), tuple(described)
    with pytest.raises(RefusedError, match="in begin"):
        remote_running.run_over(*given, tmp_path / "server", patience=sites.HASTY)
    assert f"rows that are not {step}" in (tmp_path / "bank" / "errors.log").read_text()
