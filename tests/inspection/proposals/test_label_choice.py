"""Which column of a newcomer's tables `init` takes for the label, and for the ids."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from intarsia.data.reader import read
from intarsia.data.texts import Texts
from intarsia.errors import ExperimentError, TableError
from intarsia.inspection.proposals import id_choice
from intarsia.inspection.proposals.missing_words import missing_words
from intarsia.inspection.proposals.proposal import propose

ROWS = 60
RNG = np.random.default_rng(8)
AMOUNT = np.round(RNG.normal(size=ROWS), 3)
OTHER = np.round(RNG.normal(size=ROWS), 3)
AGE = RNG.integers(18, 90, ROWS)
GRADE = RNG.integers(1, 5, ROWS)
CODES = np.array([f"I{one % 15}" for one in range(ROWS)])


def drawn(*levels):
    """Return texts of which the first are the most."""
    shares = np.arange(len(levels), 0, -1) ** 2.0
    return RNG.choice(levels, ROWS, p=shares / shares.sum())


# what each is, its columns in their order, and which of them is the label
TABLES = [
    (
        "coordinates beside a diagnosis",
        {"x": AMOUNT, "y": OTHER, "diagnose": drawn("gut", "krank")},
        2,
    ),
    ("y with classes", {"a": AMOUNT, "y": drawn("0", "1"), "sex": drawn("m", "w")}, 1),
    ("y as a number", {"x1": AMOUNT, "x2": AGE, "y": OTHER}, 2),
    ("French, first", {"défaut": drawn("non", "oui"), "âge": AGE, "sexe": drawn("f", "h")}, 0),
    ("Spanish, several classes", {"edad": AGE, "diagnóstico": drawn("a", "b", "c"), "x": OTHER}, 1),
    (
        "a German compound",
        {"alter": AGE, "Kreditausfall": drawn("nein", "ja"), "raucher": drawn("n", "j")},
        1,
    ),
    ("Portuguese", {"idade": AGE, "inadimplência": drawn("0", "1"), "sexo": drawn("m", "f")}, 1),
    ("Russian", {"возраст": AGE, "диагноз": drawn("да", "нет"), "пол": drawn("м", "ж")}, 1),
    (
        "no name: of two values, the last",
        {"smoker": drawn("no", "yes"), "age": AGE, "hd": drawn("0", "1")},
        2,
    ),
    (
        "no name: the only one of two values",
        {"sick": drawn("no", "yes"), "age": AGE, "send_metrics": GRADE},
        0,
    ),
    ("a target among numbers", {"price": AMOUNT, "target": OTHER, "gender": drawn("f", "m")}, 1),
    (
        "a diagnosis of several values beside who came back",
        {"diagnosis": GRADE, "readmitted": drawn("no", "yes"), "sex": drawn("f", "m")},
        1,
    ),
    (
        "a diagnosis in many words, and what comes last",
        {"diagnosis": CODES, "sex": drawn("f", "m"), "back": drawn("0", "1")},
        2,
    ),
    (
        "a diagnosis in many words, and no other candidate than a trait",
        {"diagnosis": CODES, "sex": drawn("f", "m")},
        0,
    ),
    (
        "a severity of several values",
        {"severity": drawn("a", "b", "c"), "smoker": drawn("n", "y")},
        0,
    ),
    (
        "English in a longer name",
        {"age": AGE, "loan_default_flag": drawn("0", "1"), "own": drawn("n", "y")},
        1,
    ),
]


def written(path, columns):
    rows = zip(*(own.tolist() for own in columns.values()), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("columns", "label"), [one[1:] for one in TABLES], ids=[one[0] for one in TABLES]
)
def test_the_label_is_told_by_names_values_and_place(columns, label, tmp_path):
    found = propose([written(tmp_path / "t.csv", columns)])
    assert found.tables[0].source.label == list(columns)[label]


def test_the_reason_of_a_label_names_what_may_be_it_too(tmp_path):
    columns = {"diagnosis": CODES, "died": drawn("no", "yes"), "smoker": drawn("n", "y")}
    (found,) = propose([written(tmp_path / "t.csv", columns)]).tables
    assert found.reasons["label"] == "by its name; 'diagnosis', 'smoker' may be it too"


def test_what_is_the_same_in_all_rows_of_a_table_is_no_label(tmp_path):
    one = {"id": np.arange(60), "x": OTHER, "land": np.array(["DE"] * 60)}
    two = {"id": np.arange(60), "smoker": drawn("n", "y"), "vip": drawn("n", "y")}
    paths = [tmp_path / "one.csv", tmp_path / "two.csv"]
    written(paths[0], one)
    written(paths[1], {**two, "land": np.array(["DE", "AT"] * 30)})
    with pytest.raises(ExperimentError, match="those of two values: 'smoker', 'vip'"):
        propose(paths)


def test_where_no_name_tells_the_label_columns_of_all_tables_may_be_it(tmp_path):
    one = {"id": np.arange(60), "smoker": drawn("n", "y"), "x": OTHER}
    two = {"id": np.arange(60), "size": AMOUNT, "bought": drawn("n", "y")}
    tables = [written(tmp_path / f"{at}.csv", own) for at, own in enumerate((one, two))]
    found = propose(tables).tables[1]
    assert found.reasons["label"] == "the last column, of two values; 'smoker' may be it too"


def test_the_only_column_with_classes_that_all_tables_have_is_the_label(tmp_path):
    one = {"id": range(100, 160), "shape": drawn("a", "b", "c"), "sex": drawn("f", "m"), "x": OTHER}
    two = {"id": range(500, 560), "shape": drawn("a", "c"), "sex": drawn("f", "m"), "x": AMOUNT}
    two |= {"shape": np.array(["a", "b", "c"] * 20), "smoker": drawn("n", "y")}
    one, two = ({name: np.array(own) for name, own in columns.items()} for columns in (one, two))
    paths = [written(tmp_path / "a.csv", one), written(tmp_path / "b.csv", two)]
    del two["smoker"]
    with pytest.raises(ExperimentError, match="say which column is to be predicted"):
        propose(paths[:1])  # of one table it says nothing
    paths[1] = written(tmp_path / "b.csv", two)
    found = propose(paths).tables
    assert [one.source.label for one in found] == ["shape", "shape"]
    assert found[0].reasons["label"] == "the only column with classes that all tables have"


def test_one_column_that_differs_does_not_take_the_ids_of_a_registry(tmp_path):
    """`value` is something else in each table; ids of one register are not the same by chance."""
    died = drawn("no", "yes")

    def tables(first, second):
        ones = {"id": np.array(first), "value": AGE, "died": died}
        others = {"id": np.array(second), "value": RNG.integers(1, 90, ROWS), "x": OTHER}
        return propose([written(tmp_path / "a.csv", ones), written(tmp_path / "b.csv", others)])

    registry = tables([7 * one + 100_000 for one in range(ROWS)],
                      [7 * one + 100_070 for one in range(ROWS)])  # fmt: skip
    assert [one.source.id for one in registry.tables] == ["id", "id"]
    [note] = registry.notes
    assert note.startswith("rows of one id have other values of 'value' at a and b.")
    numbered = tables(range(1, ROWS + 1), range(1, ROWS + 1))
    assert [one.source.id for one in numbered.tables] == [None, None]


def test_rows_at_the_same_time_are_no_sample_where_their_only_column_differs(tmp_path):
    """Machines that measure by the hour: `time` says not who is who, and `state` all have."""
    hours = np.datetime64("2025-01-01T00:00:00") + np.arange(ROWS) * np.timedelta64(1, "h")
    times = np.char.replace(np.datetime_as_string(hours), "T", " ")

    def found(*states):
        paths = []
        for at, state in enumerate(states):
            own = {"time": times, f"sensor_{at}": RNG.normal(size=ROWS).round(3), "state": state}
            if at == 2:
                own["type"] = drawn("A", "B")
            paths.append(written(tmp_path / f"park{at}.csv", own))
        return propose(paths)

    apart = found(*(drawn("ok", "wear", "fault") for _ in range(3)))
    assert [one.source.id for one in apart.tables] == [None] * 3
    assert all("at the same time" in one.left_out["time"] for one in apart.tables)
    # a column of two values at one of them would be the label of no other
    assert [one.source.label for one in apart.tables] == ["state"] * 3
    [note] = apart.notes
    assert note.startswith("park0, park1 and park2 have ids in common")
    # sensors of one machine, at times that are its rows
    assert [one.source.id for one in found(*[drawn("ok", "wear", "fault")] * 3).tables] == [
        "time"
    ] * 3


def days(*numbers):
    """Return dates, the day first, by days of one range of 900."""
    found = np.datetime64("2021-03-01") + np.array(numbers, np.int64)
    return np.array([one.strftime("%d.%m.%Y") for one in found.tolist()])


@pytest.mark.parametrize(
    ("first", "second", "ids"),
    [
        # one row in 15 days each: 4 are the same
        (range(0, 900, 15), [*range(0, 60, 15), *range(61, 900, 15)], None),
        # a fifth of each table, and all of what both cover
        (range(ROWS), range(48, 48 + ROWS), "Datum"),
        # a date that repeats is no id of the other's either
        (range(0, 900, 15), [*range(0, 60, 15), 61, *range(61, 885, 15)], None),
        # 55 of 57 days are in the other table, and two repeat
        (range(ROWS), [*range(55), 70, 71, 0, 1, 2], "the column 'Datum' has the ids of 'south'"),
    ],
)
def test_dates_of_which_some_are_the_same_by_chance_tell_no_rows(first, second, ids, tmp_path):
    paths = [
        written(tmp_path / f"{name}.csv", {"Datum": days(*own), name: AMOUNT, "label": GRADE % 2})
        for name, own in (("south", first), ("west", second))
    ]
    if ids not in (None, "Datum"):
        with pytest.raises(TableError, match=ids):
            propose(paths)
    else:
        assert [one.source.id for one in propose(paths).tables] == [ids] * 2


def test_a_label_that_nothing_tells_is_asked_for(tmp_path):
    columns = {"smoker": drawn("no", "yes"), "sex": drawn("f", "m"), "age": AGE}
    with pytest.raises(ExperimentError, match="those of two values: 'smoker', 'sex'; say which"):
        propose([written(tmp_path / "t.csv", columns)])


IDS = np.array([f"{at:05d}" for at in range(ROWS)])


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (
            np.append(IDS[:-1], "00007"),
            "the column 'Kunde' has the ids of 'bank', but '00007' is in 2 rows (8 and 60), and "
            "every id needs one row; write one row for each, of sums or means, or name another "
            "column that tells the rows apart: --id COLUMN",
        ),
        (np.append(IDS[:-3], ["00007", "00007", "00009"]), "2 ids repeat, most often '00007' in 3"),
        (
            np.append(IDS[:-1], ""),
            "'bank', but none in 1 row (first: row 60); fill in what is missing,",
        ),
    ],
)
def test_ids_that_repeat_are_named(ids, said, tmp_path):
    bank = written(tmp_path / "bank.csv", {"Kunde": IDS, "a": AMOUNT, "label": drawn("no", "yes")})
    shop = written(tmp_path / "shop.csv", {"Kunde": ids, "b": OTHER})
    for order in ([bank, shop], [shop, bank]):
        with pytest.raises(TableError) as problem:
            propose(order)
        assert said in str(problem.value)


def test_rows_that_are_copies_are_to_be_dropped(tmp_path):
    bank = written(tmp_path / "bank.csv", {"Kunde": IDS, "a": AMOUNT, "label": drawn("no", "yes")})
    shop = written(tmp_path / "shop.csv", {"Kunde": IDS, "b": OTHER})
    shop.write_text(shop.read_text() + shop.read_text().splitlines()[1] + "\n")
    with pytest.raises(TableError, match=r"copies of each other.*drop the rows that repeat, or"):
        propose([bank, shop])


def test_a_label_that_is_the_same_in_every_row_is_said(tmp_path):
    columns = {"age": AGE, "sex": drawn("f", "m"), "label": np.full(ROWS, "yes")}
    with pytest.raises(ExperimentError, match="'label' is named like a label and has 'yes' in eve"):
        propose([written(tmp_path / "t.csv", columns)])


def test_words_among_numbers_and_errors_of_spreadsheets_are_missing(tmp_path):
    size, metric = AMOUNT.astype(object), RNG.choice(["1", "2", "A"], ROWS)
    size[[3, 9, 20]] = "unknown", "#DIV/0!", "k. A."
    columns = {"size": size, "send_metrics": metric, "age": AGE, "label": drawn("no", "yes")}
    (found,) = propose([written(tmp_path / "t.csv", columns)]).tables
    assert {"unknown", "#DIV/0!", "k. A."} <= {*found.source.missing}
    assert "A" not in found.source.missing  # of few numbers, which may be codes
    assert [one.name for one in found.features if one.figures is not None] == ["size", "age"]


def test_values_that_are_infinite_are_missing_and_their_column_is_kept(tmp_path):
    """Otherwise a column would be left out for one division by 0, or be refused by the run."""
    size = AMOUNT.astype(object)
    size[[3, 9, 20]] = "inf", "1e400", "-inf"
    columns = {"size": size, "age": AGE, "label": drawn("no", "yes")}
    (found,) = propose([written(tmp_path / "t.csv", columns)]).tables
    assert [one.name for one in found.features] == ["size", "age"]
    assert "'inf', '1e400', '-inf' seem to mean a missing value too" in found.reasons["missing"]
    table = read(found.source)
    size = table.values[:, table.numeric.index("size")]
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(size)), [3, 9, 20])
    alone = dataclasses.replace(found.source, missing=("",))
    with pytest.raises(TableError, match=r"'size' is inf in row 4, and infinite in 2 more; .* add"):
        read(alone)


@pytest.mark.parametrize("word", ["1e٤٠٠", "１e+４００", "-9.9E999"])
def test_a_number_beyond_those_of_64_bits_is_a_missing_one_in_any_digits(word):
    texts = [*map(str, range(20)), word]
    codes = (np.arange(420) % 21).astype(np.int32)
    assert missing_words({"size": (codes, Texts.of(texts))}) == [word]


def test_a_row_of_totals_leaves_the_ids_what_they_are(tmp_path):
    numbers = np.arange(ROWS).astype(object)
    numbers[-1] = "total"
    columns = {"id": numbers, "age": AGE, "label": drawn("no", "yes")}
    (found,) = propose([written(tmp_path / "t.csv", columns)]).tables
    assert found.source.id == "id"


NAMES = np.array([f"P{at:05d}" for at in range(200, 200 + ROWS)])  # of patients of a region


def clinic(tmp_path, name, ids, **columns):
    values = {"patient": ids, "age": AGE, "died": drawn("no", "yes"), **columns}
    return written(tmp_path / f"{name}.csv", values)


@pytest.mark.parametrize("both", [False, True])
def test_ids_of_which_a_few_repeat_are_named_where_tables_share_a_few_of_them(both, tmp_path):
    """They were left out in silence: no row was shared, and a run learned from tables apart."""
    some = np.append(NAMES[:-2], NAMES[[3, 8]])
    elsewhere = np.array([f"P{at:05d}" for at in range(250, 250 + ROWS)])  # ten are in both
    elsewhere = np.append(elsewhere[:-1], elsewhere[7]) if both else elsewhere
    a, b = clinic(tmp_path, "a", some), clinic(tmp_path, "b", elsewhere)
    for order in ([a, b], [b, a]) if not both else ([a, b],):
        with pytest.raises(TableError) as problem:
            propose(order)
        assert "'patient' has the ids of 'b', but 2 ids repeat, most often 'P00203' in 2 rows" in (
            str(problem.value)
        )
        assert "(4 and 59), and every id needs one row; write one row for each" in (
            str(problem.value)
        )


def test_visits_of_patients_and_measurements_are_no_ids_of_which_a_few_repeat(tmp_path):
    """Each patient has two visits; a body mass index is whole and below 60, as numbers of rows."""
    visits = clinic(tmp_path, "a", np.repeat(NAMES[:30], 2))
    index = np.round(RNG.uniform(20, 40, ROWS), 1)
    index[1] = index[0]
    mass = clinic(tmp_path, "c", np.repeat(NAMES[:30], 2), body_mass_index=index)
    for path in (visits, mass):
        other = clinic(tmp_path, "b", np.append(NAMES[29:], [f"Q{at}" for at in range(29)]))
        found = propose([path, other])
        assert [one.source.id for one in found.tables] == [None, "patient"]
        assert "patient" in found.tables[0].left_out


def test_labels_in_other_words_contradict_no_ids_and_features_in_other_words_are_named(tmp_path):
    """`died` is the only column of both tables: its words are mapped, and no row is another's."""
    died, sex = drawn("no", "yes"), drawn("m", "f")
    a = written(tmp_path / "a.csv", {"patient": NAMES, "age": AGE, "died": died})
    one = {"patient": NAMES, "crp": AMOUNT, "died": np.where(died == "yes", "J", "N")}
    b = written(tmp_path / "b.csv", one)
    found = propose([a, b])
    assert found.tables[1].source.label_map == {"J": "yes", "N": "no"}
    assert found.notes == ()
    a = written(tmp_path / "a.csv", {"patient": NAMES, "sex": sex, "died": died})
    b = written(tmp_path / "b.csv", {**one, "sex": np.where(sex == "m", "man", "woman")})
    assert propose([a, b]).notes == (
        "rows of one id have the same values in other words, which count as different: 'sex' of a "
        "and b; write them alike in these tables.",
    )
    b = written(tmp_path / "b.csv", {**one, "died": RNG.permutation(one["died"])})
    [note] = propose([a, b]).notes
    assert note.startswith("rows of one id have other values of 'died' at a and b.")


