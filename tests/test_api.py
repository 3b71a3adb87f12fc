from __future__ import annotations

import json

import numpy as np
import pandas
import polars
import pytest
from scipy.sparse import csr_array

import intarsia
from intarsia.core.block import Labels
from intarsia.errors import CheckpointError, ExperimentError, FederationError, TableError
from intarsia.experiment import config as experiment
from intarsia.results.checkpoint import Checkpoints

QUICK = {"regularisation": 1e-2, "loss": "logistic", "tolerance": 1e-6}


def customers():
    """Customers 0-89 at the bank, 30-119 at the shop; the shop's basket decides."""
    rng = np.random.default_rng(0)
    age, income, basket = rng.normal(size=(3, 120))
    label = np.where(0.5 * age + 2.0 * basket > 0, "late", "paid")
    bank = {
        "customer": np.arange(90),
        "age": age[:90],
        "income": income[:90],
        "default": label[:90],
    }
    shop = {
        "customer": np.arange(30, 120),
        "basket": basket[30:],
        "town": ["north" if i % 2 else "south" for i in range(30, 120)],
    }
    return bank, shop


@pytest.fixture(scope="module")
def frames():
    bank, shop = customers()
    return {"bank": pandas.DataFrame(bank), "shop": polars.DataFrame(shop)}


def trained(tables, **settings):
    return intarsia.run(
        tables=tables, **{"id": "customer", "label": "default", **QUICK, **settings}
    )


# -- tables in memory


def test_settings_may_be_numpys_and_pandas_values(frames):
    given = {
        "seed": np.int64(3),
        "rounds": np.arange(9)[7],
        "test": np.float32(0.25),
        "yardsticks": np.bool_(False),
        "classes": frames["bank"]["default"].unique(),
        "privacy": {"mode": np.str_("masked")},
        "algorithm": {"name": "hyfdca", "gamma": np.float32(0.5)},
    }
    plain = {"seed": 3, "rounds": 7, "test": 0.25, "yardsticks": False, "privacy": "masked"}
    plain |= {"classes": [*given["classes"]], "algorithm": {"name": "hyfdca", "gamma": 0.5}}
    found, expected = (trained(frames, **one) for one in (given, plain))
    assert found.seed == 3
    np.testing.assert_array_equal(found.model.coef_, expected.model.coef_)


def test_progress_that_is_no_function_is_refused(frames, tmp_path):
    how = {"tables": frames, "id": "customer", "label": "default", "progress": False}
    said = "^progress is False; expected a function that is called as work goes on, such as print, "
    for work in (intarsia.run, intarsia.contribution):
        with pytest.raises(ExperimentError, match=said):
            work(**how)
    with pytest.raises(ExperimentError, match=said):
        intarsia.tune(**how, out=tmp_path / "study")
    with pytest.raises(ExperimentError, match=r"^yardstick_progress is True; expected"):
        intarsia.resume(tmp_path, yardstick_progress=True)


def test_dataframes_train_as_the_same_files_do(frames, tmp_path):
    frames["bank"].to_csv(tmp_path / "bank.csv", index=False)
    frames["shop"].write_parquet(tmp_path / "shop.parquet")
    (tmp_path / "two.toml").write_text(
        """
        [algorithm]
        name = "hyfdca"
        loss = "logistic"
        regularisation = 1e-2
        [[client]]
        name = "bank"
        path = "bank.csv"
        id = "customer"
        label = "default"
        [[client]]
        name = "shop"
        path = "shop.parquet"
        id = "customer"
        """
    )
    from_files = intarsia.run(tmp_path / "two.toml", out=None)
    in_memory = trained(frames)
    assert in_memory.metrics == from_files.metrics
    assert in_memory.certificate == from_files.certificate
    assert in_memory.folder is None
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("privacy", ["plain", "masked"])
def test_a_constant_feature_has_no_weight(frames, privacy):
    clock = frames["bank"].assign(read=1.7e9)  # in seconds; a year later it is 3e7 more
    model = trained(frames | {"bank": clock}, privacy=privacy, yardsticks=False).model
    place = [*model.feature_names_in_].index("read")
    assert model.means_[place] == pytest.approx(1.7e9)
    assert model.coef_[0, place] == 0.0
    later = clock.assign(read=1.73e9)
    np.testing.assert_array_equal(model.decision_function(later), model.decision_function(clock))


