"""Rows of one group, such as a patient's visits, are on one side of every split, at all clients."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.data.reader import table_from
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.experiment import checks, config, federation
from intarsia.inference.coefficients import coefficients

PATIENTS, VISITS = 60, 5


def hospitals(seed=0):
    """Return visits of patients at a hospital, and laboratory values of most of them."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(PATIENTS), VISITS)
    visit = np.arange(len(patient))
    ids = [f"P{p:03d}-V{v}" for p, v in zip(patient, visit, strict=True)]
    ward = pd.DataFrame(
        {
            "visit": ids,
            "patient": patient,
            "age": rng.normal(50, 9, len(patient)),
            "ill": rng.choice(["no", "yes"], len(patient)),
        }
    )
    lab = pd.DataFrame(
        {"visit": ids, "patient": patient, "sodium": rng.normal(140, 3, len(patient))}
    )
    return ward, lab.drop(index=range(0, len(lab), 7)).sample(frac=1.0, random_state=1)


def written(folder, tables, **own):
    """Write the tables as files; return an experiment of them."""
    clients = []
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        clients.append({"name": name, "path": f"{name}.csv", "id": "visit", **own.get(name, {})})
    clients[0]["label"] = "ill"
    return {
        "experiment": {"name": "groups", "rounds": 3, "yardsticks": False},
        "algorithm": {"name": "hyfdca", "loss": "logistic"},
        "client": clients,
    }


def built(tree, folder, **keys):
    return federation.build(config.from_dict({**tree, **keys}, folder), secret=bytes(32))


def patients(blocks):
    return {name: {one[:4] for one in block.samples.tolist()} for name, block in blocks.items()}