def test_labels_that_a_map_spells_anew_are_compared_as_it_spells_them(tmp_path):
    """Tables a and c write 0 and 1, b no and yes: c was mapped to b's words, and b to a's."""
    died = drawn("0", "1")
    words = np.where(died == "1", "yes", "no")
    a = written(tmp_path / "a.csv", {"patient": NAMES, "age": AGE, "died": died})
    b = written(tmp_path / "b.csv", {"patient": NAMES, "crp": AMOUNT, "died": words})
    c = written(tmp_path / "c.csv", {"patient": NAMES, "hb": OTHER, "died": died})
    for order, of in (([a, b, c], "b"), ([b, c, a], "ac")):
        found = {one.source.name: one.source.label_map for one in propose(order).tables}
        assert sorted(name for name, one in found.items() if one) == list(of)
        assert found["b"] in ({}, {"no": "0", "yes": "1"})


def test_classes_that_several_tables_have_are_named_beside_the_only_column_of_two(tmp_path):
    kind = drawn("casual", "loyal", "premium", "vip")
    a = written(tmp_path / "a.csv", {"user": NAMES, "basket": AMOUNT, "segment": kind})
    b = {"user": NAMES, "minutes": OTHER, "app": drawn("false", "true"), "segment": kind}
    found = propose([a, written(tmp_path / "b.csv", b)]).tables[1]
    assert found.source.label == "app"
    assert found.reasons["label"] == "the only column of two values; 'segment' may be it too"


