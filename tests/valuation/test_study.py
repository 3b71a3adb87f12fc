"""A coalition's value is that of a run without the others, and worth adds up to what is gained."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.cli.main import main
from intarsia.errors import CheckpointError, ExperimentError
from intarsia.experiment import config
from intarsia.training import run as running
from intarsia.valuation import coalitions, study

CREDIT = Path(__file__).parents[2] / "experiments/credit.toml"
EXPERIMENT = """
[experiment]
name = "four"
seed = 3
tolerance = 1e-8
[algorithm]
name = "hyfdca"
loss = "logistic"
[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"
[[client]]
name = "shop"
path = "shop.csv"
id = "customer"
label = "default"
[[client]]
name = "phone"
path = "phone.csv"
id = "customer"
[[client]]
name = "gym"
path = "gym.csv"
id = "customer"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """400 customers; two clients know labels, and of the gym's customers the bank alone."""
    place = tmp_path_factory.mktemp("four")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 8))
    noise = rng.normal(size=400)
    label = (x @ np.r_[0.5, -0.5, 1.0, 0.2, 0.8, 0, 0.9, 0.7] + noise > 0).astype(int)
    frame = pd.DataFrame(x, columns=list("abcdefgh")).rename_axis("customer")
    frame[["a", "b"]][:280].assign(default=label[:280]).to_csv(place / "bank.csv")
    frame[["a", "c", "d"]][160:].assign(default=label[160:]).to_csv(place / "shop.csv")
    frame[["e", "f", "g"]][60:340].to_csv(place / "phone.csv")
    frame[["h"]][:150].to_csv(place / "gym.csv")
    (place / "four.toml").write_text(EXPERIMENT)
    return place


@pytest.fixture(scope="module")
def whole(folder):
    return study.contribution(folder / "four.toml", out=folder / "whole")


def by_hand(described, names):
    own = tuple(one for one in described.clients if one.name in names)
    made = replace(described, clients=own, yardsticks=False)
    return running.run(made, out=None).metrics.clients


def agrees(found, described, compared):
    for one in found.coalitions:
        if tuple(one["parties"]) not in compared:
            continue
        scores = by_hand(described, one["parties"])
        assert one["values"].keys() == scores.keys()
        for name, score in scores.items():
            value = one["values"][name]
            assert found.rows[name] == score.samples
            assert value["value"] == pytest.approx(score.figures.auc, abs=1e-12)
            low, high = score.figures.intervals["auc"]  # of other draws of the same rows
            assert (value["low"], value["high"]) == pytest.approx((low, high), abs=0.03)


def test_values_are_those_of_runs_with_clients_left_out(folder, whole):
    compared = [("bank", "shop", "phone", "gym"), ("bank", "phone", "gym"), ("shop", "phone")]
    agrees(whole, config.load(folder / "four.toml"), [*compared, ("bank",)])
    assert len(whole.coalitions) == 15
    assert whole.rows["phone"] == whole.rows["gym"] == 0


@pytest.mark.slow
def test_values_of_credit_are_those_of_runs_with_clients_left_out():
    found = intarsia.contribution(CREDIT, out=None)
    every = [tuple(one["parties"]) for one in found.coalitions]
    assert len(every) == 7
    agrees(found, config.load(CREDIT), every)


def test_several_at_a_time_come_to_the_same(folder, whole, monkeypatch):
    monkeypatch.setattr(study, "_LONG", 0.0)
    here, told = [], []
    begun = coalitions._run
    monkeypatch.setattr(coalitions, "_run", lambda *given: (here.append(1), begun(*given))[1])
    description = config.load(folder / "four.toml", ["experiment.workers=3"])
    found = study.contribution(description, out=folder / "spread", progress=told.append)
    assert len(here) == 1  # with all parties
    assert found.shapley == whole.shapley
    assert found.left_out == whole.left_out
    assert found.notes == whole.notes
    assert {one.phase for one in told} > {"1/15 all", "5/15 without bank", "9/15 bank + gym"}


def test_another_measure_trains_nothing(folder, whole, monkeypatch):
    monkeypatch.setattr(coalitions, "_run", lambda *given: pytest.fail("it trained"))
    found = study.contribution(folder / "four.toml", measure="accuracy", out=whole.folder)
    names = [one.name for one in config.load(folder / "four.toml").clients]
    for name, score in by_hand(config.load(folder / "four.toml"), names).items():
        assert found.together[name].value == pytest.approx(score.accuracy, abs=1e-12)
    study.contribution(folder / "four.toml", out=whole.folder)  # what other tests read


