"""The ceremony of keys as people run it, and what a server that forwards everything has of it."""

from __future__ import annotations

import base64
import json
import shutil
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.core.files.atomic_files import write_atomically
from intarsia.errors import ExperimentError, KeyMaterialError, TamperedError
from intarsia.privacy.keys import keyring
from intarsia.privacy.keys.key_exchange import (
    Card,
    Identity,
    cards_fingerprint,
    unwrap,
    unwrap_secret,
    wrap,
)
from intarsia.privacy.keys.keyring import CkksSecret, KeyFolder
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.ckks import CkksKeys
from intarsia.privacy.settings import Privacy
from intarsia.training.run import run

NAMES = ("bank", "phone", "shop")  # bank is the keeper


@dataclass
class Parties:
    """Three clients in three folders, and the server's folder of all that it forwarded."""

    folder: Path

    def keys(self, name: str) -> KeyFolder:
        return KeyFolder(self.folder / name / "keys")

    def card(self, name: str) -> Path:
        return self.server / f"{name}.card"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def heard(self, name: str) -> str:
        """Return what a client reads out: from its own identity, not from the forwarded card."""
        return f"{name}={self.keys(name).identity().fingerprint}"

    def create(self, names=NAMES) -> None:
        self.server.mkdir(exist_ok=True)
        for name in names:
            self.call("create", name, "--federation", "credit", folder=name)
            self.call("card", "--out", self.card(name), folder=name)

    def share(self, *more, by="bank", names=NAMES, command="share") -> int:
        others = [name for name in names if name != by]
        confirm = [word for name in others for word in ("--confirm", self.heard(name))]
        cards = [self.card(name) for name in others]
        return self.call(command, *cards, *confirm, "--out", self.server, *more, folder=by)

    def accept(self, name: str, *more, sender="bank", wrapped=None) -> int:
        return self.call(
            "accept",
            wrapped or self.server / f"{name}.wrapped",
            "--from",
            self.card(sender),
            "--confirm",
            self.heard(sender),
            *more,
            folder=name,
        )

    def call(self, command, *arguments, folder) -> int:
        keys = self.folder / folder / "keys"
        return main(["keys", command, *map(str, arguments), "--folder", str(keys)])


@pytest.fixture
def parties(tmp_path):
    made = Parties(tmp_path)
    made.create()
    return made


@pytest.fixture
def exchanged(parties, capfd):
    assert parties.share() == 0
    for name in NAMES[1:]:
        assert parties.accept(name) == 0
    capfd.readouterr()
    return parties


def refused(capfd, status, expected):
    assert status == 2
    out, err = said(capfd)
    assert out == ""
    assert expected in one_error(err)


# -- the ceremony


def test_the_ceremony_gives_all_parties_one_key_in_files_of_their_own(exchanged):
    keys = [exchanged.keys(name).shared() for name in NAMES]
    assert keys[0] == keys[1] == keys[2]
    assert (keys[0].federation, keys[0].generation) == ("credit", 1)
    for name in NAMES:
        folder = exchanged.keys(name)
        for file in (folder.identity_file, folder.shared_file):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert not [one for one in folder.path.rglob("*") if one.name.endswith(".tmp")]


def test_the_parties_compare_one_fingerprint(exchanged, capfd):
    prints = set()
    for name in NAMES:
        assert exchanged.call("show", "--json", folder=name) == 0
        shown = json.loads(said(capfd)[0])
        assert shown["card"]["fingerprint"] == exchanged.keys(name).identity().fingerprint
        prints.add((shown["shared"]["fingerprint"], shown["shared"]["generation"]))
    assert prints == {(exchanged.keys("bank").shared().fingerprint, 1)}


def test_no_command_shows_a_secret(parties, capfd):
    said(capfd)
    parties.share("--ckks")
    parties.accept("shop")
    for name in ("bank", "shop"):
        parties.call("show", folder=name)
        parties.call("show", "--json", folder=name)
        parties.call("card", folder=name)
    text = "".join(said(capfd))
    assert "fingerprint" in text
    secrets = [parties.keys(name).identity().private for name in ("bank", "shop")]
    secrets += [parties.keys("bank").shared().secret, parties.keys("bank").ckks().secret]
    for secret in secrets:
        for written in (secret.hex(), base64.b64encode(secret).decode()[:40]):
            assert written not in text


