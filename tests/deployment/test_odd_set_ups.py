"""What a site says of its table in the set-up: held against what a site says, and named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import four_sites
import sites
from intarsia.core.schema import Holding
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import ENCODE, READ, SETTLE, site_in
from intarsia.deployment.table_metadata import Held, TableMetadata
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import FederationError, GreetingError, RefusedError, SiteError
from intarsia.experiment import config as experiment

READ_AS = {
    "no columns": {"columns": None},
    "a number for a column": {"columns": ("l1", 3)},
    "no levels": {"levels": ()},
    "a text for a truth": {"numbers": "yes"},
    "numbers that are words": {"numbers": True},
}
HELD_AS = {
    "a text for early stopping": {"validation": "x"},
    "rows twice": {"samples": np.zeros(4, np.int64), "labelled": np.ones(4, bool)},
    "rows in two axes": {"samples": np.zeros((2, 2), np.int64)},
    "rows of fractions": {"samples": np.array([0.5]), "labelled": np.ones(1, bool)},
    "fewer marks than rows": {"labelled": np.ones(3, bool)},
    "marks that are numbers": {"labelled": np.ones(96)},
    "columns twice": {"features": ("l1", "l1")},
    "no rows at all": {"train": None},
    "a feature block of no column": {"groups": {"view": ("nothing",)}},
    "a column in two feature blocks": {"groups": {"view": ("l1",), "other": ("l1",)}},
    "a shape of no feature block": {"shapes": {"view": (1,)}},
    "a shape of more columns": {"groups": {"view": ("l1",)}, "shapes": {"view": (2, 3)}},
    "a shape below 0": {"groups": {"view": ("l1",)}, "shapes": {"view": (-1, -1)}},
    "a level of no column": {"levels": {"town": ("Paris",)}},
    "text for ids where all have whole numbers": {
        **{"samples": np.arange(96).astype(str), "labelled": np.ones(96, bool)},
    },
}


def run_over(folder, step, kinds, change):
    """Run over four sites, one of which says something else in a step of the set-up."""
    described = four_sites.write_tables("hyfdca", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder))

    def line(client, number, data, deliver):
        answer = deliver(data)
        if not data or client != "telecom" or codec.decode(data, Call).function != step:
            return answer
        found = codec.decode(answer, Answer)
        body = codec.encode(change(codec.decode(found.body, *kinds)))
        return codec.encode(dataclasses.replace(found, body=body))

    tree = four_sites.tree("hyfdca", described, folder, mode="masked")
    found = {name: site_in(folder / name) for name in described}
    given = experiment.from_dict(tree, folder), sites.Lines(found, line), four_sites.NAMES
    remote_running.run_over(*given, folder / "server", patience=sites.HASTY)


@pytest.mark.parametrize("odd", READ_AS.values(), ids=READ_AS)
def test_what_a_site_reads_of_its_table_is_of_the_kinds_that_a_site_says(tmp_path, odd):
    with pytest.raises(SiteError, match="'telecom' answers read with a malformed answer"):
        run_over(tmp_path, READ, [TableMetadata], lambda own: dataclasses.replace(own, **odd))


@pytest.mark.parametrize("odd", HELD_AS.values(), ids=HELD_AS)
def test_what_a_site_holds_is_rows_and_columns_each_once(tmp_path, odd):
    def change(own):
        if {"train", "validation"} & odd.keys():
            return dataclasses.replace(own, **odd)
        return dataclasses.replace(own, train=dataclasses.replace(own.train, **odd))

    with pytest.raises(SiteError, match="'telecom' answers encode with a malformed answer"):
        run_over(tmp_path, ENCODE, [Held, Holding], change)


def test_whose_greeting_does_not_fit_is_named_beside_who_reads_it(tmp_path):
    """Who read it was named alone, and the other one ended runs in that one's name."""

    def change(own):
        return {**own, "bank": own["bank"][:-1] + bytes([own["bank"][-1] ^ 1])}

    with pytest.raises(GreetingError, match="At client 'bank' in meet: The greeting of 'telecom'"):
        run_over(tmp_path, SETTLE, [], change)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_site_has_the_same_columns_in_all_parts(tmp_path, part):
    """Other sites could bring their blocks into no order, and the first of them was named."""

    def change(own):
        groups = {"view": ("l1",)}
        one = dataclasses.replace(getattr(own, part), groups=groups)
        return dataclasses.replace(own, **{part: one})

    with pytest.raises(SiteError, match=r"'telecom' answers encode .* to evaluate on than to"):
        run_over(tmp_path, ENCODE, [Held, Holding], change)


@pytest.mark.parametrize("odd", [None, "text", ()], ids=str)
def test_a_greeting_that_is_no_bytes_is_not_handed_on(tmp_path, odd):
    """The site that read it ended in an error of Python's, and was named."""
    with pytest.raises(SiteError, match="'telecom' answers settle with a malformed greeting"):
        run_over(tmp_path, SETTLE, [], lambda own: {**own, "bank": odd})


def test_whose_ids_are_whole_numbers_and_whose_are_text_is_said(tmp_path):
    def change(own):
        return dataclasses.replace(own, whole_ids=not own.whole_ids)

    with pytest.raises(FederationError, match=r"^Sample ids are whole numbers at .* text at"):
        run_over(tmp_path, READ, [TableMetadata], change)


@pytest.mark.parametrize(
    "odd", [{"groups": {"view": ("l1",)}}, {"groups": {"v": ("l1",)}, "shapes": {"v": (1,)}}]
)
def test_a_site_refuses_feature_blocks_that_it_did_not_say(tmp_path, odd):
    """Who holds a block opens its totals: a server that said other ones was believed."""

    def change(own):
        parts = {part: getattr(own, part) for part in ("train", "test")}
        said = {part: dataclasses.replace(one, **odd) for part, one in parts.items()}
        return dataclasses.replace(own, **said)

    with pytest.raises(RefusedError, match="At client 'telecom' in settle"):
        run_over(tmp_path, ENCODE, [Held, Holding], change)
    said = (tmp_path / "telecom/errors.log").read_text()
    assert "other rows, labels, columns or feature blocks" in said
