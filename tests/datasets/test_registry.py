from __future__ import annotations

import gzip
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from intarsia.data.labels import LabelSettings
from intarsia.data.source import Source
from intarsia.datasets.registry import dataset_names, encoded, load, of_file
from intarsia.errors import ExperimentError, TableError

PROJECT = Path(__file__).parents[2]
CREDIT = PROJECT / "examples" / "data" / "credit"

SHAPES = {
    "a9a": (32561, 123),
    "bci": (12211, 6),
    "breast_cancer": (569, 30),
    "covtype15k": (15120, 54),
    "credit_default": (30000, 23),
    "digits": (1797, 64),
    "femnist": (16392, 784),  # of writers with both a train and a test part
    "heart": (920, 13),
    "mfeat": (2000, 649),
    "mnist": (70000, 784),
    "usps": (9298, 256),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_set_has_its_published_shape_and_unique_names(name, data_folder):
    dataset = load(name, folder=data_folder)
    assert dataset.shape == SHAPES[name] == dataset.x.shape
    assert len(np.unique(dataset.samples)) == len(dataset.y) == dataset.shape[0]
    assert len(set(dataset.features)) == dataset.shape[1]


def test_every_named_set_is_checked():
    elsewhere = {
        *("cifar10", "cifar100", "eurosat", "modelnet40", "tiny_imagenet32"),  # test_image_sets
        "herigraph",  # test_herigraph
    }
    assert set(dataset_names()) == {*SHAPES, *elsewhere, "20news", "gaussians"}


def test_femnist_holds_those_who_wrote_something_in_both_parts(data_folder):
    dataset = load("femnist", folder=data_folder, only=list(range(10)))
    assert set(dataset.y.tolist()) == set(range(10))
    train, test = dataset.split()
    assert set(train.clients) == set(test.clients)
    assert len(set(train.clients)) == 105
    assert len(train.y) + len(test.y) == dataset.shape[0] > 11000


def test_only_some_classes_of_a_set_are_taken():
    found = load("digits", only=[3, "5"])
    assert set(found.y.tolist()) == {3, 5}
    with pytest.raises(ExperimentError, match=r"no class '12' \(only = 12\)"):
        load("digits", only=12)


def test_the_class_counts_are_the_published_ones(data_folder):
    assert Counter(load("a9a", folder=data_folder).y.tolist()) == {-1: 24720, 1: 7841}
    assert Counter(load("credit_default", folder=data_folder).y.tolist()) == {0: 23364, 1: 6636}
    assert set(Counter(load("covtype15k", folder=data_folder).y.tolist()).values()) == {2160}
    assert Counter((load("heart", folder=data_folder).y > 0).tolist()) == {True: 509, False: 411}


def test_mnist_is_scaled_to_one_and_has_the_official_test_part(data_folder):
    train, test = load("mnist", folder=data_folder).split()
    assert test is not None
    assert (train.shape[0], test.shape[0]) == (60000, 10000)
    assert train.x.dtype == np.uint8
    assert train.x.max() * train.scale == 1.0
    assert train.y[:5].tolist() == [5, 0, 4, 1, 9]  # the first labels of the official files
    assert not set(train.samples) & set(test.samples)


@pytest.mark.slow
def test_20news_has_the_classes_of_news20_binary_and_a_vocabulary_of_its_train_part(data_folder):
    dataset = load("20news", folder=data_folder)
    train, test = dataset.split()
    assert test is not None
    assert (train.shape[0], test.shape[0]) == (11314, 7532)
    assert dataset.shape[1] == 130107
    assert Counter(train.y.tolist()) == {"technical": 5894, "other": 5420}
    lengths = np.sqrt((train.x.multiply(train.x)).sum(axis=1))
    np.testing.assert_allclose(lengths, 1.0)
    assert (np.diff(train.x.tocsc().indptr) > 0).all()  # each word occurs in the train part


def test_heart_marks_both_spellings_of_missing(data_folder):
    dataset = load("heart", folder=data_folder)
    missing = np.isnan(dataset.x[:, dataset.features.index("ca")])
    hungarian = np.char.startswith(dataset.samples, "hungarian")  # written "?"
    switzerland = np.char.startswith(dataset.samples, "switzerland")  # an empty cell
    assert (missing[hungarian].sum(), missing[switzerland].sum()) == (291, 118)


def test_bci_says_whose_each_trial_is(data_folder):
    dataset = load("bci", folder=data_folder)
    train, test = dataset.split()
    assert test is not None
    assert len(set(train.clients)) == len(set(test.clients)) == 40
    for name in set(dataset.clients):  # of three classes a person has two
        assert len(set(train.y[train.clients == name])) == 2


def test_named_groups_take_the_features_that_their_patterns_match(data_folder):
    groups = {"bills": ["BILL_*"], "person": ["SEX", "AGE"]}
    found = load("credit_default", folder=data_folder, groups=groups).groups
    assert found["bills"] == tuple(f"BILL_AMT{month}" for month in range(1, 7))
    assert found["person"] == ("SEX", "AGE")


def test_at_most_so_many_samples_of_each_class_are_taken(data_folder):
    found = load("usps", folder=data_folder, train_per_class=30, test_per_class=7)
    train, test = found.split()
    assert set(Counter(train.y.tolist()).values()) == {30}
    assert set(Counter(test.y.tolist()).values()) == {7}
    again = load("usps", folder=data_folder, train_per_class=30)
    assert again.split()[0].samples.tolist() == train.samples.tolist()
    assert np.ptp(np.diff(train.samples)) > 0  # drawn, not the first ones


def test_parity_labels_name_even_and_odd():
    digits, parity = load("digits"), load("digits", labels="parity")
    assert ((digits.y % 2 == 0) == (parity.y == "even")).all()
    stored, labels = encoded(parity)
    assert labels.classes == ("even", "odd")
    assert ((stored.y == 1) == (digits.y % 2 == 1)).all()


def test_positive_puts_classes_against_the_rest():
    raw = load("digits").y
    assert (load("digits", positive="3").y == (raw == 3)).all()
    some, labels = encoded(load("digits", positive=["1", 2]))
    assert labels.task == "binary"
    assert (some.y == np.where((raw == 1) | (raw == 2), 1.0, -1.0)).all()


def test_encoding_follows_the_label_settings():
    dataset, labels = encoded(load("breast_cancer"), LabelSettings(positive="benign"))
    assert labels.classes == ("malignant", "benign")
    assert ((dataset.y == 1) == (load_breast_cancer().target == 1)).all()


def test_a_file_becomes_a_data_set(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("id,age,sex,y\n7,1.5,F,no\n3,2.5,M,yes\n5,,F,no\n")
    source = Source(name="dataset", path=str(table), id="id", label="y", least_rows=1)
    dataset, labels = of_file(source)
    assert dataset.samples.tolist() == [7, 3, 5]
    assert dataset.features == ("age", "sex=F", "sex=M")
    np.testing.assert_array_equal(dataset.x, [[1.5, 1, 0], [2.5, 0, 1], [np.nan, 1, 0]])
    assert (labels.classes, dataset.y.tolist()) == (("no", "yes"), [-1.0, 1.0, -1.0])
    assert dataset.groups == {}


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("covtpye15k", {}, "no data set 'covtpye15k'; use 'covtype15k'"),
        ("a9a", {"positiv": "1"}, "no option 'positiv'; use 'positive'"),
        ("breast_cancer", {"labels": "parity"}, "no option 'labels'"),
        ("digits", {"labels": "party"}, "labels = 'party'; use 'parity'"),
        ("digits", {"blocks": "quadrant"}, "blocks = 'quadrant'; use 'quadrants'"),
        ("digits", {"blocks": "quadrants-colours"}, "have no colours"),
        ("digits", {"train_per_class": 0}, "train_per_class = 0"),
        ("digits", {"groups": {"a": ["pixl*"]}}, r"no feature 'pixl\*' \(groups.a\)"),
        ("digits", {"groups": {"a": ["pixel00*"], "b": ["*_00"]}}, "in the groups 'a' and 'b'"),
        ("digits", {"groups": []}, "expected names of feature blocks"),
        ("mnist", {"path": "/nowhere"}, "path = '/nowhere', which is no folder"),
        ("digits", {"positive": "11"}, "no class '11'"),
        ("a9a", {"folder": "/nowhere"}, "'a9a' is not at /nowhere/a9a.*set INTARSIA_DATA"),
    ],
)
def test_a_wrong_name_or_option_is_one_clear_sentence(name, options, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        load(name, **options)


def test_the_setting_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_DATA", str(tmp_path))
    with pytest.raises(ExperimentError, match=str(tmp_path / "usps")):
        load("usps")
    (tmp_path / "usps").mkdir()
    with pytest.raises(ExperimentError, match=r"usps\.h5 is missing"):
        load("usps")


def test_a_file_that_is_no_idx_file_is_named(tmp_path):
    (tmp_path / "mnist").mkdir()
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            path = tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    with pytest.raises(TableError, match="is not an idx file of bytes"):
        load("mnist", folder=tmp_path)


def test_the_shipped_credit_tables_are_what_their_script_makes(data_folder, tmp_path):
    script = tmp_path / "make_credit.py"
    script.write_bytes((CREDIT.parent / "make_credit.py").read_bytes())
    subprocess.run([sys.executable, script, data_folder], check=True, capture_output=True)
    for name in ("bank", "telecom", "retailer"):
        made = gzip.decompress((tmp_path / "credit" / f"{name}.csv.gz").read_bytes())
        assert made == gzip.decompress((CREDIT / f"{name}.csv.gz").read_bytes())
