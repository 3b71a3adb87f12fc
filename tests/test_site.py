"""A site that is started again: what it goes on with, and what it refuses to go on with."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import four_sites
import sites
from intarsia import remote_running, running
from intarsia.engines import codec
from intarsia.engines.calls import Call
from intarsia.errors import CheckpointError
from intarsia.site_work import site_in


def set_up(folder):
    """Return an experiment with sealed sums, and its sites by name."""
    described = four_sites.write_tables("hyfdca", folder)
    for name, text in described.items():
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder))
    found = {name: site_in(folder / name) for name in described}
    return four_sites.experiment_of("hyfdca", described, folder), found


def changed(path):
    """Change one cell of a table; return what was in the file."""
    before = path.read_bytes()
    table = pd.read_csv(path)
    table.loc[3, table.columns[0]] += 2.0
    table.to_csv(path, index=False)
    return before


class Killed(Exception):  # noqa: N818 - not an error of anybody
    """The end of the server's process."""


@pytest.mark.parametrize("limit", [4, 10, 60], ids=["read", "encoded", "training"])
def test_a_site_goes_on_with_the_table_that_it_began_with_alone(tmp_path, limit):
    description, found = set_up(tmp_path)
    expected = running.run(description, out=tmp_path / "one")
    calls, out = 0, tmp_path / "sites"

    def line(client, number, data, deliver):
        nonlocal calls
        calls += 1
        if calls > limit:
            raise Killed
        return deliver(data)

    lines = sites.Lines(found, line)
    with pytest.raises(Killed):
        remote_running.run_over(description, lines, four_sites.NAMES, out, patience=sites.HASTY)
    before = changed(tmp_path / "bank.csv")
    again = sites.Lines({name: site_in(tmp_path / name) for name in found})
    if limit > 4:  # no value of the table counted before
        with pytest.raises(CheckpointError, match=r"'bank'.*its table changed"):
            remote_running.resume_over(out, again, patience=sites.HASTY)
        assert "is not the one that run" in (tmp_path / "bank" / "errors.log").read_text()
        (tmp_path / "bank.csv").write_bytes(before)
        result = remote_running.resume_over(out, again, patience=sites.HASTY)
    else:
        result = remote_running.resume_over(out, again, patience=sites.HASTY)
        expected = running.run(description, out=tmp_path / "two")
    assert result.certificate == expected.certificate
    weights = codec.decode((out / "conclusion.state").read_bytes())["weights"]
    assert np.isfinite(weights).all()
    assert result.metrics == expected.metrics


def test_an_answer_that_was_lost_is_given_again_and_not_made_anew(tmp_path):
    """Sealed anew from another table it would be a second text under one mask."""
    description, found = set_up(tmp_path)
    sums = []

    def line(client, number, data, deliver):
        answer = deliver(data)
        if client == "bank" and data and codec.decode(data, Call).kind == "sum":
            sums.append((data, answer))
            if len(sums) == 9:
                raise Killed
        return answer

    lines = sites.Lines(found, line)
    with pytest.raises(Killed):
        remote_running.run_over(
            *(description, lines, four_sites.NAMES, tmp_path / "sites"), patience=sites.HASTY
        )
    data, answer = sums[-1]
    changed(tmp_path / "bank.csv")
    assert site_in(tmp_path / "bank").handle(data) == answer
    (tmp_path / "bank.csv").unlink()
    assert site_in(tmp_path / "bank").handle(data) == answer
