from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.sparse import csr_array

from intarsia.core.block import Block
from intarsia.data.parsing import same_unit
from intarsia.data.reader import read, table_from
from intarsia.data.source import Source
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.experiment import federation
from intarsia.experiment.config import from_dict
from intarsia.experiment.feature_dictionary import Column, Feature, load, translated

TOML = """
[feature.age]
type = "number"
unit = "years"
factors = { months = 0.08333333333333333 }

[feature.sex]
type = "category"

[client.clinic]
AGE_M = { feature = "age", unit = "months" }
SEX = "sex"
"""
CSV = """party,column,feature,unit,type,factor
,,age,years,number,
clinic,AGE_M,age,months,,0.08333333333333333
clinic,SEX,sex,,category,
"""
CLINIC = "id,AGE_M,SEX,bmi,ill\n1,24,1,20,no\n2,36,2,21,yes\n3,,1,22,no\n"
HOSPITAL = "id,age,sex,ill\n1,2,1,no\n4,40,2,yes\n"


def written(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def experiment(folder, dictionary="d.toml", clinic=None, hospital=None, **alignment):
    settings = {**alignment, **({} if dictionary is None else {"dictionary": dictionary})}
    return from_dict(
        {
            "algorithm": {"name": "hyfdca"},
            "split": {"test": 0.0},
            "alignment": settings,
            "client": [
                {"name": "clinic", "path": "clinic.csv", "id": "id", "label": "ill"}
                | (clinic or {}),
                {"name": "hospital", "path": "hospital.csv", "id": "id", "label": "ill"}
                | {"categorical": ["sex"]}
                | (hospital or {}),
            ],
        },
        folder,
    )


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path, d_toml=TOML, d_csv=CSV, clinic_csv=CLINIC, hospital_csv=HOSPITAL)


@pytest.mark.parametrize("dictionary", ["d.toml", "d.csv"])
def test_columns_meet_as_features_in_one_unit(folder, dictionary):
    found = federation.build(experiment(folder, dictionary)).train
    assert found["clinic"].features == ("age", "sex=1", "sex=2", "bmi")
    assert found["hospital"].features == ("age", "sex=1", "sex=2")
    np.testing.assert_allclose(found["clinic"].x[:, 0], [2.0, 3.0, np.nan])
    np.testing.assert_array_equal(found["clinic"].x[:, 1], [1.0, 0.0, 1.0])


def test_both_formats_say_the_same(folder):
    toml, table = load(folder / "d.toml"), load(folder / "d.csv")
    assert toml.features == table.features
    assert toml.columns == table.columns
    assert toml.columns["clinic"]["AGE_M"] == Column(feature="age", unit="months")
    assert toml.features["sex"] == Feature(type="category")


def test_the_units_of_the_experiment_go_before_those_of_the_dictionary(folder):
    (folder / "d.toml").write_text(TOML.replace('unit = "months" }', 'unit = "years" }'))
    found = federation.build(experiment(folder, clinic={"units": {"AGE_M": "months"}})).train
    np.testing.assert_allclose(found["clinic"].x[:2, 0], [2.0, 3.0])
    same = federation.build(experiment(folder)).train
    np.testing.assert_allclose(same["clinic"].x[:2, 0], [24.0, 36.0])


def test_sparse_columns_are_converted_too(folder):
    shared = load(folder / "d.toml")
    x = csr_array(np.array([[0.0, 12.0], [5.0, 0.0]]))
    table = table_from(x, client="clinic", names=["bmi", "AGE_M"])
    (folder / "e.toml").write_text(TOML.replace('SEX = "sex"', ""))
    found = translated(table, load(folder / "e.toml"), {})
    assert found.columns == ("bmi", "age")
    np.testing.assert_allclose(found.values.toarray(), [[0.0, 1.0], [5.0, 0.0]])
    with pytest.raises(TableError, match="has the column 'SEX', which is not among"):
        translated(table, shared, {})


def test_groups_follow_their_columns(folder):
    source = Source(
        name="clinic",
        path=str(folder / "clinic.csv"),
        id="id",
        label="ill",
        categorical=("SEX",),
        groups={"body": ("AGE_M", "bmi"), "rest": ("SEX",)},
    )
    found = translated(read(source), load(folder / "d.toml"), {})
    assert found.groups == {"body": ("age", "bmi"), "rest": ("sex",)}


