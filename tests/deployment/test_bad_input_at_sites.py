"""Tables as people have them, at sites: read by the site's own keys, or refused without a value.

What a site refuses stands in its own errors.log; the server is told the error's class. What only
all tables together can show, the server says in names of columns and classes, which are public.
"""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

import four_sites
import sites
from command_line import said
from departing_server import NAMES
from intarsia.cli.main import main
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.remote import wire
from intarsia.errors import FederationError, IntarsiaError

CANARY = "Anna Roth"


def run_over(folder, change, keys="", mode="masked", answers=None):
    """Run over four sites of which the bank's table is changed, and read by more keys."""
    described = four_sites.write_tables("hyfdca", folder)
    path = folder / "bank.csv"
    text = change(pd.read_csv(path)).to_csv(index=False)
    path.write_text(text)
    described["bank"] += keys
    for name, table in described.items():
        (folder / name).mkdir()
        more = "plain = true\n" if mode == "plain" else ""
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, table, folder, more))
    found = {name: site_in(folder / name) for name in described}

    def line(client, number, data, deliver):
        answer = deliver(data)
        if data and client == "bank" and answers is not None:
            answers.append(answer)
        return answer

    settings = {"yardsticks": False, "mode": mode}
    return remote_running.run_over(
        four_sites.experiment_of("hyfdca", described, folder, **settings),
        *(sites.Lines(found, line), NAMES, folder / "out"),
        patience=sites.HASTY,
    )


def text_in_numbers(table):
    table[["l1", "m2"]] = table[["l1", "m2"]].astype(object)
    table.loc[5, ["l1", "m2"]] = CANARY
    return table


def as_dates(table):
    return table.assign(l1="1917-05-23", m2="1917-05-24")


def in_commas(table):
    return table.assign(l1=[f"{one:.4f}".replace(".", ",") for one in table["l1"]])


def beyond_exact(table):
    return table.assign(l1=[2**53 + 1917052 + i for i in range(len(table))])


@pytest.mark.parametrize(
    ("change", "sentence", "values"),
    [
        (text_in_numbers, "2 columns mix numbers and text: 'l1' ('Anna Roth' in row 6)", [CANARY]),
        (as_dates, "2 columns have dates or times: 'l1', 'm2'", ["1917"]),
        (in_commas, "column 'l1' has numbers with a decimal comma (such as '", [","]),
        (beyond_exact, "beyond the whole numbers that a float64 holds exactly", ["1917"]),
    ],
)
def test_what_a_site_refuses_it_says_to_its_own_people_alone(change, sentence, values, tmp_path):
    answers = []
    with pytest.raises(IntarsiaError) as problem:
        run_over(tmp_path, change, answers=answers)
    assert sentence in (tmp_path / "bank" / "errors.log").read_text()
    last = codec.decode(answers[-1], wire.Answer)
    assert last.error == "TableError"
    assert last.sentence == wire._SENTENCES.get("TableError", wire._UNFORESEEN)
    for value in values:
        assert all(value.encode() not in answer for answer in answers if len(value) > 1)
        assert value not in str(problem.value) or len(value) == 1
    assert sentence not in str(problem.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda table: table.rename(columns={"m1": "M1"}),
            r"names that look the same and are not \('M1' at client 'bank' and 'm1' at client",
        ),
        (
            lambda table: table.assign(kind=table["kind"].map({"p": 0, "q": 1, "r": 2})),
            r"has '0', '1', '2' at 'bank' but 'p', 'q', 'r' at 'branch'; say at 'branch' which",
        ),
    ],
)
def test_what_sites_do_not_have_alike_the_server_says(change, sentence, tmp_path):
    with pytest.raises(FederationError, match=sentence):
        run_over(tmp_path, change)


def otherwise(table):
    """Return the same table as another country has it."""
    for column in ("l1", "l2", "m1", "m2", "m3"):
        table[column] = [repr(one).replace(".", ",") for one in table[column]]
    table["kind"] = table["kind"].map({"p": "P1", "q": "Q1", "r": "R1"})
    table["row"] = [f"{one}.0" for one in table["row"]]
    return table


@pytest.mark.parametrize(
    "mode", ["plain", *(pytest.param(one, marks=pytest.mark.slow) for one in ("masked", "ckks"))]
)
def test_a_site_reads_its_table_by_its_own_keys_and_predicts_so(mode, tmp_path, capfd):
    keys = 'decimal = ","\nlabel_map = { P1 = "p", Q1 = "q", R1 = "r" }\n'
    found, rows = [], []
    for name, change, more in (("clean", lambda table: table, ""), ("own", otherwise, keys)):
        folder = tmp_path / name
        found.append(run_over(folder, change, more, mode))
        assert main(["predict", str(folder / "bank/models/hyfdca"), str(folder / "bank.csv")]) == 0
        rows.append(list(csv.DictReader(io.StringIO(said(capfd)[0]))))
    clean, own = (one.certificate for one in found)
    # under a seal the two runs have masks, and noise, of their own
    assert own.primal == pytest.approx(clean.primal, rel=1e-9 if mode != "ckks" else 1e-4)
    assert [float(one["score"]) for one in rows[1]] == pytest.approx(
        [float(one["score"]) for one in rows[0]], abs=1e-6 if mode != "ckks" else 1e-3
    )
    assert [one["label"] for one in rows[1]] == [one["label"] for one in rows[0]]
