"""Classes that may not be meant: noted, or refused where nothing could be learned of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import intarsia
from command_line import said
from intarsia.cli.main import main
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.data.encoding import notes_on_words
from intarsia.data.labels import (
    LabelSettings,
    check_classes,
    notes_on_codes,
    notes_on_labels,
    positive_last,
    spelled_apart,
)
from intarsia.errors import ExperimentError, FederationError, TableError
from intarsia.experiment.config import from_dict
from intarsia.experiment.federation import build
from intarsia.inspection.overlap import class_counts


def schema(classes: tuple[str, ...], samples: int) -> Schema:
    """Return the schema of two clients that have the same labelled samples."""
    ids = np.arange(samples)
    blocks = {name: Block(ids, (name,), np.zeros((samples, 1)), ids * 0.0) for name in "ab"}
    return Schema.of(blocks, Labels("multiclass", classes, "ill"))


MANY = tuple(f"c{number:02}" for number in range(30))


def test_as_many_classes_as_samples_are_refused_unless_they_are_listed() -> None:
    with pytest.raises(FederationError, match=r"'ill' has 30 classes .* but 30 training samples"):
        check_classes(schema(MANY, 30), LabelSettings())
    check_classes(schema(MANY, 31), LabelSettings())
    check_classes(schema(MANY, 30), LabelSettings(classes=MANY))
    check_classes(schema(MANY[:20], 20), LabelSettings())  # few: a small table


def test_nearly_as_many_classes_as_samples_are_noted_unless_they_are_listed() -> None:
    [note] = notes_on_labels(schema(MANY, 59), LabelSettings())
    assert "has 30 classes and 59 samples with a label, fewer than two for each" in note
    assert not notes_on_labels(schema(MANY, 60), LabelSettings())
    assert not notes_on_labels(schema(MANY, 59), LabelSettings(classes=MANY))
    table = pd.DataFrame({"x": np.arange(59.0), "ill": [*MANY, *MANY[:29]]})
    assert intarsia.inspect(tables={"a": table}, label="ill").advice.remarks == (note,)
    assert not intarsia.inspect(tables={"a": table}, label="ill", classes=MANY).advice.remarks


def test_classes_that_differ_in_case_or_blanks_are_noted() -> None:
    [note] = notes_on_labels(schema(("NO", "Type 1", "no", "type1", "yes"), 9), LabelSettings())
    assert "in case or blanks only ('NO' and 'no'; 'Type 1' and 'type1') and" in note
    assert not notes_on_labels(schema(("no", "yes"), 9), LabelSettings())


def test_a_sample_that_two_clients_label_counts_once() -> None:
    def block(ids: list[int], y: list[float] | None) -> Block:
        return Block(np.array(ids), ("x",), np.zeros((len(ids), 1)), y and np.array(y))

    blocks = {
        "a": block([1, 2, 3], [-1, 1, np.nan]),
        "b": block([2, 3, 4], [1, 1, -1]),
        "c": block([1, 9], None),
    }
    assert class_counts(blocks, Labels("binary", ("no", "yes"))) == {"no": 2, "yes": 2}
    assert class_counts(blocks, Labels("regression")) == {}
    three = {"a": block([1, 2], [0, 2])}
    assert class_counts(three, Labels("multiclass", tuple("pqr"))) == {"p": 1, "q": 0, "r": 1}


def test_inspect_counts_the_classes_and_a_run_notes_what_may_not_be_meant(tmp_path, capfd) -> None:
    said_no = ["no"] * 19 + ["No"]
    table = pd.DataFrame({"x": np.arange(40.0), "ill": [*said_no, *["yes"] * 19, "7x"]})
    table.to_csv(tmp_path / "a.csv", index=False)
    file = tmp_path / "one.toml"
    file.write_text(
        'algorithm = { name = "hyfdca" }\n[[client]]\nname = "a"\npath = "a.csv"\nlabel = "ill"\n'
    )
    assert main(["inspect", str(file)]) == 0
    out, err = said(capfd)
    assert err == ""
    assert "labels: ill: 7x (1), No (1), no (19), yes (19)" in out
    assert "in case or blanks only ('No' and 'no')" in out
    notes = intarsia.run(file, out=None, rounds=1).notes
    assert any("in case or blanks only ('No' and 'no')" in note for note in notes)


def test_a_run_refuses_a_column_in_which_every_row_is_a_class_of_its_own() -> None:
    table = pd.DataFrame({"x": np.arange(30.0), "ill": MANY})
    with pytest.raises(FederationError, match="nothing can be learned from a class of one sample"):
        intarsia.run(tables={"a": table}, label="ill")


def coded(ids, first):
    return pd.DataFrame({"id": ids, f"x{first}": ids % 7, "x": ids % 5, "ill": first + ids % 2})


def test_classes_in_two_codes_are_noted_with_the_remedy() -> None:
    tables = {"east": coded(np.arange(40), 0), "west": coded(np.arange(100, 140), 1)}
    note = intarsia.inspect(tables=tables, id="id", label="ill").advice.remarks[0]
    assert "the classes '0', '1' at 'east' but '1', '2' at 'west', which count as 3" in note
    assert 'label_map = { "1" = "0", "2" = "1" }' in note
    about = {"id": "id", "label": "ill", "algorithm": "hyfdca", "yardsticks": False}
    assert note in intarsia.run(tables=tables, rounds=1, **about).notes
    own = {"west": {"label_map": {"1": "0", "2": "1"}}}
    mended = intarsia.run(tables=tables, table_settings=own, rounds=1, **about)
    assert mended.model.classes_.tolist() == [0, 1]
    assert not any("classes" in one for one in mended.notes)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ("no yes", "J N", True),
        ("ja nein", "no yes", True),
        ("non oui", "n o", True),
        ("0 1", "J N", True),
        ("nein", "no yes", True),
        ("n", "J N", False),  # as those who write J and N have it
        ("ja nein", "nein", False),
        ("nee", "ja", False),
        ("no yes", "NO", False),
        ("mild severe", "A B", False),  # may be other classes
        ("no yes", "maybe ja nein", False),
    ],
)
def test_no_and_yes_in_other_words_are_told_apart_from_other_classes(first, second, apart):
    for one, other in ((first, second), (second, first)):
        found = spelled_apart({"a": set(one.split()), "b": set(other.split()), "c": set()})
        assert {*found} == ({"a", "b"} if apart else {""})


def test_classes_that_are_listed_or_that_a_client_has_more_of_are_not_noted() -> None:
    labels = Labels("multiclass", ("0", "1", "2"))
    apart = {"east": {"0", "1"}, "west": {"1", "2"}}
    assert notes_on_codes(apart, labels, LabelSettings())
    assert not notes_on_codes(apart, labels, LabelSettings(classes=(0, 1, 2)))
    more = {"east": {"0", "1"}, "west": {"0", "1", "2"}, "south": {"2"}}
    assert not notes_on_codes(more, labels, LabelSettings())


def test_of_two_long_lists_of_classes_only_those_that_differ_are_noted() -> None:
    labels = Labels("multiclass", tuple("012345"))
    found = {"east": set("01234"), "west": set("01235")}
    (note,) = notes_on_codes(found, labels, LabelSettings())
    assert "the classes '4' at 'east' but '5' at 'west' beside 4 that both have" in note
    assert 'label_map = { "5" = "4" }' in note


@pytest.mark.parametrize(
    ("first", "second", "remedy"),
    [
        ("hoch mittel niedrig", "high low medium", '"high" = "hoch" or "mittel" or "niedrig", …'),
        ("leicht schwer", "mild severe", '"mild" = "leicht" or "schwer", …'),  # who knows
        ("1 2 3", "0 1 2", '"0" = "1", "1" = "2", "2" = "3"'),
    ],
)
def test_no_remedy_says_by_the_alphabet_which_word_is_which(first, second, remedy) -> None:
    """A remedy said that low is mittel, and medium niedrig: whoever copied it had wrong labels."""
    found = {"east": set(first.split()), "west": set(second.split())}
    labels = Labels("multiclass", tuple(sorted(found["east"] | found["west"])))
    (note,) = notes_on_codes(found, labels, LabelSettings())
    assert f"as in label_map = {{ {remedy} }}" in note


def test_no_remedy_says_by_the_alphabet_which_word_a_number_is() -> None:
    tables = {"east": coded(np.arange(40), 0), "west": coded(np.arange(100, 140), 0)}
    tables["east"]["ill"] = np.arange(40) % 3
    tables["west"]["ill"] = np.array(["high", "low", "medium"])[np.arange(40) % 3]
    with pytest.raises(FederationError, match='"high" = "0" or "1" or "2", …'):
        intarsia.inspect(tables=tables, id="id", label="ill")


@pytest.mark.parametrize("weight", [1e306, 1e101, 1e-101])
def test_a_weight_of_a_class_whose_products_are_no_numbers_is_refused(weight) -> None:
    with pytest.raises(ExperimentError, match=r"class_weight of '0' is .* from 1e-100 to 1e\+100"):
        LabelSettings(class_weight={"0": weight, "1": 1.0})
    table = coded(np.arange(40), 0).assign(w=weight)
    about = {"id": "id", "label": "ill", "weights": "w", "algorithm": "hyfdca"}
    with pytest.raises(TableError, match=r"in row 1.* from 1e-100 to 1e\+100"):
        intarsia.run(tables={"east": table}, **about)


def test_a_class_that_is_a_number_has_its_weight_in_python_as_in_a_file() -> None:
    about = {"id": "id", "label": "ill", "algorithm": "hyfdca", "loss": "logistic", "rounds": 3}
    tables = {"east": coded(np.arange(40), 0)}
    one, other = (
        intarsia.run(tables=tables, class_weight=given, yardsticks=False, **about).model.coef_
        for given in ({1: 3.0}, {"1": 3.0})
    )
    np.testing.assert_array_equal(one, other)


def test_dates_with_years_of_five_digits_are_refused_and_are_no_categories() -> None:
    table = coded(np.arange(40), 0).assign(due=["12026-01-31"] * 40)
    own = {"east": {"dates": "days"}}
    with pytest.raises(TableError, match="has '12026-01-31' in row 1, which is no date"):
        intarsia.inspect(tables={"east": table}, id="id", label="ill", table_settings=own)


def test_a_word_for_weights_of_classes_is_told_of_tables_too() -> None:
    with pytest.raises(ExperimentError, match="of 'balanced', or a table of numbers such as"):
        from_dict({"algorithm": {"name": "hyfdca"}, "labels": {"class_weight": "equal"}})


def test_a_column_whose_levels_are_all_rare_is_noted(tmp_path: Path) -> None:
    table = coded(np.arange(40), 0).assign(town=["a", "b"] * 20, land=["c", "d"] * 20)
    table.to_csv(tmp_path / "east.csv", index=False)
    source = {"name": "east", "path": "east.csv", "id": "id", "label": "ill"}
    for least, lost in ((21, ["Every level of 'land', 'town' has fewer rows"]), (20, [])):
        tree = {"algorithm": {"name": "hyfdca"}, "client": [{**source, "least_rows": least}]}
        found = build(from_dict(tree, tmp_path))
        notes = [note.partition(" than least_rows")[0] for note in found.notes]
        assert [note for note in notes if note.startswith("Every level")] == lost


@pytest.mark.parametrize(
    ("classes", "positive"),
    [
        (("ja", "nein"), "ja"),
        (("Oui", "Non"), "Oui"),
        (("healthy", "sick"), "sick"),
        (("bad", "good"), "bad"),
        (("0", "1"), "1"),
        (("-1", "1"), "1"),
        (("false", "true"), "true"),
        (("default", "returned"), "default"),
        (("no", "unknown"), "unknown"),
        (("A", "B"), "B"),  # no word that is known: the last in order
        (("1", "2"), "2"),
        (("no", "none"), "none"),  # both say no
    ],
)
def test_the_positive_class_is_told_by_its_word_or_is_the_last(classes, positive):
    assert positive_last(classes)[-1] == positive
    assert positive_last(reversed(classes)) == positive_last(classes)


def test_a_run_and_its_result_have_one_positive_class_and_a_list_has_its_own(tmp_path, capfd):
    rng = np.random.default_rng(2)
    x = rng.normal(size=80)
    frame = pd.DataFrame({"x": x, "y": np.where(x > 0.8, "ja", "nein")})
    how = {"label": "y", "loss": "logistic", "rounds": 5, "yardsticks": False}
    first = intarsia.run(tables={"one": frame}, out=tmp_path / "run", **how)
    assert first.positive_class == "ja" == first.model.classes_[1]
    assert float(first.model.coef_[0, 0]) > 0
    assert "figures of the class 'ja'" in str(first)
    assert intarsia.load(tmp_path / "run").positive_class == "ja"
    listed = intarsia.run(tables={"one": frame}, classes=["ja", "nein"], **how)
    assert listed.positive_class == "nein"
    assert float(listed.model.coef_[0, 0]) < 0
    path = tmp_path / "run" / "result.json"
    path.write_text(path.read_text().replace('"positive_class": "ja"', '"older": 1'))
    assert intarsia.load(tmp_path / "run").positive_class is None


@pytest.mark.parametrize("names", [("y=1", "x"), ("x", "yy")])
def test_a_column_whose_name_begins_as_the_labels_is_no_label(names):
    ids = np.arange(4)
    block = Block(ids, names, np.zeros((4, 2)), np.array([-1.0, 1.0, 1.0, -1.0]))
    own = Schema.of({"a": block}, Labels("binary", ("no", "yes"), "y"))
    assert notes_on_labels(own, LabelSettings()) == ()


@pytest.mark.parametrize(
    ("here", "there", "apart"),
    [
        ("no yes", "nein ja", True),
        ("no yes", "No Yes", True),
        ("M F", "male female", True),
        ("M F", "m f x", True),
        ("no yes", "yes no other", False),  # "other" are levels of few rows
        ("I21.0 I50.1 E11.9 J44", "I210 I501 E119", True),
        ("1.5 15 x", "15 y z", False),
        ("Oslo Bergen Moss", "Rome Pisa Bari", False),  # towns, it seems
        ("Oslo Bergen", "Oslo Moss", False),
        ("M m", "M", False),  # case tells them apart
        ("no yes", "", False),
    ],
)
def test_levels_that_two_clients_write_in_other_words_are_noted(here, there, apart):
    own = {"bank": {"c": here.split(), "d": ["x"]}, "shop": {"c": there.split(), "e": ["X"]}}
    notes = notes_on_words(own)
    assert len(notes) == apart
    assert all("at 'bank' and " in one and "'c' has " in one for one in notes)


def test_all_ways_in_which_clients_write_levels_are_noted():
    """The third was not named, and stayed apart where who read the note had mended two."""
    ways = {"one": "M F", "two": "male female", "three": "1 2", "four": "M F", "five": "M F x"}
    (note,) = notes_on_words({name: {"sex": some.split()} for name, some in ways.items()})
    told = "'F', 'M' at 'one', 'female', 'male' at 'two' and '1', '2' at 'three', which count"
    assert told in note


@pytest.mark.parametrize(("questions", "noted"), [(1, False), (2, True), (6, True)])
def test_answers_of_several_questions_in_two_languages_are_noted_once(questions, noted):
    words = {"de": ["nie", "selten", "oft"], "en": ["never", "rarely", "often"]}
    own = {name: {f"q{at}": some for at in range(questions)} for name, some in words.items()}
    notes = notes_on_words(own)
    assert len(notes) == noted
    assert all("'q0', 'q1'" in one for one in notes)
    assert all("'nie', 'oft', 'selten' at 'de' and 'never'," in one for one in notes)


def test_a_run_and_inspect_note_levels_in_other_words():
    rows = np.arange(40)
    tables = {
        name: pd.DataFrame({"smokes": np.array(words)[rows % 2], "x": rows, "y": rows % 3 % 2})
        for name, words in (("bank", ["no", "yes"]), ("shop", ["nein", "ja"]))
    }
    told = (
        "'smokes' has 'no', 'yes' at 'bank' and 'ja', 'nein' at 'shop', which count as different "
        "levels. Where they mean the same, write them alike in these tables;"
    )
    run = intarsia.run(tables=tables, label="y", yardsticks=False)
    for notes in (run.notes, intarsia.inspect(tables=tables, label="y").advice.remarks):
        assert sum(told in one for one in notes) == 1
    tables["shop"]["smokes"] = rows % 2
    with pytest.raises(FederationError, match="where 0 and 1 mean 'no' and 'yes', write them so"):
        intarsia.run(tables=tables, label="y")


def test_levels_that_a_third_client_tells_apart_are_no_other_words():
    own = {"one": {"town": ["a", "b"]}, "other": {"town": ["c", "d"]}}
    assert notes_on_words(own)
    assert notes_on_words({**own, "third": {"town": ["a", "b", "e"]}})
    assert not notes_on_words({**own, "third": {"town": ["b", "c", "e"]}})


@pytest.mark.parametrize("kind", [int, str])
def test_codes_of_more_digits_than_a_float_keeps_are_levels_of_their_own(kind):
    rows = np.arange(60)
    codes = [kind(123456789012345678 + one) for one in rows % 3]
    own = {name: pd.DataFrame({"code": codes, "y": rows % 3 == 0}) for name in ("bank", "shop")}
    run = intarsia.run(tables=own, label="y", categorical=["code"], yardsticks=False)
    assert run.metrics.server.accuracy == 1.0
