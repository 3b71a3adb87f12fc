"""What a result says beside its numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import intarsia
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.data.reader import table_from
from intarsia.experiment import federation
from intarsia.experiment.config import from_dict
from intarsia.training import checks as caveats
from intarsia.training.registry import choose

NAMES = {"a": ("age", "v"), "b": ("v", "w"), "c": ("z",)}


def said(name, standardise=True, names=NAMES):
    blocks = {
        client: Block(np.array([f"{client}:0"]), own, np.zeros((1, len(own))), np.ones(1))
        for client, own in names.items()
    }
    described = from_dict(
        {
            "algorithm": {"name": name},
            "client": [{"name": client, "path": f"{client}.csv"} for client in blocks],
            "preprocessing": {"standardise": standardise},
        }
    )
    return caveats.named_alike(
        described, choose(described)[0], Schema.of(blocks, Labels("regression"))
    )


@pytest.mark.parametrize("name", ["flic", "local", "hetfedrep", "fedhenn"])
def test_columns_of_one_name_are_said_to_be_standardised_together(name):
    [note] = said(name)
    assert note == (
        "The column 'v' is at several of 'a', 'b' and standardised over them together: rename what "
        "is not the same quantity everywhere."
    )
    arrays = {"a": ("x0", "x1"), "b": ("x0", "x1"), "c": ("x0",)}
    [note] = said(name, names=arrays)
    assert note.startswith("The columns 'x0', 'x1' are at several of 'a', 'b', 'c' and")


def test_nothing_is_said_where_names_say_what_is_the_same():
    assert not said("hyfdca")
    assert not said("fedrep")
    assert not said("standalone")
    assert not said("flic", standardise=False)
    assert not said("flic", names={"a": ("u", "v"), "b": ("w",)})


def test_trackers_of_a_run_over_sites_are_told_nothing_and_a_note_says_so():
    tables = [{"name": name, "path": f"{name}.csv"} for name in NAMES]
    tree = {"algorithm": {"name": "hyfdca"}, "client": tables}
    tracked = from_dict({**tree, "experiment": {"trackers": ["mlflow"]}})
    [note] = caveats.untracked(tracked, sites=True)
    assert "'mlflow'" in note
    assert not caveats.untracked(tracked, sites=False)
    assert not caveats.untracked(from_dict(tree), sites=True)


@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_one_key_of_all_clients_is_said(mode):
    def notes(**privacy):
        tables = [{"name": name, "path": f"{name}.csv"} for name in NAMES]
        tree = {"algorithm": {"name": "hyfdca"}, "client": tables, "privacy": privacy}
        described = from_dict(tree)
        return caveats.sealed_by_one_key(described, choose(described)[0])

    assert not notes(mode=mode)
    assert not notes(mode="plain", trust="clients")
    [note] = notes(mode=mode, trust="clients")
    assert 'set privacy.trust = "pairs"' in note


def test_pairs_of_a_block_and_a_class_that_nobody_holds_are_named():
    """Of two views of three classes the left one of r and the right one of p are with nobody."""
    rows = np.arange(4)
    held = {"a": ("left", (0, 1)), "b": ("right", (1, 2))}
    blocks = {
        client: Block(
            rows + 10 * at,
            (f"{view}1",),
            rows[:, None] / 4,
            np.array(classes, float)[rows % 2],
            groups={view: (f"{view}1",)},
        )
        for at, (client, (view, classes)) in enumerate(held.items())
    }
    labels = Labels("multiclass", ("p", "q", "r"))
    (note,) = caveats.unheld(blocks, labels)
    assert note.startswith("2 of 6 pairs of a feature block and a class are with nobody: ")
    assert "left of 'r'; right of 'p'." in note
    whole = {**blocks, "c": dataclasses.replace(blocks["a"], y=np.array([2.0, 0, 1, 2]))}
    (note,) = caveats.unheld(whole, labels)
    assert "nobody: right of 'p'." in note


def test_each_client_alone_is_not_compared_with_itself():
    described = from_dict({"algorithm": {"name": "local"}, "client": [{"name": "a", "path": "a"}]})
    [note] = caveats.unmeasured(described, choose(described)[0])
    assert 'run algorithm.name = "standalone" (linear models)' in note


@pytest.mark.parametrize(
    ("split", "part", "said"),
    [
        ({"test": 0}, "train", 1),
        ({}, "test", 0),
        ({}, "train", 1),
        ({"validation": 0.1}, "test", 0),
    ],
)
def test_scores_of_rows_that_were_trained_on_are_noted(split, part, said):
    tables = {"algorithm": {"name": "hyfdca"}, "client": [{"name": "a", "path": "a.csv"}]}
    described = from_dict({**tables, "split": {"test": 0, **split} if split else {}})
    notes = caveats.evaluated_in_training(described, part)
    assert ["trained on" in note for note in notes] == [True] * said


def copied(rows=300, share=0.1, seed=0):
    """Return a table of which a share of the rows is there twice, under other ids."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["a", "b", "c"])
    table["kind"] = rng.choice(["p", "q"], rows)
    table.loc[rng.random(rows) < 0.1, "b"] = np.nan
    table["y"] = rng.choice(["no", "yes"], rows)
    more = table[: int(share * rows)]
    whole = pd.concat([table, more], ignore_index=True)
    whole["id"] = [f"{seed}-{k}" for k in range(len(whole))]
    whole["of"] = [f"{seed}-{k % rows}" for k in range(len(whole))]
    return whole


