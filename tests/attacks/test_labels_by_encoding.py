"""A server that says what the labels are stored as, so that a site's public index sets tell them.

Which rows have a label is public, and told before anything is sealed. The server used to send any
number for each class. With "not a number" for one class the site answered which of its rows are of
the others, in the clear: all labels in as many runs as there are classes, less one, none of which
counted as begun.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import four_sites
import sites
from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.data.encoding import Encoding
from intarsia.data.labels import LabelColumn, LabelSettings, check_meaning, meaning, with_weights
from intarsia.deployment import client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import ENCODE, SETTLE, Settled, site_in
from intarsia.deployment.table_metadata import Held
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import ExperimentError, FederationError, IntarsiaError, RefusedError


def told(folder, step, change):
    """Run `femam` where the branch is told something else in a step; return its answer."""
    described = four_sites.write_tables("femam", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder))
    found = {name: site_in(folder / name) for name in described}
    seen = []

    def line(client, number, data, deliver):
        call = codec.decode(data, Call) if data else None
        if call is None or call.function != step or client != "branch":
            return deliver(data)
        said = change(codec.decode(call.body, Encoding, Labels, Settled, Schema, Holding))
        answer = deliver(codec.encode(replace(call, body=codec.encode(said))))
        seen.append(codec.decode(answer, Answer))
        return answer

    given = four_sites.experiment_of("femam", described, folder), sites.Lines(found, line)
    with pytest.raises(IntarsiaError):
        remote_running.run_over(*given, four_sites.NAMES, folder / "server", patience=sites.HASTY)
    return seen[0]


def coded(**codes):
    return lambda one: replace(one, codes={**one.codes, **codes})


def labelled(**changes):
    return lambda one: replace(one, labels=replace(one.labels, **changes))


CHANGES = {
    "a class without a number": coded(p=math.nan),
    "two classes as one": coded(p=1.0),
    "a label beyond the classes": coded(p=1e9),
    "weights of classes": labelled(weighted=True, class_weights=(1.0, 0.0, 0.0)),
    "another task": labelled(task="binary"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_site_takes_no_labels_but_those_of_the_experiment(change, tmp_path):
    assert told(tmp_path, ENCODE, change).error == "RefusedError"


def test_schemas_have_the_labels_that_the_table_was_encoded_with(tmp_path):
    def change(one):
        weighed = ("weighted", True), ("class_weights", (1.0, 0.0, 0.0))
        schemas = {
            part: Schema(schema.holdings, replace(schema.labels, **dict(weighed)))
            for part, schema in one.schemas.items()
        }
        return replace(one, schemas=schemas)

    assert told(tmp_path, SETTLE, change).error == "RefusedError"
    assert "other labels" in (tmp_path / "branch" / "errors.log").read_text()


def test_without_the_check_a_site_tells_which_rows_are_of_a_class(tmp_path, monkeypatch):
    monkeypatch.setattr(client_setup, "check_meaning", lambda *given: None)
    answer = told(tmp_path, ENCODE, coded(p=math.nan))
    held = codec.decode(answer.body, Held, Holding).train
    truth = four_sites.whole().set_index("row").loc[held.samples, "kind"]
    np.testing.assert_array_equal(held.labelled, truth != "p")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positive": "b"},
        {"positive": ("b", "c")},
        {"classes": ("c", "a", "b")},
        {"classes": ("c", "a", "b", "d"), "positive": "d"},
        {"class_weight": "balanced"},
        {"class_weight": {"a": 2.0}},
        {"task": "regression"},
        {"task": "multiclass"},
    ],
)
def test_what_honest_servers_tell_is_taken(settings):
    how = LabelSettings(**settings)
    texts = np.array(["a", "b", "", "c", "a"]), np.array(["a", "b", "", "a", "b"])
    numbers = np.array([1.0, 2.0, np.nan, 1.0]), np.array([0.5, 2.5, 7.0, np.nan])
    for values in numbers if settings.get("task") == "regression" else (*texts, *numbers):
        try:
            labels, codes = meaning({"one": LabelColumn("kind", values)}, how, ["one"])
            labels = with_weights(labels, how, weighted=True)
        except (FederationError, ExperimentError):  # the classes do not fit the settings
            continue
        check_meaning(labels, codes, how)
        with pytest.raises(RefusedError):
            check_meaning(labels, {**codes, "z": math.nan}, how)
