"""`intarsia init`: what it proposes for tables as people have them, and that the file runs."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as arrow_parquet
import pytest

import intarsia
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.inspection.proposals.column_names import is_group, tells_persons
from intarsia.inspection.proposals.proposal import propose
from intarsia.inspection.tails import amounts_of
from intarsia.results.result import load

RNG = np.random.default_rng(0)
AGE = RNG.integers(20, 80, 120)
INCOME, BASKET = RNG.normal(size=(2, 120)).round(4)
DEFAULT = (INCOME + BASKET > 0).astype(int)
BANK, SHOP = range(80), range(20, 120)  # rows 20 to 79 are at both


def write(
    folder: Path,
    name: str,
    columns: Mapping[str, Iterable[object]],
    separator: str = ",",
    encoding: str = "utf-8",
) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [columns.keys(), *(map(str, row) for row in rows)]
    path = folder / name
    path.write_bytes("".join(f"{separator.join(line)}\n" for line in lines).encode(encoding))
    return path


def bank(**columns: Iterable[object]) -> dict[str, Iterable[object]]:
    own = {"customer": BANK, "age": AGE[:80], "income": INCOME[:80], "default": DEFAULT[:80]}
    return {**own, **columns}


def shop(**columns: Iterable[object]) -> dict[str, Iterable[object]]:
    return {"customer": SHOP, "basket": BASKET[20:], **columns}


def proposed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *tables: Mapping[str, Iterable[object]],
    arguments: Sequence[str] = (),
    **how: Any,
) -> dict[str, Any]:
    """Return what `init` writes for CSV files named a, b, …"""
    monkeypatch.chdir(tmp_path)
    names = [f"{letter}.csv" for letter in "abc"[: len(tables)]]
    for name, columns in zip(names, tables, strict=True):
        write(tmp_path, name, columns, **how)
    assert main(["init", *names, *arguments]) == 0
    return tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))


def client(found: Mapping[str, Any], position: int) -> dict[str, Any]:
    return {
        key: value
        for key, value in found["client"][position].items()
        if key not in ("name", "path")
    }


def test_the_file_for_two_tables_runs_as_it_is(tmp_path, monkeypatch, capfd):
    found = proposed(tmp_path, monkeypatch, bank(), shop(town=["n", "s"] * 50))
    out, err = said(capfd)
    assert out == ""  # its tables are for people
    assert found["algorithm"]["name"] == "hyfdca"
    assert found["algorithm"]["loss"] == "logistic"
    assert found["client"] == [
        {"name": "a", "path": "a.csv", "id": "customer", "label": "default"},
        {"name": "b", "path": "b.csv", "id": "customer"},
    ]
    assert "Who holds what" in err
    assert "would stop" not in err
    assert err.rstrip().endswith("intarsia run mine.toml")
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert "60 are at b too" in text
    ill = DEFAULT[:80].sum()
    assert "# by its name\n" in text
    assert f"({ill})" not in text  # how many rows a class has is told on the terminal
    assert "# text, as categories: town" in text
    assert str(tmp_path) not in text
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    assert load(tmp_path / "runs/mine").metrics.server.loss < 0.5  # log 2 for who knows nothing
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    shares = dict(zip(model["features"], model["means"], strict=True))  # as predict.md says
    held = json.loads((tmp_path / "runs/mine/holdings.json").read_text())
    at = held["clients"].index("b")
    rows = sum(count for owners, count, _ in held["samples"] if at in owners)
    counts = [rows * shares[f"town={level}"] for level in "ns"]
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    assert sum(counts) == pytest.approx(rows)


def test_nothing_is_overwritten_unasked(tmp_path, monkeypatch, capfd):
    proposed(tmp_path, monkeypatch, bank(), shop())
    said(capfd)
    assert main(["init", "a.csv", "b.csv"]) == 2
    assert "mine.toml is there already" in one_error(said(capfd)[1])
    (tmp_path / "sub").mkdir()
    assert main(["init", "a.csv", "b.csv", "--out", "sub/two.toml"]) == 0
    clients = tomllib.loads((tmp_path / "sub/two.toml").read_text(encoding="utf-8"))["client"]
    assert [one["path"] for one in clients] == ["../a.csv", "../b.csv"]
    assert main(["init", "a.csv", "b.csv", "--overwrite"]) == 0


def test_files_of_excel_in_german_are_read(tmp_path, monkeypatch):
    comma = [str(one).replace(".", ",") for one in INCOME[:80]]
    points = [f"{1 + one % 9}.{one:03},5" for one in BANK]
    own = {"Kunde": BANK, "Größe": comma, "Umsatz": points, "Ausfall default": DEFAULT[:80]}
    other = {"Kunde": SHOP, "Ort": ["Köln", "Mainz"] * 50}
    how = {"separator": ";", "encoding": "latin-1"}
    found = proposed(tmp_path, monkeypatch, own, other, **how)
    assert client(found, 0) == {
        "encoding": "cp1252",
        "decimal": ",",
        "thousands": ".",
        "id": "Kunde",
        "label": "Ausfall default",
    }
    assert client(found, 1) == {"encoding": "cp1252", "id": "Kunde"}


@pytest.mark.parametrize(
    ("first", "second", "rules", "keys"),
    [
        (BANK, [f"{one}.0" for one in SHOP], None, {}),
        (BANK, [f"{one:05}" for one in SHOP], ["zeros"], {}),
        ([f"{one:05}" for one in BANK], [f"{one:05}" for one in SHOP], None, {}),
        ([f"k{one}" for one in BANK], [f"K{one}" for one in SHOP], ["case"], {}),
        ([f"DE {one}" for one in BANK], [f"de{one}" for one in SHOP], ["spaces", "case"], {}),
        (BANK, [one if one < 100 else f"x{one}" for one in SHOP], None, {"id_type": "text"}),
    ],
)
def test_ids_that_are_written_in_two_ways_match(
    first, second, rules, keys, tmp_path, monkeypatch, capfd
):
    tables = bank(customer=first), shop(customer=second)
    found = proposed(tmp_path, monkeypatch, *tables)
    assert found.get("alignment", {}).get("normalise") == rules
    assert client(found, 0) == {"id": "customer", **keys, "label": "default"}
    assert "hybrid: 60 of 120 rows" in " ".join(said(capfd)[1].split())


def test_ids_of_other_names_are_found_by_their_values(tmp_path, monkeypatch):
    own = bank(number=[1000 + one for one in BANK])
    other = {"CustomerID": SHOP, "basket": BASKET[20:], "defaulted": DEFAULT[20:]}
    found = proposed(tmp_path, monkeypatch, own, other)
    assert client(found, 0) == {"id": "customer", "label": "default", "exclude": ["number"]}
    assert client(found, 1) == {"id": "CustomerID", "exclude": ["defaulted"]}


def test_ids_of_names_that_say_nothing_match_without_their_zeros(tmp_path, monkeypatch):
    numbers = [one + 101_736 for one in range(120)]
    own = {"Kundennummer": numbers[:80], "income": INCOME[:80], "default": DEFAULT[:80]}
    other = {"who": [f"{one:08}" for one in numbers[20:]], "basket": BASKET[20:]}
    found = proposed(tmp_path, monkeypatch, own, other)
    assert found["alignment"] == {"normalise": ["zeros"]}
    assert [client(found, at)["id"] for at in (0, 1)] == ["Kundennummer", "who"]


@pytest.mark.parametrize("start", [0, 1, 7])
def test_rows_that_each_table_numbers_are_no_ids(start, tmp_path, monkeypatch, capfd):
    lines = range(max(start, 1), max(start, 1) + 80)
    own = {"line": lines, "income": INCOME[:80], "default": DEFAULT[:80]}
    other = {"counted": range(start, start + 100), "basket": BASKET[20:], "default": DEFAULT[20:]}
    write(tmp_path, "a.csv", own)
    write(tmp_path, "b.csv", other)
    monkeypatch.chdir(tmp_path)
    main(["init", "a.csv", "b.csv"])
    found = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))
    assert "id" not in client(found, 1)


def test_three_tables_have_one_id_and_their_labels(tmp_path, monkeypatch):
    own = {"id": range(60), "age": AGE[:60], "y": DEFAULT[:60]}
    other = {
        "id": range(40, 120),
        "basket": BASKET[40:],
        "y": [("no", "yes")[one] for one in DEFAULT[40:]],
    }
    third = {"id": range(20, 100), "income": INCOME[20:100]}
    found = proposed(tmp_path, monkeypatch, own, other, third)
    assert client(found, 0) == {"id": "id", "label": "y"}
    assert client(found, 1) == {"id": "id", "label": "y", "label_map": {"no": "0", "yes": "1"}}
    assert client(found, 2) == {"id": "id"}


def test_rows_with_one_id_and_other_values_are_other_samples(tmp_path, monkeypatch, capfd):
    columns = {"patient": range(60), "age": AGE[:60], "income": INCOME[:60], "y": DEFAULT[:60]}
    same = {"patient": range(60), "age": AGE[60:], "income": INCOME[60:], "y": DEFAULT[60:]}
    found = proposed(tmp_path, monkeypatch, columns, same)
    assert client(found, 0) == client(found, 1) == {"label": "y", "exclude": ["patient"]}
    err = said(capfd)[1]
    assert "check: a and b have ids in common, but the rows of one id have other values" in err
    assert "horizontal: all clients have the same columns and no row in common" in err
    third = {"patient": range(60), "age": AGE[30:90], "income": INCOME[30:90], "y": DEFAULT[30:90]}
    (tmp_path / "mine.toml").unlink()
    found = proposed(tmp_path, monkeypatch, columns, same, third)
    assert all(client(found, at) == {"label": "y", "exclude": ["patient"]} for at in range(3))
    err = said(capfd)[1]
    assert err.count("check:") == 1  # of three pairs
    assert "check: a, b and c have ids in common" in err


def test_columns_whose_names_differ_in_case_are_one_in_a_file_that_runs(
    tmp_path, monkeypatch, capfd
):
    other = shop(Age=AGE[20:], INCOME=BASKET[20:], Default=DEFAULT[20:])
    found = proposed(tmp_path, monkeypatch, bank(), other)
    assert client(found, 0) == {"id": "customer", "label": "default"}
    assert client(found, 1) == {"id": "customer", "label": "Default", "exclude": ["INCOME"]}
    assert found["alignment"] == {"dictionary": "mine-columns.toml"}
    dictionary = tomllib.loads((tmp_path / "mine-columns.toml").read_text(encoding="utf-8"))
    assert dictionary == {"client": {"b": {"Age": "age"}}}  # INCOME has other values there
    err = said(capfd)[1]
    assert "check: names that differ in case, blanks or alphabet alone" in err
    assert "'INCOME': looks like 'income' elsewhere, with other values in shared rows" in err
    assert "would stop" not in err
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    assert sorted(model["features"]) == ["age", "basket", "income"]
    assert main(["init", "a.csv", "b.csv", "--out", "two.toml"]) == 0
    (tmp_path / "two.toml").unlink()
    assert main(["init", "a.csv", "b.csv", "--out", "two.toml"]) == 2
    assert "two-columns.toml is there already" in one_error(said(capfd)[1].splitlines()[-1])
    apart = {"ID": range(500, 580), "AGE": AGE[40:], "INCOME": INCOME[40:], "DEFAULT": DEFAULT[40:]}
    found = proposed(tmp_path, monkeypatch, bank(), apart, arguments=["--overwrite"])
    assert client(found, 1) == {"id": "ID", "label": "DEFAULT"}
    assert "horizontal: all clients have the same columns" in said(capfd)[1]
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet", "--overwrite"]) == 0
    said(capfd)
    assert main(["predict", "runs/mine", "b.csv"]) == 0  # by the names of its columns there
    assert said(capfd)[0].count("\n") == 81
    both = bank(Age=AGE[:80])  # of one table, they are told apart on purpose
    found = proposed(tmp_path, monkeypatch, both, shop(Age=AGE[20:]), arguments=["--overwrite"])
    assert "alignment" not in found
    assert "exclude" not in client(found, 0)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ((0, 1, 9), 9),
        ((1, 2, 3, 4, 9), 9),
        ((0, 1, 99), 99),
        ((0, 1, 2, 3, 4, 5, 6, 7, 9), None),  # as counts have gaps
        ((0, 1, 2), None),
        ((1, 3, 9), None),
        ((5, 6, 9), None),
    ],
)
def test_a_nine_among_a_few_codes_is_asked_about(values, code, tmp_path, monkeypatch):
    home = [values[at % len(values)] for at in BANK]
    proposed(tmp_path, monkeypatch, bank(home_alone=home), shop())
    text = " ".join((tmp_path / "mine.toml").read_text(encoding="utf-8").replace("#", "").split())
    asked = f'home_alone: {code} may stand for a missing value; if so, add "{code}" to missing'
    assert asked in text if code else "home_alone: " not in text


def test_a_nine_in_fewer_than_five_rows_is_not_asked_about(tmp_path, monkeypatch):
    home = [9 if at < 4 else at % 2 for at in BANK]
    proposed(tmp_path, monkeypatch, bank(home_alone=home), shop())
    assert "home_alone: 9" not in (tmp_path / "mine.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("named", [True, False])
def test_tables_with_the_same_columns_and_other_rows_are_horizontal(
    named, tmp_path, monkeypatch, capfd
):
    columns = {"patient": range(60), "age": AGE[:60], "income": INCOME[:60], "y": DEFAULT[:60]}
    others = {"patient": range(60, 120), "age": AGE[60:], "income": INCOME[60:], "y": DEFAULT[60:]}
    if not named:
        del others["patient"]
    found = proposed(tmp_path, monkeypatch, columns, others)
    assert client(found, 0) == {"id": "patient", "label": "y"}
    assert client(found, 1) == ({"id": "patient"} if named else {}) | {"label": "y"}
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert ("none of them is in another table" if named else "# no id: no column") in text
    err = said(capfd)[1]
    assert "horizontal" in err
    assert "check:" not in err


def test_what_is_left_out_has_a_reason(tmp_path, monkeypatch):
    own = bank(
        outcome=["bad" if one else "good" for one in DEFAULT[:80]],
        opened=[f"2024-01-{1 + one % 28:02}" for one in BANK],
        note=[f"called on day {one}" for one in BANK],
        branch=["north"] * 80,
        contract=[f"{70000 - one}" for one in BANK],
        bonus=["" if one else "3.5" for one in BANK],
        zip=[f"{one % 70:05}" for one in BANK],
        copy=[3 - 2 * one for one in DEFAULT[:80]],
        status=[one % 4 for one in BANK],
        children=[one % 4 for one in BANK],
        score=["NA" if one % 9 == 0 else one / 7 for one in BANK],
    )
    other = shop(reported=["no" if one else "yes" for one in DEFAULT[20:]], status=["x", "y"] * 50)
    found = proposed(tmp_path, monkeypatch, own, other)
    left_out = {"outcome", "opened", "note", "branch", "contract", "bonus", "zip", "copy"}
    assert set(client(found, 0)["exclude"]) == left_out
    assert client(found, 0)["categorical"] == ["status"]
    assert client(found, 0)["missing"] == ["?", "", "NA"]
    assert client(found, 1)["exclude"] == ["reported"]
    assert client(found, 1)["categorical"] == ["status"]
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    for line in (
        '"outcome",  # may be a label too',
        "  # has dates or times; to learn from it, set dates",
        '"note",  # another text in every row',
        '"branch",  # ... in every row',
        '"contract",  # another whole number in every row',
        '"bonus",  # missing in 99 %',
        '"zip",  # codes with zeros in front',
        "\"copy\",  # a copy of the label 'default'",
        "\"reported\",  # a copy of the label 'default' of a",
        "# numbers: age, income, children, score",
    ):
        assert line in text


@pytest.mark.parametrize("name", ["shop", "last_name"])
@pytest.mark.parametrize("values", [250, 1000])
@pytest.mark.parametrize("written", ["shop {}", "{:05}"])  # as postcodes are
def test_a_category_of_many_values_is_learned_from_where_rows_share_them(
    tmp_path, monkeypatch, capsys, name, values, written
):
    rows = 2500
    own = {
        "id": range(rows),
        name: [written.format(number % values) for number in range(rows)],
        "paid": [number * 7 % 11 + 0.25 for number in range(rows)],
        "fraud": ["yes" if number % 3 else "no" for number in range(rows)],
    }
    found = proposed(tmp_path, monkeypatch, own, own)
    said = " ".join(capsys.readouterr().err.split())
    often = values == 250  # else fewer than five rows have each: these may be names
    for at in range(2):
        kept = (client(found, at).get("categorical"), client(found, at).get("least_rows"))
        assert kept == (([name], 5) if often and name == "shop" else (None, None))
        assert ("exclude" in client(found, at)) is (kept == (None, None))
    assert ("learn which values 5 rows or more of a table have" in said) is (
        often and name == "shop"
    )
    advice = "if its texts tell nothing of single rows, list it in categorical"
    assert (advice in said) is (often and name == "last_name")
    assert main(["inspect", "mine.toml"]) == 0


def zipf(rng, rows, values):
    """Return values of which a few are in many rows and most in one or none, (rows,)."""
    often = 1 / np.arange(1, values + 1)
    return rng.choice(values, rows, p=often / often.sum())


def test_what_is_learned_of_many_values_is_what_the_label_hangs_on(tmp_path, monkeypatch, capsys):
    """Of 3,000 merchants half had one row, `init` left all out, and the AUC was that of chance."""
    rng = np.random.default_rng(0)
    fraud = rng.random(3000) < 0.5
    tables = []
    for _ in range(3):
        merchant, amount = zipf(rng, 2500, 3000), rng.normal(size=2500)
        columns = {"merchant": [f"m{one:04}" for one in merchant], "amount": amount}
        tables.append(columns | {"fraud": fraud[merchant].astype(int)})
    found = proposed(tmp_path, monkeypatch, *tables)
    assert [client(found, at)["categorical"] for at in range(3)] == [["merchant"]] * 3
    capsys.readouterr()
    assert main(["run", "mine.toml", "--no-yardsticks", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["metrics"]["server"]["figures"]["auc"] > 0.8
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    rows = [Counter(one["merchant"]) for one in tables]
    known = {one.removeprefix("merchant=") for one in model["features"] if "merchant=" in one}
    known.remove("other")
    for least, told in ((5, known.issubset), (15, known.issuperset)):  # a fifth does not train
        assert told({text for one in rows for text, count in one.items() if count >= least})


def test_of_one_hospital_the_codes_are_numbers_and_of_another_text(tmp_path, monkeypatch):
    """As of ICD-9, where 428 and 250.83 are codes beside V27."""
    rng = np.random.default_rng(0)
    codes = np.array([*range(400, 440), *(f"V{one}" for one in range(27, 40)), "250.83"], object)
    tables = [
        {
            "diagnosis": rng.choice(some, 1500),
            "age": rng.integers(20, 90, 1500),
            "died": rng.integers(0, 2, 1500),
        }
        for some in (codes, codes[:40], codes[40:])
    ]
    tables[0]["diagnosis"][:3] = [401.5, 402.25, "V91"]
    for one in tables:
        one["main_code"] = one.pop("diagnosis")
    found = proposed(tmp_path, monkeypatch, *tables)
    for at in range(3):
        assert client(found, at)["categorical"] == ["main_code"]
        assert client(found, at)["least_rows"] == 5
        assert "exclude" not in client(found, at)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        *(("store", True), ("zip", True), ("product_name", True), ("drug_code", True)),
        *(("customer", False), ("customer_name", False), ("Nachname", False), ("street", False)),
        *(("case_no", False), ("items", False), ("doctor_id", False)),
    ],
)
def test_names_and_ids_of_persons_are_no_category(tmp_path, name, kept):
    """However many rows have each, others are not to learn them."""
    rng = np.random.default_rng(0)
    for at in range(2):
        frame = pd.DataFrame({"age": rng.integers(20, 90, 3000)})
        frame[name] = [f"{'C' if at else 'c'}-{one:04}x" for one in zipf(rng, 3000, 400)]
        if name in ("store", "zip", "items"):
            frame[name] = 10_000 + 7 * zipf(rng, 3000, 400)
        frame["died"] = rng.choice(["no", "yes"], 3000)
        frame.to_csv(tmp_path / f"ward{at}.csv", index=False)
    for one in propose([tmp_path / "ward0.csv", tmp_path / "ward1.csv"], labels=["died"]).tables:
        assert (name in one.source.categorical) is kept
        assert (one.source.least_rows == 5) is kept
        assert not kept or name not in one.left_out


_PERSONS = {
    *("KundenNr", "kd_nr", "card_number", "cc_num", "PatientName", "patientname", "Driver1"),
    *("fahrer", "médico_curante", "attending_physician", "Hausarzt", "behandelnder_Arzt"),
    *(
        "médecin traitant",
        "lekarz",
        "huisarts",
        "msisdn",
        "tel",
        "license_plate",
        "kfz_kennzeichen",
    ),
    *("targa", "vin", "ip", "IPAddress", "user_agent", "device_id", "listing_agent"),
    *("sprzedawca", "Makler", "officer", "captain", "owner", "username", "lname", "Anschrift"),
    *("geohash", "DNI", "PESEL", "codice_fiscale", "kod_pacjenta", "policy_holder", "patient_nbr"),
    *("hospital_number", "tail_num", "employee_code", "email", "kfz_kennzeichen", "sales_rep"),
}
_THINGS = {
    *("zip3", "code_postal", "codigo_postal", "EAN", "gtin", "barcode", "Artikelnr", "part_no"),
    *("flight_number", "terminal_id", "hospital_id", "school_name", "station_id", "diag_1"),
    *("payer_code", "emp_title", "employer", "car_model", "merchant_name", "medical_specialty"),
    *("agent_type", "doctor_specialty", "email_domain", "StockCode", "nom_produit", "airport"),
}


@pytest.mark.parametrize("name", sorted(_PERSONS | _THINGS))
def test_a_name_tells_persons_in_each_language_and_things_not(name):
    assert tells_persons(name) is (name in _PERSONS)


@pytest.mark.parametrize(
    ("name", "written", "why"),
    [
        ("where", "10.0.{}.7", "addresses of devices"),
        ("where", "u{}", ""),
        ("reached", "+49171{:07}", "telephone numbers"),
        ("paid_from", "DE{:020}", "numbers of bank accounts"),
        ("spot", "48.1{:03}, 11.58", "places on a map"),
        ("told_by", "Dr. M{}", "persons with their titles"),
        ("brand", "Dr{}", ""),
        ("surgeon", "M{}", "is named as persons"),
    ],
)
@pytest.mark.parametrize("values", [40, 150])  # which the reader takes for a category
def test_columns_that_tell_of_persons_are_left_out_by_their_values_or_names(
    tmp_path, name, written, why, values
):
    """Of 250 doctors and addresses `init` had others learn, and of 150 by any column's name."""
    rng = np.random.default_rng(0)
    for at, rows in enumerate((3000, 300)):
        some = values if at == 0 else 8  # few at one party, who else would name them
        frame = pd.DataFrame({name: [written.format(one) for one in rng.integers(0, some, rows)]})
        frame["age"] = rng.integers(20, 90, rows)
        frame["died"] = rng.choice(["no", "yes"], rows)
        frame.to_csv(tmp_path / f"ward{at}.csv", index=False)
    for one in propose([tmp_path / "ward0.csv", tmp_path / "ward1.csv"], labels=["died"]).tables:
        assert (name in one.left_out) is bool(why)
        assert not why or why in one.left_out[name]


