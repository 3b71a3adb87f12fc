"""A site that gives the server other means and scales of columns than all trained with.

The server's model divides each column by the scale that sites give it at the end. Of a column that
several have the last one's counted: one site made the model of everybody's columns what it liked,
with a certificate of the model that was trained.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import four_sites
import sites
from federations import BINARY
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_models import Scales, _problem_of
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.remote.wire import KEEP, Answer, Call
from intarsia.experiment import config as experiment
from intarsia.inference.predict import predict

ODD = "retailer"  # the last one; its columns m1, m2 and m3 are those of bank and branch, too


def run_over(folder, change):
    """Run over four sites, of which one gives the server other scales; return what it came to."""
    described = four_sites.write_tables("hyfdca", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        own = four_sites.site_toml(name, text, folder, "scales = true\n")
        (folder / name / "site.toml").write_text(own)

    def line(client, number, data, deliver):
        answer = deliver(data)
        if not data or client != ODD or codec.decode(data, Call).function != KEEP:
            return answer
        found = codec.decode(answer, Answer)
        own = change(codec.decode(found.body, Scales))
        return codec.encode(dataclasses.replace(found, body=codec.encode(own)))

    tree = four_sites.tree("hyfdca", described, folder, mode="masked", rounds=2)
    found = {name: site_in(folder / name) for name in described}
    given = experiment.from_dict(tree, folder), sites.Lines(found, line), four_sites.NAMES
    return remote_running.run_over(*given, folder / "server", patience=sites.HASTY)


def test_the_server_has_no_model_of_means_that_nobody_trained_with(tmp_path):
    result = run_over(tmp_path, lambda own: dataclasses.replace(own, mean=own.mean + 1000.0))
    assert result.model is None
    assert not (tmp_path / "server" / "model").exists()
    (note,) = [one for one in result.notes if "prepared features alone" in one]
    assert re.search(f"alone: {ODD!r} says that the mean of column 'm1' .* another site", note)
    own = tmp_path / "bank" / "models" / "hyfdca"  # each site's own model is as it was
    assert len(predict(own, tmp_path / "bank.csv").scores)


def told(**changes):
    """Return what is wrong with what three sites say of two columns, of which they share one."""
    rows = np.arange(3)
    own = {name: Block(rows, ("m", name), np.eye(3)[:, :2], np.ones(3)) for name in "abc"}
    schema = Schema.of(own, BINARY)
    scales = {}
    for name in own:  # the shared column has the same at all
        at = schema.features.ids[schema.features.own(name)].tolist().index("m")
        scales[name] = Scales(np.roll([0.5, -2.0], at), np.roll([0.0, 3.0], at))
    scales["b"] = dataclasses.replace(scales["b"], **changes)
    return _problem_of(schema, scales)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean": np.array([1000.0, 1000.0])}, "'b' says that the mean of column 'm' is 1000, and"),
        (
            {"scale": np.array([9.0, 9.0])},
            "'b' says that the scale of column 'm' is 9, and",
        ),
        ({"scale": np.array([-1.0, -1.0])}, "'b' says that the scale of column '.' is -1"),
        ({"mean": np.array([np.nan, np.nan])}, "'b' says that the mean of column '.' is nan"),
        ({"average": np.array([np.inf, 0.0])}, "'b' says that the average of column '.' is inf"),
        ({"scale": "x"}, "'b' sends 'x' for each column's scale"),
        ({"scale": None}, "'b' sends None for each column's scale"),
        ({"mean": np.array(["0", "0"])}, "'b' sends array.* for each column's mean"),
        ({"mean": np.zeros(1)}, "'b' sends each column's mean for .1,. of 2"),
        ({"average": np.zeros((2, 2))}, "'b' sends each column's average for .2, 2. of 2"),
    ],
)
def test_what_no_site_says_of_its_columns_is_told_with_its_name(changes, said):
    assert re.match(said, told(**changes))


def test_nothing_is_wrong_with_what_all_say_alike():
    assert told() == ""