def test_labels_without_a_class_in_common_are_named_unless_a_run_refuses_them(tmp_path):
    def notes(first, second):
        one = {"age": AGE, "crp": AMOUNT, "outcome": first}
        two = {"age": AGE[::-1], "crp": OTHER, "outcome": second}
        return propose([written(tmp_path / "a.csv", one), written(tmp_path / "b.csv", two)]).notes

    mild = drawn("mild", "severe")
    [note] = notes(mild, drawn("A", "B"))
    assert note.startswith("the labels of a and b have no class in common, and count as 4 differ")
    assert notes(mild, drawn("severe", "critical")) == ()
    assert notes(drawn("no", "yes"), drawn("N", "J")) == ()
    assert notes(mild, drawn("0", "1")) == ()
    assert notes(AMOUNT, OTHER) == ()


def test_what_a_table_has_beside_its_ids_alone_is_the_label(tmp_path):
    """Its name says nothing, and columns of two values of other tables are no label then."""
    ids = np.arange(1000, 1060)
    survey = {"respondent": ids, "age": AGE, "smoker": drawn("n", "y"), "weight": AMOUNT}
    answers = {"respondent": ids[::-1], "satisfaction": GRADE}
    paths = [written(tmp_path / "survey.csv", survey), written(tmp_path / "labels.csv", answers)]
    found = propose(paths).tables
    assert [one.source.label for one in found] == [None, "satisfaction"]
    assert found[1].reasons["label"] == "the only column beside the ids"


