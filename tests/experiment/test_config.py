"""An experiment file becomes the object that it describes, or a sentence that says why not."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from intarsia.core.settings import hyperparameters
from intarsia.data.labels import LabelSettings
from intarsia.data.source import Source
from intarsia.errors import ExperimentError
from intarsia.experiment.config import Experiment, NamedDataset, Partition, from_dict, load, to_dict

SIMULATION = """
[experiment]
seed = 3
rounds = 40
[split]
test = 0.25
[algorithm]
name = "hyfdca"
loss = "hinge"
regularisation = 1e-3
[dataset]
name = "covtype15k"
positive = "2"
[partition]
kind = "grid"
rows = 4
columns = 4
"""
PARTIES = """
[experiment]
name = "credit"
out = "../runs/here"
[algorithm]
name = "hyfdca"
[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"
categorical = ["sex"]
[client.groups]
demographics = ["age", "sex"]
[[client]]
name = "shop"
url = "sqlite:///shop.sqlite"
query = "select * from people"
id = "customer"
[labels]
positive = ["1", "2"]
"""


def write(folder: Path, content: str) -> Path:
    path = folder / "trial.toml"
    path.write_text(content)
    return path


@pytest.mark.parametrize("key", ["xyzzy", "seperator"])
def test_an_unknown_key_of_a_client_is_answered_with_all_its_keys(key):
    tree = {"algorithm": {"name": "hyfdca"}, "client": [{"name": "a", key: 1}]}
    with pytest.raises(ExperimentError) as raised:
        from_dict(tree)
    for one in fields(Source):
        assert repr(one.name) in str(raised.value)


def test_a_simulation_is_read_with_its_defaults(tmp_path: Path) -> None:
    experiment = load(write(tmp_path, SIMULATION))
    assert experiment == Experiment(
        name="trial",
        seed=3,
        rounds=40,
        out=str(tmp_path / "runs/trial"),
        algorithm="hyfdca",
        hyperparameters={"loss": "hinge", "regularisation": 1e-3},
        split=type(experiment.split)(test=0.25),
        dataset=NamedDataset(name="covtype15k", options={"positive": "2"}),
        partition=Partition(kind="grid", options={"rows": 4, "columns": 4}),
    )
    assert experiment.tolerance == 1e-6
    assert experiment.preprocessing.standardise


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "experiments"
    folder.mkdir()
    experiment = load(write(folder, PARTIES))
    assert experiment.out == str(tmp_path / "runs/here")
    bank, shop = experiment.clients
    assert bank == Source(
        name="bank",
        path=str(folder / "bank.csv"),
        id="customer",
        label="default",
        categorical=("sex",),
        groups={"demographics": ("age", "sex")},
    )
    assert shop.url == f"sqlite:///{folder}/shop.sqlite"
    assert experiment.labels == LabelSettings(positive=("1", "2"))


def test_a_table_on_disk_can_be_dealt_out(tmp_path: Path) -> None:
    content = '[algorithm]\nname = "hyfdca"\n[dataset]\npath = "t.csv"\nlabel = "y"\n'
    experiment = load(write(tmp_path, content))
    assert experiment.dataset == Source(name="dataset", path=str(tmp_path / "t.csv"), label="y")


@pytest.mark.parametrize("content", [SIMULATION, PARTIES])
def test_the_resolved_copy_makes_the_same_experiment_anywhere(tmp_path: Path, content: str) -> None:
    experiment = load(write(tmp_path, content))
    copy = json.loads(json.dumps(to_dict(experiment)))
    assert from_dict(copy, tmp_path / "elsewhere") == experiment


def test_the_resolved_copy_of_a_table_on_disk_round_trips(tmp_path: Path) -> None:
    content = '[algorithm]\nname = "hyfdca"\n[dataset]\npath = "t.csv"\nlabel = "y"\n'
    experiment = load(write(tmp_path, content))
    assert from_dict(to_dict(experiment), "elsewhere") == experiment


def test_overrides_set_any_key(tmp_path: Path) -> None:
    path = write(tmp_path, PARTIES)
    experiment = load(
        path,
        [
            "experiment.rounds=50",
            "algorithm.loss=logistic",
            "client.bank.path=x.csv",
            "client.1.id=person",
            'client.bank.exclude=["name"]',
            "split.test = 0.5",
            "preprocessing.intercept=false",
            "client.bank.groups.money=['income']",
        ],
    )
    assert experiment.rounds == 50
    assert experiment.hyperparameters == {"loss": "logistic"}
    assert experiment.clients[0].path == str(tmp_path / "x.csv")
    assert experiment.clients[0].exclude == ("name",)
    assert experiment.clients[0].groups["money"] == ("income",)
    assert experiment.clients[1].id == "person"
    assert experiment.split.test == 0.5
    assert not experiment.preprocessing.intercept
    assert load(path).rounds == 200


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("experiment.round=5", "[experiment] has the unknown key 'round'; use 'rounds'"),
        ("experiment.rounds=2.5", "[experiment] rounds is 2.5; expected a whole number"),
        ("experiment.rounds=1e3", "rounds is 1000.0; expected a whole number: write 1000"),
        ("experiment.rounds=true", "[experiment] rounds is true; expected a whole number"),
        ("experiment.yardsticks=1", "[experiment] yardsticks is 1; expected true or false"),
        ("experiment.clients=1", "[experiment] has the unknown key 'clients'"),
        (
            "experiment.tolerance=nan",
            "[experiment] tolerance is nan; it must be at least 0: set e.g. 1e-06.",
        ),
        (
            "experiment.participation=0",
            "[experiment] participation is 0.0; it must be above 0 and at most 1",
        ),
        ("experiment.out=3", "[experiment] out is 3; expected text"),
        ("experiment.test=0.5", "unknown key 'test'; 'test' is a key of [split]."),
        ("split.max_iter=5", "unknown key 'max_iter'; 'rounds' is a key of [experiment]."),
        ("privacy.standardise=true", "'standardise' is a key of [preprocessing]."),
        ("split.tests=0.5", "[split] has the unknown key 'tests'; use 'test'"),
        ("labels.task=binery", "[labels] task is \"binery\"; use 'binary'"),
        ("labels.classes=[1]", "list at least two different classes"),
        ("labels.classes=[3, 4]", "[labels] positive is '1', which is not in classes"),
        ("client.bank.format=csw", "[[client]] 'bank' format is \"csw\"; use 'csv'"),
        ("client.bank.features=age", 'features is "age"; expected a list of texts'),
        ("client.5.path=x", "there is no client '5'"),
        ("experimant.seed=1", "use 'experiment'"),
        ("yardsticks=false", "write e.g. -c experiment.yardsticks=false."),
        ("standardize=false", "write e.g. -c preprocessing.standardise=false."),
        ("name=femam", "write e.g. -c algorithm.name=femam, or -c experiment.name=femam for"),
        ("nothing=false", "write e.g. -c experiment.rounds=50."),
        ("party.a=1", "'party' is not a table"),
        ("experiment.seed.x=1", "which is not a table"),
        ("algorithm.name=5", "[algorithm] name is 5; expected the name of an algorithm"),
        ("partition.kind=grid", "has [partition] and 2 [[client]] tables"),
        ("dataset.name=a9a", "has [dataset] and 2 [[client]] tables"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_table(
    tmp_path: Path, override: str, says: str
) -> None:
    path = write(tmp_path, PARTIES.replace('out = "../runs/here"', "seed = 1"))
    with pytest.raises(ExperimentError) as caught:
        load(path, [override])
    assert says in str(caught.value)


def test_tables_of_parties_are_those_of_clients(tmp_path: Path) -> None:
    with pytest.raises(
        ExperimentError, match=r"\[\[party\]\] is not a table .* use \[\[client\]\]"
    ):
        load(write(tmp_path, PARTIES.replace("[[client]]", "[[party]]")))


def test_a_table_in_the_place_of_an_experiment_file_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv"
    path.write_text("customer,age\n1,2\n")
    with pytest.raises(ExperimentError, match=r"bank.csv is a table, .* let intarsia init \S+"):
        load(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "bank.xlsx",
            b"PK\x03\x04\xff",
            r"is a workbook or an archive, .* save each client's sheet",
        ),
        (
            "bank.toml",
            b"PK\x03\x04\xff",
            r"is a workbook or a zip archive; name the experiment file",
        ),
        (
            "bank.toml",
            "a = 1".encode("utf-16"),
            r"is text in UTF-16; name the experiment file, which",
        ),
        ("bank.toml", b"\x00\x8d\xe5", r"is no text but bytes of a program; name the experiment"),
        (
            "bank.toml",
            b"x\xe4 = 1",
            r"byte 1 is b'\\xe4', which is not UTF-8; save the file as UTF-8",
        ),
    ],
)
def test_what_is_no_text_is_said_to_be_what_it_is(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ExperimentError, match=says):
        load(tmp_path / name)


def test_a_toml_error_says_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"line 3, column \d+ \('rounds ='\)"):
        load(write(tmp_path, "[experiment]\nseed = 1\nrounds = \n"))


@dataclass(frozen=True, kw_only=True)
class Tuning:
    rate: float
    epochs: int = 1
    loss: Literal["hinge", "logistic"] = "hinge"
    layers: tuple[int, ...] = (64,)
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ExperimentError(f"[algorithm] rate is {self.rate}; set it above 0.")


def test_hyperparameters_make_the_dataclass() -> None:
    made = hyperparameters(Tuning, {"rate": 1, "layers": [8, 4], "clip": 0.5})
    assert made == Tuning(rate=1.0, layers=(8, 4), clip=0.5)


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({}, "[algorithm] has no 'rate'"),
        ({"rate": "fast"}, '[algorithm] rate is "fast"; expected a number.'),
        ({"rate": True}, "[algorithm] rate is true; expected a number."),
        ({"rate": 0}, "set it above 0"),
        ({"rate": 1, "epoch": 2}, "unknown key 'epoch'; use 'epochs'"),
        ({"lr": 1}, "unknown key 'lr'; use 'rate', as it is called here."),
        ({"rate": 1, "n_epochs": 2}, "unknown key 'n_epochs'; use 'epochs', as it is called here."),
        ({"rate": 1, "lambda": 2}, "unknown key 'lambda'; use"),  # it has none: all are listed
        ({"rate": 1, "epochs": 2.0}, "epochs is 2.0; expected a whole number: write 2."),
        ({"rate": 1, "loss": "hingee"}, "use 'hinge'"),
        ({"rate": 1, "loss": 5}, 'loss is 5; expected one of "hinge", "logistic".'),
        ({"rate": 1, "layers": [1, "a"]}, 'layers is [1, "a"]; expected a list of whole numbers.'),
        ({"rate": 1, "clip": "x"}, 'clip is "x"; expected a number.'),
    ],
)
def test_hyperparameters_refuse_what_does_not_fit(mapping: dict[str, Any], says: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        hyperparameters(Tuning, mapping)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
def test_turns_that_do_not_come_out_even_are_refused(tmp_path, share):
    path = tmp_path / "turns.toml"
    path.write_text(
        f'[experiment]\nparticipation = {share}\nparticipation_pattern = "cyclic"\n'
        '[algorithm]\nname = "hyfdca"\n[dataset]\nname = "a9a"\n'
    )
    with pytest.raises(ExperimentError, match=f"participation is {share} with the cyclic pattern"):
        load(path)


def test_an_empty_output_folder_is_one_sentence(tmp_path):
    tree = {"algorithm": {"name": "hyfdca"}, "experiment": {"out": ""}}
    with pytest.raises(ExperimentError, match=r'out is ""; expected a folder'):
        from_dict(tree, tmp_path)


def test_of_a_federation_all_parties_take_part_where_a_file_names_no_data(tmp_path):
    file = tmp_path / "credit.toml"
    file.write_text('[algorithm]\nname = "hyfdca"\n')
    with pytest.raises(ExperimentError, match=r"no .dataset. and 0 "):
        load(file)
    found = load(file, parties=("bank", "shop"))
    assert [one.name for one in found.clients] == ["bank", "shop"]
    file.write_text('[algorithm]\nname = "hyfdca"\n[[client]]\nname = "bank"\n')
    found = load(file, parties=("bank", "shop"))
    assert [one.name for one in found.clients] == ["bank"]
    file.write_text('[algorithm]\nname = "hyfdca"\n[dataset]\nname = "iris"\n')
    assert load(file, parties=("bank", "shop")).clients == ()


FILE = """
[algorithm]
name = "hyfdca"
loss = "squared"
regularisation = 0.1
[[client]]
name = "a"
path = "a.csv"
"""
KEYS = {"hyfdca": {"loss", "regularisation"}, "other": {"loss", "rate"}}


def test_keys_of_an_algorithm_that_is_replaced_are_left_out_with_a_warning(tmp_path):
    (tmp_path / "x.toml").write_text(FILE)
    with pytest.warns(UserWarning, match="names the algorithm 'other', and 'regularisation' in"):
        found = load(tmp_path / "x.toml", ["algorithm.name=other"], keys_of=KEYS.__getitem__)
    assert (found.algorithm, dict(found.hyperparameters)) == ("other", {"loss": "squared"})
    asked = ["algorithm.name=other", "algorithm.regularisation=0.2"]  # is refused as of a file
    found = load(tmp_path / "x.toml", asked, keys_of=KEYS.__getitem__)
    assert found.hyperparameters["regularisation"] == 0.2
    found = load(tmp_path / "x.toml", ["algorithm.loss=logistic"], keys_of=KEYS.__getitem__)
    assert found.hyperparameters == {"loss": "logistic", "regularisation": 0.1}


def test_a_dictionary_in_the_place_of_an_experiment_is_named(tmp_path):
    (tmp_path / "d.toml").write_text('[client.a]\nAGE = "age"\n')
    with pytest.raises(ExperimentError, match=r"d\.toml is a dictionary, which says what columns"):
        load(tmp_path / "d.toml")