def test_worth_adds_up_to_what_is_gained(whole):
    for name in ("bank", "shop"):
        gained = whole.together[name].value - whole.alone[name].value
        given = sum(one.value for one in whole.shapley[name].values())
        assert given == pytest.approx(gained, abs=1e-12)
        assert whole.sums[name] == pytest.approx(gained, abs=1e-12)
    # all: from 0.5 at both without a model
    gained = np.mean([one.value for one in whole.together.values()]) - 0.5
    every = whole.shapley[study.ALL].values()
    assert sum(one.value for one in every) == pytest.approx(gained, abs=1e-12)
    rest = next(one for one in whole.coalitions if one["parties"] == ["bank", "shop", "gym"])
    lost = whole.together["bank"].value - rest["values"]["bank"]["value"]
    assert whole.left_out["bank"]["phone"].value == pytest.approx(lost, abs=1e-12)
    assert whole.left_out["bank"]["phone"].low < lost < whole.left_out["bank"]["phone"].high


def test_parties_without_a_label_among_them_count_as_without_a_model(whole):
    of = {tuple(one["parties"]): one for one in whole.coalitions}
    assert not of["phone", "gym"]["trained"]
    said = "phone + gym, phone, gym: not trained, counts as without a model: no party has a label"
    assert said in whole.notes[0]
    # nobody has a label of the gym's customers where the bank is not there: it adds nothing
    assert of["shop", "gym"]["trained"]
    assert of["shop", "gym"]["values"] == of["shop",]["values"]


def test_tables_picture_and_file_say_the_same(whole):
    told = json.loads((whole.folder / "contribution.json").read_text())
    assert told["shapley"]["bank"]["phone"]["value"] == whole.shapley["bank"]["phone"].value
    assert (whole.folder / "contribution.png").read_bytes().startswith(b"\x89PNG")
    text = str(whole)
    assert f"{whole.shapley['bank']['phone'].value:+.4f}" in text
    assert "the federation" in text
    assert "<table" in whole._repr_html_()
    for file in (whole.folder / "coalitions").iterdir():  # scores of single rows
        assert file.stat().st_mode & 0o077 == 0


def test_where_one_party_has_test_rows_its_line_is_not_repeated(whole):
    assert str(whole).count(study.OTHERS) == 2
    for name in ("left_out", "shapley"):
        worth = getattr(whole, name)
        kept = {to: worth[to] for to in ("bank", study.OTHERS, study.ALL)}
        whole = replace(whole, **{name: kept})
    assert study.OTHERS not in str(whole)
    assert str(whole).count("bank ") >= 3


def interrupted(*given):
    raise KeyboardInterrupt


def test_the_same_command_goes_on_after_ctrl_c(folder, whole, monkeypatch, capfd):
    out, begun, runs = folder / "stopped", coalitions._run, []

    def stopping(*given):
        runs.append(1)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return begun(*given)

    command = ["contribution", str(folder / "four.toml"), "--out", str(out), "--json"]
    with monkeypatch.context() as first:
        first.setattr(coalitions, "_run", interrupted)
        assert main(command) == 130
    said = "stopped before the first coalition was trained; the same command begins again"
    assert said in capfd.readouterr().err
    monkeypatch.setattr(coalitions, "_run", stopping)
    assert main(command) == 130
    said = f"stopped and 3 coalitions are kept in {out}; the same command, without --overwrite, "
    assert said in capfd.readouterr().err
    assert not (out / "contribution.json").exists()
    assert main([*command, "-c", "experiment.workers=1"]) == 0
    assert len(runs) == 4 + 9  # of 12 coalitions with a label 3 were done
    written = capfd.readouterr().out
    told = json.loads(written)
    same = json.loads(json.dumps(whole.to_dict()))
    for one in (*told["coalitions"], *same["coalitions"]):
        del one["seconds"]
    assert told == same
    with pytest.raises(CheckpointError, match="holds the coalitions of another experiment;"):
        study.contribution(config.load(folder / "four.toml", ["experiment.seed=4"]), out=out)
    path = out / "coalitions" / "3.npz"
    kept = dict(np.load(path))
    record = json.loads(str(kept["record"]))
    for damaged in (
        {"party0": kept["party0"][:1]},
        {"party0": kept["party0"].astype(str)},
        {"record": np.array(json.dumps({**record, "note": 5}))},
        {"record": np.array(json.dumps({**record, "rounds": "x"}))},
        {"record": np.array(json.dumps({**record, "seconds": 7}).replace(": 7,", ": 1e400,"))},
        {"party-1": kept["party0"]},
        b"PK",
    ):
        if isinstance(damaged, bytes):
            path.write_bytes(damaged)
        else:
            np.savez(path, **{**kept, **damaged})
        with pytest.raises(CheckpointError, match="is not what this version wrote"):
            study.contribution(folder / "four.toml", out=out)


