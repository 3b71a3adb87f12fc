"""What a site remembers of the exchanges it was in, as it lies on its disk."""

from __future__ import annotations

import json

from intarsia.engines.remote.declared import NO_SUMS, Sums


def test_checksums_of_what_was_told_come_back_from_disk():
    sums = NO_SUMS.tell("first", 3, 3).tell("second", 7, 3)
    assert Sums.of(sums.to_text()).told == ((3, "first"), (7, "second"))
    assert Sums.of(sums.to_text()).told_at(6) == "first"


def test_the_single_checksum_of_an_earlier_version_is_read():
    *before, _, _ = json.loads(NO_SUMS.to_text())
    assert Sums.of(json.dumps([*before, "first"])).told_at(1) == "first"


def test_who_goes_back_was_told_what_it_was_told_there():
    sums = NO_SUMS.tell("first", 3, 3).tell("second", 7, 3)
    assert sums.back_to(5).told == ((3, "first"),)
    assert sums.back_to(2).told == ()