def test_a_number_named_as_persons_are_is_an_id_where_it_is_long(tmp_path):
    rng = np.random.default_rng(0)
    for at in range(2):
        cards = rng.integers(4 * 10**15, 5 * 10**15, 60)
        frame = pd.DataFrame({"card_number": rng.choice(cards, 600)})
        frame["phone"] = rng.integers(0, 40, 600)  # how many there are
        frame["died"] = rng.choice(["no", "yes"], 600)
        frame.to_csv(tmp_path / f"ward{at}.csv", index=False)
    for one in propose([tmp_path / "ward0.csv", tmp_path / "ward1.csv"], labels=["died"]).tables:
        assert [*one.left_out] == ["card_number"]


@pytest.mark.parametrize(
    ("name", "written"),
    [("zip3", "{}xx"), ("StockCode", "mixed"), ("flight_number", "{}"), ("EAN", "4006381{:06}")],
)
def test_codes_are_categories_where_some_have_a_mark_and_a_small_table_has_each_once(
    tmp_path, name, written
):
    """`940xx` was a number with a unit; one `gift_0001` left all of a column of codes out."""
    rng = np.random.default_rng(0)
    codes = [written.format(101 + one) for one in range(300)]
    if written == "mixed":
        codes = [*map(str, range(21_000, 21_200)), *(f"gift_{one} x" for one in range(100))]
    for at, rows in enumerate((5000, 4000, 40)):
        drawn = zipf(rng, rows, 300) if rows > 300 else rng.permutation(300)[:rows]
        frame = pd.DataFrame({"visit_id": [f"{at}-{row}" for row in range(rows)]})
        frame[name] = [codes[one] for one in drawn]
        frame["age"] = rng.integers(20, 90, rows)
        frame["died"] = rng.choice(["no", "yes"], rows)
        frame.to_csv(tmp_path / f"ward{at}.csv", index=False)
    paths = [tmp_path / f"ward{at}.csv" for at in range(3)]
    for one in propose(paths, labels=["died"]).tables:
        assert one.source.categorical == (name,)
        assert one.source.least_rows == 5
        assert not one.source.units
        assert name not in one.left_out