def test_a_last_column_of_two_values_is_the_label_beside_a_table_of_one_feature(tmp_path):
    """A region or a rating of the same people was predicted then."""
    ids = np.arange(1000, 1060)
    shop = {"respondent": ids, "age": AGE, "amount": AMOUNT, "bought": drawn("n", "y")}
    first = written(tmp_path / "shop.csv", shop)

    def found(own):
        paths = [first, written(tmp_path / "other.csv", {"respondent": ids[::-1], **own})]
        return propose(paths).tables

    for own in ({"rating": OTHER}, {"region": drawn("north", "south", "east")}):
        one, two = found(own)
        assert (one.source.label, two.source.label) == ("bought", None)
        assert f"'{next(iter(own))}' may be it too" in one.reasons["label"]
    with pytest.raises(ExperimentError, match=r"those of two values: 'bought', 'member'"):
        found({"member": drawn("n", "y")})


def test_classes_that_all_tables_have_are_no_label_beside_numbers_in_the_last_column(tmp_path):
    """They were taken for it: of shifts and faults of machines, the shift was predicted."""
    one = {"temp": AMOUNT, "shift": drawn("early", "late", "night"), "faults": AGE}
    two = {"temp": OTHER, "shift": drawn("early", "late", "night"), "faults": AGE[::-1]}
    paths = [written(tmp_path / "a.csv", one), written(tmp_path / "b.csv", two)]
    with pytest.raises(ExperimentError, match=r"it may be 'shift', .* or 'faults', their"):
        propose(paths)
    assert propose(paths, labels=["faults"]).tables[0].source.label == "faults"


