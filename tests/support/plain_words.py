"""What sentences for people who do not know the code say, taken apart."""

from __future__ import annotations

import re

IDENTIFIER = re.compile(r"[a-z][A-Z]|\w_\w|[A-Za-z]\.[A-Za-z]")
_LISTED = re.compile(r"([^,(;:]+) \((once|twice|[\d,]+ times)\)")


def listed(sentence: str) -> dict[str, int]:
    """Return what a sentence lists, "a (once), b (twice) and c (3 times)"."""
    sentence = sentence.replace("most often", ":").partition(":")[2]
    found = {}
    for words, times in _LISTED.findall(sentence):
        number = {"once": 1, "twice": 2}.get(times) or int(times.split()[0].replace(",", ""))
        found[words.strip().removeprefix("and ")] = number
    return found


def check_kinds(sentence: str, known: dict[str, tuple[int, int]]) -> None:
    """Hold a sentence against how often each kind crossed, at least and at most."""
    found, gist = listed(sentence), re.search(r"(\d+) kinds, listed below", sentence)
    assert len(known) == (int(gist[1]) if gist else len(found)), (sentence, known)
    for words, times in found.items():
        least, most = known[words]
        assert least <= times <= most, (words, times, known[words])
    if gist:
        assert min(found.values()) >= max(
            [least for words, (least, _) in known.items() if words not in found]
        )


def check_plain(sentences: tuple[str, ...], longest: int = 50) -> None:
    """Check that there are ten, short enough, and without a name of the code."""
    assert len(sentences) == 10
    for one in sentences:
        assert not IDENTIFIER.search(one), one
        assert len(one.split()) <= longest, one
