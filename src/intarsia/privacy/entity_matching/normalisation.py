"""Sample ids that clients write differently: the declared rules, and what is no id.

Rules, in the order in which they are declared; they change text ids only:

strip
    Blanks at both ends go. (Reading a table does that already.)
spaces
    All blanks go, inside too: "AB 12 34" is "AB1234". Groups of digits are the usual case; where
    words must stay apart, leave the rule out.
case
    Upper and lower case are one, as `str.casefold` says.
zeros
    Zeros at the start of an id of digits alone go: "007" is "7" and "000" is "0"; "A07" stays.
punctuation
    Hyphens, dots, slashes and the like go: "123-45.6" is "123456". Before `zeros`, if both.
width
    Unicode's compatibility forms are one (NFKC): full-width letters and digits, no-break spaces,
    letters and accents apart or joined.

Two clients match the ids that are equal in the end, so that a rule that is too wide joins different
samples of two clients. Within one client it is found: two of its ids that become one are an error.

Types
-----
A column in which every id is a whole number is read as numbers ("007" is none: its zeros may
matter). Text and numbers never match. Where rules are declared, text ids that have become whole
numbers, every one, are read as numbers where another client has numbers; a client with a single id
such as "A7" has text, and the other needs `id_type = "text"`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, starmap
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.errors import FederationError, TableError, several

Rule = Literal["strip", "spaces", "case", "punctuation", "zeros", "width"]

# returns in which orders of day and month all of some texts are dates; none: they are no dates
Orders = Callable[[Iterable[str]], Sequence[str]]

_DIGITS = re.compile(r"[0-9]+")
_WHOLE = re.compile(r"-?[1-9][0-9]{0,18}|0")
_OF_BLANKS = ("strip", "spaces")
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")  # control, format, half a surrogate pair, blanks


def _is_no_punctuation(letter: str) -> bool:
    return not unicodedata.category(letter).startswith("P")


def _without_punctuation(text: str) -> str:
    if text.isalnum():  # as most ids are, which takes a hundredth of the time to see
        return text
    return "".join(filter(_is_no_punctuation, text))


def _without_zeros(text: str) -> str:
    bare = text.startswith("0") and _DIGITS.fullmatch(text)
    return (text.lstrip("0") or "0") if bare else text


_RULES: Mapping[str, Callable[[str], str]] = {
    "strip": str.strip,
    "spaces": lambda text: "".join(text.split()),
    "case": str.casefold,
    "punctuation": _without_punctuation,
    "zeros": _without_zeros,
    "width": lambda text: unicodedata.normalize("NFKC", text),
}


# letters of Cyrillic and Greek that look like Latin ones
_LOOKS = str.maketrans(
    "АВЕЅЗІЈКМНОРСТУХаеѕіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧοιν",
    "ABES3IJKMHOPCTYXaesijopcyxABEZHIKMNOPTYXoiv",
)


def look(text: str) -> str:
    """Return what a text looks like: without case and blanks, in Latin letters where it can be."""
    return "".join(unicodedata.normalize("NFKC", text).translate(_LOOKS).casefold().split())


def rules_that_match(
    own: NDArray[Any], others: NDArray[Any], orders: Orders
) -> tuple[tuple[Rule, ...], int]:
    """Return the rules by which most text ids would be others', and how many; or none and 0."""

    def alike(rules: Sequence[Rule]) -> int:
        one, other = ({*by_rules(ids, rules).tolist()} for ids in (own, others))
        return len(one & other)

    rules = fewest_rules(alike, [own.tolist(), others.tolist()], orders)
    return rules, alike(rules) if rules else 0


