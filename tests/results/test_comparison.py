from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import intarsia
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.inspection.recommend import advise
from intarsia.results.comparison import Spread, compare, three_way
from intarsia.results.figure_text import duration, number, size
from intarsia.results.result import Metrics, Result, Score


def schema(**parties: tuple[range, str]) -> Schema:
    """Return the schema of clients that hold the given samples and one-letter features."""
    blocks = {
        name: Block(
            np.array(samples), tuple(features), np.zeros((len(samples), len(features))),
            np.ones(len(samples)) if number == 0 else None,
        )
        for number, (name, (samples, features)) in enumerate(parties.items())
    }  # fmt: skip
    return Schema.of(blocks, Labels("binary", ("0", "1")))


@pytest.mark.parametrize(
    ("parties", "algorithm", "why"),
    [
        ({"a": (range(9), "xy")}, "hyfdca", "a is the only client"),
        ({"a": (range(9), "xy"), "b": (range(9, 12), "xy")}, "hyfdca", "horizontal"),
        ({"a": (range(9), "xy"), "b": (range(9), "z")}, "hyfdca", "vertical"),
        ({"a": (range(9), "xy"), "b": (range(9), "xy")}, "hyfdca", "whole table"),
        (
            {"a": (range(9), "xy"), "b": (range(6, 12), "yz")},
            "hyfdca",
            "3 of 12 rows and 1 of 3 features are held by more than one client",
        ),
        (
            {"a": (range(9), "xy"), "b": (range(9, 12), "yz")},
            "hyfdca",
            "0 of 12 rows and 1 of 3 features are held by more than one client",
        ),
        ({"a": (range(9), "xy"), "b": (range(9, 12), "z")}, None, "its own labels, and b has none"),
    ],
)
def test_the_advice_follows_who_holds_what(parties, algorithm, why):
    found = advise(schema(**parties))
    assert found.algorithm == algorithm
    assert why in found.why


@pytest.mark.parametrize(
    ("task", "algorithm", "why"),
    [("binary", "flic", "one space"), ("regression", "flic-linear", "latent, at most 1, and")],
)
def test_clients_that_share_only_the_labels_are_for_flic(task, algorithm, why):
    blocks = {
        name: Block(np.arange(start, start + 4), (name,), np.ones((4, 1)), np.ones(4))
        for name, start in (("a", 0), ("b", 10))
    }
    found = advise(Schema.of(blocks, Labels(task, ("0", "1") if task == "binary" else ())))
    assert found.algorithm == algorithm
    assert why in found.why


def test_groups_that_share_only_the_labels_are_for_flic():
    columns = {"a": "xy", "b": "yz", "c": "u", "d": "uv"}
    blocks = {
        name: Block(np.arange(10 * n, 10 * n + 4), tuple(some), np.ones((4, len(some))), np.ones(4))
        for n, (name, some) in enumerate(columns.items())
    }
    found = advise(Schema.of(blocks, Labels("binary", ("0", "1"))))
    assert found.algorithm == "flic"
    assert "2 groups (a, c and those" in found.why
    linked = {**blocks, "e": Block(np.arange(90, 94), ("z", "v"), np.ones((4, 2)), np.ones(4))}
    assert advise(Schema.of(linked, Labels("binary", ("0", "1")))).algorithm == "hyfdca"
    assert advise(Schema.of(blocks, Labels("regression", ()))).algorithm == "hyfdca"


def test_a_client_with_nothing_in_common_is_named():
    found = advise(schema(a=(range(9), "xy"), b=(range(5, 12), "yz"), c=(range(20, 23), "w")))
    assert any(remark.startswith("c shares no row and no column") for remark in found.remarks)
    # samples 9-11 and 20-22: the labels are at a, which has 0-8
    assert any(remark.startswith("6 of 15 samples") for remark in found.remarks)


