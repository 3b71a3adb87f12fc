"""`intarsia schema`, against the experiment files and the code that reads them."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from command_line import said
from intarsia.cli.main import main
from intarsia.errors import ExperimentError, UserError
from intarsia.experiment.config import from_dict
from intarsia.training.experiment_schema import experiment_schema
from intarsia.training.registry import algorithm_named, algorithm_names, choose

jsonschema = pytest.importorskip("jsonschema")
FILES = [
    path
    for path in sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
    if path.name != "hyfdca-participation.toml"  # a matrix of experiments, for benchmarks
]
CREDIT = next(path for path in FILES if path.name == "credit.toml")


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(json.dumps(experiment_schema(), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_experiment_of_the_repository_is_valid(validator):
    assert len(FILES) > 40
    wrong = {
        path.name: [one.message for one in validator.iter_errors(tree)]
        for path in FILES
        if not validator.is_valid(tree := tomllib.loads(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("experiment", "round", 3),
        ("experiment", "rounds", 0),
        ("experiment", "rounds", "many"),
        ("experiment", "stop_by", "score"),
        ("experiment", "participation", 1.5),
        ("split", "test", 1),
        ("preprocessing", "standardise", 1),
        ("algorithm", "name", "hyfcda"),
        ("algorithm", "rate", 0.1),
        ("algorithm", "regularisation", 0),
        ("algorithm", "method", "newtn"),
        ("labels", "task", "classes"),
        ("alignment", "normalise", ["zero"]),
        ("privacy", "mode", "maskd"),
        ("client", "categorical", "SEX"),
        ("client", "decimal", ";"),
        ("client", "ID", "customer"),
        ("tune", "trials", "many"),
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(validator, table, key, value):
    tree = tomllib.loads(CREDIT.read_text(encoding="utf-8"))
    changed = copy.deepcopy(tree)
    place = changed["client"][0] if table == "client" else changed.setdefault(table, {})
    place[key] = value
    with pytest.raises(UserError):
        choose(from_dict(changed, CREDIT.parent))
    assert not validator.is_valid(changed)
    assert validator.is_valid(tree)


def test_every_algorithm_has_its_keys_with_what_they_mean():
    (kinds,) = [experiment_schema()["properties"]["algorithm"]["anyOf"]]
    assert [one["properties"]["name"]["const"] for one in kinds] == algorithm_names()
    for one in kinds:
        for key, own in one["properties"].items():
            assert key == "name" or "change it: " in own["description"], (one["title"], key)
    hyfdca = next(one for one in kinds if one["title"] == "hyfdca")["properties"]
    assert hyfdca["regularisation"]["minimum"] == 1e-30
    assert hyfdca["regularisation"]["default"] == 1e-3
    assert "λ" in hyfdca["regularisation"]["description"]
    assert hyfdca["method"]["enum"] == ["auto", "newton", "ascent"]


def test_without_an_extra_its_algorithms_are_known_by_their_names(monkeypatch):
    def named(name: str) -> Any:
        if name == "flic":
            raise ExperimentError("It needs the library torch.")
        return algorithm_named(name)

    monkeypatch.setattr("intarsia.training.experiment_schema.algorithm_named", named)
    kinds = experiment_schema()["properties"]["algorithm"]["anyOf"]
    flic = next(one for one in kinds if one["title"] == "flic")
    assert flic == {"title": "flic", "properties": {"name": {"const": "flic"}}}


def test_a_key_has_the_comment_at_its_field():
    tables = experiment_schema()["properties"]
    split = tables["split"]["properties"]
    assert split["stopping"]["description"] == (
        "fraction of the training samples by which early stopping chooses a round"
    )
    assert split["test"]["description"] == "0 = no test part"
    client = tables["client"]["items"]
    assert client["required"] == ["name"]
    undescribed = {key for key, own in client["properties"].items() if "description" not in own}
    assert undescribed <= {"name", "path", "url", "query", "exclude", "categorical", "missing"}


def test_the_command_prints_it_or_writes_it(tmp_path, capfd):
    assert main(["schema"]) == 0
    out, err = said(capfd)
    assert json.loads(out) == json.loads(json.dumps(experiment_schema()))
    assert err == ""
    assert main(["schema", "--out", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text(encoding="utf-8") == out
    assert "#:schema s.json" in said(capfd)[1]
