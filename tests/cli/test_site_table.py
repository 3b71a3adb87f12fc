"""`intarsia federation table`: a site's file gets its [table], and nothing else of it changes."""

from __future__ import annotations

import sqlite3
import stat
import tomllib

import numpy as np
import pandas as pd
import pytest

from command_line import one_error
from intarsia.cli.main import main
from intarsia.data.reader import read
from intarsia.deployment.client_folder import read_settings
from intarsia.deployment.federation_file import _SITE, NO_TABLE

ROWS = 300


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """Return a kit as it was provisioned, beside a table."""
    monkeypatch.chdir(tmp_path)
    local = tmp_path / "kits/bank/local"
    local.mkdir(parents=True)
    (local / "site.toml").write_text(_SITE.format(name="bank") + NO_TABLE)
    rng = np.random.default_rng(0)
    shop = [f"shop {at % 40}" for at in range(200)] + [f"corner of {at}" for at in range(100)]
    frame = pd.DataFrame({"customer": range(500, 500 + ROWS), "shop": shop})
    frame["income"] = [f"{one:.1f}".replace(".", ",") for one in rng.normal(100, 9, ROWS)]
    frame["opened"] = [f"2024-01-{1 + at % 28:02}" for at in range(ROWS)]
    frame["default"] = rng.choice(["no", "yes"], ROWS)
    frame.to_csv("bank.csv", index=False, sep=";")
    return tmp_path / "kits/bank"


def refused(capsys, *arguments):
    """Return the error's sentence of a command that is to fail."""
    capsys.readouterr()
    assert main(["federation", "table", *map(str, arguments)]) == 2
    return one_error(capsys.readouterr().err)


def site_of(kit):
    return kit / "local/site.toml"


def test_the_table_is_written_as_init_proposes_it_and_nothing_else_changes(kit, capsys):
    before = tomllib.loads(site_of(kit).read_text())
    lines = _SITE.format(name="bank").rstrip().splitlines()
    assert main(["federation", "table", str(kit), "bank.csv"]) == 0
    text = site_of(kit).read_text()
    assert text.splitlines()[: len(lines)] == lines
    assert "# [table]" not in text
    tree = tomllib.loads(text)
    table = tree.pop("table")
    assert tree == before
    assert stat.S_IMODE(site_of(kit).stat().st_mode) == 0o600
    assert table == {
        "path": "../../../bank.csv",
        "decimal": ",",
        "id": "customer",
        "label": "default",
        "categorical": ["shop"],
        "least_rows": 5,
        "exclude": ["opened"],
    }
    said = " ".join(capsys.readouterr().err.split())
    assert "of the label 'default' and the id 'customer'" in said
    assert "41 of 'shop' (those of 5 rows or more), 2 classes of 'default': 'no', 'yes'." in said
    assert "learn the names of 2 columns: 'shop', 'income'" in said
    assert "corner" not in said + text
    found = read(read_settings(kit / "local", "bank").table)
    assert len(found.samples) == ROWS
    assert len(found.categorical["shop"].public_levels) == 41


def test_another_table_is_replaced_only_where_that_is_said(kit, capsys):
    own = '[table]\npath = "other.csv"\nexclude = [\n  "a",\n]\n[table.units]\nb = "%"\n\n'
    path = site_of(kit)
    path.write_text(f'[site]\nname = "bank"\n{own}[policy]\n# mine\napprove = "all"\n')
    before = path.read_bytes()
    assert "has a [table] already, of other.csv; add --overwrite" in refused(
        capsys, kit, "bank.csv"
    )
    assert path.read_bytes() == before
    assert main(["federation", "table", str(kit), "bank.csv", "--overwrite"]) == 0
    text = path.read_text()
    assert text.startswith('[site]\nname = "bank"\n[policy]\n# mine\napprove = "all"\n\n[table]\n')
    assert "units" not in text
    assert tomllib.loads(text)["table"]["id"] == "customer"


def test_comments_above_what_follows_the_table_stay(kit):
    path = site_of(kit)
    own = '[table]\npath = "other.csv"\n# of 2023\nid = "a"\n[table.units]\n# in %\nb = "%"\n'
    policy = '# decided by the board\n\n# in May\n[policy]\napprove = "all"\n'
    path.write_text(f'[site]\nname = "bank"\n{own}\n{policy}')
    assert main(["federation", "table", str(kit), "bank.csv", "--overwrite"]) == 0
    text = path.read_text()
    assert text.startswith(f'[site]\nname = "bank"\n{policy}\n[table]\n')
    assert "2023" not in text
    assert "%" not in text


@pytest.mark.parametrize("own", ['table = { path = "a.csv" }\n', 'table.path = "a.csv"\n'])
def test_a_table_that_is_not_found_in_the_text_is_left_as_it_is(kit, capsys, own):
    path = site_of(kit)
    path.write_text(f'{own}[site]\nname = "bank"\n')
    assert "written in a way that cannot be replaced here; take it out" in refused(
        capsys, kit, "bank.csv", "--overwrite"
    )
    assert path.read_text().startswith(own)


def test_a_site_may_have_no_labels(kit, capsys):
    frame = pd.read_csv("bank.csv", sep=";").drop(columns="default")
    frame.to_csv("bank.csv", index=False, sep=";")
    assert refused(capsys, kit, "bank.csv").endswith("or --no-label, where the site has no labels.")
    assert main(["federation", "table", str(kit), "bank.csv", "--no-label"]) == 0
    assert "label" not in tomllib.loads(site_of(kit).read_text())["table"]
    assert "say two things" in refused(capsys, kit, "bank.csv", "--no-label", "--label", "shop")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.csv"], "there is no such file"),
        (["bank.csv", "--id", "patient"], "--id 'patient' is a column of no table"),
        (["bank.csv", "--id", "shop"], "shop"),
        (["empty.csv"], "empty"),
    ],
)
def test_what_cannot_be_read_changes_nothing(kit, capsys, tmp_path, arguments, said):
    (tmp_path / "empty.csv").write_bytes(b"")
    before = site_of(kit).read_bytes()
    assert said in refused(capsys, kit, *arguments)
    assert site_of(kit).read_bytes() == before
    assert [one.name for one in site_of(kit).parent.iterdir()] == ["site.toml"]


def test_the_server_s_kit_takes_no_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server/local").mkdir(parents=True)
    assert "holds no site.toml" in refused(capsys, "server", "bank.csv")


def test_a_table_of_a_database_is_named_as_init_names_it(kit, tmp_path):
    with sqlite3.connect(tmp_path / "loans.db") as base:
        pd.read_csv("bank.csv", sep=";").drop(columns="income").to_sql("customers", base)
    assert main(["federation", "table", str(kit), "loans.db#customers", "--id", "customer"]) == 0
    table = tomllib.loads(site_of(kit).read_text())["table"]
    assert (table["url"], table["query"]) == (
        "sqlite:///../../../loans.db",
        'select * from "customers"',
    )
    assert len(read(read_settings(kit / "local", "bank").table).samples) == ROWS
