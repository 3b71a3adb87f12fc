from __future__ import annotations

import json
import os
import re
import stat

import pytest

from intarsia.errors import KeyMaterialError
from intarsia.privacy.keys import secret_file
from intarsia.privacy.keys.shared_key import SharedKey, fingerprint

SECRET = bytes(range(100, 132))


def stored(tmp_path, **changes):
    path = tmp_path / "shared.key"
    SharedKey(SECRET, "care", 3).store(path)
    if changes:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


def test_a_stored_key_comes_back(tmp_path):
    assert SharedKey.load(stored(tmp_path)) == SharedKey(SECRET, "care", 3)


def test_drawn_keys_differ():
    assert SharedKey.draw("care").secret != SharedKey.draw("care").secret


def test_each_purpose_federation_and_generation_has_keys_of_its_own():
    keys = [SharedKey(SECRET, name, number) for name in ("care", "car") for number in (1, 2, 11)]
    derived = {key.derive(purpose) for key in keys for purpose in ("masks", "pseudonyms", "ckks")}
    assert len(derived) == 18
    assert {len(one) for one in derived} == {32}
    assert SECRET not in derived


def test_a_derived_key_stays_the_same():
    # Pseudonyms that were handed out must come back after an upgrade.
    assert (
        SharedKey(SECRET, "care", 3).derive("masks").hex()
        == "b284793f91e29b76a5a1a67fcf10a77c5347a6bdaef1271fa580d5aedc9a88f5"
    )


def test_the_secret_is_never_shown():
    key = SharedKey(SECRET, "care")
    for text in (repr(key), str(key), f"{key}", key.fingerprint):
        assert str(SECRET) not in text
        assert SECRET.hex()[:8] not in text.replace(" ", "")


def test_fingerprints_are_eight_groups_of_four_digits_and_differ():
    keys = [SharedKey(SECRET, "care"), SharedKey(SECRET, "care", 2), SharedKey(bytes(32), "care")]
    prints = {key.fingerprint for key in keys}
    assert len(prints) == 3
    assert all(re.fullmatch(r"([0-9a-f]{4} ){7}[0-9a-f]{4}", text) for text in prints)
    assert fingerprint("a", "bc") != fingerprint("a", "b", "c") != fingerprint("ab", "c")


def test_a_rotated_key_has_nothing_of_the_old_one():
    old = SharedKey(SECRET, "care", 3)
    new = old.rotate()
    assert (new.federation, new.generation) == ("care", 4)
    assert new.secret != SECRET


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_a_key_file_at_any_moment(tmp_path, monkeypatch, umask):
    modes = []
    fsync = os.fsync

    def watched(descriptor):
        modes.extend(
            stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()
        )
        fsync(descriptor)

    monkeypatch.setattr(secret_file.os, "fsync", watched)
    before = os.umask(umask)
    try:
        path = stored(tmp_path)
        stored(tmp_path)
    finally:
        os.umask(before)
    assert set(modes) == {0o600}
    assert [path] == list(tmp_path.iterdir())
    # created with the mode, not narrowed later
    created = []
    opened = os.open

    def noted(path, flags, mode=0o777, **options):
        created.append((flags & os.O_CREAT, mode))
        return opened(path, flags, mode, **options)

    monkeypatch.setattr(secret_file.os, "open", noted)
    stored(tmp_path)
    assert [mode for creates, mode in created if creates] == [0o600]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_use_is_refused(tmp_path, mode):
    path = stored(tmp_path)
    path.chmod(mode)
    with pytest.raises(KeyMaterialError, match=f"mode {mode:04o}.*chmod 600"):
        SharedKey.load(path)


def test_a_wider_file_is_replaced_by_a_narrow_one(tmp_path):
    path = tmp_path / "shared.key"
    path.write_text("old")
    path.chmod(0o644)
    stored(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_altered_byte_of_a_file_is_found_out(tmp_path):
    path = stored(tmp_path)
    raw = path.read_bytes()
    for place in range(len(raw) - 1):  # the last is the end of the line
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        try:
            found = SharedKey.load(path)
        except KeyMaterialError:
            continue
        # white space between the fields is all that may change
        assert found == SharedKey(SECRET, "care", 3)
        assert raw[place : place + 1].isspace()


@pytest.mark.parametrize("length", [0, 1, 50, 150])
def test_a_cut_file_is_refused(tmp_path, length):
    path = stored(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(KeyMaterialError, match=f"{length} bytes"):
        SharedKey.load(path)


@pytest.mark.parametrize("changes", [{"version": 2}, {"kind": "identity"}, {"kind": None}])
def test_a_file_of_another_kind_or_version_is_refused(tmp_path, changes):
    with pytest.raises(KeyMaterialError, match="expected 'shared key' of version 1"):
        SharedKey.load(stored(tmp_path, **changes))


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(KeyMaterialError, match="cannot be read"):
            SharedKey.load(path)
    with pytest.raises(KeyMaterialError, match="cannot be written"):
        SharedKey.draw("care").store(tmp_path / "none" / "shared.key")


def test_a_failed_write_leaves_the_old_key_and_nothing_else(tmp_path, monkeypatch):
    path = stored(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(secret_file.os, "fsync", full)
    with pytest.raises(KeyMaterialError, match=r"No space left on device[)]; make room there"):
        SharedKey.draw("care").store(path)
    assert list(tmp_path.iterdir()) == [path]
    assert SharedKey.load(path).secret == SECRET


def test_impossible_keys_are_refused():
    with pytest.raises(KeyMaterialError, match="has 31 bytes"):
        SharedKey(bytes(31), "care")
    with pytest.raises(KeyMaterialError, match="generation 0"):
        SharedKey(SECRET, "care", 0)
