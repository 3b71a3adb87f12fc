"""Run folders of an older version are read, continued and refused as that version would have."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import intarsia
from command_line import one_error, said
from intarsia.cli import main as cli

OLDER = Path(__file__).parents[1] / "fixtures" / "574201d"
EXPECTED = OLDER / "expected"
SPREAD = ("bank={place}/tables/bank.csv", "shop={place}/tables/shop.csv", "--federated")
PREDICTIONS = {
    "hyfdca": (*SPREAD, "--absent", "mean"),
    "masked": (*SPREAD, "--absent", "mean"),
    "flic": ("{place}/tables/north.csv", "--client", "north"),
}
STOPPED = {"hyfdca-stopped": (1, 3), "fedrep-stopped": (3, 6)}  # after which round, of how many


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of all folders, as a run's is written to, of a user with their secret."""
    shutil.copytree(OLDER, tmp_path / "older")
    secret = tmp_path / "state" / "intarsia" / "secret"
    secret.parent.mkdir(parents=True)
    secret.touch(mode=0o600)
    secret.write_bytes(bytes(range(32)))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "older"


@pytest.fixture
def intarsia_says(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what a command writes: its results, or what is said where it is to be refused."""

    def says(*words: str, status: int = 0) -> str:
        capfd.readouterr()
        found = cli.main([*words])
        out, err = said(capfd)
        assert found == status, err
        return err if status else out

    return says


def numbers(value: object, where: str = "") -> dict[str, object]:
    """Return the leaves of nested tables and lists by their places."""
    if not isinstance(value, dict | list):
        return {where: value}
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        place: leaf for key, one in inside for place, leaf in numbers(one, f"{where}.{key}").items()
    }


def assert_same(found: object, expected: object, tolerance: float) -> None:
    """Compare leaf by leaf: figures within a tolerance, everything else exactly."""
    ours, theirs = numbers(found), numbers(expected)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if key.endswith(".macro_f1") and ours[key] is None:
            continue  # withheld since: of few rows of a class
        if isinstance(value, float):
            assert ours[key] == pytest.approx(value, rel=tolerance, abs=tolerance), key
        else:
            assert ours[key] == value, key


def rows(text: str) -> list[list[object]]:
    """Return a table with its numbers as such."""

    def value(word: str) -> object:
        try:
            return float(word)
        except ValueError:
            return word

    return [[value(word) for word in row] for row in csv.reader(text.splitlines())]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_an_older_model_predicts_what_it_did(place, name, intarsia_says):
    tables = [word.format(place=place) for word in PREDICTIONS[name]]
    found = rows(intarsia_says("predict", str(place / name), *tables))
    expected = rows((EXPECTED / f"{name}.csv").read_text(encoding="utf-8"))
    assert len(expected) > 30  # a header and a table of rows
    assert_same(found, expected, 1e-12)


@pytest.mark.parametrize("name", ["hyfdca", "masked"])
def test_the_audit_of_an_older_run_says_what_it_did(place, name, intarsia_says):
    found = json.loads(intarsia_says("audit", str(place / name), "--json"))
    expected = json.loads((EXPECTED / f"{name}-audit.json").read_text(encoding="utf-8"))
    # which audits of that version did not say
    assert found.pop("undeclared") == []
    assert len(found.pop("sentences")) == 10
    assert set(found.pop("answers")) == set(found["clients"])
    for line in found["lines"]:  # by kind of number, but for what the server wrote
        assert bool(line.pop("contents")) is (line["how"] != "message")
    assert len(expected["lines"]) > 10
    assert found == expected


@pytest.mark.parametrize(
    "name", ["hyfdca-stopped", pytest.param("fedrep-stopped", marks=pytest.mark.slow)]
)
def test_an_older_run_is_resumed_to_the_result_that_it_had_there(place, name, intarsia_says):
    stopped, last = STOPPED[name]
    history = place / name / "history.jsonl"
    before = history.read_text(encoding="utf-8")
    assert len(before.splitlines()) == stopped
    intarsia_says("resume", str(place / name), "-q")
    after = history.read_text(encoding="utf-8")
    assert after.startswith(before)  # nothing is trained again
    rounds = [json.loads(line)["round"] for line in after.splitlines()]
    assert rounds == list(range(1, last + 1))
    found = json.loads((place / name / "result.json").read_text(encoding="utf-8"))
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    for key in ("algorithm", "rounds", "finished", "certificate", "metrics"):
        assert_same(_known_then(found[key]), expected[key], 1e-9)


def _known_then(found):
    """Return a part of a result without the figures, which older ones have not."""
    if isinstance(found, list):
        return [_known_then(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {key: _known_then(one) for key, one in found.items() if key != "figures"}


@pytest.mark.parametrize("name", PREDICTIONS)
def test_the_result_of_an_older_run_is_read_in_python(place, name):
    metrics = intarsia.load(place / name).metrics
    written = json.loads((place / name / "result.json").read_text(encoding="utf-8"))["metrics"]
    assert {client: one.accuracy for client, one in metrics.clients.items()} == {
        client: one["accuracy"] for client, one in written["clients"].items()
    }


def of_before(folder: Path, name: str) -> None:
    """Take a key away that every run folder has had for long, as if it were from before."""
    path = folder / name
    content = json.loads(path.read_text(encoding="utf-8"))
    del content[{"result.json": "metrics", "model/linear.json": "classes"}[name]]
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def refused(intarsia_says: Callable[..., str]) -> Callable[..., str]:
    """Return the one sentence that a command is refused in."""
    return lambda *words: one_error(intarsia_says(*words, status=2))


def test_a_model_of_an_unknown_version_is_refused_in_a_sentence(place, refused):
    folder = place / "hyfdca"
    of_before(folder, "model/linear.json")
    tables = [word.format(place=place) for word in PREDICTIONS["hyfdca"]]
    assert str(folder / "model" / "linear.json") in refused("predict", str(folder), *tables)


def test_a_result_of_an_unknown_version_is_refused_in_a_sentence(place, refused):
    folder = place / "hyfdca"
    of_before(folder, "result.json")
    assert "not a result that this version wrote" in refused("compare", str(folder))


def test_an_experiment_of_an_unknown_version_is_refused_in_a_sentence(place, refused):
    path = place / "hyfdca-stopped" / "experiment.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    tree["experiment"]["annealing"] = 0.5  # a setting that no version has had
    path.write_text(json.dumps(tree), encoding="utf-8")
    assert "'annealing'" in refused("resume", str(path.parent))


def test_a_checkpoint_of_an_unknown_version_is_refused_in_a_sentence(place, refused):
    folder = place / "fedrep-stopped"
    (state,) = folder.glob("checkpoints/round-*/server.state")
    written = state.read_bytes()
    state.write_bytes(written[:4] + b"\x63" + written[5:])  # the number of the encoding
    assert "this was not written by this version" in refused("resume", str(folder), "-q")