def test_the_card_goes_to_standard_output_and_its_fingerprint_does_not(parties, capfd):
    said(capfd)
    assert parties.call("card", folder="shop") == 0
    out, err = said(capfd)
    own = parties.keys("shop").identity()
    assert Card.read(out) == own.card
    assert own.fingerprint in err
    assert own.fingerprint not in out


def bytes_of(folder: Path) -> list[bytes]:
    """Return every file of a folder, and whatever base64 or hex stands in one."""
    found = []
    for file in sorted(folder.iterdir()):
        raw = file.read_bytes()
        found.append(raw)
        content = json.loads(raw)
        for value in content.values():
            if isinstance(value, str):
                for decode in (bytes.fromhex, lambda text: base64.b64decode(text, validate=True)):
                    try:
                        found.append(decode(value))
                    except ValueError:
                        continue
    return found


def test_a_server_that_forwarded_everything_has_no_key(parties):
    assert parties.share("--ckks") == 0
    for name in NAMES[1:]:
        assert parties.accept(name) == 0
    shared, ckks = parties.keys("bank").shared(), parties.keys("bank").ckks()
    secrets = [shared.secret, ckks.secret, shared.derive("masks"), shared.derive("tokens")]
    secrets += [parties.keys(name).identity().private for name in NAMES]
    seen = bytes_of(parties.server)
    assert len(list(parties.server.iterdir())) == 5
    for secret in secrets:
        # any 16 bytes in a row: a part of a key would do
        parts = [secret[at : at + 16] for at in range(0, len(secret) - 15, 16)]
        assert not any(part in data for part in parts[:64] for data in seen)
    # nor does what it forwarded open for an identity that it makes, in any name
    for receiver in NAMES:
        me = Identity.create(receiver, "credit")
        for file in parties.server.glob("*.wrapped"):
            content = json.loads(file.read_bytes())
            for sender in NAMES:
                card = Card.read(parties.card(sender).read_text())
                with pytest.raises(TamperedError):
                    unwrap(base64.b64decode(content["shared"]), me, card)
                with pytest.raises(TamperedError):
                    unwrap_secret(base64.b64decode(content["ckks"]), "ckks", 1, me, card)


def test_a_server_that_replaces_a_card_is_found_out(parties, capfd):
    said(capfd)
    false = Identity.create("shop", "credit")
    parties.card("shop").write_text(false.announce())
    refused(capfd, parties.share(), "replaced on its way")
    assert parties.keys("bank").shared() is None
    assert not list(parties.server.glob("*.wrapped"))


def test_a_server_that_shares_a_key_of_its_own_is_found_out(parties, capfd):
    """It replaces the keeper's card, and wraps its own key for the others."""
    false = KeyFolder(parties.folder / "false" / "keys")
    false.create("bank", "credit")
    cards = [Card.read(parties.card(name).read_text()) for name in NAMES[1:]]
    bundle = false.draw(cards).bundles["shop"]
    wrapped = parties.server / "false.wrapped"
    wrapped.write_bytes(bundle)
    true_card = parties.card("bank").read_text()
    parties.card("bank").write_text(false.identity().announce())
    said(capfd)
    refused(capfd, parties.accept("shop", wrapped=wrapped), "replaced on its way")
    parties.card("bank").write_text(true_card)
    refused(capfd, parties.accept("shop", wrapped=wrapped), "cannot be opened")
    assert parties.keys("shop").shared() is None


# -- training with the exchanged key


EXPERIMENT = """
privacy = {{mode = "{mode}", key = "{key}"}}

[experiment]
rounds = 30
tolerance = 1e-6
yardsticks = false
out = "out-{mode}"

[algorithm]
name = "hyfdca"
loss = "squared_hinge"
regularisation = 1e-2

[[client]]
name = "bank"
path = "bank.csv"
id = "customer"
label = "default"

[[client]]
name = "phone"
path = "phone.csv"
id = "customer"

[[client]]
name = "shop"
path = "shop.csv"
id = "customer"
"""