def test_coalitions_of_drawn_pseudonyms_go_on_with_the_same_rows(folder, tmp_path, monkeypatch):
    described = config.load(folder / "four.toml", ["alignment.ids=pseudonyms"])
    first = study.contribution(described, out=tmp_path / "ps")
    monkeypatch.setattr(coalitions, "_run", lambda *given: pytest.fail("it trained"))
    (tmp_path / "ps" / "coalitions" / ".3.npz.999999.tmp").touch()  # of one that was killed
    again = study.contribution(described, out=tmp_path / "ps")
    assert not [*(tmp_path / "ps").rglob(".*.tmp")]
    assert again.to_dict() == first.to_dict()


def test_what_others_left_in_the_folder_stays(tmp_path):
    out = tmp_path / "out"
    (out / "coalitions").mkdir(parents=True)
    (out / "coalitions" / "1.npz").write_bytes(b"mine")
    x = np.random.default_rng(3).normal(size=(60, 2))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(y=x[:, 0])
    tables = {"p": frame[:30], "q": frame[30:]}
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="choose another folder with --out"):
            intarsia.contribution(
                tables=tables, label="y", loss="squared", test=0.3, out=out, overwrite=overwrite
            )
    assert (out / "coalitions" / "1.npz").read_bytes() == b"mine"


def test_of_more_than_five_parties_each_is_left_out_once_and_trained_alone():
    rng = np.random.default_rng(2)
    tables = {}
    for number in range(6):
        x = rng.normal(size=(60, 2))
        frame = pd.DataFrame(x, columns=["a", "b"])
        tables[f"p{number}"] = frame.assign(y=x[:, 0] * 2 + rng.normal(size=60))
    found = intarsia.contribution(tables=tables, label="y", loss="squared", test=0.3)
    assert found.measure == "r2"
    assert found.shapley is None
    assert len(found.coalitions) == 13
    for name in ("p0", "p5"):
        own = intarsia.run(tables={name: tables[name]}, label="y", loss="squared", test=0.3)
        assert found.alone[name].value == pytest.approx(own.metrics.clients[name].r2, abs=1e-12)
    assert found.left_out["p0"].keys() == {f"p{number}" for number in range(1, 6)}
    assert found.folder is None
    assert "all coalitions would be 63 runs" in found.notes[0]
    alike = intarsia.contribution(
        tables=tables, label="y", loss="squared", test=0.3, algorithm="cocoa", rounds=1
    )
    assert " and 7 more of 13 coalitions: " in alike.notes[-1]
    assert "note: There are 6 parties" in str(found)
    less = intarsia.contribution(
        tables=dict(list(tables.items())[:2]), label="y", loss="squared", test=0.3, measure="mae"
    )
    one, both = less.alone["p0"].value, less.together["p0"].value
    assert less.shapley["p0"]["p1"].value == pytest.approx(one - both)  # less error is more