@pytest.mark.parametrize(
    ("clinic", "hospital", "message"),
    [
        (
            {"units": {"AGE_M": "days"}},
            {},
            r"Client 'clinic': column 'AGE_M' is in 'days' but the feature 'age' is in 'years' in "
            r"the dictionary .*d\.toml, which has factors for 'months' only; add the factor",
        ),
        ({}, {"units": {"age": "weeks"}}, "Client 'hospital': column 'age' is in 'weeks'"),
        ({"units": {"SEX": "cm"}}, {}, "'SEX' is in 'cm' but the feature 'sex' is a category"),
        ({"units": {"AGE": "months"}}, {}, "units names the column 'AGE'.*'AGE_M'"),
        ({"units": {"id": "months"}}, {}, "units names the id column 'id'"),
        ({}, {"categorical": ["sex", "age"]}, "column 'age' .*has text .*says that it is a number"),
        ({}, {"categorical": []}, r"column 'sex' .*has numbers \(such as 1\) .*it is a category"),
    ],
)
def test_a_unit_or_a_type_that_differs_is_reported_before_training(
    folder, clinic, hospital, message
):
    with pytest.raises(TableError, match=message):
        federation.build(experiment(folder, clinic=clinic, hospital=hospital))


def test_units_that_differ_are_reported_without_a_dictionary(folder):
    (folder / "clinic.csv").write_text(CLINIC.replace("AGE_M", "age").replace("SEX", "s"))
    different = {"clinic": {"units": {"age": "months"}}, "hospital": {"units": {"age": "years"}}}
    with pytest.raises(
        FederationError,
        match=r"'age' is in 'months' at client 'clinic' but in 'years' at client 'hospital'",
    ):
        federation.build(experiment(folder, None, **different))
    for unsaid in ({}, {"hospital": {"units": {"age": ""}}}):
        federation.build(experiment(folder, None, clinic={"units": {"age": "years"}}, **unsaid))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("€", "EUR"), ("$", "USD"), ("£", "GBP"), ("%", "percent"), ("mg/dL", "mg/dl")),
        *(("µg", "μg"), ("Euro", "eur"), ("Percent", "%"), ("mg / dl", "mg/dl")),
    ],
)
def test_a_unit_written_in_two_ways_is_one(folder, one, other):
    (folder / "clinic.csv").write_text(CLINIC.replace("AGE_M", "age").replace("SEX", "s"))
    written = {"clinic": {"units": {"age": one}}, "hospital": {"units": {"age": other}}}
    federation.build(experiment(folder, None, **written))
    (folder / "d.toml").write_text(
        f'[feature.age]\nunit = "years"\nfactors = {{ "{one}" = 2.0 }}\n'
    )
    doubled = federation.build(experiment(folder, **written))
    np.testing.assert_array_equal(doubled.train["hospital"].x[:, 0], [4.0, 80.0])


def test_units_of_another_size_are_not_one():
    pairs = ("mg", "Mg"), ("m", "M"), ("mg/l", "mg/dl"), ("$", "CAD"), ("LU", "lU")
    assert all(same_unit(one) != same_unit(other) for one, other in pairs)


def test_labels_in_units_that_differ_are_reported(folder):
    same = experiment(folder, clinic={"units": {"ill": "€"}}, hospital={"units": {"ill": "€"}})
    federation.build(same)
    other = experiment(folder, clinic={"units": {"ill": "€"}}, hospital={"units": {"ill": "$"}})
    with pytest.raises(
        FederationError, match=r"'€' at client 'clinic' but in '\$' at client 'hospital'; write all"
    ):
        federation.build(other)


def test_units_that_differ_are_reported_where_the_dictionary_names_none(folder):
    (folder / "d.toml").write_text(
        '[client.clinic]\nAGE_M = { feature = "age", unit = "months" }\nSEX = "sex"\n'
    )
    found = experiment(
        folder, clinic={"categorical": ["SEX"]}, hospital={"units": {"age": "years"}}
    )
    with pytest.raises(FederationError, match="'age' is in 'months' at client 'clinic'"):
        federation.build(found)


@pytest.mark.parametrize("sparse", [False, True])
def test_types_that_differ_are_reported_without_a_dictionary(sparse):
    import pandas as pd

    x = np.array([[1.0], [2.0]])
    given = {
        "a": table_from(
            pd.DataFrame({"stage": ["low", "high"], "y": [0, 1]}),
            client="a",
            label="y",
            least_rows=1,
        ),
        "b": table_from(
            csr_array(x) if sparse else x, np.array([0, 1]), client="b", names=["stage"]
        ),
    }
    described = from_dict(
        {"algorithm": {"name": "hyfdca"}, "client": [{"name": "a"}, {"name": "b"}]}
    )
    with pytest.raises(
        FederationError, match=r"'stage' is categorical at client 'a' \(first level: 'high'\) but"
    ):
        federation.build(described, given)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stage=low", "the level 'low' of the column 'stage'"),
        ("(intercept)", "the constant"),
    ],
)
def test_a_column_of_the_name_of_a_level_or_of_the_constant_is_refused(name, said):
    """Two clients had one weight for a number and a level, or for a number and the constant."""
    import pandas as pd

    y = [0, 1] * 5
    given = {
        "a": table_from(
            pd.DataFrame({"stage": ["low", "high"] * 5, "y": y}), client="a", label="y"
        ),
        "b": table_from(np.arange(10.0)[:, None], np.array(y), client="b", names=[name]),
    }
    described = from_dict(
        {"algorithm": {"name": "hyfdca"}, "client": [{"name": "a"}, {"name": "b"}]}
    )
    with pytest.raises(FederationError, match=re.escape(f"client 'b' has the name of {said} in")):
        federation.build(described, given)