def write_experiment(folder: Path, mode: str, key: Path) -> Path:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 6))
    default = (x @ rng.normal(size=6) > 0).astype(int)
    for at, name in enumerate(NAMES):
        with (folder / f"{name}.csv").open("w") as file:
            file.write(f"customer,{name}0,{name}1{',default' if at == 0 else ''}\n")
            for i in range(60):
                label = f",{default[i]}" if at == 0 else ""
                file.write(f"{i},{x[i, 2 * at]:.6f},{x[i, 2 * at + 1]:.6f}{label}\n")
    path = folder / f"{mode}.toml"
    path.write_text(EXPERIMENT.format(mode=mode, key=key))
    return path


def test_an_experiment_trains_with_the_exchanged_key(exchanged, tmp_path, capfd, monkeypatch):
    """The whole way by commands: ceremony, run, audit; and it was this key that sealed."""
    loaded = []
    load = SharedKey.load.__func__

    def noted(cls, path):
        loaded.append(Path(path))
        return load(cls, path)

    monkeypatch.setattr(SharedKey, "load", classmethod(noted))
    key = exchanged.keys("phone").shared_file
    file = write_experiment(tmp_path, "masked", key)
    assert main(["run", str(file), "--quiet", "--json"]) == 0
    result = json.loads(said(capfd)[0])
    assert result["certificate"]["gap_relative"] <= 1e-6
    assert not any("not sealed" in note for note in result["notes"])
    assert set(loaded) == {key}
    assert not (tmp_path / "out-masked" / "keys" / "shared.key").exists()  # none was drawn
    assert main(["audit", str(tmp_path / "out-masked"), "--json"]) == 0
    assert json.loads(said(capfd)[0])["mode"] == "masked"


def test_ckks_keys_of_the_ceremony_are_used_where_they_lie(parties):
    parties.share("--ckks", "--range", "4194304")
    parties.accept("shop")
    folder = parties.keys("shop")
    assert folder.ckks() == parties.keys("bank").ckks()
    assert folder.ckks().range == 2.0**22
    settings = Privacy(mode="ckks", key=str(folder.shared_file))
    found = modes.keys(settings, NAMES, parties.folder / "run", "credit")
    assert found.ckks == folder.ckks().secret
    assert found.shared == folder.shared()
    assert not (parties.folder / "run").exists()
    modes.sealing(settings, NAMES, found)  # made for as many clients
    # without the file they are drawn for the run, and kept there
    folder.ckks_file.unlink()
    drawn = modes.keys(settings, NAMES, parties.folder / "run", "credit")
    assert drawn.ckks != found.ckks
    assert modes.keys(settings, NAMES, parties.folder / "run", "credit").ckks == drawn.ckks


def test_ckks_keys_of_another_generation_are_refused(parties):
    parties.share("--ckks")
    folder = parties.keys("bank")
    kept = folder.ckks_file.read_bytes()
    parties.share("--rotate")
    folder.ckks_file.write_bytes(kept)
    folder.ckks_file.chmod(0o600)
    settings = Privacy(mode="ckks", key=str(folder.shared_file))
    with pytest.raises(KeyMaterialError, match=r"generation 1 .* generation 2"):
        modes.keys(settings, NAMES, parties.folder / "run", "credit")


# -- rotation


@pytest.mark.parametrize("words", [("rotate",), ("share", "--rotate")])
def test_a_rotation_leaves_out_who_is_not_named(exchanged, capfd, words):
    command, *more = words
    old = exchanged.keys("shop").shared()
    assert exchanged.share(*more, names=("bank", "phone"), command=command) == 0
    assert exchanged.accept("phone") == 0
    new = exchanged.keys("phone").shared()
    assert new == exchanged.keys("bank").shared()
    assert (new.generation, exchanged.keys("shop").shared()) == (2, old)
    said(capfd)
    wrapped = exchanged.server / "phone.wrapped"
    refused(capfd, exchanged.accept("shop", wrapped=wrapped), "'phone'")


def test_an_older_generation_is_refused(exchanged, capfd):
    kept = (exchanged.server / "shop.wrapped").read_bytes()
    refused(capfd, exchanged.accept("shop"), "generation 1 is in use")
    exchanged.share(command="rotate")
    exchanged.accept("shop")
    (exchanged.server / "shop.wrapped").write_bytes(kept)
    said(capfd)
    refused(capfd, exchanged.accept("shop"), "generation 2 is in use")
    assert exchanged.keys("shop").shared().generation == 2


