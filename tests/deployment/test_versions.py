"""A run is of one version at the server and at all sites; another is refused in one sentence."""

from __future__ import annotations

import dataclasses
import json

import pytest

import sites
from intarsia import __version__
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import READ, site_in
from intarsia.deployment.site_log import load
from intarsia.deployment.table_metadata import TableMetadata
from intarsia.engines import codec
from intarsia.engines.remote.wire import PROTOCOL, Answer, Call, Version
from intarsia.errors import VersionError
from intarsia.results import run_folder
from killed_runs import Killed, killed_after
from tests.deployment.test_run import HASTY, NAMES, described, set_up

OLDER = dataclasses.make_dataclass(
    "TableMetadata",
    [(one.name, one.type) for one in dataclasses.fields(TableMetadata) if one.name != "protocol"],
    frozen=True,
)


def run_over(tmp_path, found, line):
    return remote_running.run_over(
        described(tmp_path), sites.Lines(found, line), NAMES, tmp_path / "out", patience=HASTY
    )


def older_call(data):
    """Return a call as an older server makes it: it says nothing of its version."""
    call = codec.decode(data, Call)
    tree = json.loads(call.body)
    del tree["protocol"]
    return codec.encode(dataclasses.replace(call, body=json.dumps(tree).encode()))


def claims(version):
    """Return a line on which telecom says that it has a version."""

    def line(client, number, data, deliver):
        answer = deliver(data)
        if client != "telecom" or data:
            return answer
        body = b"" if version is None else codec.encode(version)
        return codec.encode(dataclasses.replace(codec.decode(answer, Answer), body=body))

    return line


REFUSED = {
    "another second number": Version("0.999.0", PROTOCOL),
    "other calls": Version(__version__, PROTOCOL + 1),
    "no version": None,
}


@pytest.mark.parametrize("version", REFUSED.values(), ids=REFUSED)
def test_a_site_whose_version_does_not_go_together_with_the_servers_is_named(tmp_path, version):
    with pytest.raises(VersionError) as refused:
        run_over(tmp_path, set_up(tmp_path), claims(version))
    has = "an intarsia that is too old to say its version" if version is None else str(version)
    assert str(refused.value) == (
        f"The server has intarsia {__version__} (calls of version {PROTOCOL}), and site 'telecom' "
        f"has {has}; install the server's intarsia {__version__} at 'telecom', then let the "
        "run go on with `intarsia federation resume`."
    )
    # no site was called, and this one has in its own log what differs
    assert [name for name in NAMES if (tmp_path / name / "log").exists()] == ["telecom"]
    assert f"VersionError: The server has {Version()}, and this site " in "".join(
        path.read_text() for path in (tmp_path / "telecom").glob("errors.log")
    )
    (entry,) = load(tmp_path / "telecom").chain.entries
    assert (entry["event"], entry["error"]) == ("refused", "VersionError")


def test_versions_that_go_together_are_told_in_a_note(tmp_path):
    own = Version()
    newer = dataclasses.replace(own, package=own.package.rpartition(".")[0] + ".99")
    found = run_over(tmp_path, set_up(tmp_path), claims(newer))
    notes = [note for note in found.notes if "go together" in note]
    assert notes == [f"Site 'telecom' has {newer}, and the server {own}, which go together."]


def test_a_site_of_an_older_version_is_refused_by_its_name(tmp_path):
    def line(client, number, data, deliver):
        answer = deliver(data)
        if client != "telecom" or codec.decode(data, Call).function != READ:
            return answer
        found = codec.decode(answer, Answer)
        own = vars(codec.decode(found.body, TableMetadata))
        body = codec.encode(OLDER(**{k: v for k, v in own.items() if k != "protocol"}))
        return codec.encode(dataclasses.replace(found, body=body))

    with pytest.raises(VersionError, match=r"'telecom' answers to 'read' is of another version"):
        run_over(tmp_path, set_up(tmp_path), line)


def test_a_server_of_an_older_version_is_refused_by_the_site(tmp_path):
    answers = []

    def line(client, number, data, deliver):
        answers.append(deliver(older_call(data)))
        return answers[-1]

    with pytest.raises(VersionError, match="have versions of intarsia whose calls differ; install"):
        run_over(tmp_path, set_up(tmp_path), line)
    # an older server, which knows no such error, shows the sentence
    assert codec.decode(answers[0], Answer).sentence.startswith("The site and the server have")


def test_a_run_that_an_older_version_began_is_begun_anew(tmp_path):
    found = set_up(tmp_path)
    with pytest.raises(Killed):
        run_over(tmp_path, found, killed_after(60))
    # at a site, which does its set-up again
    shelf = next((tmp_path / "bank" / "runs").iterdir())
    step = shelf / "stage-1"
    step.write_bytes(older_call(step.read_bytes()))
    again = sites.Lines({name: site_in(tmp_path / name) for name in NAMES})
    with pytest.raises(VersionError, match=r"'bank'.*have versions of intarsia whose calls differ"):
        remote_running.resume_over(tmp_path / "out", again, patience=HASTY)
    # at the server
    path = tmp_path / "out" / run_folder.RUN
    known = json.loads(path.read_text())
    assert known.pop("protocol") == PROTOCOL
    path.write_text(json.dumps(known))
    with pytest.raises(VersionError, match=r"began with calls of version 1.* begin it anew with"):
        remote_running.resume_over(tmp_path / "out", again, patience=HASTY)


def test_a_run_that_was_refused_for_its_version_alone_begins_once_all_have_another(tmp_path):
    """One site was upgraded before the server: nobody has an answer of the older version."""
    found, out = set_up(tmp_path), tmp_path / "out"
    with pytest.raises(VersionError):
        run_over(tmp_path, found, claims(Version(__version__, PROTOCOL + 1)))
    path = out / run_folder.RUN
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "protocol": PROTOCOL - 1}))  # the server was upgraded
    result = remote_running.resume_over(out, sites.Lines(found), patience=HASTY)
    assert result.rounds > 0
    begun = json.loads(path.read_text())
    assert (begun["protocol"], begun["clients"]) == (PROTOCOL, known["clients"])
    assert begun["run"] != known["run"]