def test_the_result_has_a_model_for_a_party_s_own_columns(frames):
    result = trained(frames)
    assert result.certificate.gap_relative <= 1e-6
    assert result.metrics.server.loss == pytest.approx(result.metrics.centralised.loss, abs=1e-3)
    assert list(result.metrics.standalone) == ["bank"]
    assert isinstance(result.model, intarsia.LinearClassifier)
    assert list(result.model.classes_) == ["paid", "late"]
    said = result.model.predict(frames["shop"].drop("town"))
    late = frames["shop"]["basket"].to_numpy() > 0
    assert np.mean((said == "late") == late) > 0.9


@pytest.mark.parametrize("privacy", ["masked", {"mode": "masked", "range": 2.0**20}])
def test_sums_are_sealed_where_privacy_asks_for_it(frames, privacy):
    known = {"test": 0.0, "yardsticks": False}  # pseudonyms would choose other test rows
    open_sums = trained(frames, **known)
    result = trained(frames, privacy=privacy, alignment={"ids": "pseudonyms"}, **known)
    assert result.privacy.mode == "masked"
    assert result.certificate.primal == pytest.approx(open_sums.certificate.primal, rel=1e-6)
    assert result.certificate.gap_relative <= 1e-6


def test_a_private_model_of_tables_in_memory_says_its_epsilon(frames):
    result = trained(frames, privacy={"epsilon": 2.0}, standardise=False)
    assert (result.privacy.epsilon, result.privacy.unit) == (2.0, "sample")


def test_matrices_with_shared_rows_are_columns_of_one_table():
    rng = np.random.default_rng(1)
    x, noise = rng.normal(size=(150, 5)), rng.normal(size=150)
    y = x @ [1.0, 0.0, -2.0, 0.5, 0.0] + 0.1 * noise
    settings = {"loss": "squared", "regularisation": 1e-3, "test": 0.0, "standardise": False}
    result = intarsia.run(
        tables={"left": (x[:, :2], y), "right": csr_array(x[:, 2:])}, id="row", **settings
    )
    assert isinstance(result.model, intarsia.LinearRegressor)
    names = ["left:x0", "left:x1", "right:x0", "right:x1", "right:x2"]
    assert sorted(result.model.feature_names_in_) == names
    # the closed form, with the intercept as a further column
    design = np.hstack([x, np.ones((150, 1))])
    w = np.linalg.solve(design.T @ design / 150 + 1e-3 * np.eye(6), design.T @ y / 150)
    weight = dict(zip(result.model.feature_names_in_, result.model.coef_, strict=True))
    np.testing.assert_allclose([weight[name] for name in names], w[:5], atol=1e-5)
    assert result.model.intercept_ == pytest.approx(w[5], abs=1e-5)


def test_matrices_with_rows_of_their_own_have_the_same_columns():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 3))
    y = (x[:, 0] > 0).astype(int)
    tables = {"a": (x[:60], y[:60]), "b": (csr_array(x[60:]), y[60:])}
    with pytest.raises(FederationError, match="'x0' is in a sparse table at client 'b'"):
        intarsia.run(tables=tables, **QUICK)  # one could be centred, the other not
    result = intarsia.run(tables=tables, standardise=False, **QUICK)
    assert list(result.model.feature_names_in_) == ["x0", "x1", "x2"]
    assert set(result.metrics.clients) == {"a", "b"}