@pytest.mark.parametrize("levels", [150, 250, 750])
def test_a_column_that_is_left_out_at_one_table_alone_is_named(
    tmp_path, monkeypatch, capsys, levels
):
    """The model learned it from the others, and the rows of this one had no value of it."""
    tables = [
        {
            "age": [20 + number * 7 % 50 for number in range(rows)],
            "code": [f"C{number % some}" for number in range(rows)],
            "died": [number % 3 == 0 for number in range(rows)],
        }
        for some, rows in ((levels, 1500), (100, 1000))
    ]
    proposed(tmp_path, monkeypatch, *tables)
    told = "'code' is left out at a and learned from at b" in capsys.readouterr().err
    assert told == (levels == 750)  # of which two rows have each: too few


def test_a_label_of_another_table_is_no_feature(tmp_path, monkeypatch):
    """What came out is not known beforehand: a model that learns from it looks too good."""
    outcome = ["bad" if one else "good" for one in DEFAULT[20:]]
    outcome[30], outcome[70] = "bad", "good"  # no copy of the bank's label
    other = shop(outcome=outcome, event=["x", "y"] * 50)
    found = proposed(tmp_path, monkeypatch, bank(), other)
    assert client(found, 0)["label"] == "default"
    assert "label" not in client(found, 1)
    assert client(found, 1)["exclude"] == ["outcome"]  # an event may be a feature
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert "may be a label too" in text
    asked = ("--label", "default", "--overwrite")
    found = proposed(tmp_path, monkeypatch, bank(), other, arguments=asked)
    assert "exclude" not in client(found, 1)


def test_whole_numbers_that_are_spread_as_counts_are_amounts(tmp_path, monkeypatch):
    returns = np.repeat([0, 1, 2, 3, 5], [30, 35, 10, 4, 1])  # one peak and a thin tail
    region = np.repeat([0, 1, 2, 3, 4], [10, 25, 5, 30, 10])
    found = proposed(tmp_path, monkeypatch, bank(returns=returns, region=region), shop())
    assert client(found, 0)["categorical"] == ["region"]


def test_whole_numbers_that_hardly_repeat_are_no_counts(tmp_path, monkeypatch):
    days = np.arange(80) * 7 // 2 % 40  # from 0 on, each in two rows
    found = proposed(tmp_path, monkeypatch, bank(days=days), shop(), arguments=["--label", "days"])
    assert found["algorithm"]["loss"] == "squared"