def test_two_levels_of_one_name_in_the_model_are_refused():
    import pandas as pd

    frames = {"a": {"f": ["g=h", "i"] * 5}, "b": {"f=g": ["h", "j"] * 5}}
    given = {
        name: table_from(pd.DataFrame(own).assign(y=[0, 1] * 5), client=name, label="y")
        for name, own in frames.items()
    }
    described = from_dict(
        {"algorithm": {"name": "hyfdca"}, "client": [{"name": "a"}, {"name": "b"}]}
    )
    with pytest.raises(FederationError, match="are both called 'f=g=h' in the model; rename one"):
        federation.build(described, given)


def test_a_client_that_is_not_there_is_one_sentence(folder):
    (folder / "d.toml").write_text(TOML.replace("[client.clinic]", "[client.clinik]"))
    with pytest.raises(ExperimentError, match=r"client 'clinik', which is not in .*'clinic'"):
        federation.build(experiment(folder))


def test_two_columns_of_one_feature_are_one_sentence(folder):
    (folder / "clinic.csv").write_text(CLINIC.replace("bmi", "age"))
    with pytest.raises(TableError, match="columns 'AGE_M' and 'age' are both the feature 'age'"):
        federation.build(experiment(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[feature.age", "not valid TOML"),
        ("[features.age]\nunit = 'a'", r"\[features\] is not a table of the dictionary.*'feature'"),
        ("feature = 3", r"feature is 3; expected a table \[feature\]"),
        ("[feature]\nage = 3", "age is 3; expected a table"),
        ("[feature.age]\nunits = 'a'", r"\[feature.age\] has the unknown key 'units'.*'unit'"),
        ("[feature.age]\ntype = 'numeric'", r'type is "numeric"'),
        ("[feature.age]\nunit = 'a'\nfactors = { b = 0 }", r"factor 0.* for 'b'.*above 0"),
        ("[feature.age]\nunit = 'a'\nfactors = { b = inf }", "factor inf for 'b'"),
        ("[feature.age]\nfactors = { b = 2 }", "factor for 'b' but no unit"),
        ("[feature.s]\ntype = 'category'\nunit = 'a'", "is a category with the unit 'a'"),
        ("[client.a]\nAGE = 3", "AGE is 3; expected the name of a feature"),
        ("[client.a]\nAGE = ''", 'AGE is ""; expected the name of a feature'),
        ("[client.a]\nAGE = { unit = 'a' }", r"\[client.a\] AGE has no 'feature'"),
        ("[client.a]\nA = 'age'\nB = 'age'", "columns 'A' and 'B' of client 'a' are both"),
    ],
)
def test_a_wrong_toml_dictionary_is_one_sentence(tmp_path, text, message):
    path = written(tmp_path, d_toml=text) / "d.toml"
    with pytest.raises(ExperimentError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


HEAD = "party,column,feature,unit,type,factor\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the header is empty and lacks 'party'"),
        ("party,column\n", "lacks 'feature'"),
        ("party,column,feature,units\n", "a column 'units'.*'unit'"),
        (HEAD + "a,AGE,age,y,number,,x\n", "line 2: there are more cells"),
        (HEAD + "a,,age,,,\n", "party is 'a', column is '' and feature is 'age'"),
        (HEAD + ",AGE,age,,,\n", "party is '', column is 'AGE'"),
        (HEAD + ",,,,,\n", "party is '', column is '' and feature is ''"),
        (HEAD + "a,AGE,age,,numeric,\n", "line 2: type is 'numeric'"),
        (HEAD + "a,AGE,age,,number,\nb,A,age,,category,\n", "line 3: feature 'age' is a category"),
        (HEAD + "a,AGE,age,y,,\nb,A,age,m,,\n", "line 3: feature 'age' is in 'm' but in 'y'"),
        (HEAD + "a,AGE,age,y,,two\n", "factor is \"two\" and unit is 'y'"),
        (HEAD + "a,AGE,age,,,2\n", "factor is \"2\" and unit is ''"),
        (HEAD + "a,AGE,age,y,,-2\n", 'factor is "-2"'),
        (HEAD + ",,age,y,,\na,A,age,m,,2\nb,A,age,m,,3\n", "factor 3 for 'm' but 2"),
        (HEAD + "a,AGE,age,m,,2\n", "factor for 'm' but no unit"),
        (HEAD + "a,AGE,age,,,\na,AGE,old,,,\n", "column 'AGE' of party 'a' is in a line above"),
        (HEAD + "a,A,age,,,\na,B,age,,,\n", "columns 'A' and 'B' of client 'a' are both"),
        (HEAD + 'a,"A,age,,,\n', "not valid CSV"),
    ],
)
def test_a_wrong_csv_dictionary_is_one_sentence(tmp_path, text, message):
    path = written(tmp_path, d_csv=text) / "d.csv"
    with pytest.raises(ExperimentError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_dictionary_is_one_sentence(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"party\xff")
    (tmp_path / "d.txt").write_text("")
    for name, message in (
        ("d.csv", r"byte 5 is b'.*', which is not UTF-8"),
        ("d.txt", "the ending '.txt' tells no format"),
        ("none.toml", "cannot read the dictionary .*No such file"),
        (".", "cannot read the dictionary"),
    ):
        with pytest.raises(ExperimentError, match=message):
            load(tmp_path / name)


def test_a_column_without_a_feature_keeps_its_name(tmp_path):
    path = written(tmp_path, d_csv="party,column,feature\na,AGE,\n") / "d.csv"
    assert load(path).columns == {"a": {"AGE": Column(feature="AGE")}}


def test_dictionary_and_pseudonyms_go_together(folder):
    found = federation.build(experiment(folder, ids="psi"))
    assert isinstance(found.train["clinic"], Block)
    shared = [cell for cell in found.schema.samples.cells if len(cell.owners) == 2]
    assert [cell.stop - cell.start for cell in shared] == [1]


def two_with(folder, category):
    """Return the training blocks of a.csv and b.csv, which have a category, by d.toml."""
    own = {"id": "id", "categorical": [category]}
    tree = {
        "algorithm": {"name": "hyfdca"},
        "split": {"test": 0.0},
        "alignment": {"dictionary": "d.toml"},
        "client": [
            {"name": "a", "path": "a.csv", "label": "ill", **own},
            {"name": "b", "path": "b.csv", **own},
        ],
    }
    return federation.build(from_dict(tree, folder)).train


def test_levels_that_differ_in_case_alone_are_one_where_the_dictionary_says_so(tmp_path):
    written(
        tmp_path,
        a_csv="id,sex,x,ill\n1,F,1,no\n2,m,2,yes\n3,,3,no\n",
        b_csv="id,sex,z\n1,f,1\n2,M,2\n3,m,5\n",
        d_toml="[feature.sex]\nignore_case = true\n",
    )
    found = two_with(tmp_path, "sex")
    assert set(found["a"].features) == {"sex=f", "sex=m", "x"}
    at = [found["b"].features.index(name) for name in ("sex=f", "sex=m")]
    np.testing.assert_array_equal(found["b"].x[:, at], [[1, 0], [0, 1], [0, 1]])
    (tmp_path / "d.toml").write_text('[feature.x]\ntype = "number"\nignore_case = true\n')
    with pytest.raises(ExperimentError, match="'x' is a number with ignore_case"):
        load(tmp_path / "d.toml")


def test_no_and_yes_in_other_words_are_one_where_the_dictionary_says_so(tmp_path):
    written(
        tmp_path,
        a_csv="id,smoker,x,ill\n1,JA,1,no\n2,nein,2,yes\n3,,3,no\n4,früher,4,yes\n",
        b_csv="id,smoker,z\n1,1,1\n2,0,2\n3,0,5\n4,0,1\n",
        d_toml="[feature.smoker]\nno_and_yes = true\n",
    )
    found = two_with(tmp_path, "smoker")
    levels = ["smoker=früher", "smoker=no", "smoker=yes"]
    assert set(found["a"].features) == {*levels, "x"}
    at = [found["b"].features.index(name) for name in levels]
    expected = [[0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0]]
    np.testing.assert_array_equal(found["b"].x[:, at], expected)
    (tmp_path / "d.toml").write_text('[feature.x]\ntype = "number"\nno_and_yes = true\n')
    with pytest.raises(ExperimentError, match="'x' is a number with no_and_yes"):
        load(tmp_path / "d.toml")