def test_ckks_keys_of_a_larger_error_have_one_prime_and_are_refused_for_a_smaller_one(parties):
    parties.share("--ckks", "--range", "4194304", "--error", "1e-5")
    folder = parties.keys("bank")
    assert 1e-7 < folder.ckks().error <= 1e-5
    assert CkksKeys.from_secret_bytes(folder.ckks().secret).parameters.coeff_mod_bit_sizes == (60,)
    settings = Privacy(mode="ckks", key=str(folder.shared_file), error=1e-5)
    found = modes.keys(settings, NAMES, parties.folder / "run", "credit")
    modes.sealing(settings, NAMES, found)
    with pytest.raises(ExperimentError, match=r"privacy\.error is 1e-08 .* may be off by"):
        modes.sealing(replace(settings, error=1e-8), NAMES, found)


def test_a_rotation_replaces_ckks_keys_for_as_many_clients_as_there_are(parties):
    parties.share("--ckks", "--range", "1024")
    for name in NAMES[1:]:
        parties.accept(name)
    old = parties.keys("shop").ckks()
    parties.share(command="rotate")
    parties.accept("shop")
    new = parties.keys("shop").ckks()
    assert new == parties.keys("bank").ckks()
    assert (new.generation, new.range) == (2, 1024.0)
    assert new.secret != old.secret
    assert new.fingerprint != old.fingerprint


def test_ckks_keys_of_an_older_generation_go_when_none_come_with_the_new_one(parties):
    parties.share("--ckks")
    parties.accept("shop")
    parties.keys("bank").ckks_file.unlink()
    parties.share(command="rotate")
    assert parties.accept("shop") == 0
    assert parties.keys("shop").shared().generation == 2
    assert parties.keys("shop").ckks() is None


def test_a_key_that_could_not_be_handed_out_is_not_in_use(exchanged, capfd):
    refused(
        capfd, exchanged.share("--rotate", "--out", exchanged.card("bank")), "bank.card"
    )  # a file, where a folder is needed
    assert exchanged.keys("bank").shared().generation == 1


