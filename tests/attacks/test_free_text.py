"""The levels of text columns were sent to the server before any sum: 50 of 50 notes with names.

A column of notes, names, codes or addresses has a level for each row, and levels are public.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia
import sites
from federations import secret_of
from intarsia.data.encoding import encode, encoding_of
from intarsia.data.reader import read, table_from
from intarsia.data.source import Source
from intarsia.deployment.client_folder import SiteSettings
from intarsia.deployment.client_setup import READ, Work
from intarsia.deployment.table_metadata import TableMetadata
from intarsia.engines import codec
from intarsia.engines.remote.site import Site
from intarsia.engines.remote.wire import PROTOCOL, Answer, Call
from intarsia.errors import TableError

ROWS = 50
NOTES = [f"Mrs. Sample {at} was here" for at in range(ROWS)]
TELLING = {
    "notes": NOTES,
    "some notes twice": [*NOTES[:30], *NOTES[:20]],
    "notes beside empty cells": [*NOTES[:12], *[""] * 38],
    "codes of three rows each": [f"C-{at // 3:03d}-x" for at in range(ROWS)],
    "postcodes with letters": [f"SW{at // 2}A" for at in range(ROWS)],
    "few addresses": [f"person{at % 4}@sample.org" for at in range(ROWS)],
    "an address in a sentence": ["none", *["ask ann@sample.org"] * 49],
    "few pages": [f"https://sample.org/{at % 3}" for at in range(ROWS)],
    "one long text": ["x" * 61, *["short"] * 49],
    "few long sentences": [f"bed {at % 3} was left and no one came back" for at in range(ROWS)],
    "dates": [f"2026-01-{at % 9 + 1:02d}" for at in range(ROWS)],
    "dates with slashes": [f"{at % 9 + 1}/12/26" for at in range(ROWS)],
    "dates with months": [f"{at % 9 + 1} March 1980" for at in range(ROWS)],
    "dates and some words": ["unknown", *[f"2026-01-{at % 9 + 1:02d}" for at in range(ROWS - 1)]],
}  # fmt: skip


def frame(values):
    return pd.DataFrame({"row": range(ROWS), "told": values, "y": [0, 1] * (ROWS // 2)})


def at_site(folder, source, **experiment):
    """Return what a site answers when it is asked what its table is; TableError if it refuses.

    The error is what its own people read. The answer of a refusal has none of the texts either.
    """
    settings = SiteSettings(name="bank", plain=True, ids=True, table=source)
    tree = {"protocol": PROTOCOL, "algorithm": {"name": "hyfdca"}, **experiment}
    errors = []
    site = Site(
        *("bank", lambda run: sites.Memory(), lambda: Work(settings, folder)),
        *(lambda: secret_of("bank"), lambda run: None, errors.append),
    )
    body = json.dumps(tree).encode()
    data = site.handle(
        codec.encode(Call(sites.RUN, 1, 0, 0, 0, 0, "stage", READ, "", ("bank",), body))
    )
    answer = codec.decode(data, Answer)
    if answer.error:
        assert (answer.error, answer.body) == ("TableError", b"")
        assert not occur(NOTES, data)
        raise errors[0]
    return answer.body


def written(folder, values, kind="csv", **settings):
    path = folder / f"bank.{kind}"
    if kind == "csv":
        frame(values).to_csv(path, index=False)
    else:  # as categories, which Parquet keeps apart from text
        table = pa.table({name: pa.array(one.tolist()) for name, one in frame(values).items()})
        place = table.column_names.index("told")
        told = table.column("told").dictionary_encode()
        pq.write_table(table.set_column(place, "told", told), path)
    return Source(name="bank", path=str(path), id="row", **{"label": "y", **settings})


def occur(values, data):
    return [one for one in values if one and one.encode() in data]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", TELLING)
def test_what_tells_single_rows_never_leaves_the_site(tmp_path, name, kind):
    with pytest.raises(TableError, match=r"column 'told' has .*list it in exclude") as no:
        at_site(tmp_path, written(tmp_path, TELLING[name], kind))
    said = str(no.value)
    assert not [one for one in TELLING[name] if one and one in said], said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("category", [False, True])
def test_a_simulation_refuses_it_too(category):
    table = frame(pd.Categorical(NOTES) if category else NOTES)
    with pytest.raises(TableError, match="column 'told' has 50 different texts in 50 rows"):
        intarsia.inspect(tables={"bank": table}, id="row", label="y")


def test_an_owner_who_lists_the_column_says_that_its_texts_may_be_known(tmp_path):
    said = at_site(tmp_path, written(tmp_path, NOTES, categorical=("told",)))
    assert occur(NOTES, said) == NOTES
    few = at_site(tmp_path, written(tmp_path, NOTES, categorical=("told",), least_rows=2))
    assert not occur(NOTES, few)


def test_a_level_of_few_rows_is_known_as_other(tmp_path):
    values = [*["Ann Sample"] * 4, "Bob Sample", *["red"] * 20, *["blue"] * 25]
    source = written(tmp_path, values)
    said = at_site(tmp_path, source)
    assert not occur(["Ann", "Bob", "Sample"], said)
    levels = codec.decode(said, TableMetadata).levels["told"]
    assert set(levels) == {"blue", "other", "red"}
    table = read(source)
    block = encode(table, encoding_of({"bank": table}))
    assert block.features == ("told=blue", "told=other", "told=red")
    np.testing.assert_array_equal(block.x.sum(axis=0), [25, 5, 20])
    np.testing.assert_array_equal(block.x.sum(axis=1), 1)


def test_in_a_table_of_a_few_rows_no_level_is_known(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("row,told,y\n" + "".join(f"{at},{NOTES[at]},{at % 2}\n" for at in range(9)))
    said = at_site(tmp_path, Source(name="bank", path=str(path), id="row", label="y"))
    assert not occur(NOTES, said)


def test_a_level_that_another_client_has_often_is_no_other():
    """The name of a level tells nothing where many rows elsewhere have it."""
    tables = {
        name: table_from(
            frame([*["red"] * many, *["blue"] * (ROWS - many)]), client=name, id="row", label="y"
        )
        for name, many in (("few", 2), ("many", 30))
    }
    encoding = encoding_of(tables)
    assert encoding.levels["told"] == ("blue", "other", "red")
    np.testing.assert_array_equal(encode(tables["few"], encoding).x[:, :3].sum(axis=0), [48, 0, 2])


def test_labels_that_tell_single_rows_never_leave_the_site(tmp_path):
    source = written(tmp_path, NOTES, label="told", exclude=("y",))
    for classes in ([], ["a", "b"], NOTES[:2]):  # a server may list what it likes
        with pytest.raises(TableError, match="label column 'told' has 50 different texts in 50"):
            at_site(tmp_path, source, labels={"classes": classes})
    listed = at_site(tmp_path, source, labels={"classes": NOTES})
    assert occur(NOTES, listed) == NOTES


def test_ordinary_categories_are_as_they_were():
    """Up to ten levels, or five rows of each and more: nothing of the shipped tables is refused."""
    for levels, rows in ((2, 10), (10, 50), (40, 200), (200, 1000)):
        values = [f"level {at % levels}" for at in range(rows)]
        found = table_from(pd.DataFrame({"a": values}), client="bank").categorical["a"]
        assert found.public_levels == found.levels
        assert len(found.levels) == levels