def held_out(patient, salt="", test=0.2):
    """Return by hand whether a patient is held out."""
    key = hashlib.blake2b(salt.encode()).digest()
    digest = hashlib.blake2b(str(patient).encode(), key=key, digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56 < test


BY = {"ward": {"split_by": "patient"}, "lab": {"split_by": "patient"}}


def test_no_patient_is_on_both_sides_and_both_clients_hold_out_the_same(tmp_path):
    ward, lab = hospitals()
    found = built(written(tmp_path, {"ward": ward, "lab": lab}, **BY), tmp_path)
    by_hand = {f"P{p:03d}" for p in range(PATIENTS) if held_out(p)}
    assert 5 < len(by_hand) < 20
    for part, wanted in ((found.test, by_hand), (found.train, None)):
        for name, own in patients(part).items():
            assert own == wanted if wanted is not None else not own & by_hand, name
    assert sum(len(one.samples) for one in found.test.values()) == (
        ward["patient"].map(held_out).sum() + lab["patient"].map(held_out).sum()
    )
    assert "patient" not in {name for one in found.train.values() for name in one.features}
    (note,) = (one for one in found.notes if "by groups" in one)
    assert "60 in 300 rows at 'ward' (up to 5 rows)" in note


def test_rows_one_by_one_put_patients_on_both_sides(tmp_path):
    ward, lab = (one.drop(columns="patient") for one in hospitals())
    found = built(written(tmp_path, {"ward": ward, "lab": lab}), tmp_path)
    assert len(patients(found.train)["ward"] & patients(found.test)["ward"]) > 20


@pytest.mark.parametrize("ids", ["plain", "pseudonyms", "psi"])
def test_early_stopping_validation_and_folds_keep_patients_together(tmp_path, ids):
    if ids == "psi":
        pytest.importorskip("private_set_intersection")
    ward, lab = hospitals()
    tree = written(tmp_path, {"ward": ward, "lab": lab}, **BY)
    tree["experiment"]["early_stopping"] = 3
    tree["alignment"] = {"ids": ids}
    position = {value: at for at, value in enumerate(ward["age"])}

    def known(block):  # the patients by their values, as ids may be pseudonyms
        ages = block.x[:, list(block.features).index("age")]
        return {position[value] // VISITS for value in ages.tolist()}

    folds = []
    for split in (
        {"stopping": 0.3},
        {"stopping": 0.3, "validation": 0.25},
        *({"stopping": 0.3, "folds": 3, "fold": fold} for fold in range(3)),
    ):
        found = built(tree, tmp_path, split=split)
        parts = [known(one["ward"]) for one in (found.train, found.validation, found.test)]
        assert all(parts)
        assert sum(map(len, parts)) == len(set.union(*parts))
        shared = {}
        for part in (found.train, found.validation, found.test):
            for block in part.values():
                for one in block.samples.tolist():
                    assert shared.setdefault(one, part) is part
        folds.append(parts[2])
    assert sum(map(len, folds[2:])) == len(set.union(*folds[2:]))  # each patient in one fold
    test = known(built(tree, tmp_path, split={"stopping": 0.3}).test["ward"])
    assert not test & set.union(*folds[2:])


def test_the_part_of_an_id_tells_the_group_where_a_client_has_no_column_of_it(tmp_path):
    ward, lab = hospitals()
    lab = lab.drop(columns="patient")
    own = {name: {"split_by": "visit", "split_by_pattern": "^[^-]+"} for name in ("ward", "lab")}
    tree = written(tmp_path, {"ward": ward.drop(columns="patient"), "lab": lab}, **own)
    found = built(tree, tmp_path)
    assert patients(found.test)["ward"] == patients(found.test)["lab"]
    assert not patients(found.test)["ward"] & patients(found.train)["ward"]
    # digits alone are another client's numbers: 007 and 7 are one by the rule for zeros
    own = {"ward": {"split_by": "visit", "split_by_pattern": "P([0-9]+)"}, "lab": BY["lab"]}
    tables = {"ward": ward.drop(columns="patient"), "lab": hospitals()[1]}
    tree = written(tmp_path, tables, **own)
    with pytest.raises(FederationError, match="in different parts of the split at two clients"):
        built(tree, tmp_path)
    found = built(tree, tmp_path, alignment={"normalise": ["zeros"]})
    assert patients(found.test)["ward"] == patients(found.test)["lab"]
    assert patients(found.test)["ward"] == {f"P{p:03d}" for p in range(PATIENTS) if held_out(p)}


def test_a_client_that_shares_rows_and_names_no_group_is_refused(tmp_path):
    ward, lab = hospitals()
    tree = written(tmp_path, {"ward": ward, "lab": lab.drop(columns="patient")}, ward=BY["ward"])
    with pytest.raises(FederationError, match="'lab' has no split_by, and has 257 rows in common"):
        built(tree, tmp_path)
    tree = written(tmp_path, {"ward": ward, "lab": lab}, ward=BY["ward"])
    with pytest.raises(FederationError, match="'lab' has the feature 'patient', by which"):
        built(tree, tmp_path)


def test_a_client_that_shares_no_row_splits_its_own_one_by_one(tmp_path):
    ward, _ = hospitals()
    other = ward.drop(columns="patient").assign(visit=[f"X{k}" for k in range(len(ward))])
    tree = written(tmp_path, {"ward": ward, "other": other}, ward=BY["ward"])
    tree["client"][1]["label"] = "ill"
    found = built(tree, tmp_path)
    assert 30 < len(found.test["other"].samples) < 90
    assert any("'other' are split one by one" in one for one in found.notes)


def test_what_is_no_group_is_refused_in_a_sentence(tmp_path):
    ward, _ = hospitals()

    def table(frame=ward, **own):
        return table_from(frame, client="ward", **{"id": "visit", "label": "ill", **own})

    ward.loc[3, "patient"] = None
    with pytest.raises(TableError, match=r"'patient' has no value in 1 row \(first: row 4\)"):
        table(split_by="patient")
    with pytest.raises(TableError, match="in row 1 in which split_by_pattern, 'Q', is nowhere"):
        table(split_by="visit", split_by_pattern="Q")
    with pytest.raises(TableError, match="split_by names the column 'patent'"):
        table(split_by="patent")
    with pytest.raises(ExperimentError, match="split_by is 'ill', the column of labels"):
        table(split_by="ill")
    with pytest.raises(ExperimentError, match="is no regular expression"):
        table(split_by="visit", split_by_pattern="(")
    with pytest.raises(ExperimentError, match="split_by is not set"):
        table(split_by_pattern="P")
    with pytest.raises(TableError, match="categorical names the split_by column 'patient'"):
        table(split_by="patient", categorical=("patient",))
    with pytest.raises(TableError, match="a matrix has no such column"):
        table_from(np.zeros((3, 2)), [0, 1, 0], client="m", split_by="patient")


def test_one_patient_alone_leaves_a_client_nothing_to_train_on(tmp_path):
    ward, _ = hospitals()
    patient = next(p for p in range(PATIENTS) if held_out(p))
    alone = ward[ward["patient"] == patient]
    tree = written(tmp_path, {"ward": alone}, ward=BY["ward"])
    with pytest.raises(TableError, match=r"All 5 rows of a block \(1 groups of split_by\) fall"):
        built(tree, tmp_path)


def test_a_file_that_is_dealt_to_clients_is_split_by_groups_too(tmp_path):
    ward, _ = hospitals()
    ward.to_csv(tmp_path / "all.csv", index=False)
    tree = {
        "experiment": {"early_stopping": 2},
        "algorithm": {"name": "hyfdca"},
        "dataset": {"path": "all.csv", "id": "visit", "label": "ill", "split_by": "patient"},
        "partition": {"kind": "horizontal", "clients": 2},
        "split": {"stopping": 0.3},
    }
    found = built(tree, tmp_path)
    parts = [
        set.union(*patients(part).values()) for part in (found.train, found.validation, found.test)
    ]
    assert all(parts)
    assert sum(map(len, parts)) == PATIENTS
    assert parts[2] == {f"P{p:03d}" for p in range(PATIENTS) if held_out(p)}


def test_python_takes_the_column_for_all_tables_that_have_it():
    ward, lab = hospitals()
    how = {"id": "visit", "label": "ill", "split_by": "patient", "yardsticks": False}
    found = intarsia.run(tables={"ward": ward, "lab": lab}, rounds=2, **how)
    assert any("60 in 300 rows at 'ward'" in one for one in found.notes)
    shown = str(intarsia.inspect(tables={"ward": ward, "lab": lab}, **how))
    assert "60 in 300 rows at 'ward'" in " ".join(shown.split())
    with pytest.raises(ExperimentError, match="split_by names the column 'patent', which no"):
        intarsia.run(tables={"ward": ward, "lab": lab}, **how | {"split_by": "patent"})
    with pytest.raises(ExperimentError, match=r"split_by is .*expected the name of one column"):
        intarsia.run(tables={"ward": ward, "lab": lab}, **how | {"split_by": ["patient"]})


def test_two_runs_of_a_file_and_one_that_goes_on_hold_out_the_same(tmp_path):
    ward, lab = hospitals()
    tree = written(tmp_path, {"ward": ward, "lab": lab}, **BY)
    tree["alignment"] = {"ids": "pseudonyms"}
    described = config.from_dict(tree, tmp_path)
    one = federation.build(described)
    again = federation.build(described, secret=one.secret)
    assert again.fingerprint() == one.fingerprint()
    assert federation.build(described).fingerprint() != one.fingerprint()  # another key


def test_few_groups_of_which_none_is_held_out_are_told_or_refused():
    ward, _ = hospitals()
    kept = next(p for p in range(PATIENTS) if not held_out(p))
    ward["house"] = kept  # one group, to train on
    how = {"id": "visit", "label": "ill", "rounds": 1, "yardsticks": False, "exclude": ["patient"]}
    found = intarsia.run(tables={"ward": ward}, split_by="house", **how)
    assert found.metrics.server.samples == len(ward)
    assert any("No row fell into the test part" in one for one in found.notes)
    salts = [
        k
        for k in map(str, range(99))
        if not held_out(kept, k) and not held_out(kept, f"validation {k}", 0.5)
    ]
    with pytest.raises(ExperimentError, match="No training sample is in fold 0 of 2 of"):
        intarsia.run(tables={"ward": ward}, split_by="house", folds=2, salt=salts[0], **how)


def test_errors_of_coefficients_are_said_to_take_rows_for_independent(tmp_path):
    ward, _ = hospitals()
    how = {"id": "visit", "label": "ill", "split_by": "patient", "loss": "logistic"}
    more = {"errors": True, "yardsticks": False, "regularisation": 1e-3}
    tables = {"ward": ward}
    intarsia.run(tables=tables, out=tmp_path / "run", **how, **more)
    found = coefficients(tmp_path / "run")
    assert found.notes.count(federation.NARROW) == 1
    alone = {**how, "split_by": None, "exclude": ["patient"]}
    intarsia.run(tables=tables, out=tmp_path / "alone", **alone, **more)
    assert federation.NARROW not in coefficients(tmp_path / "alone").notes


def test_parts_of_clients_are_compared_where_one_of_them_has_groups():
    one, two = np.array([1, 2]), np.array([2, 3])
    checks.check_parts(["c"], [{"a": one}, {}, {"b": two}])  # c does not take part
    checks.check_parts([], [{"a": one}, {}, {"b": two}])
    with pytest.raises(FederationError, match="'b' has no split_by, and has 1 row in common"):
        checks.check_parts(["a"], [{"a": one}, {}, {"b": two}])
    with pytest.raises(FederationError, match="1 row is in different parts of the split"):
        checks.check_parts(["a", "b"], [{"a": one}, {}, {"b": two}])
    checks.check_parts(["a", "b"], [{"a": one, "b": two}, {}, {}])


def test_a_share_of_rows_that_is_far_from_that_of_groups_is_told():
    ward, _ = hospitals()
    big = next(p for p in range(PATIENTS) if held_out(p))
    ward["house"] = np.where(np.arange(len(ward)) < 200, big, ward["patient"])
    how = {"id": "visit", "label": "ill", "rounds": 1, "yardsticks": False, "exclude": ["patient"]}
    found = intarsia.run(tables={"ward": ward}, split_by="house", **how)
    share = 100 * ward["house"].map(held_out).mean()
    (note,) = [one for one in found.notes if "% of the groups were asked for" in one]
    assert f"Scores are of {share:.0f} % of the rows" in note
    alike = intarsia.run(tables={"ward": ward}, **how | {"exclude": ["house"]}, split_by="patient")
    assert not [one for one in alike.notes if "% of the groups were asked for" in one]