def fewest_rules(
    alike: Callable[[Sequence[Rule]], int], columns: Sequence[Iterable[str]], orders: Orders
) -> tuple[Rule, ...]:
    """Return the fewest rules by which most ids are `alike`, of one rule if it does as much.

    Without `punctuation`, if that alone tells ids of two columns apart, or these are dates of which
    `orders` says no order in common: 3/5/2020 is another day than 3.5.2020 there.
    """
    found = max(RULES_TRIED, key=alike)  # the first of equal ones
    if "punctuation" in found and (
        any(starmap(_tells_apart, combinations(columns, 2))) or _in_two_orders(columns, orders)
    ):
        found = max((one for one in RULES_TRIED if "punctuation" not in one), key=alike)
    for rule in found if len(found) > 1 else ():
        fewer = tuple(one for one in found if one != rule)
        found = fewer if alike(fewer) == alike(found) else found
    return found


# None, each, and all; what the last adds is seldom needed, and then two or three of them.
RULES_TRIED: Final[tuple[tuple[Rule, ...], ...]] = (
    *((), ("zeros",), ("case",), ("spaces",), ("width",), ("punctuation",)),
    ("width", "spaces", "case", "zeros"),
    ("width", "spaces", "case", "punctuation", "zeros"),
)


def _in_two_orders(columns: Iterable[Iterable[str]], orders: Orders) -> bool:
    found = [{*orders(own)} for own in columns]
    return all(found) and not set.intersection(*found)


