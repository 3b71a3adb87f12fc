from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from intarsia.errors import KeyMaterialError, TamperedError
from intarsia.privacy.keys import pair_keys
from intarsia.privacy.keys.key_exchange import Identity
from intarsia.privacy.keys.shared_key import SharedKey

NAMES = ("bank", "clinic", "hospital", "insurer")
IDENTITIES = {name: Identity.create(name, "care") for name in NAMES}
SETS = sorted([NAMES, NAMES[:2], NAMES[1:3], ("bank",), ("clinic", "insurer")])
AGREED = b"schemas"
KNOWN = dict.fromkeys(NAMES, b"ids of rows")  # of each other


def others(name):
    return {other: one.card for other, one in IDENTITIES.items() if other != name}


def sent(agreed=None, secrets=None, identities=IDENTITIES):
    """Return each client's secret of the run, and the greetings that it sends."""
    found = {}
    for name, me in identities.items():
        secret = (secrets or {}).get(name) or pair_keys.drawn_secret()
        given = me, others(name), secret, SETS, (agreed or {}).get(name, AGREED), KNOWN
        found[name] = secret, pair_keys.greetings(*given)
    return found


def met(name, greeted, agreed=AGREED, change=lambda received: received, known=KNOWN):
    received = {other: own[name] for other, (_, own) in greeted.items() if other != name}
    given = IDENTITIES[name], others(name), greeted[name][0], SETS, agreed, known
    return pair_keys.met(*given, change(received))


def test_each_two_and_the_owners_of_each_cell_come_to_one_key_of_their_own():
    greeted = sent()
    keys = {name: met(name, greeted) for name in NAMES}
    found = set()
    for one, other in itertools.combinations(NAMES, 2):
        pair = {keys[one].pair(one, other), keys[other].pair(one, other)}
        pair |= {keys[one].pair(other, one)}
        assert len(pair) == 1
        found |= pair
    for owners in SETS:
        own = {keys[name].owners(owners) for name in owners}
        assert len(own) == 1
        found |= own
        for name in set(NAMES) - set(owners):
            with pytest.raises(KeyMaterialError, match="no key in common"):
                keys[name].owners(owners)
    assert len(found) == 6 + len(SETS)
    assert {len(one) for one in found} == {32}
    with pytest.raises(KeyMaterialError, match="no key in common"):
        keys["bank"].pair("clinic", "insurer")


def test_the_server_reads_nothing_of_a_greeting():
    secrets = {name: bytes([number] * 32) for number, name in enumerate(NAMES, 1)}
    greeted = sent(secrets=secrets)
    keys = {name: met(name, greeted) for name in NAMES}
    seen = b"".join(one for _, own in greeted.values() for one in own.values())
    for name in NAMES:
        assert secrets[name] not in seen
        assert keys[name].owners(NAMES) not in seen
    again = sent(secrets=secrets)
    assert all(again[one][1] != greeted[one][1] for one in NAMES)


def test_a_run_that_is_set_up_again_has_other_keys():
    """One that lost what it drew is enough: who asks it for the same run again gains nothing."""
    first = sent()
    kept = {name: secret for name, (secret, _) in first.items() if name != "bank"}
    second = sent(secrets=kept)
    before, after = met("clinic", first), met("clinic", second)
    assert before.pair("bank", "clinic") != after.pair("bank", "clinic")
    assert before.owners(NAMES) != after.owners(NAMES)
    assert before.pair("clinic", "insurer") == after.pair("clinic", "insurer")


def test_a_site_that_is_started_again_comes_to_the_keys_that_it_had():
    greeted = sent()
    one, again = met("hospital", greeted), met("hospital", greeted)
    assert one.pair("bank", "hospital") == again.pair("bank", "hospital")
    assert one.owners(NAMES) == again.owners(NAMES)


def test_sites_that_were_told_of_other_schemas_refuse():
    greeted = sent(agreed={"clinic": b"other schemas"})
    with pytest.raises(TamperedError, match=r"'clinic' was altered.*told of other samples"):
        met("bank", greeted)
    with pytest.raises(TamperedError, match="'bank' was altered"):
        met("clinic", greeted, b"other schemas")


def test_a_client_that_lacks_what_two_must_know_is_refused_by_the_other():
    with pytest.raises(TamperedError, match=r"'clinic' was altered.*has not the ids of rows"):
        met("bank", sent(), known={**KNOWN, "clinic": b"ids of other rows"})


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own | {"clinic": own["clinic"][:-1]},
        lambda own: own | {"clinic": own["clinic"][:-1] + bytes([own["clinic"][-1] ^ 1])},
        lambda own: own | {"clinic": own["insurer"]},
        lambda own: own | {"clinic": b""},
    ],
)
def test_a_greeting_that_was_altered_or_exchanged_is_refused(change):
    with pytest.raises(TamperedError):
        met("bank", sent(), change=change)


def test_a_greeting_back_to_its_sender_is_refused():
    greeted = sent()
    own = greeted["bank"][1]["clinic"]
    with pytest.raises(TamperedError):
        met("bank", greeted, change=lambda received: received | {"clinic": own})


def test_nobody_greets_in_the_name_of_another():
    """The server has all cards and no private key of a client."""
    posing = {**IDENTITIES, "clinic": replace(Identity.create("x", "care"), name="clinic")}
    with pytest.raises(TamperedError, match="'clinic' was altered, is under another card"):
        met("bank", sent(identities=posing))


def test_cards_alone_make_no_secret_of_two():
    """The server shows the clinic's own card, with a private key that is not the clinic's."""
    clinic, bank = IDENTITIES["clinic"], IDENTITIES["bank"].card
    real = pair_keys._agreed_secret(clinic, clinic.card, bank)
    for private in (bytes(range(32)), Identity.create("clinic", "care").private):
        posing = replace(clinic, private=private)
        assert pair_keys._agreed_secret(posing, clinic.card, bank) != real
    assert pair_keys._agreed_secret(IDENTITIES["bank"], bank, clinic.card) == real


def test_a_greeting_that_is_missing_is_named():
    with pytest.raises(KeyMaterialError, match=r"those of \['insurer'\] did not come"):
        met("bank", sent(), change=lambda own: {k: v for k, v in own.items() if k != "insurer"})


def test_in_one_process_the_keys_come_from_that_of_the_run():
    shared = SharedKey(bytes(range(32)), "care")
    one, same, other = (
        pair_keys.simulated(key) for key in (shared, shared, SharedKey.draw("care"))
    )
    assert one.pair("bank", "clinic") == one.pair("clinic", "bank") == same.pair("bank", "clinic")
    assert one.pair("bank", "clinic") != other.pair("bank", "clinic")
    assert one.pair("bank", "clinic") != one.pair("bank", "insurer")
    assert one.owners(NAMES) == same.owners(NAMES) != one.owners(NAMES[:2])