def test_test_rows_that_are_copies_of_training_rows_are_told_with_their_number():
    how = {"id": "id", "label": "y", "loss": "logistic", "rounds": 1, "yardsticks": False}
    tables = {"one": copied().sample(frac=1.0, random_state=1), "two": copied(seed=1, share=0.0)}
    found = intarsia.run(tables=tables, exclude=["of"], **how)
    (note,) = [one for one in found.notes if "values of a training row" in one]
    whole = federation.build(
        from_dict({"algorithm": {"name": "hyfdca"}, "client": [{"name": name} for name in tables]}),
        {
            name: table_from(one, client=name, id="id", label="y", exclude=("of",))
            for name, one in tables.items()
        },
    )
    held = {one.removeprefix("0-") for one in whole.test["one"].samples.tolist()}
    twins = {str(k): str(k + 300) for k in range(30)} | {str(k + 300): str(k) for k in range(30)}
    seen = sum(twins[one] not in held for one in held if one in twins)
    assert seen >= 5
    assert f"{seen} of {len(held)} at 'one'" in note
    assert "'two'" not in note
    # held out together, no copy is on both sides
    found = intarsia.run(tables=tables, split_by="of", **how)
    assert not [one for one in found.notes if "values of a training row" in one]
    # another client with the same columns has the copies
    halves = copied(share=1.0)
    apart = {"one": halves[:300], "two": halves[300:]}
    found = intarsia.run(tables=apart, exclude=["of"], **how)
    (note,) = [one for one in found.notes if "values of a training row" in one]
    assert "'one'" in note
    assert "'two'" in note


@pytest.mark.usefixtures("sparse_tables")
def test_copies_have_one_level_of_a_category_of_many_levels_too():
    table, row = copied(), np.arange(330)
    how = {"id": "id", "label": "y", "exclude": ["of"], "loss": "logistic"}
    for wards, told in ((row % 300 % 40, True), (row % 41, False)):
        table["ward"] = [f"ward {ward}" for ward in wards]
        found = intarsia.run(tables={"one": table}, **how, rounds=1, yardsticks=False)
        assert any("values of a training row" in one for one in found.notes) == told


def test_rows_of_few_values_are_the_same_by_chance_and_not_told():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, 9, size=(400, 3)), columns=["a", "b", "c"])
    table["y"] = rng.choice(["no", "yes"], 400)
    found = intarsia.run(tables={"one": table}, label="y", loss="logistic", yardsticks=False)
    assert not [one for one in found.notes if "values of a training row" in one]