def _tells_apart(own: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether punctuation alone tells some ids apart, as 1-11 and 11-1 of two hospitals.

    It stands elsewhere in each of the two then, and not only where the other has none.
    """
    known = dict(map(_cut, own))
    pairs = ((known.get(bare), cuts) for bare, cuts in map(_cut, others))
    return any(one is not None and not (one <= cuts or cuts <= one) for one, cuts in pairs)


def _cut(text: str) -> tuple[str, frozenset[int]]:
    """Return a text after all rules, and how many of its letters follow punctuation within it."""
    letters: list[str] = []
    cuts: set[int] = set()
    for one in reversed("".join(unicodedata.normalize("NFKC", text).split()).casefold()):
        if _is_no_punctuation(one):
            letters.append(one)
        else:
            cuts.add(len(letters))
    bare = _without_zeros("".join(reversed(letters)))
    return bare, frozenset(cuts & {*range(1, len(bare))})


def by_rules(texts: NDArray[np.str_], rules: Sequence[Rule]) -> NDArray[np.str_]:
    """Return texts that may repeat after the rules, in their order; see `normalised` for ids."""
    different, places = np.unique(texts, return_inverse=True)
    found: list[str] = different.tolist()
    for rule in rules:
        found = list(map(_RULES[rule], found))
    return np.array(found, np.str_)[places]


def normalised(ids: NDArray[Any], rules: Sequence[Rule], where: str) -> NDArray[Any]:
    """Return one client's ids after the rules, in their order; whole numbers stay.

    `where` is how an error names the client.

    Raises
    ------
    TableError
        If two ids become one, or an id is malformed: see `checked`.
    """
    _check_kind(ids, where)
    if ids.dtype.kind != "U" or not rules:
        return checked(ids, where)
    raw: list[str] = ids.tolist()
    _refuse_repeated(raw, where)
    texts = raw
    for rule in rules:
        whole = "".join(texts)
        if rule in _OF_BLANKS and whole.split() == [whole]:
            continue  # no blank anywhere, found in a tenth of the time
        changed = list(map(_RULES[rule], texts))
        if changed != texts and len(set(changed)) < len(changed):
            one, other = _first_pair(changed)
            raise TableError(
                f"{where}: the ids {raw[one]!r} (row {one + 1}) and {raw[other]!r} (row "
                f"{other + 1}) both become {changed[one]!r} by the rule {rule!r}; correct one of "
                "them, or remove the rule from normalise in [alignment]."
            )
        texts = changed
    _refuse_malformed(texts, raw, where)
    return np.array(texts, np.str_)


def checked(ids: NDArray[Any], where: str) -> NDArray[Any]:
    """Return one client's ids as they are.

    Raises
    ------
    TableError
        If one repeats, is empty, is no text and no whole number, or has a character that nobody
        sees (control characters, invisible marks, blanks other than a plain one).
    """
    _check_kind(ids, where)
    listed = ids.tolist()
    _refuse_repeated(listed, where)
    if ids.dtype.kind == "U":
        _refuse_malformed(listed, listed, where)
    return ids


def _check_kind(ids: NDArray[Any], where: str) -> None:
    """Raise if an array of ids is neither text nor whole numbers."""
    if ids.dtype.kind in "iuU":
        return
    if ids.dtype.kind == "f" and np.isnan(ids).any():
        row = int(np.flatnonzero(np.isnan(ids))[0]) + 1
        raise TableError(
            f"{where}: the id in row {row} is NaN; every row needs an id: fill it in or drop the "
            "row."
        )
    first = repr(ids[0]) if len(ids) else "none"
    raise TableError(
        f"{where}: the ids have the type {ids.dtype} (first: {first}); expected text or whole "
        "numbers: convert them."
    )


def of_one_type(ids: Mapping[ClientId, NDArray[Any]]) -> dict[ClientId, NDArray[Any]]:
    """Return all clients' ids, as whole numbers where one has numbers and the others' texts are.

    For ids after `normalised`. The error names types and no id, since each client may read it.

    Raises
    ------
    FederationError
        If one client has whole numbers and another has text that is none.
    """
    whole = [client for client, own in ids.items() if own.dtype.kind in "iu"]
    if not whole:
        return dict(ids)
    found: dict[ClientId, NDArray[Any]] = {}
    for client, own in ids.items():
        numbers = own if own.dtype.kind in "iu" else whole_numbers(own)
        if numbers is None:
            raise FederationError(
                f"Client {whole[0]!r} has whole numbers as sample ids but client {client!r} has "
                "text",
                'ids must have one type: set id_type to "text" or "integer" for both, or declare '
                "in [alignment] normalise how to make them alike",
                without_settings="ids must have one type: write them alike in all tables",
            )
        found[client] = numbers
    return found


def whole_numbers(ids: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return text ids as whole numbers if every one is written as such, else None."""
    texts = ids.tolist()
    if not all(map(_WHOLE.fullmatch, texts)):
        return None
    numbers = list(map(int, texts))
    if any(not -(2**63) <= one < 2**63 for one in numbers):
        return None
    return np.array(numbers, np.int64)


def _refuse_repeated(ids: Sequence[Any], where: str) -> None:
    distinct = len(set(ids))
    if distinct < len(ids):
        one, other = _first_pair(ids)
        raise TableError(
            f"{where}: the id {ids[one]!r} is in the rows {one + 1} and {other + 1} "
            f"({several(len(ids) - distinct, 'row repeats', 'rows repeat')} an id); every sample "
            "needs one row: aggregate or drop the repeated rows."
        )


def _first_pair(ids: Sequence[Any]) -> tuple[int, int]:
    """Return the positions of the first two ids that are equal."""
    seen: dict[Any, int] = {}
    for position, one in enumerate(ids):
        first = seen.setdefault(one, position)
        if first != position:
            return first, position
    raise ValueError("no two of the ids are equal")


def _refuse_malformed(texts: Sequence[str], raw: Sequence[str], where: str) -> None:
    whole = "".join(texts)
    if whole.isprintable() and " " not in whole and all(texts):
        return  # the usual case, found in a tenth of the time
    for position, text in enumerate(texts):
        if text.isprintable() and text.strip():
            continue
        if not text.strip():
            raise TableError(
                f"{where}: the id {raw[position]!r} in row {position + 1} is empty after "
                "normalising; every row needs an id: fill it in or drop the row."
            )
        hidden = [one for one in text if one != " " and unicodedata.category(one) in _HIDDEN]
        if hidden:
            blank = unicodedata.category(hidden[0]) == "Zs"
            advice = 'add "width" to normalise in [alignment]' if blank else "correct it"
            raise TableError(
                f"{where}: the id {raw[position]!r} in row {position + 1} has the character "
                f"U+{ord(hidden[0]):04X}, which nobody sees and which another client's id may "
                f"lack; {advice}."
            )