def test_what_a_client_apart_has_of_a_federation_is_said_of_the_algorithm_that_is_chosen():
    def parties(labelled):
        blocks = {
            name: Block(np.arange(start, start + 4), tuple(features), np.ones((4, 2)), y)
            for name, start, features in (("a", 0, "xy"), ("b", 10, "yz"), ("c", 20, "vw"))
            for y in [np.ones(4) if labelled or name != "c" else None]
        }
        return Schema.of(blocks, Labels("binary", ("0", "1")))

    def apart(found):
        return [one for one in found.remarks if one.startswith("c shares no row and no column")]

    assert advise(parties(True)).algorithm == "flic"
    assert not apart(advise(parties(True)))
    assert not apart(advise(parties(True), "hetfedrep"))
    [remark] = apart(advise(parties(True), "hyfdca"))
    assert remark.endswith("with hyfdca the federation neither helps it nor is helped by it.")
    assert advise(parties(False)).algorithm == "hyfdca"
    assert apart(advise(parties(False))) == [remark]


def test_a_label_column_among_the_features_of_another_client_is_named():
    # the labels of a are called "label"
    leaks = {"b": (range(9), ["label"]), "c": (range(9), ["label=yes", "x"])}
    found = schema(a=(range(9), "xy"), **leaks)
    # a number called "label=yes" is none of its levels
    assert "is a feature at 'b':" in advise(found).remarks[0]
    coded = replace(found.holdings["c"], levels={"label": ("yes",)})
    found = advise(replace(found, holdings={**found.holdings, "c": coded})).remarks
    assert "Column 'label' has the labels of 'a' and is a feature at 'b', 'c':" in found[0]
    assert "set label to 'label' at 'b', 'c', or list it in exclude" in found[0]
    apart = advise(schema(a=(range(9), "xy"), b=(range(9), ["labelled", "relabel=label="])))
    assert not apart.remarks


def test_the_three_way_table_has_clients_their_mean_and_the_whole():
    own = {"a": Score(1.0, 0.5), "b": Score(3.0, 0.7)}
    metrics = Metrics(Score(0.1, 0.9), own, Score(2.0, 0.6), Score(0.1, 0.91), own, Score(2.0, 0.6))
    result = Result(
        "hyfdca", "e", 0, 1, "rounds", {}, {"up": 1, "down": 1}, 1, None, metrics, {}, {}
    )
    rows = {row.name: row for row in three_way(result)}
    assert list(rows) == ["a", "b", "mean of clients", "all samples"]
    assert rows["a"].standalone == Score(1.0, 0.5)
    assert rows["mean of clients"].federated == Score(2.0, 0.6)
    assert rows["all samples"].centralised == Score(0.1, 0.91)


def test_a_spread_is_the_mean_and_the_sample_deviation():
    assert str(Spread.of([1.0, 3.0, None])) == "2 ± 1.414"
    assert str(Spread.of([0.25])) == "0.25"
    assert Spread.of([None]) is None


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (size(999), "999 B"),
        (size(999.6), "1 kB"),
        (size(1_234_567), "1.23 MB"),
        (duration(0.123), "0.12 s"),
        (duration(59.6), "1:00 min"),
        (duration(3725), "1:02 h"),
        (duration(None), "–"),
        (number(12345.6), "12,346"),
        (number(0.123456), "0.1235"),
        (number(float("nan")), "–"),
    ],
)
def test_figures_read_well(shown, expected):
    assert shown == expected


def held_blocks(held, *, groups=None, label=True):
    """Return clients that hold named blocks of two columns each."""
    blocks = {}
    for place, (client, names) in enumerate(held.items()):
        own = {name: (f"{name}1", f"{name}2") for name in names}
        columns = tuple(column for some in own.values() for column in some)
        rows = np.arange(10 * place, 10 * place + 4)
        y = np.ones(4) if label or place else None
        named = own if groups is None else {name: own[name] for name in groups if name in own}
        blocks[client] = Block(rows, columns, np.ones((4, len(columns))), y, named)
    return Schema.of(blocks, Labels("binary", ("0", "1")))


@pytest.mark.parametrize(
    ("held", "change", "algorithm"),
    [
        ({"a": "uv", "b": "vw", "c": "w"}, {}, "hyfem"),
        ({"a": "uv", "b": "uv"}, {}, "hyfdca"),  # all hold all
        ({"a": "uv", "b": "w"}, {}, "flic"),  # nobody shares a block
        ({"a": "uv", "b": "vw"}, {"label": False}, "hyfdca"),  # one has no labels
        ({"a": "uv", "b": "vw"}, {"groups": ()}, "hyfdca"),  # nobody names blocks
    ],
)
def test_named_blocks_of_which_clients_hold_some_are_for_hyfem(held, change, algorithm):
    found = advise(held_blocks(held, **change))
    assert found.algorithm == algorithm
    if algorithm == "hyfem":
        assert "hold 1 to 2 of 3 (u, v, w); 2 are with several clients" in found.why