def test_answers_on_one_scale_are_amounts(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    asked = {f"Q{k}": rng.integers(1, 6, 80) for k in range(5)}
    asked["Q3"] = asked["Q3"].clip(max=4)  # nobody fully agrees
    asked["Q4"][:6] = 99
    region = rng.integers(2, 6, 80)
    found = proposed(tmp_path, monkeypatch, bank(**asked, Q5=asked["Q0"], region=region), shop())
    assert client(found, 0)["categorical"] == ["region"]
    text = " ".join((tmp_path / "mine.toml").read_text().replace("\n# ", " ").split())
    assert "taken for answers on one scale: Q0, Q1, Q2, Q3, Q4, Q5; list in categorical" in text


@pytest.mark.parametrize(
    "name", ["satisfaction", "PainScore", "Bewertung_Service", "n_nights", "occupants", "Note1"]
)
def test_a_single_column_with_the_name_of_a_grade_is_an_amount(name, tmp_path, monkeypatch):
    five = np.random.default_rng(0).integers(1, 6, 80)
    found = proposed(tmp_path, monkeypatch, bank(**{name: five}, region=five[::-1]), shop())
    assert client(found, 0)["categorical"] == ["region"]


@pytest.mark.parametrize(
    ("label", "classes", "positive"),
    [
        ("is_canceled", ("Canceled", "Check-Out"), "Canceled"),
        ("default", ("paid", "default"), "default"),
        ("default", ("default", "no default"), "default"),  # as a run has it
    ],
)
def test_the_class_that_the_label_is_named_for_is_positive(
    label, classes, positive, tmp_path, monkeypatch
):
    own = {"age": AGE[:80], label: np.array(classes)[DEFAULT[:80]]}
    found = proposed(
        tmp_path, monkeypatch, own, {**own, "x": AGE[:80]}, arguments=["--label", label]
    )
    assert found["labels"]["positive"] == positive


@pytest.mark.parametrize("separator", [",", ";"])
def test_groups_of_figures_with_zeros_in_front_are_codes(separator, tmp_path, monkeypatch):
    code = np.array(["01.11", "47.11", "62.01"])[AGE[:80] % 3]
    income = [f"{one / 7:.2f}".replace(".", "," if separator == ";" else ".") for one in BANK]
    own = bank(nace=code, income=income)
    found = proposed(tmp_path, monkeypatch, own, shop(), separator=separator)
    assert client(found, 0)["categorical"] == ["nace"]
    assert main(["run", "mine.toml", "--no-yardsticks"]) == 0


def test_dates_with_a_year_of_two_digits_are_no_codes(tmp_path, monkeypatch):
    days = [f"{one % 28 + 1:02}.{one % 12 + 1:02}.25" for one in BANK]
    found = proposed(tmp_path, monkeypatch, bank(opened=days), shop(), separator=";")
    assert client(found, 0)["exclude"] == ["opened"]
    assert "has dates or times" in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize("kind", ["grades", "classes", "shuffled"])
def test_labels_of_many_whole_numbers_around_one_peak_are_amounts(kind, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    grade = rng.normal(12, 3, 400).round().clip(0, 20).astype(int)
    if kind == "classes":
        grade = np.arange(400) % 15
    if kind == "shuffled":
        grade = rng.permutation(21)[grade]
    own = {"hours": (grade + rng.normal(size=400)).round(2), "grade": grade}
    found = proposed(tmp_path, monkeypatch, own, own, arguments=["--label", "grade"])
    task, loss = found["labels"]["task"], found["algorithm"]["loss"]
    amounts = kind == "grades"
    assert (task, loss) == (("regression", "squared") if amounts else ("multiclass", "logistic"))


def test_three_columns_of_one_scale_may_be_codes(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    coded = {f"kind{k}": rng.integers(1, 5, 80) for k in range(3)}
    found = proposed(tmp_path, monkeypatch, bank(**coded), shop())
    assert client(found, 0)["categorical"] == [*coded]


@pytest.mark.parametrize(
    ("rare", "often", "positive"),
    [("ja", "nein", "ja"), ("no", "yes", "yes"), ("gone", "stays", "stays")],
)
def test_the_positive_class_is_that_of_a_run(rare, often, positive, tmp_path, monkeypatch):
    label = [rare if one % 4 == 0 else often for one in BANK]
    found = proposed(tmp_path, monkeypatch, bank(default=label), shop())
    assert found["labels"]["positive"] == positive
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert (f"; {rare} has fewer rows" in text) == (positive != rare)


def test_labels_in_other_words_are_told_by_shared_rows(tmp_path, monkeypatch):
    both = range(20, 80)
    words = {0: "good", 1: "bad"}
    other = {"customer": both, "default": [words[DEFAULT[row]] for row in both]}
    found = proposed(tmp_path, monkeypatch, bank(), {**other, "size": BASKET[20:80]})
    assert client(found, 1)["label_map"] == {"good": "0", "bad": "1"}
    assert "label_map" not in client(found, 0)
    # one row says something else: then they are not the same labels
    other["default"][0] = words[1 - DEFAULT[20]]
    (tmp_path / "mine.toml").unlink()
    found = proposed(tmp_path, monkeypatch, bank(), {**other, "size": BASKET[20:80]})
    assert client(found, 1)["exclude"] == ["default"]


def test_amounts_with_a_long_tail_are_named(tmp_path, monkeypatch, capfd):
    rng = np.random.default_rng(1)
    sales, weight = np.exp(rng.normal(0, 2, 80)).round(4), rng.normal(70, 10, 80).round(2)
    proposed(tmp_path, monkeypatch, bank(sales=sales, weight=weight), shop())
    assert "with a few values far above the rest: sales;" in (tmp_path / "mine.toml").read_text()
    assert "'sales' has a few values far above the rest." in " ".join(said(capfd)[1].split())
    debt, t3 = (np.round(rng.standard_t(df, 80), 3) for df in (1, 30))
    debt[:3] = [-900.0, 700.0, -300.0]
    proposed(tmp_path, monkeypatch, bank(debt=debt, t3=t3), shop(), arguments=["--overwrite"])
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert "with a few values far from the rest, some negative: debt; cut values, or sign(" in text
    assert "'debt' has a few values far from the rest, some of them" in said(capfd)[1]


@pytest.mark.parametrize(
    ("code", "rows", "said_of_it"),
    [
        (999, 5, True),
        (-1, 5, True),  # alone below 0
        (999, 4, False),  # the value of few rows stands in no file
        (300.5, 6, False),
        (95, 6, False),  # an age
    ],
)
def test_a_number_that_may_stand_for_a_missing_value_is_named_and_is_no_amount(
    code, rows, said_of_it, tmp_path, monkeypatch, capfd
):
    years = [code] * rows + AGE[rows:80].tolist()
    proposed(tmp_path, monkeypatch, bank(years=years), shop())
    text = " ".join((tmp_path / "mine.toml").read_text(encoding="utf-8").replace("#", "").split())
    advice = f'years: {code} may stand for a missing value; if so, add "{code}" to missing'
    assert (advice in text) == said_of_it
    note = f"{code} in 'years' of a ({rows} rows) may stand for a missing value"
    assert (note in said(capfd)[1]) == said_of_it
    if said_of_it:  # and the advice does what it says
        assert "log(1 + value)" not in text
        file = (tmp_path / "mine.toml").read_text(encoding="utf-8")
        file = file.replace('path = "a.csv"', f'missing = ["{code}"]\npath = "a.csv"')
        (tmp_path / "mine.toml").write_text(file, encoding="utf-8")
        assert main(["inspect", "mine.toml"]) == 0
        assert "may stand for a missing value" not in said(capfd)[1]


def test_a_run_says_which_number_may_stand_for_a_missing_value_in_which_rows(
    tmp_path, monkeypatch, capfd
):
    years = [999] * 30 + AGE[30:80].tolist()
    proposed(tmp_path, monkeypatch, bank(years=years, smoker=["yes", "no", "-", "no"] * 20), shop())
    assert 'missing = ["?", "-", "999"] of a.' in said(capfd)[1]
    proposed(tmp_path, monkeypatch, bank(years=years), shop(), arguments=["--overwrite"])
    assert main(["run", "mine.toml", "--no-yardsticks", "-c", "split.test=0"]) == 0
    notes = [one for one in load(tmp_path / "runs" / "mine").notes if "999" in one]
    assert len(notes) == 1
    assert "999 in 'years' of a (30 training rows) may stand for a missing value" in notes[0]
    assert 'as in missing = ["?", "999"] of a.' in notes[0]
    assert notes[0] in " ".join("".join(said(capfd)).split())


def test_a_number_below_zero_among_counts_is_proposed_as_a_mark_of_missing(
    tmp_path, monkeypatch, capfd
):
    counts = np.repeat(range(6), (28, 20, 12, 8, 6, 1)).tolist()
    own = bank(claims=[-1] * 5 + counts)
    found = proposed(tmp_path, monkeypatch, own, shop())
    assert client(found, 0)["missing"] == ["?", "", "-1"]
    assert "categorical" not in client(found, 0)
    assert "takes for missing '-1'" in said(capfd)[1]
    # where another column has it as a value, nothing is lost there
    own = bank(claims=[-1] * 5 + counts, balance=list(range(-40, 40)))
    found = proposed(tmp_path, monkeypatch, own, shop(), arguments=["--overwrite"])
    assert "missing" not in client(found, 0)
    assert "categorical" not in client(found, 0)
    assert "-1 in 'claims' of a (5 rows) may stand for a missing value" in said(capfd)[1]


def test_a_number_that_means_no_label_is_proposed_by_label_map_and_told(
    tmp_path, monkeypatch, capfd
):
    counts = np.repeat(range(6), (28, 20, 12, 8, 6, 1)).tolist()
    own = bank(claims=[-1] * 5 + counts)
    found = proposed(tmp_path, monkeypatch, own, shop(), arguments=["--label", "claims"])
    assert client(found, 0)["label_map"] == {"-1": ""}
    assert found["algorithm"]["loss"] == "poisson"  # of counts, as without these rows
    assert "Labels that are written count as none: 5 of 'claims' at a." in said(capfd)[1]
    settings = ["-c", "split.test=0"]
    assert main(["run", "mine.toml", "--no-yardsticks", "-q", *settings]) == 0
    notes = load(tmp_path / "runs" / "mine").notes
    assert any("count as none: 5 of 'claims' at a." in one for one in notes)
    # with the mark in missing alone it is a label as any other
    file = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    lines = [line for line in file.splitlines() if not line.startswith("label_map")]
    (tmp_path / "mine.toml").write_text("\n".join(lines), encoding="utf-8")
    assert main(["inspect", "mine.toml"]) == 0
    assert "count as none" not in said(capfd)[1]


@pytest.mark.parametrize(
    ("first", "how"),
    [
        ("31.01.2026", 'set dates = "day first"'),
        ("01/31/2026", 'set dates = "month first"'),
        ("2026-01-31", 'set dates = "days"'),
        ("20260131", "write them as 2026-01-31"),
        ("31 Jan 2026", "write dates as 2026-01-31 and set dates"),
    ],
)
def test_a_column_of_dates_is_left_out_with_what_to_do(first, how, tmp_path, monkeypatch, capfd):
    days = [first.replace("31", f"{at % 28 + 1:02}") if at else first for at in range(80)]
    found = proposed(tmp_path, monkeypatch, bank(seen=days), shop())
    assert client(found, 0)["exclude"] == ["seen"]
    assert how in said(capfd)[1]
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert how in text
    if "first" in how:  # and it does what it says
        key = how.removeprefix("set ")
        text = text.replace('path = "a.csv"', f'{key}\npath = "a.csv"').replace('"seen",', "")
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        assert main(["run", "mine.toml", "-q", "--no-yardsticks"]) == 0
        model = tmp_path / "runs" / "mine" / "model" / "linear.json"
        assert '"seen"' in model.read_text(encoding="utf-8")


def test_measurements_with_a_word_among_them_are_no_ids_that_repeat(tmp_path, monkeypatch):
    level = ["<9" if at % 9 == 0 else str(at) for at in range(80)]  # as the other's ids are
    first = {"case_id": range(1, 121), "age": AGE, "default": DEFAULT}
    second = {"level": level, "age": AGE[:80], "default": DEFAULT[:80]}
    found = proposed(tmp_path, monkeypatch, first, second)
    assert "id" not in client(found, 1)
    assert client(found, 1)["limits"] == ["level"]


def test_rows_of_one_number_are_others_where_columns_that_look_alike_differ(
    tmp_path, monkeypatch, capfd
):
    rng = np.random.default_rng(2)
    sex = np.array(["M", "F"])[rng.integers(0, 2, 120)]
    first = {"MRN": range(1, 121), "Age": AGE, "Sex": sex, "default": DEFAULT}
    other = {"MRN": range(1, 121), "AGE": AGE[::-1], "sex": np.char.lower(sex[::-1])}
    found = proposed(tmp_path, monkeypatch, first, {**other, "default": DEFAULT[::-1]})
    assert ["id" in client(found, place) for place in (0, 1)] == [False, False]
    assert "they are other samples, and the ids are left out" in said(capfd)[1]


def test_labels_in_words_that_nobody_can_tell_still_get_a_file_with_what_to_do(
    tmp_path, monkeypatch, capfd
):
    words = np.where(DEFAULT, "Died", "alive")
    first = {"age": AGE[:60], "income": INCOME[:60], "outcome": words[:60]}
    second = {"age": AGE[60:], "income": INCOME[60:], "outcome": DEFAULT[60:]}
    found = proposed(tmp_path, monkeypatch, first, second)
    assert "labels" not in found
    err = said(capfd)[1]
    assert "wrote mine.toml, which does not run yet: Label column 'outcome' has '0', '1'" in err
    remedy = 'label_map = { "alive" = "0", "Died" = "1" }'
    assert remedy in err
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert "It does not run yet" in text
    place = 'label = "outcome"'
    (tmp_path / "mine.toml").write_text(text.replace(place, f"{place}\n{remedy}", 1))
    assert main(["run", "mine.toml", "-q", "--no-yardsticks"]) == 0
    assert load(tmp_path / "runs" / "mine").positive_class == "1"


def test_a_label_that_is_spread_as_counts_are_gets_the_loss_of_counts(tmp_path, monkeypatch):
    counts = np.repeat(range(5), (45, 22, 9, 3, 1))[np.random.default_rng(0).permutation(80)]
    own = {"customer": BANK, "age": AGE[:80], "claims": counts}
    found = proposed(tmp_path, monkeypatch, own, shop(), arguments=["--label", "claims"])
    assert found["labels"] == {"task": "regression"}
    assert found["algorithm"]["loss"] == "poisson"
    assert main(["run", "mine.toml", "-q", "--no-yardsticks"]) == 0
    own["claims"] = counts + 1  # grades begin at 1
    arguments = ["--label", "claims", "--overwrite"]
    found = proposed(tmp_path, monkeypatch, own, shop(), arguments=arguments)
    assert found["labels"] == {"task": "multiclass"}


def test_a_dash_among_words_is_proposed_as_a_mark_of_missing(tmp_path, monkeypatch):
    smoker = (["yes", "no", "no", "-"] * 20)[:80]
    found = proposed(tmp_path, monkeypatch, bank(smoker=smoker), shop())
    assert client(found, 0)["missing"] == ["?", "", "-"]
    # but no finding of a laboratory, and no tick
    for others in (["+", "++", "-", "-"], ["x", "-", "-", "-"]):
        own = bank(smoker=smoker, sugar=(others * 20)[:80])
        found = proposed(tmp_path, monkeypatch, own, shop(), arguments=["--overwrite"])
        assert "missing" not in client(found, 0)


def test_an_inspection_says_how_many_rows_count_as_other(tmp_path, monkeypatch, capfd):
    ward = ["a"] * 40 + ["b"] * 32 + ["c"] * 4 + ["d"] * 3 + ["?"]
    proposed(tmp_path, monkeypatch, bank(ward=ward), shop())
    assert "Levels of 'ward' of a (2 levels, 7 rows) have fewer rows than" in said(capfd)[1]
    other = shop(ward=["c"] * 100)  # where it is known, nobody else keeps it from others
    proposed(tmp_path, monkeypatch, bank(ward=ward), other, arguments=["--overwrite"])
    assert "Levels of 'ward' of a (1 level, 3 rows) have fewer rows than" in said(capfd)[1]


def test_numbers_of_few_values_and_amounts_stand_for_no_missing_value():
    rng = np.random.default_rng(0)
    ternary = np.repeat([-1.0, 0.0, 1.0], 20)
    debts = rng.normal(0, 30, 200).round()
    pensions = np.array([0.0] * 50 + rng.integers(5000, 9000, 60).tolist())
    for values in (ternary, debts, pensions):
        assert amounts_of(values)[1] == ()
    ages = rng.integers(20, 90, 300).astype(float)
    ages[:20] = np.repeat([-9, 997, 998, 999], 5)
    amounts, codes = amounts_of(ages)
    assert codes == (-9, 997, 998, 999)
    assert len(amounts) == 280


def test_a_file_with_which_a_run_would_stop_says_so(tmp_path, monkeypatch, capfd):
    third = {"height": INCOME[:50]}  # without ids and labels
    proposed(tmp_path, monkeypatch, bank(), shop(), third)
    text = " ".join((tmp_path / "mine.toml").read_text(encoding="utf-8").split("\n# "))
    assert "It does not run yet" in text
    assert "a run would stop: Client 'c' has" in text
    *_, first, then, command = said(capfd)[1].splitlines()
    assert first.startswith("wrote mine.toml, which does not run yet: Client 'c' has")
    assert then.startswith("mend that in the file")
    assert command == "  intarsia run mine.toml"


def test_an_id_that_nobody_shares_is_no_feature(tmp_path, monkeypatch):
    one = {"pid": [7 * one for one in BANK], **bank()}
    del one["customer"]
    other = {**one, "pid": [7 * one + 3 for one in BANK]}
    found = proposed(tmp_path, monkeypatch, one, other)
    assert [client(found, place)["id"] for place in (0, 1)] == ["pid", "pid"]


def test_the_label_and_the_id_can_be_named(tmp_path, monkeypatch):
    price = (INCOME + BASKET).round(3)
    own = {"customer": BANK, "account": BANK, "age": AGE[:80], "price": price[:80]}
    arguments = ["--label", "price", "--id", "account", "--id", "customer"]
    found = proposed(tmp_path, monkeypatch, own, shop(), arguments=arguments)
    assert found["algorithm"]["loss"] == "squared"
    assert client(found, 0) == {"id": "account", "label": "price", "exclude": ["customer"]}
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert "It runs as it is" in text
    assert "huber" not in text
    assert client(found, 1) == {"id": "customer"}


@pytest.mark.parametrize(
    ("least", "words"),
    [
        (
            1,
            'compare loss = "gamma", loss = "huber" with huber_delta = {}, or the logarithm of the',
        ),
        (
            0,
            'compare loss = "poisson", loss = "huber" with huber_delta = {}, or the logarithm of 1',
        ),
    ],
)
def test_a_label_with_a_few_values_far_above_the_rest_is_told_with_what_to_compare(
    tmp_path, monkeypatch, capfd, least, words
):
    price = [1000 + k if k % 40 == 0 else least + k // 4 / 20 for k in range(80)]
    own = {"customer": BANK, "age": AGE[:80], "price": price}
    found = proposed(tmp_path, monkeypatch, own, shop(), arguments=["--label", "price"])
    assert found["algorithm"]["loss"] == "squared"
    text = " ".join((tmp_path / "mine.toml").read_text(encoding="utf-8").replace("#", "").split())
    assert "The label has a few values far above the rest, which squares follow most" in text
    assert words.format("the way between the label's quartiles") in text
    note = (
        f"The label 'price' has a few values far above the rest, which squares follow most: {words}"
    )
    assert note.format("0.5") in said(capfd)[1]
    assert main(["inspect", "mine.toml", "-c", "algorithm.loss=huber"]) == 0
    assert "The label 'price'" not in said(capfd)[1]


def test_a_label_that_is_mostly_zero_is_told_with_what_to_compare(tmp_path, monkeypatch, capfd):
    loss = [0.0] * 60 + [100.5 + 7 * k for k in range(20)]
    own = {"customer": BANK, "age": AGE[:80], "loss": loss}
    proposed(tmp_path, monkeypatch, own, shop(), arguments=["--label", "loss"])
    assert "75 % of the labels 'loss' are 0, and none is below it: compare" in said(capfd)[1]


def test_several_classes_are_a_task_of_their_own(tmp_path, monkeypatch):
    own = bank(default=[one % 4 for one in BANK])
    found = proposed(tmp_path, monkeypatch, own, shop())
    assert found["labels"] == {"task": "multiclass"}
    assert '# or one class against all others: positive = "3"' in (
        tmp_path / "mine.toml"
    ).read_text(encoding="utf-8")


def test_names_with_blanks_quotes_and_control_characters_are_written_as_they_are(
    tmp_path, monkeypatch
):
    own = bank(**{' monthly "net" income ': INCOME[:80], "#\x1b[2J": ["1"] * 80})
    found = proposed(tmp_path, monkeypatch, own, shop())
    assert client(found, 0)["exclude"] == ["#\x1b[2J", 'monthly "net" income'][:1]
    assert '# numbers: age, income, monthly "net" income' in (tmp_path / "mine.toml").read_text(
        encoding="utf-8"
    )


def test_parquet_and_npz_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = {"customer": pa.array(BANK), "age": AGE[:80], "default": DEFAULT[:80].astype(bool)}
    arrow_parquet.write_table(pa.table(columns), tmp_path / "bank.parquet")
    np.savez(tmp_path / "shop.npz", x=BASKET[20:, None], samples=np.array(SHOP))
    assert main(["init", "bank.parquet", "shop.npz"]) == 0
    found = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))
    assert client(found, 0) == {"id": "customer", "label": "default"}
    assert client(found, 1) == {"id": "samples"}


@pytest.mark.parametrize("labelled", [False, True])
def test_ids_of_an_npz_file_are_found_in_a_table_and_its_lack_of_labels_is_seen(
    labelled, tmp_path, monkeypatch, capfd
):
    """No label was looked for beside an npz file, and no column was compared with its ids."""
    monkeypatch.chdir(tmp_path)
    classes = [f"kind {'abc'[row % 3]}" for row in BANK]
    write(tmp_path, "plant.csv", {"ticket": [f"T{row:03}" for row in BANK], "x": AGE[:80]})
    frame = pd.read_csv("plant.csv").assign(kind=classes)
    frame.to_csv("plant.csv", index=False)
    known = {"y": np.arange(100) % 3} if labelled else {}
    ids = np.array([f"t{row:03}" for row in SHOP])
    np.savez("lab.npz", x=BASKET[20:, None], samples=ids, **known)
    arguments = [] if labelled else ["--label", "kind"]
    assert main(["init", "plant.csv", "lab.npz", *arguments]) == 0
    told = said(capfd)[1]
    assert ("lab: id 'samples'; the labels in the file" in told) == labelled
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert 'id = "ticket"  # another value in every row; 60 are at lab too' in text
    assert ("# label: the labels in the file" in text) == labelled
    assert tomllib.loads(text)["alignment"]["normalise"] == ["case"]
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    if not labelled:
        assert main(["init", "plant.csv", "lab.npz", "--overwrite"]) == 2
        assert "say which column is to be predicted" in one_error(said(capfd)[1])


def test_labels_of_a_libsvm_file_are_numbers_or_classes_by_themselves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{one:.3f} 1:{own:.3f} 2:1" for one, own in zip(INCOME + BASKET, INCOME, strict=True)]
    (tmp_path / "meter.svm").write_text("\n".join(lines), encoding="utf-8")
    assert main(["init", "meter.svm"]) == 0
    found = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))
    assert found["algorithm"]["loss"] == "squared"
    assert client(found, 0) == {}


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, columns in (("bank", bank()), ("shop", shop())):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, "data.csv", columns)
    assert main(["init", "bank/data.csv", "shop/data.csv"]) == 0
    clients = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))["client"]
    assert [one["name"] for one in clients] == ["bank-data", "shop-data"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "No table is named"),
        (["nowhere.csv"], "there is no such file; correct its path"),
        (["folder"], "folder is a folder; it has no table"),
        (["bank.csv", "."], "name the tables in it, one for each client: bank.csv "),
        (["empty.csv", "bank.csv"], "the file is empty"),
        (["index.csv"], "the name of column 1 is ''"),
        (["bank.csv", "bank.csv"], "bank.csv is named 2 times"),
        (["bank.csv", "--label", "defualt"], "--label 'defualt' is a column of no table; use 'd"),
        (["bank.csv", "--id", "age"], "id column 'age' has "),
        (["shop.csv"], "No column is named like a label"),
        (["orders.csv", "bank.csv"], "40 ids repeat, most often '0' in 2 rows (1 and 2)"),
        (
            ["twice.csv", "bank.csv"],
            "column 'Fall' has the ids of 'bank', but 2 ids repeat, most often 'P20' in 2 rows",
        ),
        (
            ["bank.csv", "share.csv"],
            "no column is left to learn from: 'share' has negative numbers",
        ),
        (["bank.csv", "--out", "folder"], "folder is a folder; name a file in it"),
        (["bank.csv", "--out", "none/mine.toml"], "none is no folder"),
        (["--example", "credti"], "--example 'credti' is none; use 'credit'"),
        (["--example", "credit", "bank.csv"], "--example brings its own tables"),
        (["bank.csv", "far.csv"], "Nothing can be learned from these tables together"),
    ],
)
def test_what_cannot_be_proposed_is_said_in_a_sentence(
    arguments, sentence, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.csv").write_bytes(b"")
    write(tmp_path, "bank.csv", bank())
    write(tmp_path, "shop.csv", shop())
    write(tmp_path, "far.csv", shop(customer=range(1000, 1100)))
    write(tmp_path, "index.csv", {"": BANK, "y": DEFAULT[:80]})
    write(tmp_path, "orders.csv", {"customer": [one // 2 for one in BANK], "basket": BASKET[:80]})
    write(
        tmp_path,
        "share.csv",
        {"customer": SHOP, "share": [f"({one % 9})" if one % 2 else one for one in SHOP]},
    )
    twice = [f"P{one}" for one in [*SHOP[:40], 20, 21]]
    write(tmp_path, "twice.csv", {"Fall": twice, "basket": BASKET[:42]})
    if "twice.csv" in arguments:
        write(tmp_path, "bank.csv", bank(customer=[f"P{one}" for one in BANK]))
    assert main(["init", *arguments]) == 2
    assert sentence in one_error(said(capfd)[1])
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.parametrize(("name", "tables"), [("credit", 3), ("heart", 4)])
def test_an_example_comes_with_its_data(name, tables, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--example", name]) == 0
    assert said(capfd)[1].rstrip().endswith(f"intarsia run {name}.toml")
    assert len([*(tmp_path / name).iterdir()]) == tables
    clients = tomllib.loads((tmp_path / f"{name}.toml").read_text(encoding="utf-8"))["client"]
    assert all((tmp_path / one["path"]).is_file() for one in clients)
    assert main(["init", "--example", name]) == 2
    assert f"{name}.toml is there already" in one_error(said(capfd)[1])


def test_numbers_with_a_unit_or_a_limit_are_proposed_as_numbers(tmp_path, monkeypatch):
    own = bank(
        rent=[f"€ {one}.{900 - one}" for one in BANK],  # another in every row
        share=[f"{one % 9} %" for one in BANK],
        stay=[f"{one % 3 + 1} days" for one in BANK],
        lab=["< 5 mg/l" if one % 9 == 2 else f"{5 + one} mg/l" for one in BANK],
        children=["0" if one % 3 else "<1" if one % 2 else ">2" for one in BANK],
        opened=[f"2026-{1 + one % 12:02}-{1 + one // 12 % 28:02}" for one in BANK],
    )
    found = proposed(tmp_path, monkeypatch, own, shop())
    read = client(found, 0)
    assert read["units"] == {"rent": "€", "share": "%", "stay": "days", "lab": "mg/l"}
    assert read["limits"] == ["lab"]
    assert "categorical" not in read
    assert set(read["exclude"]) == {"children", "opened"}


def test_a_unit_is_proposed_for_no_column_that_two_texts_elsewhere_make_a_category(
    tmp_path, monkeypatch
):
    few = bank(dose=[f"{5 + 5 * (one % 2)} mg" for one in BANK])
    more = shop(dose=[f"{5 + 5 * (one % 3)} mg" for one in SHOP])
    for own in proposed(tmp_path, monkeypatch, few, more)["client"]:
        assert (own["categorical"], "units" in own) == (["dose"], False)


@pytest.mark.parametrize(("columns", "penalty"), [(1, 0.003), (12, 0.02), (80, 0.1)])
def test_a_linear_model_is_drawn_to_0_by_its_features_for_each_row(
    columns, penalty, tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    wide = {f"gene{at}": rng.normal(size=80).round(3) for at in range(columns)}
    own = {"customer": BANK, "default": DEFAULT[:80], **wide}
    found = proposed(tmp_path, monkeypatch, own, {"customer": BANK, "age": AGE[:80]})
    assert found["algorithm"]["regularisation"] == penalty  # 0.1 (columns + 1) / 64


@pytest.mark.parametrize(("rows", "stops"), [(120, True), (90, False)])
def test_networks_of_clients_with_enough_rows_stop_early(rows, stops, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    own = {"age": AGE[:rows], "default": DEFAULT[:rows]}
    found = proposed(tmp_path, monkeypatch, own, {"basket": BASKET[:60], "default": DEFAULT[:60]})
    assert found["algorithm"]["name"] == "flic"
    assert ("experiment" in found, "stopping" in found["split"]) == (stops, stops)
    if stops:
        assert main(["run", "mine.toml", "--no-yardsticks", "-c", "algorithm.hidden=4"]) == 0
        assert load(tmp_path / "runs" / "mine").finished == "early_stopping"


@pytest.mark.parametrize(
    ("name", "linear", "stops"),
    [("fedprox", False, True), ("flic-linear", False, False), ("cocoa", True, False)],
)
def test_the_file_has_the_keys_of_the_algorithm_that_is_asked_for(
    name, linear, stops, tmp_path, monkeypatch, capfd
):
    pytest.importorskip("torch")
    own = [{"age": AGE, "default": DEFAULT}, {"age": AGE[::-1], "default": DEFAULT[::-1]}]
    found = proposed(tmp_path, monkeypatch, *own, arguments=["--algorithm", name])
    assert found["algorithm"]["name"] == name
    assert ("loss" in found["algorithm"], "preprocessing" in found) == (linear, linear)
    assert ("experiment" in found, "stopping" in found["split"]) == (stops, stops)
    # a key that it needs is asked for
    assert ("give it latent = …" in capfd.readouterr().err) == (name == "flic-linear")
    if name == "fedprox":
        shorter = ["-c", "algorithm.hidden=4", "-c", "experiment.rounds=5"]
        assert main(["run", "mine.toml", "--no-yardsticks", *shorter]) == 0
        assert load(tmp_path / "runs" / "mine").best_round == 2


def test_an_algorithm_that_is_not_there_is_refused_before_tables_are_read(tmp_path, capfd):
    assert main(["init", str(tmp_path / "none.csv"), "--algorithm", "fedproks"]) == 2
    assert "'fedprox'" in one_error(capfd.readouterr().err)


def test_a_key_of_linear_models_is_named_where_only_the_algorithm_was_changed(
    tmp_path, monkeypatch, capfd
):
    pytest.importorskip("torch")
    proposed(tmp_path, monkeypatch, bank(), bank())
    file = tmp_path / "mine.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"hyfdca"', '"femam"'), encoding="utf-8")
    capfd.readouterr()
    assert main(["run", "mine.toml"]) == 2
    error = one_error(capfd.readouterr().err)
    assert "'loss' is a key of linear models: take it out" in error
    assert "intarsia init --algorithm NAME" in error


def test_a_table_is_run_and_predicted_for_with_the_units_that_are_proposed(tmp_path, monkeypatch):
    own = bank(share=[f"{one % 9} %" for one in BANK])
    proposed(tmp_path, monkeypatch, own, shop())
    assert main(["run", "mine.toml", "--no-yardsticks"]) == 0
    pd.DataFrame({"customer": [1, 2], "share": ["3 %", "4"]}).to_csv("new.csv", index=False)
    assert main(["predict", "runs/mine", "new.csv", "--out", "scores.csv"]) == 0
    scores = pd.read_csv("scores.csv").iloc[:, -1]
    assert scores[0] != scores[1]


def test_limits_and_times_of_day_are_named_with_what_to_do(tmp_path, monkeypatch, capfd):
    own = bank(
        lab=["<5" if one % 9 == 2 else "> 100" if one % 9 == 3 else 5 + one for one in BANK],
        call=[f"{one % 24}:{one * 7 % 60:02}" for one in BANK],
    )
    found = proposed(tmp_path, monkeypatch, own, shop())
    assert client(found, 0)["limits"] == ["lab"]
    assert set(client(found, 0)["exclude"]) == {"call"}
    text, err = (tmp_path / "mine.toml").read_text(), " ".join(said(capfd)[1].split())
    assert "has times of day (such as '0:00'); to learn from it, write minutes since" in err
    whole = " ".join(text.replace("#", " ").split())
    assert "of values such as <5 the limit itself counts" in whole
    assert "has times of day; to learn from it, write minutes since midnight, and take" in whole


def test_the_file_has_no_words_of_cells_that_the_terminal_tells(tmp_path, monkeypatch, capfd):
    """Other organisations get the file."""
    own = bank(
        branch=["Ward-7"] * 80,
        lab=["haemolysed S7" if one == BANK[5] else one % 9 for one in BANK],
    )
    proposed(tmp_path, monkeypatch, own, shop())
    text, err = (tmp_path / "mine.toml").read_text(), said(capfd)[1]
    assert '"branch",  # ... in every row that has it' in text
    assert "mixes numbers and text: ... in row 6" in text
    assert "S7" not in text
    assert "Ward-7" not in text
    assert "'branch': 'Ward-7' in every row that has it" in err
    assert "'haemolysed S7' in row 6" in err


def test_the_file_has_words_for_missing_values_that_are_well_known_or_of_several_cells(
    tmp_path, monkeypatch, capfd
):
    """A word that stands in one cell may say something of one person."""
    words = {3: "-", 9: "NULL", 11: "n.d.", **dict.fromkeys(range(20, 25), "haemolysed")}
    own = bank(
        lab=[words.get(one, one / 7) for one in BANK],
        other=["refused by Mrs Smith" if one == 5 else words.get(one, one / 9) for one in BANK],
    )
    found = proposed(tmp_path, monkeypatch, own, shop())
    assert client(found, 0)["missing"] == ["?", "", "-", "n.d.", "haemolysed"]
    assert client(found, 0)["exclude"] == ["other"]
    assert "Smith" not in (tmp_path / "mine.toml").read_text()
    err = said(capfd)[1]
    assert "'refused by Mrs Smith' in row 6 beside values such as" in err
    assert "correct it, or add it to missing, and take the column out of exclude" in err
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0


def test_values_that_differ_in_case_alone_are_one_in_a_file_that_runs(tmp_path, monkeypatch, capfd):
    sex = RNG.choice(["m", "f"], 120)
    own, other = bank(Sex=sex[:80]), shop(SEX=np.char.upper(sex[20:]))
    found = proposed(tmp_path, monkeypatch, own, other)
    assert "exclude" not in client(found, 1)
    err = said(capfd)[1]
    assert "values of 'Sex' differ in case alone, and are taken for one: ignore_case" in err
    assert "wrote mine.toml and mine-columns.toml: read them, and change" in err
    dictionary = tomllib.loads((tmp_path / "mine-columns.toml").read_text(encoding="utf-8"))
    assert dictionary == {
        "client": {"b": {"SEX": "Sex"}},
        "feature": {"Sex": {"ignore_case": True}},
    }
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    assert sorted(model["features"]) == ["Sex=f", "Sex=m", "age", "basket", "income"]


def test_names_that_look_alike_in_one_table_and_another_are_named(tmp_path, monkeypatch, capfd):
    own = bank(Age=AGE[:80] * 2.5)
    found = proposed(tmp_path, monkeypatch, own, shop(AGE=AGE[20:]))
    assert "alignment" not in found
    told = "'age' at a and 'Age' at a and 'AGE' at b; give columns that are one the same name"
    assert told in said(capfd)[1]
    proposed(tmp_path, monkeypatch, own, shop(Age=AGE[20:]), arguments=["--overwrite"])
    assert "look alike" not in said(capfd)[1]  # they say which it is


def test_labels_that_differ_in_case_alone_are_one_class(tmp_path, monkeypatch, capfd):
    ill = np.array(["well", "ill"])[DEFAULT[:80]]
    ill[:3] = np.char.title(ill[:3])
    found = proposed(tmp_path, monkeypatch, bank(default=ill), shop())
    assert client(found, 0)["label_map"] == {one: one.lower() for one in ill[:3]}
    assert found["labels"] == {"positive": "ill"}
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0


def test_values_with_a_decimal_comma_are_those_with_a_point(tmp_path, monkeypatch, capfd):
    """Rows of one id whose common column is written otherwise are the same samples."""
    income = (np.arange(120) * 7.25 + 0.5).tolist()
    quoted = [f'"{income[k]:.2f}"'.replace(".", ",") for k in BANK]
    own = {"customer": BANK, "income": quoted, "default": [k % 2 for k in BANK]}
    proposed(tmp_path, monkeypatch, own, shop(income=[f"{income[k]:.2f}" for k in SHOP]))
    assert "other samples" not in said(capfd)[1]
    assert client(tomllib.loads((tmp_path / "mine.toml").read_text()), 1)["id"] == "customer"


def test_points_between_thousands_are_told_by_decimal_commas_of_other_columns(
    tmp_path, monkeypatch
):
    grouped = [f"{200 + k}.{k * 7 % 1000:03}" for k in BANK]
    comma = [str(one).replace(".", ",") for one in INCOME[:80]]
    found = proposed(
        tmp_path, monkeypatch, bank(income=comma, turnover=grouped), shop(), separator=";"
    )
    own = client(found, 0)
    assert (own["decimal"], own["thousands"], "exclude" in own) == (",", ".", False)
    assert "thousands = \".\"  # as in column 'turnover'" in (tmp_path / "mine.toml").read_text()


def test_numbers_are_read_as_most_columns_write_them(tmp_path, monkeypatch):
    points = {f"x{k}": [f"{k}.{row}" for row in BANK] for k in range(3)}
    comma = [str(one).replace(".", ",") for one in INCOME[:80]]
    found = proposed(tmp_path, monkeypatch, bank(income=comma, **points), shop(), separator=";")
    assert client(found, 0)["exclude"] == ["income"]


def test_labels_with_a_decimal_comma_are_the_classes_that_a_run_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def comma(values: Iterable[object]) -> list[str]:
        return [str(float(str(one))).replace(".", ",") for one in values]

    own = bank(income=comma(INCOME[:80]), default=comma(DEFAULT[:80]))  # 0,0 and 1,0
    made = proposed(tmp_path, monkeypatch, own, shop(basket=comma(BASKET[20:])), separator=";")
    assert made["labels"]["positive"] == "1"
    assert main(["run", "mine.toml", "-q"]) == 0


def test_a_person_s_id_that_repeats_is_what_rows_are_split_by(tmp_path, monkeypatch, capfd):
    persons = [[k // 4 for k in rows] for rows in (BANK, SHOP)]
    tables = bank(patient_id=persons[0]), shop(patient_id=persons[1])
    found = proposed(tmp_path, monkeypatch, *tables)
    assert [client(found, at)["split_by"] for at in (0, 1)] == ["patient_id", "patient_id"]
    assert "patient_id" not in str([one.get("exclude") for one in found["client"]])
    assert "rows of one 'patient_id' are held out together" in said(capfd)[1]
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    result = load(tmp_path / "runs/mine")
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    assert "patient_id" not in model["features"]
    assert any("Rows are held out by groups: 20 in 80 rows at 'a'" in one for one in result.notes)


def test_a_column_that_nearly_all_rows_of_a_table_lack_is_left_out_there_without_a_note(
    tmp_path, monkeypatch, capfd
):
    rows = np.arange(300)
    tables = [
        {
            "age": rows % 50,
            "ca": [row % 4 if row % every == 0 else "" for row in rows],
            "died": rows % 3 % 2,
        }
        for every in (1, 30)
    ]
    found = proposed(tmp_path, monkeypatch, *tables)
    assert client(found, 1)["exclude"] == ["ca"]
    assert "is left out at" not in said(capfd)[1]


def test_a_column_that_rows_of_one_label_alone_have_names_no_machines(tmp_path, monkeypatch, capfd):
    rows = np.arange(600)
    cause = [f"I{row % 23}" if row % 3 == 0 else "" for row in rows]
    died = (rows % 3 == 0).astype(int)
    proposed(tmp_path, monkeypatch, {"age": rows % 50, "cause": cause, "died": died})
    assert "all have the same label" not in said(capfd)[1]


@pytest.mark.parametrize("name", ["machine_id", "Aggregat"])
@pytest.mark.parametrize("mixed", [False, True])
def test_machines_with_one_label_in_all_rows_are_not_learned_by_heart(
    name, mixed, tmp_path, monkeypatch, capfd
):
    """Of machines with 40 rows each a run said 100 % right, where of new machines 84 % are."""
    rows = np.arange(600)
    broken = np.random.default_rng(3).permutation(np.arange(60) % 3 == 0)
    own = {
        name: [f"MX-{row // 10:03}" for row in rows],
        "heat": RNG.normal(size=600),
        "failure": [int(broken[row // 10] != (mixed and row == 7)) for row in rows],
    }
    found = proposed(tmp_path, monkeypatch, own, arguments=("--label", "failure"))
    told = "rows with the same 'Aggregat' all have the same label" in said(capfd)[1]
    by_name = name == "machine_id"
    assert (client(found, 0).get("split_by") == name) == by_name
    assert told == (not by_name and not mixed)
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    assert (load(tmp_path / "runs/mine").metrics.server.accuracy < 0.9) == by_name


@pytest.mark.parametrize(("machines", "twice"), [(60, 0), (60, 4), (8, 0)])
def test_readings_of_the_machines_of_another_table_are_told_to_repeat(
    machines, twice, tmp_path, monkeypatch, capfd
):
    """It was said that nothing can be learned together, where the two names of the ids differ."""
    rows = range(600)
    readings = {
        "Aggregat": [f"MX-{row % machines:03}" for row in rows],
        "heat": RNG.normal(size=600),
        "label": [row % 3 % 2 for row in rows],
    }
    known = [*range(machines), *range(twice)]
    service = {"machine": [f"mx-{one:03}" for one in known], "years": [3 * one for one in known]}
    write(tmp_path, "readings.csv", readings)
    write(tmp_path, "service.csv", service)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "readings.csv", "service.csv"]) == 2
    told = "'Aggregat' has the ids of 'service', but 60 ids repeat, most often 'MX-000' in 10 rows"
    assert (told in one_error(said(capfd)[1])) == (machines == 60)  # a few codes may be others


@pytest.mark.parametrize(
    "codes",
    [
        lambda rows: [f"{100 + row % 40}/{60 + row % 23}" for row in rows],
        lambda rows: [f"{'ABCDEFG'[row % 7]}{row % 61:02}.{row % 9}" for row in rows],
        lambda rows: [f"{7 + row % 11:02}:{row % 59:02}" for row in rows],
    ],
    ids=["pressures", "diagnoses", "times"],
)
def test_codes_that_two_tables_list_are_no_ids_that_repeat(codes, tmp_path, monkeypatch):
    """Of a short table nearly every row has its own, and a long one has them all."""
    for name, rows in (("a", range(1500)), ("b", range(40))):
        number = np.array(rows)
        columns = {"code": codes(rows), "age": 20 + number % 50, "label": number % 3 % 2}
        write(tmp_path, f"{name}.csv", columns)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "a.csv", "b.csv"]) == 0


def test_codes_of_tables_without_a_common_column_are_no_ids_where_few_are_known(
    tmp_path, monkeypatch
):
    numbers = np.arange(1500)
    codes = [f"{'ABCDEFG'[row % 7]}{row % 61:02}.{row % 9}" for row in numbers]
    write(tmp_path, "a.csv", {"icd": codes, "age": 20 + numbers % 50, "label": numbers % 3 % 2})
    some = numbers[:40]
    own = {"diagnosis": codes[:40], "weight": 60 + 7 * some % 31, "died": some % 3 % 2}
    write(tmp_path, "b.csv", own)
    monkeypatch.chdir(tmp_path)
    assert main(["init", "a.csv", "b.csv", "--label", "label", "--label", "died"]) == 0


def test_a_code_that_repeats_elsewhere_is_no_id_of_a_small_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    codes = np.array([f"SKU-{at:04}" for at in range(300)])
    rows = {"north": 2000, "south": 1500, "kiosk": 25}
    for name, count in rows.items():
        own = rng.permutation(codes)[:count] if count < 300 else rng.choice(codes, count)
        frame = pd.DataFrame({"sku": own, "amount": rng.gamma(2, 9, count).round(2)})
        frame.assign(fraud=np.arange(count) % 2).to_csv(f"{name}.csv", index=False)
    assert main(["init", *(f"{name}.csv" for name in rows), "--label", "fraud"]) == 0
    for client in tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))["client"]:
        assert client["categorical"] == ["sku"]
        assert "id" not in client
        assert "exclude" not in client


def test_ids_have_the_name_that_they_have_elsewhere_though_few_are_shared(tmp_path, monkeypatch):
    """It was left out, as one that does not tell its rows apart, and with it 12 shared rows."""
    answers = [
        {
            "respondent": [f"R-{one:04}" for one in own],
            "age": [20 + one % 50 for one in own],
            "label": [one % 3 % 2 for one in own],
        }
        for own in (range(912, 1012), range(1012, 1112))
    ]
    crm = {
        "resp": [f"r{one}" for one in range(912, 1112)],
        "months": [one % 90 for one in range(200)],
    }
    found = proposed(tmp_path, monkeypatch, *answers, crm)
    assert [client(found, at)["id"] for at in range(3)] == ["respondent", "respondent", "resp"]
    text = " ".join((tmp_path / "mine.toml").read_text(encoding="utf-8").split())
    assert "another value in every row; 0 are at b too; 12 are at c too" in text


def test_a_table_that_lacks_the_person_s_id_is_named_and_the_file_runs(
    tmp_path, monkeypatch, capfd
):
    found = proposed(*(tmp_path, monkeypatch, bank(patient_id=[k // 4 for k in BANK]), shop()))
    assert "split_by" not in client(found, 0)
    assert "'patient_id' may be of one person" in (told := said(capfd)[1])
    assert "but b would need it too" in told
    assert "It runs as it is" in " ".join((tmp_path / "mine.toml").read_text().split())


@pytest.mark.parametrize("asked", [(), ("--id", "customer")])
def test_ids_that_pandas_wrote_no_column_of_are_asked_for_in_a_sentence(
    asked, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.csv", bank())
    frame = pd.DataFrame({"basket": BASKET[:100]})
    frame.rename_axis("customer").to_parquet(tmp_path / "b.parquet")
    assert main(["init", "a.csv", "b.parquet", *asked]) == 2
    told = one_error(said(capfd)[1])
    assert "b.parquet" in told
    assert "'customer', which is the index of the DataFrame that was written and no column" in told
    frame.rename_axis("customer").reset_index().to_parquet(tmp_path / "b.parquet")
    assert main(["init", "a.csv", "b.parquet", *asked]) == 0


def test_ids_that_are_one_number_in_two_ways_are_said(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.csv", bank(customer=[f"{k}.50" for k in BANK]))
    write(tmp_path, "b.csv", shop(customer=[f"{k}.5" for k in SHOP]))
    assert main(["init", "a.csv", "b.csv", "--id", "customer"]) == 2
    assert "60 ids of 'a' and 'b' are the same number in two ways" in one_error(said(capfd)[1])


def test_the_rows_numbers_that_pandas_wrote_are_no_ids(tmp_path, monkeypatch):
    order = np.random.default_rng(1).permutation(80)
    here = {"Unnamed: 0": range(80), **bank(customer=[f"k{k}" for k in BANK])}
    here["deal_nr"] = here.pop("customer")
    there = {"Unnamed: 0": range(80), "dealid": [f"k{k}" for k in order], "basket": BASKET[order]}
    found = proposed(tmp_path, monkeypatch, here, there)
    assert (client(found, 0)["id"], client(found, 1)["id"]) == ("deal_nr", "dealid")
    assert all("Unnamed: 0" in client(found, at)["exclude"] for at in (0, 1))
    monkeypatch.chdir(tmp_path)
    numbered = {**here, "Unnamed: 0": range(100, 180)}
    named = proposed(tmp_path, monkeypatch, numbered, arguments=["--overwrite"])
    assert client(named, 0)["id"] == "deal_nr"


@pytest.mark.parametrize("names", [("customer_id", "customer_id"), ("customer_id", "kunden_nr")])
def test_a_key_that_each_table_counts_by_itself_goes_behind_one_that_both_know(
    names, tmp_path, monkeypatch
):
    order = np.random.default_rng(1).permutation(120)[:90]
    here = {"id": range(1, 81), **bank(customer=[7 * k for k in BANK])}
    here[names[0]] = here.pop("customer")
    there = {"id": range(1, 91), names[1]: [7 * k for k in order], "basket": BASKET[order]}
    found = proposed(tmp_path, monkeypatch, here, there)
    assert [client(found, at)["id"] for at in (0, 1)] == [*names]
    only = proposed(
        *(tmp_path, monkeypatch, {**bank(customer=range(1, 81))}, {**shop(customer=range(1, 101))}),
        arguments=["--overwrite"],
    )
    assert [client(only, at)["id"] for at in (0, 1)] == ["customer", "customer"]


def test_amounts_of_which_some_are_the_same_are_no_ids(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    tables = []
    for rows in (150, 170):  # of other people: 8 have an income of the other table
        income = rng.choice(np.arange(20000, 26000), rows, replace=False)
        ages, km = rng.integers(18, 80, rows), rng.normal(10, 3, rows).round(2)
        churn = np.where(km + rng.normal(0, 2, rows) > 10, "yes", "no")
        tables.append({"income": income, "age": ages, "km": km, "churn": churn})
    assert 0 < len({*tables[0]["income"]} & {*tables[1]["income"]}) < 30
    found = proposed(tmp_path, monkeypatch, *tables)
    assert [client(found, at) for at in (0, 1)] == [{"label": "churn"}] * 2


def test_rows_that_two_columns_tell_apart_together_are_told_and_the_second_is_no_label(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    patients, visits = [100 + k // 4 for k in range(120)], [1 + k % 4 for k in range(120)]
    keys = {"patient_id": patients, "visit": visits}
    label = ["yes" if k % 3 else "no" for k in range(120)]
    write(tmp_path, "ward.csv", {**keys, "pressure": INCOME, "stroke": label})
    write(tmp_path, "lab.csv", {**keys, "sodium": BASKET})
    assert main(["init", "ward.csv", "lab.csv"]) == 2
    told = one_error(said(capfd)[1])
    assert "those of two values: 'stroke'; say which" in told
    assert (
        "120 of 120 rows have the same 'patient_id' and 'visit' at ward and lab. If these" in told
    )
    for name in ("ward", "lab"):
        frame = pd.read_csv(f"{name}.csv")
        frame["key"] = frame["patient_id"].astype(str) + "-" + frame["visit"].astype(str)
        frame.drop(columns="visit").to_csv(f"{name}.csv", index=False)
    assert main(["init", "ward.csv", "lab.csv"]) == 0
    found = tomllib.loads((tmp_path / "mine.toml").read_text(encoding="utf-8"))
    wanted = {"id": "key", "split_by": "patient_id", "label": "stroke"}
    assert client(found, 0) == wanted
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("name", "person"),
    [
        *(
            (name, True)
            for name in ("patient_id", "PatientID", "patientid", "customer", "Kunde-Nr")
        ),
        *((name, True) for name in ("user no", "household", "MRN", "Kundennummer", "client key")),
        *((name, True) for name in ("PatientenID", "Pat.-Nr.", "participant_no", "VersichertenNr")),
        *((name, False) for name in ("student_loan", "driver_age", "patienten_gewicht")),
        *((name, True) for name in ("machine_id", "unit number", "DeviceID", "Anlagen-Nr.")),
        *((name, False) for name in ("machine", "unit", "unit_price", "machine_hours", "engine")),
        *((name, False) for name in ("engine_code", "unit code", "MotorCode")),  # of a type
        *((name, False) for name in ("patient_weight", "member_since", "account_type", "visit_id")),
        *((name, False) for name in ("client_age", "doctor", "customer_value", "userland")),
    ],
)
def test_a_name_of_a_person_s_or_machine_s_id_says_nothing_else(name, person):
    assert is_group(name) is person


def test_words_that_repeat_are_no_persons(tmp_path, monkeypatch):
    subjects = [f"{one}ics" for one in "abcdefghijkl"] * 10
    found = proposed(tmp_path, monkeypatch, bank(subject=subjects[:80]), shop())
    assert "split_by" not in client(found, 0)
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert "of one person" not in text


def test_numbers_of_which_few_are_shared_do_not_go_before_ids_that_all_share(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    numbers = [rng.choice(2000, 80, replace=False) for _ in range(2)]
    assert 0 < len({*numbers[0]} & {*numbers[1]}) < 16
    here = {"sample_no": numbers[0], **bank(customer=range(1, 81))}
    there = {"sample_no": numbers[1], "customer": range(1, 81), "age": AGE[:80]}
    there["basket"] = BASKET[:80]
    found = proposed(tmp_path, monkeypatch, here, there)
    assert [client(found, at)["id"] for at in (0, 1)] == ["customer", "customer"]


def test_columns_of_true_and_false_are_named_among_the_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(
        f"{k},{k * k % 97},{k % 3 == 0},{'xyz'[k * 5 % 7 % 3]},{k // 7 % 2}\n" for k in range(60)
    )
    Path("shop.csv").write_text(f"id,orders,staff,kind,label\n{rows}")
    assert main(["init", "shop.csv"]) == 0
    text = Path("mine.toml").read_text()
    assert "# numbers: orders, staff\n" in text


@pytest.mark.parametrize(
    "languages",
    [
        [("FALSCH", "WAHR"), ("non", "oui"), ("0", "1")],
        [("neg", "pos"), ("negative", "positive"), ("-", "+")],  # as of laboratories
    ],
)
def test_no_and_yes_of_three_languages_are_mapped_to_those_of_the_first_table(
    tmp_path, monkeypatch, languages
):
    tables = [{"age": AGE, "ill": [two[one] for one in DEFAULT]} for two in languages]
    found = proposed(tmp_path, monkeypatch, *tables, arguments=("--label", "ill"))
    assert "label_map" not in client(found, 0)
    for at in (1, 2):
        named = dict(zip(languages[at], languages[0], strict=True))
        assert client(found, at)["label_map"] == named
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0


@pytest.mark.parametrize("mark", ";\t")
def test_a_title_above_the_names_is_told(mark, tmp_path, monkeypatch, capfd):
    """It was the only column of a table that has nothing in common with others."""
    write(tmp_path, "bank.csv", bank())
    rows = Path(tmp_path, "bank.csv").read_text().replace(",", mark)
    Path(tmp_path, "shop.csv").write_text(f"Customers of 2023\n\n{rows}")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "bank.csv", "shop.csv"]) == 2
    told = one_error(said(capfd)[1])
    assert "first line ('Customers of 2023') has one name, and others have 4 values each" in told
    assert "if it is a title, remove the lines above the names of the columns" in told


def test_ids_with_hyphens_and_zeros_in_front_are_those_without(tmp_path, monkeypatch):
    written = [f"{k:04d}-{k % 7}" for k in range(120)]
    there = shop(customer=[one.replace("-", "").lstrip("0") or "0" for one in written[20:]])
    found = proposed(tmp_path, monkeypatch, bank(customer=written[:80]), there)
    assert found["alignment"]["normalise"] == ["punctuation", "zeros"]
    assert len(intarsia.inspect("mine.toml").schema.samples.ids) == 120  # 60 are shared
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0


def test_punctuation_counts_in_ids_that_it_alone_tells_apart(tmp_path, monkeypatch, capfd):
    days = [(day, month) for month in (3, 5, 9, 11) for day in range(1, 21)]
    for own, others in (
        # the patients of two hospitals: 1-11 is not 11-1
        ([f"1-{k}" for k in range(1, 81)], [f"11-{k}" for k in range(1, 81)]),
        # days and months in two orders: the third of May is not the fifth of March
        (
            [f"{day:02}.{month:02}.2020" for day, month in days],
            [f"{month:02}/{day:02}/2020" for day, month in days],
        ),
    ):
        there = bank(customer=others, age=AGE[20:100])  # a column in common, and labels
        found = proposed(tmp_path, monkeypatch, bank(customer=own), there)
        assert "normalise" not in found.get("alignment", {})
        assert "normalise" not in said(capfd)[1]
        (tmp_path / "mine.toml").unlink()


def test_ids_that_a_spreadsheet_wrote_with_a_point_are_whole_numbers_whatever_the_decimal(
    tmp_path, monkeypatch, capfd
):
    basket = [f"{one:.3f}".replace(".", ",") for one in BASKET[20:]]
    write(tmp_path, "a.csv", bank())
    write(tmp_path, "b.csv", shop(customer=[f"{k}.0" for k in SHOP], basket=basket), ";")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "a.csv", "b.csv"]) == 0
    assert "check:" not in said(capfd)[1]
    assert "id_type" not in (tmp_path / "mine.toml").read_text()
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0


def test_numbers_to_predict_are_said_in_a_file_that_does_not_run_yet(tmp_path, monkeypatch):
    flag = ["n", "y"] * 40
    there = {"customer": BANK, "part": [0, 1] * 40, "basket": BASKET[:80]}
    here = {"customer": BANK, "part": flag, "cost": (100 * INCOME[:80]).round(2)}
    # which mends it
    monkeypatch.setattr("intarsia.inspection.proposals.proposal.as_one_kind", list)
    found = proposed(tmp_path, monkeypatch, here, there, arguments=("--label", "cost"))
    text = (tmp_path / "mine.toml").read_text()
    assert "It does not run yet" in text
    assert found["algorithm"]["loss"] == "squared"
    assert "the label is a number" in text


def test_a_column_of_ticks_is_left_out_with_what_to_write(tmp_path, monkeypatch, capfd):
    found = proposed(tmp_path, monkeypatch, bank(news=["x", ""] * 40), shop())
    assert client(found, 0)["exclude"] == ["news"]
    assert "where no value means no, write that into the table" in said(capfd)[1]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        [("FALSE", "TRUE"), ("FALSCH", "WAHR"), ("non", "oui")],
        [("neg", "pos"), ("negative", "positive"), ("-", "+")],
    ],
)
def test_a_feature_with_no_and_yes_in_other_words_is_one_in_a_file_that_runs(
    apart, words, tmp_path, monkeypatch, capfd
):
    """TRUE of a spreadsheet is read as the number 1, and WAHR and VRAI were levels beside it."""
    card = RNG.integers(0, 2, 120)
    rows = [slice(40 * at, 40 * at + 40) if apart else slice(0, 80) for at in range(3)]
    tables = [
        {"nr": range(120)[own], "card": [two[one] for one in card[own]], "x": INCOME[own]}
        for two, own in zip(words, rows, strict=True)
    ]
    tables = [{**one, "default": DEFAULT[own]} for one, own in zip(tables, rows, strict=True)]
    found = proposed(tmp_path, monkeypatch, *tables)
    of_words = words[0][0] == "neg"  # in all tables
    assert all(("categorical" in client(found, at)) != of_words for at in range(3))
    err = said(capfd)[1]
    assert err.count("other words") == 1
    assert "'card' has no and yes in other words, which are taken for the same" in err
    dictionary = tomllib.loads((tmp_path / "mine-columns.toml").read_text(encoding="utf-8"))
    assert dictionary["feature"] == {"card": {"no_and_yes": True}}
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    assert sorted(model["features"]) == ["card=no", "card=yes", "x"]
    assert main(["predict", "runs/mine", "c.csv", "--client", "c", "--out", "c-scores.csv"]) == 0
    scores = pd.read_csv(tmp_path / "c-scores.csv").score
    assert main(["predict", "runs/mine", "a.csv", "--client", "a", "--out", "a-scores.csv"]) == 0
    assert apart or np.allclose(scores, pd.read_csv(tmp_path / "a-scores.csv").score)


def test_true_at_one_table_and_1_at_another_are_numbers(tmp_path, monkeypatch):
    """They were four levels of a category."""
    card = RNG.integers(0, 2, 120)
    own = bank(card=[str(bool(one)).upper() for one in card[:80]])
    found = proposed(tmp_path, monkeypatch, own, shop(card=card[20:]))
    assert all("categorical" not in client(found, at) for at in range(2))
    assert main(["run", "mine.toml", "--no-yardsticks", "--quiet"]) == 0
    model = json.loads((tmp_path / "runs/mine/model/linear.json").read_text())
    assert sorted(model["features"]) == ["age", "basket", "card", "income"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("{letter}{figures:02d}.{rest}", "write the first 3 characters of each, 60 different"),
        ("{letter}{row:03d}", "write the first character of each, 6 different"),
        ("P{row:03d}", ""),  # one letter before each number
        ("{letter}-{row:03d}", ""),
    ],
)
def test_of_codes_of_few_rows_their_beginnings_can_be_learned(tmp_path, code, told):
    rng = np.random.default_rng(0)
    codes = [
        code.format(letter="ABCDEI"[row % 6], figures=row // 6 % 10, rest=row // 60, row=row)
        for row in range(300)
    ] * 2
    frame = pd.DataFrame({"age": rng.integers(20, 90, 600), "main_disease": codes})
    frame["died"] = rng.choice(["no", "yes"], 600)
    frame.to_csv(tmp_path / "ward.csv", index=False)
    (found,) = propose([tmp_path / "ward.csv"]).tables
    why = found.left_out["main_disease"]
    assert why.startswith("has 300 different texts in 600 rows")
    assert why.partition("to learn from it, ")[2].startswith(told) if told else ";" not in why


@pytest.mark.parametrize(("largest", "kept"), [(2**53 - 1, True), (2**53 + 1, False)])
def test_numbers_that_a_float_does_not_hold_are_left_out_as_a_run_refuses_them(
    tmp_path, largest, kept
):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.integers(1, 9999, 600), "age": rng.integers(20, 90, 600)})
    frame.loc[7, "size"] = largest
    frame["died"] = rng.choice(["no", "yes"], 600)
    frame.to_csv(tmp_path / "ward.csv", index=False)
    (found,) = propose([tmp_path / "ward.csv"]).tables
    assert ("size" not in found.left_out) is kept
    assert kept or "beyond the whole numbers that a float64 holds" in found.left_out["size"]