def test_a_note_names_the_time_until_the_label(tmp_path):
    columns = {"age": AGE, "follow_up_days": AMOUNT, "lifetime": OTHER, "death": drawn("0", "1")}
    notes = propose([written(tmp_path / "t.csv", columns)]).notes
    assert [one.partition(" was seen")[0] for one in notes] == [
        "'follow_up_days' may be the time until 'death'"
    ]
    columns["days"] = columns.pop("follow_up_days")  # as in a registry: days, death
    (note,) = propose([written(tmp_path / "t.csv", columns)]).notes
    assert note.startswith("'days' may be the time until 'death'")
    del columns["days"]
    assert propose([written(tmp_path / "t.csv", columns)]).notes == ()


def test_a_note_names_columns_with_two_numbers_in_one_text(tmp_path):
    """A blood pressure was a category, or left out for having many texts."""
    pressures = np.array([f"{100 + one}/{60 + one % 30}" for one in AGE])
    columns = {"age": AGE, "bp": pressures, "part": drawn("1/2", "2/2"), "death": drawn("0", "1")}
    (note,) = propose([written(tmp_path / "t.csv", columns)]).notes
    assert note.startswith("'bp' has two numbers in each text, as 120/80 is")


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["5 mg", "5mg", "10 mg", "0.1 g"], "has numbers with 'g' and 'mg', and each text is"),
        (["[]", "['a']", *(f"['a'; '{one}']" for one in "bcdefghij")], "has a list in each text"),
        (["a", "b", "c", "d", "a;b", "a;c", "a;d", "b;c", "b;d", "c;d"], "has a list in each text"),
        ([f'{{"n": {one}}}' for one in range(12)], "has several fields in each text"),
        ([f"{one}y {one % 5}m" for one in range(12)], "has two numbers in each text"),
        (["1a", "1b", "2a", "2b"], ""),
        (["1st", "2nd", "3rd", "4th"], ""),
        ([f"{side}|{one}" for side in "ab" for one in "cdefg"], ""),  # as a country and a town
        (["3 rooms", "4 rooms"], ""),
    ],
)
def test_a_note_names_columns_whose_texts_are_more_than_a_word(tmp_path, texts, told):
    """Each amount, list and record was a level of its own, without a word."""
    columns = {"age": AGE, "own": np.resize(texts, ROWS), "death": drawn("0", "1")}
    notes = propose([written(tmp_path / "t.csv", columns)]).notes
    assert [one.startswith(f"'own' {told}") for one in notes] == [True] * bool(told)


