"""Sites whose tables do not go together are refused as clients in one place are."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.errors import FederationError
from intarsia.experiment import config as experiment
from intarsia.experiment import federation
from intarsia.experiment.config import Alignment
from intarsia.training import run as running
from tests.deployment.test_run import HASTY, NAMES, described, history, set_up


def test_sites_whose_labels_differ_are_refused_as_parties_in_one_place_are(tmp_path):
    found = set_up(tmp_path)
    path = tmp_path / "telecom.csv"
    lines = path.read_text().splitlines()
    other = {"yes": "no", "no": "yes"}
    for place in range(10, 20):  # of samples that others have too
        rest, _, label = lines[place].rpartition(",")
        lines[place] = f"{rest},{other[label]}"
    path.write_text("\n".join(lines) + "\n")
    description = described(tmp_path)
    with pytest.raises(FederationError, match="different labels at two clients"):
        running.run(description, out=tmp_path / "one")
    with pytest.raises(FederationError, match="'bank' and 'telecom' have different labels"):
        remote_running.run_over(
            description, sites.Lines(found), NAMES, tmp_path / "sites", patience=HASTY
        )


def test_a_site_that_forgot_its_id_is_refused_by_name(tmp_path):
    found = set_up(tmp_path)
    (tmp_path / "retailer" / "site.toml").write_text(
        '[site]\nname = "retailer"\nplain = true\nids = true\n'
        '[table]\npath = "../retailer.csv"\nlabel = "label"\n'
    )
    found["retailer"] = site_in(tmp_path / "retailer")
    with pytest.raises(FederationError, match=r"'retailer' has no id, but its table has .* 'id'"):
        remote_running.run_over(
            described(tmp_path), sites.Lines(found), NAMES, tmp_path / "sites", patience=HASTY
        )


def test_a_feature_that_is_sparse_at_one_site_and_dense_at_another_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.random((20, 2)).tolist()
    (tmp_path / "dense.csv").write_text(
        "1,2,label\n" + "".join(f"{a},{b},{k % 2}\n" for k, (a, b) in enumerate(rows))
    )
    (tmp_path / "sparse.svm").write_text(
        "".join(f"{k % 2} 1:{a} 2:{b}\n" for k, (a, b) in enumerate(rows))
    )
    found = {}
    tables = {"north": 'path = "../dense.csv"\nlabel = "label"', "south": 'path = "../sparse.svm"'}
    for name, table in tables.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(
            f'[site]\nname = "{name}"\nplain = true\nids = true\n[table]\n{table}\n'
        )
        found[name] = site_in(tmp_path / name)
    tree = {
        "experiment": {"name": "two", "rounds": 2, "yardsticks": False},
        "algorithm": {"name": "fedavg", "loss": "logistic"},
        "client": [
            {"name": "north", "path": "dense.csv", "label": "label"},
            {"name": "south", "path": "sparse.svm"},
        ],
    }
    with pytest.raises(FederationError, match="sparse table at client 'south'"):
        running.run(experiment.from_dict(tree, tmp_path), out=tmp_path / "one")
    with pytest.raises(FederationError, match="sparse table at client 'south'"):
        remote_running.run_over(
            experiment.from_dict(tree, tmp_path),
            *(sites.Lines(found), tuple(tables), tmp_path / "sites"),
            patience=HASTY,
        )
    plain = experiment.from_dict({**tree, "preprocessing": {"standardise": False}}, tmp_path)
    remote_running.run_over(
        *(plain, sites.Lines(found), tuple(tables), tmp_path / "sites"),
        patience=HASTY,
        overwrite=True,
    )


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
def test_sites_of_which_one_shares_no_row_and_lacks_values_come_to_one_optimum(tmp_path, mode):
    found = set_up(tmp_path, plain=mode == "plain")
    for name, rows in (("telecom", range(20, 50)), ("retailer", range(100, 140))):
        values = [f"{k},{k * 7 % 11},{'' if k % 9 == 0 else k * 3 % 13}" for k in rows]
        lines = [f"{line},{'yes' if k % 3 else 'no'}" for k, line in zip(rows, values, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,x1,x2,label", *lines]) + "\n")
    lines = (tmp_path / "bank.csv").read_text().splitlines()[1:]
    lines = [f"{k},{k * 7 % 11},{k * 3 % 13},{'yes' if k % 3 else 'no'}" for k in range(len(lines))]
    (tmp_path / "bank.csv").write_text("\n".join(["id,x1,x2,label", *lines]) + "\n")
    for name in ("bank", "telecom", "retailer"):
        found[name] = site_in(tmp_path / name)
    description = described(tmp_path, mode)
    running.run(description, out=tmp_path / "one")
    remote_running.run_over(
        description, sites.Lines(found), NAMES, tmp_path / "sites", patience=HASTY
    )
    one, over = (history(tmp_path / folder)[-1] for folder in ("one", "sites"))
    assert over["primal"] == pytest.approx(one["primal"], rel=1e-9)
    assert one["primal"] - one["dual"] < 1e-5


def test_sites_that_write_classes_in_two_codes_are_noted_as_clients_in_one_place_are(tmp_path):
    found = set_up(tmp_path)
    lines = [f"{k},{k % 7},{('no', 'maybe')[k % 2]}" for k in range(100, 140)]
    (tmp_path / "retailer.csv").write_text("\n".join(["id,x3,label", *lines]) + "\n")
    found["retailer"] = site_in(tmp_path / "retailer")
    description = described(tmp_path, rounds=1)
    one = running.run(description, out=tmp_path / "one")
    over = remote_running.run_over(
        description, sites.Lines(found), NAMES, tmp_path / "sites", patience=HASTY
    )
    (note,) = (text for text in one.notes if "different classes" in text)
    assert "'no', 'yes' at 'bank' but 'maybe', 'no' at 'retailer', which count as 3" in note
    assert note in over.notes


@pytest.mark.parametrize("mode", [pytest.param("plain", marks=pytest.mark.slow), "masked"])
def test_weights_of_rows_come_over_sites_to_the_optimum_of_one_process(tmp_path, mode):
    found = set_up(tmp_path, plain=mode == "plain")
    description = described(tmp_path, mode)
    for name in found:
        if name == "post":
            continue
        path = tmp_path / f"{name}.csv"
        head, *lines = path.read_text().splitlines()
        rows = [f"{line},{1 + int(line.split(',')[0]) % 3}" for line in lines]
        path.write_text("\n".join([f"{head},s", *rows]) + "\n")
        settings = tmp_path / name / "site.toml"
        settings.write_text(settings.read_text() + 'weights = "s"\n')
        found[name] = site_in(tmp_path / name)
    description = replace(
        description,
        labels=replace(description.labels, class_weight="balanced"),
        clients=tuple(
            one if one.name == "post" else replace(one, weights="s") for one in description.clients
        ),
    )
    running.run(description, out=tmp_path / "one")
    remote_running.run_over(
        description, sites.Lines(found), NAMES, tmp_path / "sites", patience=HASTY
    )
    one, over = (history(tmp_path / folder)[-1] for folder in ("one", "sites"))
    # the secret bases of Newton's system are each run's own
    assert over["primal"] == pytest.approx(one["primal"], rel=1e-10)
    assert over["dual"] == pytest.approx(one["dual"], rel=1e-10)
    assert one["primal"] - one["dual"] < 1e-6


def test_sites_hold_out_groups_of_rows_as_clients_in_one_place_do(tmp_path):
    found = set_up(tmp_path)
    whole = described(tmp_path)
    for name in found:
        path = tmp_path / f"{name}.csv"
        head, *lines = path.read_text().splitlines()
        rows = [f"{int(line.split(',')[0]) // 4},{line}" for line in lines]
        path.write_text("\n".join([f"house,{head}", *rows]) + "\n")
        settings = tmp_path / name / "site.toml"
        settings.write_text(settings.read_text() + 'split_by = "house"\n')
        found[name] = site_in(tmp_path / name)
    clients = tuple(replace(one, split_by="house") for one in whole.clients)
    key = str(tmp_path / "shared.key")
    for ids in ("plain", "pseudonyms"):
        names = Alignment(ids=ids, key=None if ids == "plain" else key)
        description = replace(whole, clients=clients, alignment=names)
        if ids == "plain":
            one = federation.build(description)
            parts = [
                {row // 4 for block in part.values() for row in block.samples.tolist()}
                for part in (one.train, one.test)
            ]
            assert all(parts)
            assert not parts[0] & parts[1]
        running.run(description, out=tmp_path / "one", overwrite=True)
        over = tmp_path / f"sites {ids}"
        remote_running.run_over(
            description, sites.Lines(found), NAMES, over, patience=HASTY, overwrite=True
        )
        notes = json.loads((over / "result.json").read_text())["notes"]
        assert any("held out by groups at 'bank'" in one for one in notes)
        first, last = (history(folder)[-1] for folder in (over, tmp_path / "one"))
        assert first["primal"] == pytest.approx(last["primal"], rel=1e-9)
    settings.write_text(settings.read_text().replace('split_by = "house"', 'exclude = ["house"]'))
    found[name] = site_in(tmp_path / name)
    with pytest.raises(FederationError, match=f"{name!r} has no split_by, and has"):
        remote_running.run_over(
            description, sites.Lines(found), NAMES, tmp_path / "third", patience=HASTY
        )


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (
            [{"crp": "mg/l"}, {"crp": "mg/dl"}],
            "Feature 'crp' is in 'mg/l' at client 'north' but in 'mg/dl' at client 'south'; conv",
        ),
        (
            [{"bill": "€"}, {"bill": "$"}],
            "The label is in '€' at client 'north' but in '$' at client 'south'; write all",
        ),
        ([{"crp": "mg/L", "bill": "€"}, {"crp": "mg/l", "bill": "EUR"}], ""),
    ],
)
def test_units_that_differ_are_refused_at_sites_as_in_one_place(tmp_path, units, message):
    rng = np.random.default_rng(0)
    found, tables = {}, {}
    for name, own in zip(("north", "south"), units, strict=True):
        rows = rng.random((40, 2)).tolist()
        lines = "".join(f"{a:.3f},{b:.3f}\n" for a, b in rows)
        (tmp_path / f"{name}.csv").write_text("crp,bill\n" + lines)
        written = ", ".join(f'"{column}" = "{unit}"' for column, unit in own.items())
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(
            f'[site]\nname = "{name}"\nplain = true\nids = true\n[table]\npath = "../{name}.csv"\n'
            f'label = "bill"\nunits = {{ {written} }}\n'
        )
        found[name] = site_in(tmp_path / name)
        tables[name] = {"name": name, "path": f"{name}.csv", "label": "bill", "units": own}
    tree = {
        "experiment": {"name": "two", "rounds": 1, "yardsticks": False},
        "algorithm": {"name": "fedavg", "loss": "squared"},
        "client": [*tables.values()],
    }
    one = experiment.from_dict(tree, tmp_path)
    of_server = {**tree, "client": [{**own, "units": {}} for own in tables.values()]}
    described = experiment.from_dict(of_server, tmp_path)

    def over_sites():
        where = sites.Lines(found), tuple(tables), tmp_path / "sites"
        return remote_running.run_over(described, *where, patience=HASTY)

    for run in (lambda: running.run(one, out=tmp_path / "one"), over_sites):
        if message:
            with pytest.raises(FederationError, match=f"^{re.escape(message)}"):
                run()
        else:
            assert run().rounds == 1