def test_of_a_client_apart_in_hyfem_it_is_said_what_it_shares():
    found = advise(held_blocks({"a": "uv", "b": "vw", "c": "x"}))
    assert found.algorithm == "hyfem"
    assert any("c shares no row" in one and "classifier behind" in one for one in found.remarks)


def test_columns_of_two_blocks_are_remarked():
    assert not advise(held_blocks({"a": "uv", "b": "vw"})).remarks
    odd = {
        "a": Block(np.arange(4), ("p", "q"), np.ones((4, 2)), np.ones(4), {"lab": ("p", "q")}),
        "b": Block(np.arange(4, 8), ("p", "q"), np.ones((4, 2)), np.ones(4), {"lob": ("p", "q")}),
    }
    [remark] = advise(Schema.of(odd, Labels("binary", ("0", "1")))).remarks
    assert "'p', 'q' are of the feature block 'lob' at 'b' and of the feature block 'lab'" in remark


def frames(shift=0.0, third=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = np.where(x.sum(axis=1) + shift * rng.normal(size=200) > 0, "yes", "no")
    whole = pd.DataFrame(x, columns=list("abc")).assign(id=range(200), y=y)
    found = {"bank": whole[["id", "a", "y"]], "shop": whole[["id", "b"]]}
    return found | ({"post": whole[["id", "c"]]} if third else {})


def compared(folder, *given, **more):
    """Return a comparison of runs, each of (tables, seed, salt)."""
    how = {"id": "id", "label": "y", "loss": "logistic", "yardsticks": False, **more}
    return compare(
        intarsia.run(tables=own, out=folder / str(number), seed=seed, salt=salt, **how)
        for number, (own, seed, salt) in enumerate(given)
    )


def test_runs_of_tables_that_changed_have_no_mean(tmp_path):
    found = compared(tmp_path, (frames(), 0, ""), (frames(), 1, ""), (frames(9.0), 2, ""))
    assert [group.seeds for group in found] == [(0, 1), (2,)]
    assert [list(group.settings) for group in found] == [["tables.crc"]] * 2
    one, other = (group.settings["tables.crc"] for group in found)
    assert one != other
    assert one == (tmp_path / "1" / "tables.crc").read_text()


def test_runs_that_draw_other_test_rows_of_the_same_tables_have_one(tmp_path):
    found = compared(tmp_path, (frames(), 0, ""), (frames(), 1, ""), (frames(), 1, "2"))
    assert [group.seeds for group in found] == [(0, 1, 1)]
    assert not found[0].settings
    # pseudonyms are others in each run
    hidden = {"alignment": {"ids": "pseudonyms"}}
    found = compared(tmp_path / "hidden", (frames(), 0, ""), (frames(), 1, ""), **hidden)
    assert [group.seeds for group in found] == [(0, 1)]


def test_a_client_that_some_runs_lack_is_told_in_a_word(tmp_path):
    found = compared(tmp_path, (frames(), 0, ""), (frames(third=True), 0, ""))
    assert [dict(group.settings) for group in found] == [
        {"client.post": "not there"},
        {"client.post": "there"},
    ]


def test_settings_of_a_client_that_some_runs_lack_keep_the_others_apart(tmp_path):
    hidden = {"alignment": {"ids": "pseudonyms"}}  # whose tables have no checksum to compare
    given = {"id": "id", "label": "y", "loss": "logistic", "yardsticks": False, **hidden}
    three = frames(third=True)
    three["post"]["d"] = np.random.default_rng(1).normal(size=200)
    found = compare(
        intarsia.run(tables=own, out=tmp_path / str(number), table_settings=settings, **given)
        for number, (own, settings) in enumerate(
            [(frames(), {}), (three, {}), (three, {"post": {"exclude": ["d"]}})]
        )
    )
    assert len(list(found)) == 3
    assert len({str(group.settings["client.post.exclude"]) for group in found}) == 3