def test_classes_that_some_parties_lack_are_told_by_name():
    pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    tables = {}
    for name, classes in (("a", [0, 1, 2]), ("b", [1, 2])):
        y = rng.choice(classes, 80)
        x = rng.normal(size=(80, 3)) + 3 * np.eye(3)[y]
        tables[name] = pd.DataFrame(x, columns=[f"{name}{one}" for one in range(3)]).assign(
            y=np.array(["red", "green", "blue"])[y]
        )
    found = intarsia.contribution(tables=tables, label="y", algorithm="local", rounds=3, test=0.3)
    assert found.measure == "accuracy"
    of = {tuple(one["parties"]): one["values"] for one in found.coalitions}
    # each learns alone, so that nobody is worth anything to the other but by chance
    assert of["b",]["b"]["value"] > 0.6


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["privacy.epsilon=1.0"], "which the run of each coalition would spend again"),
        (["split.test=0"], "leaves no rows to tell what a party is worth"),
        (['algorithm.name="centralised"'], "a reference model that is no federation"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(folder, tmp_path, overrides, sentence):
    described = config.load(folder / "four.toml", overrides)
    with pytest.raises(ExperimentError, match=re.escape(sentence)):
        study.contribution(described, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_tables_at_sites_one_party_and_another_measure_are_refused(folder, tmp_path, capfd):
    described = config.load(folder / "four.toml")
    away = tuple(replace(one, path="") for one in described.clients[:2])
    with pytest.raises(
        ExperimentError, match="The tables of 'bank', 'shop' are not here, and each"
    ):
        study.contribution(replace(described, clients=away), out=tmp_path / "none")
    with pytest.raises(ExperimentError, match="has 1 party, which is worth nothing to others"):
        study.contribution(replace(described, clients=described.clients[:1]), out=None)
    command = ["contribution", str(folder / "four.toml"), "--measure", "r2"]
    assert main([*command, "--out", str(tmp_path / "none")]) == 2
    assert "measure is 'r2', which there is not of these labels (binary); use" in (
        capfd.readouterr().err
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/study.json").write_text('{"experiment": ')
    assert main([*command[:2], "--out", str(tmp_path / "broken")]) == 2
    assert "broken/study.json is damaged, and says not whose coalitions" in capfd.readouterr().err
    assert main(["compare", str(tmp_path / "broken")]) == 2
    assert "holds what intarsia contribution found and no run; give" in capfd.readouterr().err
    running.run(described, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds a run or a search"):
        study.contribution(described, out=tmp_path / "run")


def test_values_are_of_the_right_rows_where_ids_are_text_at_one_party_alone(tmp_path):
    """Together the ids are whole numbers, and of the bank alone text: 1, 10, 100."""
    rng = np.random.default_rng(4)
    x, more = rng.normal(size=(160, 2)), rng.normal(size=160)
    y = (x[:, 0] + more + 0.3 * rng.normal(size=160) > 0).astype(int)
    bank = [f"{k + 1:06},{x[k, 0]:.4f},{x[k, 1]:.4f},{y[k]}" for k in range(160)]
    shop = [f"{k + 1},{one:.4f}" for k, one in enumerate(more)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,a,b,y", *bank]) + "\n")
    (tmp_path / "shop.csv").write_text("\n".join(["id,c", *shop]) + "\n")
    lines = ['[alignment]\nnormalise = ["zeros"]', "[split]\ntest = 0.3"]
    lines += ['[algorithm]\nname = "hyfdca"\nloss = "logistic"']
    lines += ['[[client]]\nname = "bank"\npath = "bank.csv"\nid = "id"\nlabel = "y"']
    lines += ['id_type = "text"', '[[client]]\nname = "shop"\npath = "shop.csv"\nid = "id"']
    (tmp_path / "mine.toml").write_text("\n".join(lines) + "\n")
    found = study.contribution(tmp_path / "mine.toml", out=tmp_path / "study")
    agrees(found, config.load(tmp_path / "mine.toml"), [("bank",), ("bank", "shop")])


def test_a_party_of_few_test_rows_gives_and_is_told_nothing():
    """Errors of one row, with all coalitions and without a model, told its label."""
    rng, tables = np.random.default_rng(0), {}
    for number, (name, rows) in enumerate({"small": 12, "mid": 60, "big": 60}.items()):
        x = rng.normal(size=(rows, 3))
        frame = pd.DataFrame(x, columns=list("abc")).assign(y=x.sum(axis=1))
        tables[name] = frame.assign(id=np.arange(rows) + 1000 * number)
    given = {"tables": tables, "algorithm": "hyfdca", "loss": "squared", "id": "id", "label": "y"}
    found = intarsia.contribution(**given, test=0.2, measure="mae", out=None)
    assert found.rows["small"] == 3
    shown = [found.baseline, found.alone, found.together, found.left_out, found.shapley, found.sums]
    assert all("small" not in one and "mid" in one for one in shown)
    assert all("small" not in one["values"] for one in found.coalitions)
    assert "small" in found.left_out["mid"]
    assert [note for note in found.notes if "'small' with fewer than 5" in note]
    given["tables"] = {name: frame.iloc[:12] for name, frame in tables.items()}
    with pytest.raises(ExperimentError, match="No party has 5 labelled test rows"):
        intarsia.contribution(**given, test=0.2, measure="mae", out=None)