def test_accepting_goes_on_after_the_process_ended_between_two_files(parties, monkeypatch):
    parties.share("--ckks")
    store = SharedKey.store

    def killed(self, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(SharedKey, "store", killed)
    assert parties.accept("shop") == 130
    monkeypatch.setattr(SharedKey, "store", store)
    assert parties.accept("shop") == 0
    assert parties.keys("shop").shared() == parties.keys("bank").shared()
    assert parties.keys("shop").ckks() == parties.keys("bank").ckks()


# -- what is refused, in a sentence and with status 2


def test_a_card_that_nobody_confirmed_is_refused_without_telling_its_fingerprint(parties, capfd):
    said(capfd)
    cards = [parties.card(name) for name in NAMES[1:]]
    status = parties.call("share", *cards, "--confirm", parties.heard("phone"), folder="bank")
    assert status == 2
    error = one_error(said(capfd)[1])
    assert "confirmed the card of 'shop'" in error
    assert parties.keys("shop").identity().fingerprint not in error
    assert parties.keys("bank").shared() is None
    parties.share()
    said(capfd)
    status = parties.call(
        "accept", parties.server / "shop.wrapped", "--from", parties.card("bank"), folder="shop"
    )
    refused(capfd, status, "confirmed the card of 'bank'")


@pytest.mark.parametrize(
    ("confirm", "expected"),
    [
        (["shop"], "not of the form NAME=FINGERPRINT"),
        (["shop="], "not of the form NAME=FINGERPRINT"),
        (["=1234"], "not of the form NAME=FINGERPRINT"),
        (["shop=1234", "shop=1234"], "twice"),
        (["shap=1234"], "'shap'"),
        (["shop=1234"], "replaced on its way"),
    ],
)
def test_a_wrong_confirmation_is_refused(parties, capfd, confirm, expected):
    said(capfd)
    words = [word for text in confirm for word in ("--confirm", text)]
    status = parties.call("share", parties.card("shop"), *words, folder="bank")
    refused(capfd, status, expected)
    assert parties.keys("bank").shared() is None


def test_what_was_heard_may_differ_in_spaces_and_case(parties):
    name, _, text = parties.heard("shop").partition("=")
    heard = f"{name}={text.replace(' ', '').upper()}"
    assert parties.call("share", parties.card("shop"), "--confirm", heard, folder="bank") == 0


def test_two_cards_of_one_name_are_refused(parties, capfd):
    other = parties.folder / "other.card"
    other.write_text(Identity.create("shop", "credit").announce())
    said(capfd)
    words = ["--confirm", parties.heard("shop")]
    status = parties.call("share", parties.card("shop"), other, *words, folder="bank")
    refused(capfd, status, "Two cards bear the name 'shop'")
    own = parties.folder / "own.card"
    own.write_text(Identity.create("bank", "credit").announce())
    heard = f"bank={Card.read(own.read_text()).fingerprint}"
    status = parties.call("share", own, "--confirm", heard, folder="bank")
    refused(capfd, status, "Two cards bear one name")


def test_who_is_not_first_by_name_does_not_share(parties, capfd):
    said(capfd)
    refused(capfd, parties.share(by="phone"), "'bank' comes first by name")


def test_a_card_of_another_federation_is_refused(parties, capfd):
    stranger = Identity.create("shop", "health")
    parties.card("shop").write_text(stranger.announce())
    said(capfd)
    heard = ["--confirm", f"shop={stranger.fingerprint}"]
    status = parties.call("share", parties.card("shop"), *heard, folder="bank")
    refused(capfd, status, "another federation")


@pytest.mark.parametrize("at", ["shared", "ckks"])
def test_an_altered_bundle_is_refused_and_nothing_is_kept(parties, capfd, at):
    parties.share("--ckks")
    file = parties.server / "shop.wrapped"
    content = json.loads(file.read_bytes())
    raw = bytearray(base64.b64decode(content[at]))
    raw[-1] ^= 1
    content[at] = base64.b64encode(raw).decode()
    file.write_text(json.dumps(content))
    said(capfd)
    refused(capfd, parties.accept("shop"), "cannot be opened")
    folder = parties.keys("shop")
    assert (folder.shared(), folder.ckks()) == (None, None)


def test_the_ckks_keys_of_another_generation_are_not_taken_with_a_bundle(parties, capfd):
    parties.share("--ckks")
    file = parties.server / "shop.wrapped"
    old = json.loads(file.read_bytes())["ckks"]
    parties.share("--rotate")
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "ckks": old}))
    said(capfd)
    refused(capfd, parties.accept("shop"), "generation 1")
    assert parties.keys("shop").shared() is None


@pytest.mark.parametrize("names", [("receiver", "shop"), ("sender", "bank"), ("federation", "x")])
def test_names_beside_the_wrapped_keys_that_were_altered_are_refused(parties, capfd, names):
    parties.share()
    file = parties.server / "phone.wrapped"
    key, value = names
    file.write_text(json.dumps({**json.loads(file.read_bytes()), key: value}))
    said(capfd)
    status = parties.accept("shop", wrapped=file)
    assert status == 2
    one_error(said(capfd)[1])
    assert parties.keys("shop").shared() is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"kind": "intarsia wrapped keys", "version": 2}'],
)
def test_other_files_are_neither_cards_nor_bundles(parties, capfd, content):
    file = parties.folder / "other"
    file.write_bytes(content)
    said(capfd)
    refused(capfd, parties.accept("shop", wrapped=file), "no wrapped keys")
    status = parties.call("share", file, "--confirm", "shop=1234", folder="bank")
    refused(capfd, status, "is no card")


def test_a_bundle_that_was_cut_is_refused(parties, capfd):
    parties.share()
    file = parties.server / "shop.wrapped"
    whole = file.read_bytes()
    for length in range(0, len(whole) - 1, 37):
        file.write_bytes(whole[:length])
        said(capfd)
        refused(capfd, parties.accept("shop"), "no wrapped keys")


