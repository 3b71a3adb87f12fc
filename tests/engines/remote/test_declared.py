"""What a site remembers of the exchanges it was in, as it lies on its disk."""

from __future__ import annotations

import json
from dataclasses import replace

from intarsia.engines.remote.declared import NO_SUMS, Sums
from intarsia.engines.remote.round_count import NO_ROUNDS
from intarsia.engines.remote.wire import Call


def test_checksums_of_what_was_told_come_back_from_disk():
    sums = NO_SUMS.tell("first", 3, 3).tell("second", 7, 3)
    assert Sums.of(sums.to_text()).told == ((3, "first"), (7, "second"))
    assert Sums.of(sums.to_text()).told_at(6) == "first"


def test_the_single_checksum_of_an_earlier_version_is_read():
    *before, _, _, _ = json.loads(NO_SUMS.to_text())
    assert Sums.of(json.dumps([*before, "first"])).told_at(1) == "first"


def test_who_goes_back_was_told_what_it_was_told_there():
    sums = NO_SUMS.tell("first", 3, 3).tell("second", 7, 3)
    assert sums.back_to(5).told == ((3, "first"),)
    assert sums.back_to(2).told == ()


def test_the_rounds_that_a_site_counted_are_kept_and_do_not_go_back():
    call = Call("ab", 4, 3, 3, 1, 1, "sum", "descend", "train", ("bank",), b"")
    counted = NO_ROUNDS.after(call, repeats=False)
    for number, function, repeats in ((5, "search", True), (6, "search", True), (7, "descend", 0)):
        counted = counted.after(replace(call, sequence=number, function=function), repeats=repeats)
    assert counted.count == 2  # what is called once in a round came twice
    sums = replace(NO_SUMS.tell("first", 3, 3), rounds=counted)
    assert Sums.of(sums.to_text()).rounds == counted
    assert sums.back_to(2).rounds == counted
