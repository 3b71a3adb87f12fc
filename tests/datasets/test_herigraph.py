from __future__ import annotations

import csv

import numpy as np
import pytest

from intarsia.datasets.registry import encoded, load
from intarsia.errors import ExperimentError
from intarsia.partition.registry import partition

IDS = ["51859675789", "51859339946", "51858385807", "23903381607"]
SIZES = {"BERT_": 3, "Vis_Feat_": 2, "SCE_": 2, "ATT_": 1}


def write(path, header, rows):
    """Write a table as pandas does: tabs, the number of a row first."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream, delimiter="\t", lineterminator="\n")
        table.writerow(["", *header])
        table.writerows([number, *row] for number, row in enumerate(rows))


@pytest.fixture
def city(tmp_path):
    columns = {prefix: [f"{prefix}{n}" for n in range(size)] for prefix, size in SIZES.items()}
    visual = [*columns["Vis_Feat_"], "Face_number", *columns["SCE_"], *columns["ATT_"]]
    write(
        tmp_path / "Visual_Features.csv",
        ["ID", "IO_Type", *visual],
        [[name, "outdoor", *(10 * at + np.arange(6.0))] for at, name in enumerate(IDS)],
    )
    write(
        tmp_path / "Textual_Features.csv",
        ["index", "text_bool", "revised_text", "num_sent", *columns["BERT_"]],
        [
            [IDS[1], False, "", 0, "", "", ""],
            [IDS[0], True, 'two\nlines, "quoted"\twith a tab', 1, 0.5, 1.5, 2.5],
            [IDS[3], True, "text", 1, 3.5, 4.5, 5.5],
        ],
    )
    write(
        tmp_path / "Attribute_Labels.csv",
        ["ID", "Gastronomy", "category", "category_id", "labelled"],
        [
            [IDS[3], 0.1, "interior", 3, True],
            [IDS[2], 0.1, "", -1, False],
            [IDS[1], 0.1, "monuments", 5, True],
            [IDS[0], 0.1, "landscape scenery and natural features", 4, True],
        ],
    )
    return tmp_path


def test_herigraph_is_four_blocks_of_the_labelled_photographs(city):
    found = load("herigraph", path=str(city))
    assert found.samples.tolist() == [IDS[3], IDS[1], IDS[0]]
    assert found.y.tolist()[:2] == ["interior", "monuments"]
    assert {name: len(some) for name, some in found.groups.items()} == {
        "text": 3,
        "visual": 2,
        "scenes": 2,
        "attributes": 1,
    }
    assert "Face_number" not in found.features
    np.testing.assert_array_equal(found.x[0], [3.5, 4.5, 5.5, 30, 31, 33, 34, 35])
    np.testing.assert_array_equal(found.x[1], [np.nan, np.nan, np.nan, 10, 11, 13, 14, 15])


def test_photographs_without_text_are_not_at_clients_with_text(city):
    dataset = encoded(load("herigraph", path=str(city)))[0]
    every = list(dataset.class_names)
    clients = [{"blocks": ["text", "scenes"], "classes": every}, {"blocks": "scenes"}]
    found = partition("blocks", dataset, client=[clients[0], {**clients[1], "classes": every}])
    assert found["client0"].samples.tolist() == [IDS[3], IDS[0]]
    assert not np.isnan(found["client0"].x).any()
    assert len(found["client1"].samples) == 3


def test_a_table_that_is_not_herigraphs_is_named(city):
    write(city / "Visual_Features.csv", ["ID", "SCE_0"], [[IDS[0], 1.0]])
    with pytest.raises(ExperimentError, match=r"Visual_Features\.csv has no column Vis_Feat_"):
        load("herigraph", path=str(city))
    write(city / "Attribute_Labels.csv", ["ID", "category"], [[IDS[0], "interior"]])
    with pytest.raises(ExperimentError, match="no column 'labelled'"):
        load("herigraph", path=str(city))
    write(city / "Attribute_Labels.csv", ["id", "category"], [[IDS[0], "interior"]])
    with pytest.raises(ExperimentError, match="no column 'ID'"):
        load("herigraph", path=str(city))
    (city / "Attribute_Labels.csv").unlink()
    with pytest.raises(ExperimentError, match=r"Attribute_Labels\.csv is missing"):
        load("herigraph", path=str(city))


def test_a_word_for_a_number_and_a_photograph_twice_are_named(city):
    path = city / "Visual_Features.csv"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("\t11.0\t", "\tabc\t", 1), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    with pytest.raises(ExperimentError, match=r"column 'Vis_Feat_1' of .*Visual_Features\.csv"):
        load("herigraph", path=str(city))
    path.write_text(text + text.splitlines()[1] + "\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=f"has the photograph '{IDS[0]}' more than once"):
        load("herigraph", path=str(city))
