"""A server that makes a site fail, to read what its errors say: ids, labels and values.

A refused value, id or label stands in the error's sentence, for the site's own people. What leaves
a site is the error's class and a sentence of ours. (Tried, and held.)
"""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

import four_sites
import sites
from departing_server import NAMES, begin
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.remote import wire
from intarsia.errors import IntarsiaError

CANARY = "Anna Roth 17.25"


def broken(table, how):
    if how == "an id twice":
        table["row"] = [CANARY] * 2 + [f"r{n}" for n in range(2, len(table))]
    elif how == "text in a column of numbers":
        table["l1"] = table["l1"].astype(object)
        table.loc[5, "l1"] = CANARY
    elif how == "a value beyond the range":
        table.loc[5, "l1"] = 1.7e300
    elif how == "an infinite value":
        table.loc[5, "l1"] = float("inf")
    return table


@pytest.mark.parametrize(
    "how",
    ["an id twice", "text in a column of numbers", "a value beyond the range", "an infinite value"],
)
def test_no_error_that_leaves_a_site_has_a_value_of_its_table(how, tmp_path):
    described = four_sites.write_tables("hyfdca", tmp_path)
    path = tmp_path / "bank.csv"
    broken(pd.read_csv(path), how).to_csv(path, index=False)
    for name, text in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(four_sites.site_toml(name, text, tmp_path))
    found = {name: site_in(tmp_path / name) for name in described}
    answers = []

    def line(client, number, data, deliver):
        answer = deliver(data)
        if data and client == "bank":
            answers.append(answer)
        return answer

    settings = {"yardsticks": False}
    with pytest.raises(IntarsiaError):
        remote_running.run_over(
            four_sites.experiment_of("hyfdca", described, tmp_path, **settings),
            *(sites.Lines(found, line), NAMES, tmp_path / "out"),
            patience=sites.HASTY,
        )
    last = codec.decode(answers[-1], wire.Answer)
    said = {last.error: last.sentence}
    if last.error:
        assert said == {last.error: wire._SENTENCES.get(last.error, wire._UNFORESEEN)}
    for answer in answers:
        for text in ("Anna", "17.25", "1.7e+300", "1.7e300"):
            assert text.encode() not in codec.decode(answer, wire.Answer).sentence.encode()


def test_an_error_of_python_s_own_leaves_nothing_of_itself(monkeypatch, tmp_path):
    made = begin(tmp_path / "run", "hyfdca", "preprocessing.settle_scale")
    _, call, _ = made.of("preprocessing.centre", "bank")[-1]
    answer = made.ask("bank", call.function, call.body[:-9], asked=NAMES)
    assert (answer.error, answer.sentence) == ("CodecError", wire._SENTENCES["CodecError"])
    name, sentence = wire.sentence_of(KeyError(CANARY))
    assert (name, CANARY in sentence) == ("SiteError", False)
    assert {one.name for one in dataclasses.fields(wire.Answer)} == {
        *("run", "client", "sequence", "error", "sentence", "down", "up", "body")
    }