def test_numbers_before_several_words_are_read_as_numbers(tmp_path):
    days = np.array([f"{one} days ago" for one in AGE])
    columns = {"age": AGE, "seen": days, "death": drawn("0", "1")}
    (one,) = propose([written(tmp_path / "t.csv", columns)]).tables
    assert one.source.units == {"seen": "days ago"}


def test_a_note_names_columns_that_say_the_same_in_shared_rows(tmp_path):
    """Rows of one table had half of the weight of what the other calls otherwise."""
    ids = np.array([f"m{one}" for one in range(ROWS)])
    here = {"id": ids, "bmi": AMOUNT + 26, "sex": drawn("f", "m"), "ill": drawn("0", "1")}
    there = {"id": ids[::-1], "body_mass": (AMOUNT + 26)[::-1], "weight_kg": OTHER * 9 + 70}
    paths = [written(tmp_path / "a.csv", here), written(tmp_path / "b.csv", there)]
    (note,) = propose(paths).notes
    assert note.startswith(
        "columns say the same under two names in rows that tables share: 'bmi' of a and 'body_mass'"
    )
    there["body_mass"] = there["body_mass"] + 1  # of which nobody can tell that it is the same
    assert propose([paths[0], written(tmp_path / "c.csv", there)]).notes == ()


