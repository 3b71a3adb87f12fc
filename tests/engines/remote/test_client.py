"""A site that is started again: what it goes on with, and what it refuses to go on with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import four_sites
import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.remote.wire import Answer, Call
from intarsia.errors import CheckpointError
from intarsia.training import run as running
from killed_runs import Killed, killed_after


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


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(4, id="read", marks=pytest.mark.slow),
        pytest.param(10, id="encoded", marks=pytest.mark.slow),
        pytest.param(60, id="training"),
    ],
)
def test_a_site_goes_on_with_the_table_that_it_began_with_alone(tmp_path, limit):
    description, found = set_up(tmp_path)
    out, lines = tmp_path / "sites", sites.Lines(found, killed_after(limit))
    with pytest.raises(Killed):
        remote_running.run_over(description, lines, four_sites.NAMES, out, patience=sites.HASTY)
    before = changed(tmp_path / "bank.csv")
    again = sites.Lines({name: site_in(tmp_path / name) for name in found})
    if limit > 4:  # no value of the table counted before
        with pytest.raises(CheckpointError, match=r"'bank'.*its table changed") as told:
            remote_running.resume_over(out, again, patience=sites.HASTY)
        said = (tmp_path / "bank" / "errors.log").read_text()
        assert "is not the one that run" in said
        name = before.decode().partition(",")[0]
        assert f"(other values are in column {name!r})" in said
        assert repr(name) not in str(told.value)
        (tmp_path / "bank.csv").write_bytes(before)
        result = remote_running.resume_over(out, again, patience=sites.HASTY)
    else:
        result = remote_running.resume_over(out, again, patience=sites.HASTY)
    secrets = sites.in_run_of(out, {name: tmp_path / name for name in found})
    expected = running.run(description, out=tmp_path / "one", secrets=secrets)
    assert result.certificate == expected.certificate
    weights = codec.decode((out / "conclusion.state").read_bytes())["weights"]
    assert np.isfinite(weights).all()
    assert result.metrics == expected.metrics


def test_a_table_that_lost_a_column_since_the_run_began_is_named_and_not_the_server(tmp_path):
    """The steps of the set-up, done again, find that first: they would take it for an attack."""
    description, found = set_up(tmp_path)
    out, lines = tmp_path / "sites", sites.Lines(found, killed_after(60))
    with pytest.raises(Killed):
        remote_running.run_over(description, lines, four_sites.NAMES, out, patience=sites.HASTY)
    path = tmp_path / "bank.csv"
    table = pd.read_csv(path)
    table.drop(columns=table.columns[0]).to_csv(path, index=False)
    again = sites.Lines({name: site_in(tmp_path / name) for name in found})
    with pytest.raises(CheckpointError, match=r"'bank'.*its table changed") as told:
        remote_running.resume_over(out, again, patience=sites.HASTY)
    said = (tmp_path / "bank" / "errors.log").read_text()
    assert "is not the one that run" in said
    assert f"(column {table.columns[0]!r} went away)" in said
    assert repr(table.columns[0]) not in str(told.value)


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


def test_of_a_run_that_is_over_a_site_keeps_what_keeps_it_from_being_taken_again(tmp_path):
    description, found = set_up(tmp_path)
    calls, out = [], tmp_path / "sites"

    def line(client, number, data, deliver):
        answer = deliver(data)
        if client == "bank" and data:
            calls.append((data, answer))
            if codec.decode(data, Call).function == "keep":
                raise Killed  # nobody hears of the answer
        return answer

    with pytest.raises(Killed):
        remote_running.run_over(
            *(description, sites.Lines(found, line), four_sites.NAMES, out), patience=sites.HASTY
        )
    assert (tmp_path / "bank" / "models" / "hyfdca").is_dir()
    again = {name: site_in(tmp_path / name) for name in found}
    result = remote_running.resume_over(out, sites.Lines(again), patience=sites.HASTY)
    secrets = sites.in_run_of(out, {name: tmp_path / name for name in found})
    expected = running.run(description, out=tmp_path / "one", secrets=secrets)
    assert result.certificate == expected.certificate
    for name in found:
        (folder,) = (tmp_path / name / "runs").iterdir()
        (left,) = folder.iterdir()
        assert left.name == "index"
        assert left.stat().st_size < 2000
    site = site_in(tmp_path / "bank")
    last, answer = calls[-1]
    assert site.handle(last) == answer
    for data, _ in calls[:-1]:  # from the first on, as if the run began
        assert codec.decode(site.handle(data), Answer).error == "ReplayError"
    found = codec.decode(last, Call)
    for base in (0, found.base, found.sequence):
        further = dataclasses.replace(found, sequence=found.sequence + 1, base=base)
        assert codec.decode(site.handle(codec.encode(further)), Answer).error == "StaleError"