def test_a_table_has_settings_of_its_own(frames):
    shop = frames["shop"].rename({"customer": "who"}).with_columns(polars.lit("x").alias("name"))
    result = trained(
        {"bank": frames["bank"], "shop": shop},
        categorical=["town"],
        table_settings={"shop": {"id": "who", "exclude": ["name"]}},
    )
    assert result.metrics == trained(frames).metrics


def test_matrices_may_have_ids_and_names(frames):
    bank, shop = customers()
    result = intarsia.run(
        tables={
            "bank": np.stack([bank["age"], bank["income"]], axis=1),
            "shop": np.array(shop["basket"])[:, None],
        },
        table_settings={
            "bank": {
                "samples": bank["customer"],
                "labels": bank["default"],
                "names": ["age", "income"],
            },
            "shop": {"samples": shop["customer"], "names": ["basket"]},
        },
        **QUICK,
    )
    assert result.metrics == trained({**frames, "shop": frames["shop"].drop("town")}).metrics


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tables": {}}, "at least one table"),
        ({"label": "defautl"}, "'default'"),
        ({"id": "costumer"}, "'customer'"),
        ({"id": None, "id_type": None, "label": None}, "needs labels"),
        ({"categorical": ["twon"]}, "'town'"),
        ({"table_settings": {"shoop": {}}}, "'shop'"),
        ({"table_settings": {"shop": {"exlude": ["town"]}}}, "'exclude'"),
        ({"table_settings": {"shop": {"id_type": "number"}}}, "'integer'"),
        ({"algorithm": "hyfcda"}, "'hyfdca'"),
        ({"loss": "logit"}, "'logistic'"),
        ({"regularization": 1e-3}, "'regularisation'"),
        ({"sede": 1}, "'seed'"),
        ({"seed": -1}, "at least 0"),
        ({"rounds": 2.5}, "a whole number"),
        ({"test": 1.0}, "below 1"),
    ],
)
def test_a_wrong_setting_is_one_sentence(frames, change, expected):
    with pytest.raises((ExperimentError, TableError, FederationError)) as caught:
        trained(**{"tables": frames, **change})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"privacy": "mask"}, "masked"),
        ({"privacy": 3}, "a mode such as"),
        ({"privacy": {"epsilom": 1.0}}, "epsilon"),
        ({"alignment": "psi"}, "alignment"),
    ],
)
def test_a_wrong_table_of_settings_is_one_sentence(frames, setting, expected):
    with pytest.raises(ExperimentError, match=expected):
        trained(frames, **setting)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"split": {"test": 0.3, "salt": "2"}},
            "split is {'test': 0.3, 'salt': '2'}; expected the keys of [split] by themselves, for "
            "all clients alike, such as test=0.3, salt='2'.",
        ),
        (
            {"split": {"bank": 0.3}},
            "split is {'bank': 0.3}; expected the keys of [split] by themselves, for all clients "
            "alike, such as test=0.2.",
        ),
        (
            {"labels": {"bank": "default"}},
            "labels is {'bank': 'default'}; expected the keys of [labels] by themselves, for all "
            'clients alike, such as positive="yes". Labels of a single table are a column that '
            "label names, y of a pair (x, y), or labels in table_settings, such as "
            '{"bank": {"labels": y}}.',
        ),
        ({"preprocessing": {}}, "preprocessing is {}; expected the keys of [preprocessing] by"),
        (
            {"weights": {"bank": "w"}},
            "weights is {'bank': 'w'}; expected the name of one column: where tables have "
            "different ones, set it for each in table_settings, as in "
            'table_settings={"bank": {"weights": "w"}}.',
        ),
        (
            {"exclude": {"bank": ["age"]}},
            "exclude is {'bank': ['age']}; expected one setting for all tables: where tables have "
            "different ones, set it for each in table_settings, as in "
            'table_settings={"bank": {"exclude": ["age"]}}.',
        ),
        ({"missing": {}}, 'as in table_settings={"bank": {"missing": ["NA"]}}.'),
        (
            {"table_settings": 3},
            "table_settings is 3; expected a mapping from the names of tables to mappings of "
            'settings, such as {"bank": {"label": "default"}}.',
        ),
        ({"table_settings": {"bank": 3}}, "table_settings is {'bank': 3}; expected a mapping"),
        ({"table_settings": [{}]}, "table_settings is [{}]; expected a mapping from the names"),
    ],
)
def test_settings_of_another_shape_say_which_is_expected(frames, given, sentence):
    with pytest.raises(ExperimentError) as caught:
        trained(frames, **given)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"{next(iter(given))} is ")


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (lambda one: {"a": [1]}, "dict, {'a': [1]}"),
        (lambda one: "shop.csv", "str, 'shop.csv'"),
        (lambda one: None, "NoneType, None"),
        (lambda one: [one, one], "list, ["),
    ],
)
def test_a_table_of_another_kind_says_which_is_expected(frames, table, kind):
    with pytest.raises(ExperimentError) as caught:
        trained({**frames, "shop": table(frames["shop"])})
    assert str(caught.value).startswith(f"Table 'shop' is a {kind}")
    assert "; expected a DataFrame, a matrix x, or a pair (x, y) of either and its" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (lambda one: one.lazy(), "polars.LazyFrame; expected a DataFrame or a matrix: pass what"),
        (lambda one: one.to_arrow(), "pyarrow.Table; expected a DataFrame or a matrix: pass what"),
        (lambda one: one["basket"], "polars.Series; expected"),
        (lambda one: one.to_pandas().to_records(), "numpy.recarray; expected"),
    ],
)
def test_a_table_that_can_be_made_a_dataframe_says_how(frames, table, said):
    with pytest.raises(ExperimentError) as caught:
        trained({**frames, "shop": table(frames["shop"])})
    assert str(caught.value).startswith(f"Table 'shop' is a {said}")


