"""A kit in one file and back: the same bytes, nobody else's to read, and nothing written over."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")

from command_line import one_error
from intarsia.cli.main import main
from intarsia.core.client_functions import RandomKey, SecretKey
from intarsia.deployment.client_folder import HEAD, LOG, ledger_of
from intarsia.deployment.job_requests import Asked, Requests
from intarsia.deployment.operations import archive
from intarsia.deployment.policy import Policy
from intarsia.deployment.process import at_rest
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import PolicyError
from intarsia.results.chained_log import read_chain


@pytest.fixture
def kits(tmp_path):
    """Write what a site's kit and a server's have, with what a backup must keep."""
    site, server = tmp_path / "bank", tmp_path / "server"
    for kit in (site, server):
        (kit / "startup").mkdir(parents=True)
        (kit / "local" / "runs" / "calm").mkdir(parents=True)
        (kit / "startup" / "own.key").write_bytes(os.urandom(2000))
        (kit / "startup" / "own.key").chmod(0o600)
        (kit / "startup" / "start.sh").write_text("#!/bin/sh\n")
        (kit / "startup" / "start.sh").chmod(0o755)
        (kit / "local" / "runs" / "calm" / "index").write_bytes(bytes(range(256)) * 500)
        (kit / "empty").mkdir()
    (site / "local" / "site.toml").write_text(
        '[site]\nname = "bank"\nkey = "../../keys/shared.key"\n'
        '[table]\npath = "table.csv"\nid = "i"\n'
    )
    known = {"sites": ["bank"], "patience": vars(RetryPolicy())}
    (server / "local" / "federation.json").write_text(json.dumps(known))
    return {"bank": site, "server": server}


def content(kit):
    return {
        path.relative_to(kit).as_posix(): path.read_bytes() if path.is_file() else None
        for path in kit.rglob("*")
        if path.name not in ("intarsia.pid", "intarsia.lock")
    }


NONE_SINCE = "--spent-since", "0"


def run(capfd, *words, status=0):
    assert main(["federation", *map(str, words)]) == status
    return capfd.readouterr().err


@pytest.mark.parametrize("name", ["bank", "server"])
def test_a_kit_comes_back_as_it_was(kits, name, tmp_path, capfd):
    kit, file, elsewhere = kits[name], tmp_path / "kept.tar", tmp_path / "other" / name
    elsewhere.parent.mkdir()
    said = run(capfd, "backup", kit, "-o", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # what lies in the kit, as the table does, is in it
    assert said.count("not in it") == (name == "bank")
    assert name == "server" or f"key, {tmp_path / 'keys' / 'shared.key'}" in said
    before = content(kit)
    spent = NONE_SINCE if name == "bank" else ()
    said = run(capfd, "restore", file, elsewhere, *spent)
    assert "as of 20" in said
    # what the file cannot know, and somebody else has to
    assert ("certificates that were revoked since then" in said) == (name == "server")
    assert ("rows that jobs trained on since then" in said) == (name == "bank")
    put_back = elsewhere / "local" / "put-back.json"
    if name == "bank":
        assert json.loads(put_back.read_text()) == {"epsilon": 0.0, "closed": {}}
        put_back.unlink()
        (entry,) = read_chain(elsewhere / "local" / LOG, elsewhere / "local" / HEAD).entries
        assert (entry["event"], entry["spent"]) == ("put back", 0.0)
        assert entry["written"] in said
        shutil.rmtree(elsewhere / "local" / "log")
        (elsewhere / "local" / HEAD).unlink()
    assert content(elsewhere) == before == content(kit)
    for path in elsewhere.rglob("*"):
        executable = path.is_dir() or path.suffix == ".sh"
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if executable else 0o600), path
        original = kit / path.relative_to(elsewhere)
        assert path.is_dir() or abs(path.stat().st_mtime - original.stat().st_mtime) < 1e-3


def test_the_identity_and_the_cards_beside_the_key_are_named_as_not_kept(kits, tmp_path, capfd):
    """Without them a site that is put back takes part in no sealed sum of each two sites."""
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("identity.key", "cards.json", "shared.key"):
        (keys / name).touch()
    said = run(capfd, "backup", kits["bank"], "-o", tmp_path / "kept.tar")
    beside = ("key", "shared.key"), ("identity", "identity.key"), ("cards of all", "cards.json")
    for what, name in beside:
        assert f"not in it, as it lies beside the kit: {what}, {keys / name}\n" in said
    assert said.count("not in it") == 3


def test_the_links_to_a_sites_last_models_come_back(kits, tmp_path, capfd):
    local, file = kits["bank"] / "local", tmp_path / "kept.tar"
    (local / "trained" / "r1").mkdir(parents=True)
    (local / "trained" / "r1" / "linear.json").write_text("{}")
    (local / "models").mkdir()
    (local / "models" / "credit").symlink_to(Path("..", "trained", "r1"))
    run(capfd, "backup", kits["bank"], "-o", file)
    (tmp_path / "again").mkdir()
    run(capfd, "restore", file, tmp_path / "again" / "bank", *NONE_SINCE)
    link = tmp_path / "again" / "bank" / "local" / "models" / "credit"
    assert link.readlink() == Path("..", "trained", "r1")
    assert (link / "linear.json").read_text() == "{}"


def test_a_kit_that_runs_is_not_copied(kits, tmp_path, capfd):
    with at_rest(kits["bank"]):
        problem = one_error(run(capfd, "backup", kits["bank"], "-o", tmp_path / "k.tar", status=2))
    assert "is running; stop it with `intarsia federation stop" in problem
    assert not (tmp_path / "k.tar").exists()


def test_a_disk_without_room_for_a_kit_is_named_and_nothing_stays(
    kits, tmp_path, monkeypatch, capfd
):
    file, place = tmp_path / "kept.tar", tmp_path / "again" / "bank"
    place.parent.mkdir()
    run(capfd, "backup", kits["bank"], "-o", file)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        said = one_error(run(capfd, "restore", file, place, *NONE_SINCE, status=2))
    assert f"{place}: No space left on device; make room there" in said
    assert not list(place.parent.iterdir())
    run(capfd, "restore", file, place, *NONE_SINCE)


def test_nothing_is_written_over(kits, tmp_path, capfd):
    file = tmp_path / "kept.tar"
    run(capfd, "backup", kits["bank"], "-o", file)
    before, data = content(kits["bank"]), file.read_bytes()
    again = "backup", kits["bank"], "-o"
    assert "is there already" in one_error(run(capfd, *again, file, status=2))
    inside = kits["bank"] / "kept.tar"
    assert "lies in" in one_error(run(capfd, *again, inside, status=2))
    problem = one_error(run(capfd, "restore", file, kits["bank"], status=2))
    assert "nothing is written over" in problem
    assert content(kits["bank"]) == before
    assert file.read_bytes() == data


def test_what_cannot_be_kept_leaves_no_file(kits, tmp_path, capfd, monkeypatch):
    words = "backup", kits["bank"], "-o", tmp_path / "kept.tar"
    for target in ("/etc/passwd", "../../server", "nowhere", "../local/site.toml"):
        (kits["bank"] / "local" / "link").symlink_to(target)
        assert "is neither a file nor a folder" in one_error(run(capfd, *words, status=2))
        (kits["bank"] / "local" / "link").unlink()

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    assert "No space left on device" in one_error(run(capfd, *words, status=2))
    assert not [path for path in tmp_path.iterdir() if "kept" in path.name]


def without(archive_file, name):
    """Write the archive again without a member, which is also how one is renamed."""
    with tarfile.open(archive_file) as given:
        members = [(one, given.extractfile(one)) for one in given.getmembers() if one.name != name]
        data = [(one, file.read() if file else None) for one, file in members]
    with tarfile.open(archive_file, "w") as written:
        for one, content in data:
            written.addfile(one, io.BytesIO(content) if content is not None else None)


def said(file, **changes):
    """Change what an archive says that it is."""
    with tarfile.open(file) as given:
        about = json.loads(given.extractfile("backup.json").read())
    without(file, "backup.json")
    named_anew(file, json.dumps({**about, **changes}).encode())


def named_anew(file, data):
    """Add a file that says what an archive is."""
    with tarfile.open(file, "a") as archived:
        one = tarfile.TarInfo("backup.json")
        one.size = len(data)
        archived.addfile(one, io.BytesIO(data))


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda file: file.write_bytes(b"nothing"), "is no whole file"),
        (lambda file: file.write_bytes(file.read_bytes()[:60_000]), "is no whole file"),
        (lambda file: without(file, "backup.json"), "is no backup"),
        (lambda file: without(file, "kit/local/site.toml"), "is no backup"),
        # of a server's nobody asks what a site spent
        (lambda file: said(file, server=True), "is no backup"),
        (lambda file: said(file, server="yes"), "is no backup"),
        (
            lambda file: (without(file, "backup.json"), named_anew(file, b"[" * 10**6)),
            "is no backup",
        ),
    ],
    ids=["no archive", "cut", "unnamed", "no kit", "a server's", "a word", "deep"],
)
def test_what_is_no_whole_backup_is_refused(kits, tmp_path, capfd, harm, problem):
    file = tmp_path / "kept.tar"
    run(capfd, "backup", kits["bank"], "-o", file)
    shutil.rmtree(kits["bank"])
    harm(file)
    assert problem in one_error(run(capfd, "restore", file, kits["bank"], status=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.tar", "server"]


@pytest.mark.parametrize(
    ("member", "kind", "target"),
    [
        ("../outside", tarfile.REGTYPE, "/etc/passwd"),
        ("/tmp/outside", tarfile.REGTYPE, "/etc/passwd"),
        ("kit/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("kit/link", tarfile.SYMTYPE, "../outside"),
        ("kit/link", tarfile.SYMTYPE, "local/../../outside"),
        ("kit/link", tarfile.SYMTYPE, "local/../local/site.toml"),
        ("kit/link", tarfile.SYMTYPE, "link"),
        ("kit/link", tarfile.LNKTYPE, "/etc/passwd"),
        ("kit/pipe", tarfile.FIFOTYPE, "/etc/passwd"),
        ("kit/device", tarfile.CHRTYPE, "/etc/passwd"),
        ("kit/local/site.toml", tarfile.REGTYPE, "/etc/passwd"),
        ("kit/" + "a/" * 150 + "a", tarfile.REGTYPE, ""),  # which nothing takes away again
    ],
)
def test_unsafe_members_are_refused_before_anything_is_written(
    kits, tmp_path, capfd, member, kind, target
):
    file = tmp_path / "kept.tar"
    run(capfd, "backup", kits["bank"], "-o", file)
    shutil.rmtree(kits["bank"])
    with tarfile.open(file, "a") as archived:
        one = tarfile.TarInfo(member)
        one.type, one.linkname = kind, target
        archived.addfile(one)
    problem = one_error(run(capfd, "restore", file, kits["bank"], status=2))
    assert "nothing was unpacked" in problem or "two members of one name" in problem
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.tar", "server"]


def test_a_restore_that_fails_leaves_no_folder_above_the_kit(kits, tmp_path, capfd):
    file, place = tmp_path / "kept.tar", tmp_path / "again" / "here" / "bank"
    (tmp_path / "again").mkdir()
    for words in ((file, place), (file, place, *NONE_SINCE)):  # no such file
        one_error(run(capfd, "restore", *words, status=2))
    run(capfd, "backup", kits["bank"], "-o", file)
    for words in ((file, place), (file, place.with_name("bnk"), *NONE_SINCE)):
        one_error(run(capfd, "restore", *words, status=2))
    assert not list((tmp_path / "again").iterdir())
    run(capfd, "restore", file, place, *NONE_SINCE)
    assert (place / "local" / "site.toml").is_file()


def test_a_site_keeps_its_name(kits, tmp_path, capfd):
    file = tmp_path / "kept.tar"
    run(capfd, "backup", kits["bank"], "-o", file)
    problem = one_error(run(capfd, "restore", file, tmp_path / "bnk", status=2))
    assert "is of the site 'bank', and its folder must have that name" in problem


def test_a_site_is_not_put_back_before_somebody_says_what_it_spent_since(kits, tmp_path, capfd):
    """0.25 began before the backup and 0.5 after it: of 1.0 there is 0.25 left."""
    kit, file = kits["bank"], tmp_path / "kept.tar"
    policy = Policy(epsilon_total=1.0)

    def begin(number, epsilon):
        known = Requests(kit / "local")
        one = known.admit(f"{number:032x}", asked_for(epsilon), policy)
        known.begin(one.run, one.digest, policy)
        ledger = ledger_of(kit / "local", one.run)
        ledger.key("bank", SecretKey(bytes(32)), RandomKey((number,)), [b"call"])
        ledger.settle()

    begin(1, 0.25)
    run(capfd, "backup", kit, "-o", file)
    begin(2, 0.5)
    shutil.rmtree(kit)
    problem = one_error(run(capfd, "restore", file, kit, status=2))
    assert "add --spent-since EPSILON" in problem
    assert not kit.exists()
    said = run(capfd, "restore", file, kit, "--spent-since", "0.5")
    assert "epsilon 0.5 counts as spent" in said
    with pytest.raises(PolicyError, match=r"does not know what this run released"):
        ledger_of(kit / "local", f"{1:032x}")  # its count is that of the backup
    with pytest.raises(PolicyError, match=r"before have spent 0\.75, .* epsilon = 0\.3"):
        begin(3, 0.3)
    begin(4, 0.25)
    with pytest.raises(PolicyError, match=r"have spent 1, "):
        begin(5, 0.001)
    run(capfd, "backup", kit, "-o", again := tmp_path / "again.tar")
    shutil.rmtree(kit)
    run(capfd, "restore", again, kit, *NONE_SINCE)  # what was said stays in later backups
    with pytest.raises(PolicyError, match=r"have spent 1, "):
        begin(6, 0.001)
    ledger_of(kit / "local", f"{4:032x}")  # goes on: nothing was released since


def asked_for(epsilon):
    return Asked(
        *("credit", "hyfdca", "masked", "pseudonyms", 50, epsilon, 1e-6, 1),
        *(("bank",), (), (), "", (), {}),
    )