def test_missing_files_are_named(parties, capfd):
    said(capfd)
    missing = parties.server / "nobody.card"
    refused(capfd, parties.call("share", missing, "--confirm", "a=1", folder="bank"), "nobody.card")
    refused(capfd, parties.accept("shop"), "shop.wrapped")
    for command in ("card", "show"):
        refused(capfd, parties.call(command, folder="nobody"), "is not a folder (there is none of")
    parties.keys("nobody").path.mkdir(parents=True)
    refused(capfd, parties.call("show", folder="nobody"), "keys holds no identity")


def test_key_files_that_others_may_read_are_refused(exchanged, capfd):
    folder = exchanged.keys("bank")
    folder.shared_file.chmod(0o640)
    refused(capfd, exchanged.share("--rotate"), "file mode 0640")
    refused(capfd, exchanged.call("show", folder="bank"), "file mode 0640")
    folder.shared_file.chmod(0o600)
    folder.identity_file.chmod(0o604)
    status = exchanged.call("card", folder="bank")
    refused(capfd, status, "file mode 0604")


def test_an_experiment_with_a_key_that_others_may_read_is_refused(exchanged, tmp_path, capfd):
    key = exchanged.keys("phone").shared_file
    key.chmod(0o644)
    file = write_experiment(tmp_path, "masked", key)
    refused(capfd, main(["run", str(file), "--quiet"]), "file mode 0644")


def test_an_identity_or_a_key_is_not_replaced_by_mistake(exchanged, capfd):
    own = exchanged.keys("bank").identity()
    status = exchanged.call("create", "bank", "--federation", "credit", folder="bank")
    refused(capfd, status, "--replace")
    refused(capfd, exchanged.share(), "--rotate")
    assert exchanged.keys("bank").identity() == own
    assert exchanged.keys("bank").shared().generation == 1
    again = ("create", "bank", "--federation", "credit", "--replace")
    assert exchanged.call(*again, folder="bank") == 0
    assert exchanged.keys("bank").identity() != own


@pytest.mark.parametrize("name", ["", " bank", "ba\nnk", "\u202ebank"])
def test_a_name_that_cannot_be_read_out_is_refused(tmp_path, capfd, name):
    status = Parties(tmp_path).call("create", name, "--federation", "credit", folder="x")
    assert status == 2
    one_error(said(capfd)[1])


def test_a_name_on_a_card_chooses_no_path(tmp_path):
    made = Parties(tmp_path)
    made.create(("a", "b"))
    evil = made.keys("evil")
    evil.create("x/../../escaped", "credit")
    card = made.folder / "evil.card"
    card.write_text(evil.identity().announce())
    heard = f"x/../../escaped={evil.identity().fingerprint}"
    assert made.call("share", card, "--confirm", heard, "--out", made.server, folder="a") == 0
    assert [one.name for one in made.server.glob("*.wrapped")] == [
        "x%2f%2e%2e%2f%2e%2e%2fescaped.wrapped"
    ]
    assert not list(made.folder.glob("*escaped*"))


def test_the_first_key_is_not_rotated_and_ckks_needs_asking_for(parties, capfd):
    said(capfd)
    refused(capfd, parties.share("--rotate"), "no shared key that could be rotated")
    refused(capfd, parties.share("--range", "8"), "--ckks")
    status = parties.call("share", parties.card("bank"), folder="bank")
    refused(capfd, status, "nobody to share a key with")
    status = parties.call(
        "accept", parties.card("bank"), "--from", parties.card("bank"), folder="bank"
    )
    refused(capfd, status, "own card")


def test_without_a_command_the_order_of_the_ceremony_is_shown(capfd):
    assert main(["keys"]) == 2
    out, err = said(capfd)
    assert out == ""
    assert "create" in err
    assert "accept" in err


def test_a_ckks_key_never_prints_its_secret():
    key = CkksSecret(b"secret bytes", "credit", 1)
    assert "secret bytes" not in repr(key)


def test_a_run_made_with_one_party_s_key_file_resumes_with_another_s(exchanged, tmp_path):
    """All clients' files hold one key: what one sealed, another opens."""
    file = write_experiment(tmp_path, "masked", exchanged.keys("phone").shared_file)
    first = run(file)
    shutil.rmtree(tmp_path / "out-masked")
    file = write_experiment(tmp_path, "masked", exchanged.keys("shop").shared_file)
    second = run(file)
    assert first.certificate == second.certificate