def test_rare_events_do_not_say_the_same(tmp_path):
    """Two counts of which 2 % of the rows have any were told to be one, for both are 0 mostly."""
    at = np.arange(300)
    falls, burns = (np.where(at % 50 == own, 1 + at // 50 % 3, 0) for own in (3, 17))
    here = {"id": at, "age": np.resize(AGE, 300), "falls": falls, "ill": at % 7 % 2}
    there = {"id": at, "burns": burns, "weight_kg": np.resize(OTHER, 300)}
    paths = [written(tmp_path / "a.csv", here), written(tmp_path / "b.csv", there)]
    assert propose(paths).notes == ()


def test_a_column_s_name_is_looked_at_once_for_all_of_another_table(tmp_path, monkeypatch):
    """A table of 2,000 columns and 120 rows took half a minute beside another one."""
    asked = []
    monkeypatch.setattr(id_choice, "is_id", lambda name: asked.append(name) or name == "id")
    wide = {f"lab{one}": np.resize(AMOUNT + one, ROWS) for one in range(60)}
    wide = {name: np.append(own[1:], own[1]) for name, own in wide.items()}  # none tells rows apart
    wide["ill"] = drawn("0", "1")
    propose([written(tmp_path / "a.csv", wide), written(tmp_path / "b.csv", wide)])
    assert len(asked) < 10 * len(wide)


def test_what_may_be_the_label_is_named_with_columns_of_classes_first(tmp_path):
    """Of 60 genes beside a tissue the first twelve were named."""
    here = {f"gene{one}": RNG.permutation(ROWS) for one in range(20)}
    tissue = drawn("brain", "liver", "lung")
    paths = [written(tmp_path / "a.csv", here | {"tissue": tissue})]
    paths.append(written(tmp_path / "b.csv", here))  # which has no label
    with pytest.raises(ExperimentError, match=r"there are 'tissue', 'gene0', 'gene1'"):
        propose(paths)


def test_durations_and_answers_beside_a_word_are_left_out_with_what_to_do(tmp_path):
    """Durations beyond a day were texts that may tell single rows, with no way to learn from."""
    durations = np.array([f"{one}:{one % 60:02d}" for one in AGE])
    answers = np.where(AGE % 7 == 0, "don't know", GRADE.astype(str))
    columns = {"age": OTHER, "stay": durations, "pain": answers, "death": drawn("0", "1")}
    (one,) = propose([written(tmp_path / "t.csv", columns)]).tables
    assert one.left_out["stay"].startswith("has durations (such as ")
    assert one.left_out["stay"].endswith("write minutes, and take it out of exclude")
    assert one.left_out["pain"].endswith("are answers or codes, list it in categorical")


def test_a_note_names_codes_that_are_learned_from_as_amounts(tmp_path):
    """A postcode of 400 numbers had one slope, without a word."""
    codes = 10115 + 37 * (AGE % 30)
    columns = {"zip": codes, "store_no": codes, "product_price": codes, "death": drawn("0", "1")}
    (note,) = propose([written(tmp_path / "t.csv", columns)]).notes
    assert note.startswith("'zip' of t and 'store_no' of t are named like codes and learned from")
    few = {"zip": 10115 + AGE % 3, "age": AGE, "death": columns["death"]}  # which are categorical
    assert propose([written(tmp_path / "t.csv", few)]).notes == ()


def test_a_note_names_what_may_be_the_weights_of_rows(tmp_path):
    weight = np.round(np.exp(AMOUNT / 2), 3)
    columns = {"id": np.arange(60), "weight": weight, "churn": drawn("0", "1")}
    (note,) = propose([written(tmp_path / "t.csv", columns)]).notes
    assert note.startswith("'weight' of t may say how much each row counts, as its numbers are ab")
    assert note.endswith('If so, set weights = "weight" there.')
    labels = written(tmp_path / "labels.csv", {"id": columns["id"], "churn": columns.pop("churn")})
    (note,) = propose([written(tmp_path / "t.csv", columns | {"x": OTHER}), labels]).notes
    assert note.endswith("list it in exclude there: weights are of the table that has the labels.")
    body = columns | {"weight": 60 * weight, "churn": drawn("0", "1")}
    assert propose([written(tmp_path / "t.csv", body)]).notes == ()


@pytest.mark.parametrize("name", ["Exposure", "person_years", "exposure_to_dust"])
@pytest.mark.parametrize("label", ["0 0 0 1 2", "0 0 0 1 1", "1 1 2 2 3"])
def test_a_note_names_the_time_in_which_counts_were_made(tmp_path, name, label):
    seen = np.round(np.exp(-np.abs(AMOUNT)), 3)
    columns = {"age": AGE, name: seen, "claims": np.array(label.split() * 12)}
    notes = propose([written(tmp_path / "t.csv", columns)], labels=["claims"]).notes
    assert len(notes) == (name != "exposure_to_dust" and label == "0 0 0 1 2")
    for note in notes:
        assert note.startswith(f"'{name}' may say in which time 'claims' was counted. If so, write")
        assert f'set weights = "{name}" and loss = "poisson": the model predicts' in note


def test_a_note_names_columns_that_may_be_one_under_two_names(tmp_path):
    """Where nobody said so, the rows of one site lacked what all others know."""
    pulse, pressure = AMOUNT * 12 + 75, OTHER * 15 + 130
    here = {"pulse": pulse, "pressure": pressure, "ill": drawn("0", "1")}
    there = {"heart_rate": pulse[::-1] + 4, "sodium": OTHER + 140, "ill": drawn("0", "1")}
    paths = [written(tmp_path / "a.csv", here), written(tmp_path / "b.csv", here)]
    notes = propose([*paths, written(tmp_path / "c.csv", there)]).notes
    assert len(notes) == 1
    assert "no table has both: 'heart_rate' of c, elsewhere 'pulse'. Where two are one" in notes[0]
    both = there | {"pulse": pulse}
    assert propose([*paths, written(tmp_path / "c.csv", both)]).notes == ()


def test_a_sku_tells_rows_apart_beside_titles_that_repeat(tmp_path):
    """The titles were taken for ids, of which one was in two rows, and init ended."""
    titles = np.array([f"lamp {one}" for one in range(ROWS)])
    one = {"sku": np.arange(100, 160), "title": titles, "label": drawn("0", "1"), "x": OTHER}
    two = {"sku": np.arange(500, 560), "title": np.array(["lamp 1", *titles[1:]]), "x": AMOUNT}
    two["label"] = drawn("0", "1")
    paths = [written(tmp_path / "a.csv", one), written(tmp_path / "b.csv", two)]
    assert [one.source.id for one in propose(paths).tables] == ["sku", "sku"]