def test_the_intervals_of_a_cut_are_categories(frames):
    bank = frames["bank"]
    cut = pandas.cut(bank["age"], [-9, 0, 9])
    model = trained({**frames, "bank": bank.assign(age=cut)}, yardsticks=False).model
    assert {"age=(-9, 0]", "age=(0, 9]"} <= {*model.feature_names_in_}
    text = bank.assign(age=cut.astype(str))
    found = model.decision_function(bank.assign(age=cut))
    np.testing.assert_array_equal(found, model.decision_function(text))


def test_dates_are_told_how_a_model_takes_them(frames):
    days = frames["bank"].assign(age=pandas.Timestamp("2020-01-01"))
    days["age"] += pandas.to_timedelta(frames["bank"]["age"] * 100, unit="D")
    model = trained({**frames, "bank": days}, dates="days", yardsticks=False).model
    with pytest.raises(TableError, match="'age' has dates or times; pass the days since 1970"):
        model.predict(days)
    numbers = days.assign(age=(days["age"] - pandas.Timestamp(0)) / pandas.Timedelta(days=1))
    assert len(model.predict(numbers)) == len(days)


def test_labels_beside_a_dataframe_are_those_of_a_column(frames):
    bank = frames["bank"]
    pair = bank.drop(columns="default"), bank["default"].to_numpy()
    apart, together = trained({**frames, "bank": pair}), trained(frames)
    assert apart.certificate == together.certificate
    assert apart.metrics == together.metrics


def test_labels_that_are_numbers_may_be_mapped_by_numbers(frames):
    bank = frames["bank"]
    known = bank.assign(default=np.unique(bank["default"], return_inverse=True)[1])
    mapped = trained({**frames, "bank": known}, label_map={0: "no", np.int64(1): "yes"})
    assert list(mapped.model.classes_) == ["no", "yes"]


