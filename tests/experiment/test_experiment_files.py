"""The experiment files of the project describe runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intarsia.experiment import federation
from intarsia.experiment.config import load
from intarsia.inspection.overlap import block_classes
from intarsia.training.registry import ALGORITHMS, choose

FOLDER = Path(__file__).parents[2] / "experiments"
# hyfdca-participation is a list of settings for its benchmark, not of one run
FILES = [file for file in sorted(FOLDER.glob("*.toml")) if "participation" not in file.stem]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_file_names_an_algorithm_with_keys_that_it_has(file, monkeypatch):
    description = load(file)
    if description.algorithm not in ALGORITHMS:
        pytest.importorskip("torch")
    monkeypatch.syspath_prepend(FOLDER.parent / "examples")  # where modules lie that files name
    choose(description)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_labels_that_are_many_numbers_are_said_to_be_classes(file):
    description = load(file)
    many = {"cifar100", "femnist", "tiny_imagenet32"}  # up to 199: taken for numbers to predict
    if many & {*getattr(description.dataset, "names", ())}:
        few = "only" in description.dataset.options
        assert few or description.labels.task == "multiclass"


@pytest.mark.parametrize("name", ["flic-toy-noisy", "flic-toy-linear"])
def test_the_toys_have_the_sizes_that_the_paper_gives(name):
    found = federation.build(load(FOLDER / f"{name}.toml"))
    assert len(found.train) == 100
    assert {len(np.unique(block.y)) for block in found.test.values()} == {3}
    assert sum(block.shape[0] for block in found.test.values()) == 20000
    widths = {block.shape[1] for block in found.train.values()}
    if name == "flic-toy-noisy":
        assert 6 <= min(widths) < max(widths) <= 15
    else:
        assert 3 <= min(widths) < 20 < 80 < max(widths) <= 100
    # "about 15k" and "about 16k" samples; at a client from 5 % to 100 % of three classes' shares
    sizes = [block.shape[0] for block in found.train.values()]
    assert 14_000 < sum(sizes) < 18_000
    assert 20 <= min(sizes) < max(sizes) <= 402
    assert not found.schema.features.cells or all(
        len(cell.owners) == 1 for cell in found.schema.features.cells
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "widths"), [("digits", {256, 784}), ("digits-resize", {784})])
def test_a_client_of_digits_holds_one_of_the_two_sets(data_folder, monkeypatch, name, widths):
    monkeypatch.setenv("INTARSIA_DATA", str(data_folder))
    found = federation.build(load(FOLDER / f"flic-{name}.toml"))
    assert list(found.train)[::50] == ["mnist00", "usps00"]
    assert {block.shape[1] for block in found.train.values()} == widths
    assert sum(block.shape[0] for block in found.train.values()) == 60000 + 7291
    assert sum(block.shape[0] for block in found.test.values()) == 10000 + 2007
    assert {len(np.unique(block.y)) for block in found.train.values()} == {3}
    held = {value for block in found.train.values() for value in block.y.tolist()}
    assert held == set(range(10))


def test_the_clients_of_hyfem_on_mfeat_hold_every_view_of_every_digit(data_folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_DATA", str(data_folder))
    found = federation.build(load(FOLDER / "hyfem-mfeat.toml"))
    counted = block_classes(found.train, found.labels)
    assert counted is not None
    assert (counted.clients.shape, counted.unused) == ((6, 10), 0)
    assert {len(block.groups) for block in found.train.values()} == {3}
    assert {len(np.unique(block.y)) for block in found.train.values()} <= {5, 6}
    assert len({frozenset(block.groups) for block in found.train.values()}) == 6
    tested = {block.shape[0] for block in found.test.values()}
    assert len(tested) == 1
    assert {len(np.unique(block.y)) for block in found.test.values()} == {10}