def test_a_stopped_run_names_the_key_that_it_needs(exchanged, tmp_path, capfd):
    """Another key, and none, are the user's to mend: one sentence each, status 2."""
    file = write_experiment(tmp_path, "masked", exchanged.keys("phone").shared_file)
    out = ("-c", f"experiment.out={tmp_path / 'out'}", "--quiet")
    assert main(["run", str(file), *out]) == 0
    (tmp_path / "out" / "result.json").unlink()
    started = json.loads((tmp_path / "out" / "keys.json").read_text())["privacy.key"]
    key = Path(exchanged.keys("phone").shared_file)
    kept = key.read_bytes()
    for change, expected in (
        (lambda: SharedKey.draw("credit").store(key), f"was started with {started}"),
        (key.unlink, "is gone"),
    ):
        change()
        said(capfd)
        assert main(["resume", str(tmp_path / "out"), "--quiet"]) == 2
        assert expected in said(capfd)[1]
    write_atomically(key, kept)
    key.chmod(0o600)
    assert main(["resume", str(tmp_path / "out"), "--quiet"]) == 0


# -- the cards of all, from which each two have a key


def test_all_have_the_cards_of_all_and_compare_them(exchanged, capfd):
    prints = set()
    for name in NAMES:
        place = exchanged.keys(name)
        me, others = place.others(NAMES)
        assert me == place.identity()
        assert others == {
            other: exchanged.keys(other).identity().card for other in NAMES if other != name
        }
        assert exchanged.call("show", "--json", folder=name) == 0
        shown = json.loads(said(capfd)[0])["cards"]
        assert shown["clients"] == sorted(NAMES)
        prints.add(shown["fingerprint"])
    assert len(prints) == 1


def test_a_keeper_that_gives_one_another_s_card_is_found_out_by_comparing(parties):
    """It would sit between the two others, who did not hear each other's fingerprint."""
    bank = parties.keys("bank")
    cards = {name: parties.keys(name).identity().card for name in NAMES}
    posing = {
        "shop": {**cards, "phone": Identity.create("phone", "credit").card},
        "phone": {**cards, "shop": Identity.create("shop", "credit").card},
    }
    shared = SharedKey.draw("credit")
    prints = set()
    for name, own in posing.items():
        given = tuple(own[one] for one in sorted(own))
        wrapped = wrap(shared, bank.identity(), [cards[one] for one in NAMES])[name]
        bundle = keyring._bundle(bank.identity(), cards[name], wrapped, shared, None, given)
        drawn = parties.keys(name).accept(bundle, cards["bank"])
        prints.add(cards_fingerprint(drawn.cards))
    assert len(prints) == 2
    # of the client itself no other card passes
    newer = shared.rotate()
    wrapped = wrap(newer, bank.identity(), cards.values())["shop"]
    others = tuple(posing["phone"].values())
    bundle = keyring._bundle(bank.identity(), cards["shop"], wrapped, newer, None, others)
    with pytest.raises(KeyMaterialError, match="lack this client's card"):
        parties.keys("shop").accept(bundle, cards["bank"])
    assert parties.keys("shop").shared() == shared


def test_keys_that_an_earlier_version_wrapped_are_refused(parties, capfd):
    assert parties.share() == 0
    path = next((parties.folder).rglob("shop.wrapped"))
    content = json.loads(path.read_text())
    del content["cards"]
    path.write_text(json.dumps({**content, "version": 1}))
    said(capfd)
    refused(capfd, parties.accept("shop"), "are no wrapped keys of version 2")


@pytest.mark.parametrize("harm", ["gone", "damaged", "another client"])
def test_without_the_cards_of_all_there_are_no_keys_of_pairs(exchanged, harm):
    place, clients = exchanged.keys("shop"), list(NAMES)
    expected = r"intarsia keys rotate.*or set privacy.trust"
    if harm == "gone":  # exchanged by an earlier version
        place.cards_file.unlink()
    elif harm == "damaged":
        place.cards_file.write_text('["x"]')
        expected = "should hold the cards of all clients"
    else:
        clients.append("stranger")
    with pytest.raises(KeyMaterialError, match=expected):
        place.others(clients)