@pytest.mark.parametrize("kind", ["DataFrame", "matrix"])
def test_values_of_few_rows_train_where_their_owner_says_so(kind):
    x = np.zeros((60, 2))
    x[:, 0], x[:3, 1] = np.arange(60) % 7, 1.0
    y = np.where(np.arange(60) % 2, "yes", "no")
    frame = pandas.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "y": y})
    table = (x, y) if kind == "matrix" else frame
    given = {"test": 0.0, "yardsticks": False, "rounds": 5}
    given |= {} if kind == "matrix" else {"label": "y"}
    own = {"table_settings": {"bank": {"least_rows": 1}}}
    for more, trains in (({}, False), ({"least_rows": 1}, True), (own, True)):
        found = intarsia.run(tables={"bank": table}, **given, **more)
        assert any("'x1'" in one for one in found.notes) is not trains


def test_labels_beside_a_dataframe_and_in_its_settings_are_too_many(frames):
    pair = frames["bank"], frames["bank"]["default"]
    with pytest.raises(ExperimentError, match=r"'bank' is a tuple of 2 and has labels in its sett"):
        trained({**frames, "bank": pair}, table_settings={"bank": {"labels": pair[1]}})


def test_a_matrix_without_the_id_column_says_what_to_pass(frames):
    with pytest.raises(ExperimentError, match="pass its ids as samples"):
        trained({**frames, "cube": np.zeros((3, 2))})


def test_an_experiment_or_tables_and_not_both(frames, tmp_path):
    with pytest.raises(ExperimentError, match="neither"):
        intarsia.run()
    with pytest.raises(ExperimentError, match="both"):
        intarsia.run(tmp_path / "x.toml", tables=frames)
    with pytest.raises(ExperimentError, match="described in the experiment"):
        intarsia.run(tmp_path / "x.toml", label="default")


@pytest.mark.parametrize(
    "name",
    [
        *("..", "naïve bank ∑", "tab\tnew\nline"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("a/b", 'quo"te', "x" * 300)),
    ],
)
def test_odd_names_of_clients_ids_and_classes_work(name, tmp_path):
    bank, shop = customers()
    ids = [f"{name} {i}" for i in range(120)]
    bank = {**bank, "customer": ids[:90], "default": [f"{name}{v}" for v in bank["default"]]}
    shop = {**shop, "customer": ids[30:]}
    tables = {name: pandas.DataFrame(bank), f"{name}2": pandas.DataFrame(shop)}
    result = trained(tables, out=tmp_path / "out", checkpoint_seconds=0.0)
    found = intarsia.load(tmp_path / "out")
    assert found.metrics == result.metrics
    assert list(found.metrics.clients) == [name]
    assert list(found.model.classes_) == list(result.model.classes_)


@pytest.mark.parametrize("name", [3, "", None, "half \ud800"])
def test_a_name_that_is_no_text_is_refused(frames, name):
    with pytest.raises(ExperimentError, match="name"):
        trained({**frames, name: frames["bank"]})


# -- experiments


@pytest.fixture
def file(frames, tmp_path):
    frames["bank"].to_csv(tmp_path / "bank.csv", index=False)
    frames["shop"].write_csv(tmp_path / "shop.csv")
    path = tmp_path / "two.toml"
    path.write_text(
        """
        [experiment]
        rounds = 30
        [algorithm]
        name = "hyfdca"
        method = "ascent"
        regularisation = 1e-2
        [[client]]
        name = "bank"
        path = "bank.csv"
        id = "customer"
        label = "default"
        [[client]]
        name = "shop"
        path = "shop.csv"
        id = "customer"
        """
    )
    return path


def test_settings_go_before_those_of_the_file(file):
    result = intarsia.run(file, seed=3, rounds=2, loss="squared", yardsticks=False, out=None)
    assert (result.seed, result.rounds, result.experiment) == (3, 2, "two")
    assert result.hyperparameters["loss"] == "squared"
    assert result.hyperparameters["method"] == "ascent"
    assert result.metrics.centralised is None


def test_another_algorithm_keeps_loss_and_regularisation(file):
    described = experiment.load(file)
    result = intarsia.run(described, algorithm="centralised", loss="logistic", out=None)
    assert result.algorithm == "centralised"
    shapes = {"huber_delta": 1.35, "quantile": 0.5}
    assert result.hyperparameters == {"loss": "logistic", "regularisation": 1e-2, **shapes}


def test_overwriting_waits_for_the_new_tables(file, tmp_path):
    out = tmp_path / "out"
    first = intarsia.run(file, out=out)
    with pytest.raises(CheckpointError, match="already holds a result"):
        intarsia.run(file, out=out)
    whole = (tmp_path / "shop.csv").read_text()
    (tmp_path / "shop.csv").write_text("customer\n1\n1\n")
    with pytest.raises(TableError):
        intarsia.run(file, out=out, overwrite=True)
    (tmp_path / "shop.csv").write_text(whole)
    with pytest.raises(ExperimentError):
        intarsia.run(file, out=out, overwrite=True, loss="none")
    with pytest.raises(FederationError, match="cocoa"):
        intarsia.run(file, out=out, overwrite=True, algorithm="cocoa")
    assert intarsia.load(out).metrics == first.metrics
    (out / "mine.txt").write_text("kept")
    second = intarsia.run(file, out=out, overwrite=True, seed=1)
    assert intarsia.load(out).seed == second.seed == 1
    assert (out / "mine.txt").read_text() == "kept"


def test_a_file_in_the_place_of_the_folder_is_one_sentence(file, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        intarsia.run(file, out=tmp_path / "out")


# -- load, resume, inspect


def test_load_returns_the_result_and_its_model(frames, tmp_path):
    result = trained(frames, out=tmp_path)
    found = intarsia.load(tmp_path)
    assert found.to_dict() == json.loads(json.dumps(result.to_dict()))
    np.testing.assert_array_equal(found.model.coef_, result.model.coef_)
    assert intarsia.resume(tmp_path).to_dict() == found.to_dict()
    with pytest.raises(CheckpointError, match="holds no result"):
        intarsia.load(tmp_path / "model")


class Stop(Exception):  # noqa: N818  # it stands for the user's Ctrl-C
    pass


def test_a_run_on_tables_resumes_when_it_gets_them_again(frames, tmp_path):
    def stop(progress):
        if progress.round == 3:
            raise Stop

    settings = {"method": "ascent", "rounds": 6, "tolerance": 0.0, "checkpoint_seconds": 0.0}
    whole = trained(frames, **settings)
    with pytest.raises(Stop):
        trained(frames, **settings, out=tmp_path, progress=stop)
    with pytest.raises(CheckpointError, match="pass the same tables"):
        intarsia.resume(tmp_path)
    with pytest.raises(ExperimentError, match="pass the same tables"):
        intarsia.resume(tmp_path, tables={"bank": frames["bank"]})
    changed = {**frames, "bank": frames["bank"].assign(age=0.0)}
    with pytest.raises(CheckpointError, match="not those the run was started with"):
        intarsia.resume(tmp_path, tables=changed)
    assert Checkpoints(tmp_path).rounds[-1] == 3
    result = intarsia.resume(tmp_path, tables=frames)
    assert result.certificate == whole.certificate
    np.testing.assert_array_equal(result.model.coef_, whole.model.coef_)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 6


def test_inspect_counts_what_the_parties_hold(frames, tmp_path):
    found = intarsia.inspect(
        tables=frames, id="customer", label="default", picture=tmp_path / "who.png"
    )
    assert [(row.client, row.samples, row.features, row.labelled) for row in found.clients] == [
        ("bank", 90, 2, 90),
        ("shop", 90, 3, 0),
    ]
    assert found.overlaps.samples.tolist() == [[90, 60], [60, 90]]
    assert found.schema.labels == Labels("binary", ("paid", "late"), "default")
    assert found.advice.algorithm == "hyfdca"
    assert found.picture.read_bytes()[:4] == b"\x89PNG"


def test_inspect_reads_a_file_and_a_simulation(file, tmp_path):
    assert [row.samples for row in intarsia.inspect(file).clients] == [90, 90]
    simulation = tmp_path / "simulation.toml"
    simulation.write_text(
        'algorithm = { name = "hyfdca" }\ndataset = { name = "breast_cancer" }\n'
        'partition = { kind = "grid", rows = 2, columns = 2 }\n'
    )
    found = intarsia.inspect(simulation, seed=1)
    assert sum(row.samples for row in found.clients) == 2 * 569
    assert found.picture is None


def test_inspect_shows_the_counts_of_tables_that_a_run_would_refuse(frames):
    late = frames["bank"].rename(columns={"age": "years"}).copy()
    late["default"] = np.where(late["default"] == "late", "paid", "late")
    found = intarsia.inspect(
        tables={**frames, "late": late}, id="customer", label="default", standardise=False
    )
    assert [row.samples for row in found.clients] == [90, 90, 90]
    with pytest.raises(FederationError, match="samples have different labels") as refused:
        trained({**frames, "late": late}, standardise=False)
    assert found.advice.obstacle == str(refused.value)


def test_inspect_says_what_a_run_refuses_of_the_training_part_and_counts_all_rows():
    classes = [f"c{row % 25:02}" for row in range(26)]
    table = pandas.DataFrame({"id": range(26), "x": np.arange(26.0), "ill": classes})
    tables = {"a": table, "b": table[["id"]].assign(z=1.0)}
    found = intarsia.inspect(tables=tables, id="id", label="ill")
    assert [row.samples for row in found.clients] == [26, 26]
    assert sum(found.classes.values()) == 26
    with pytest.raises(FederationError, match=r"25 classes .* 21 training samples") as refused:
        intarsia.run(tables=tables, id="id", label="ill")
    assert found.advice.obstacle == str(refused.value)
    assert not intarsia.inspect(tables=tables, id="id", label="ill", test=0.0).advice.obstacle


def test_inspect_says_what_a_run_refuses_of_a_test_part_that_cannot_be_dealt(tmp_path):
    file = tmp_path / "few.toml"
    file.write_text(
        'algorithm = { name = "hyfdca" }\ndataset = { name = "breast_cancer" }\n'
        'split = { test = 0.004 }\npartition = { kind = "grid", rows = 9, columns = 2 }\n'
    )
    with pytest.raises(ExperimentError, match=r"test part has . samples and cannot") as refused:
        intarsia.run(file, out=None)
    assert intarsia.inspect(file).advice.obstacle == str(refused.value)


def test_inspect_names_a_label_column_that_is_a_feature_elsewhere(frames):
    shop = frames["shop"].to_pandas().assign(default=0.0)
    found = intarsia.inspect(
        tables={"bank": frames["bank"], "shop": shop},
        id="customer",
        table_settings={"bank": {"label": "default"}},
    )
    assert "is a feature at 'shop'" in found.advice.remarks[0]


@pytest.mark.parametrize(
    ("out", "told"),
    [
        (3, "out is 3; give the path of a folder"),
        (b"x", "out is b'x'; give the path of a folder"),
        ("a\0b", "give the path of a folder"),
        ("a_file/runs", "a_file is no folder; choose another one"),
        ("x" * 300, "which no folder can be called"),
    ],
)
@pytest.mark.parametrize("what", ["run", "tune", "contribution", "join"])
def test_a_folder_that_cannot_be_made_is_one_sentence(what, out, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    given = ["run", "new.csv"] if what == "join" else ["mine.toml"]
    with pytest.raises(ExperimentError, match=told):
        getattr(intarsia, what)(*given, out=out)  # before anything is read


def test_a_search_over_tables_in_memory_does_not_go_where_one_is():
    table = polars.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    with pytest.raises(ExperimentError, match="has no output folder; give out"):
        intarsia.tune(tables={"a": table}, label="y", out="")
