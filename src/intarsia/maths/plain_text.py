"""Fields of delimited text as numbers and places of texts, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from intarsia.maths.jit import compiled

_QUOTE, _LINE, _RETURN, _MINUS, _POINT = (np.uint8(ord(sign)) for sign in '"\n\r-.')
_DIGITS = 15  # of a number: its digits and the power of ten are exact, and so it is rounded once
_TENS = 10.0 ** np.arange(_DIGITS + 1)


@compiled
def read_fields(
    content: Any, start: int, separator: Any, text: Any, numbers: Any, written: Any, places: Any
) -> int:
    """Read all lines from a place on; return their number, or -1 if one is not plain.

    A plain line has a value for each column: a number of up to 15 digits without an exponent, or
    nothing (NaN), and of a column of texts one that has no line end and, inside, no quotes.

    Parameters
    ----------
    content
        (bytes,) ASCII.
    text
        (columns,) whether a column has texts, of which `places` tells where each is.
    numbers
        (other columns, lines)
    written
        (2, other columns) for each whether one of its numbers has a point, and how many there are.
    places
        (columns of texts, lines, 2) where each begins and ends.
    """
    at, line, size = start, 0, len(content)
    while at < size:
        number, texts = 0, 0
        for column in range(len(text)):
            if text[column]:
                quoted = at < size and content[at] == _QUOTE
                at += quoted
                places[texts, line, 0] = at
                while at < size and content[at] != _QUOTE:
                    sign = content[at]
                    if sign in (_LINE, _RETURN) or (sign == separator and not quoted):
                        break
                    at += 1
                places[texts, line, 1] = at
                if quoted != (at < size and content[at] == _QUOTE):
                    return -1
                at += quoted
                texts += 1
            else:
                first = at
                at += at < size and content[at] == _MINUS
                begun, digits, after = at, np.int64(0), 0
                while at < size and np.uint8(content[at] - 48) < 10:
                    digits, at = digits * 10 + (content[at] - 48), at + 1
                many = at - begun
                if many and at < size and content[at] == _POINT:
                    at += 1
                    begun = at
                    while at < size and np.uint8(content[at] - 48) < 10:
                        digits, at = digits * 10 + (content[at] - 48), at + 1
                    after = at - begun
                    written[0, number] = 1
                    if not after:
                        return -1
                if many + after > _DIGITS or (at > first and not many):
                    return -1
                value = digits / _TENS[after] if many else np.nan
                numbers[number, line] = -value if many and content[first] == _MINUS else value
                written[1, number] += many > 0
                number += 1
            if column < len(text) - 1:
                if at == size or content[at] != separator:
                    return -1
                at += 1
        at += at < size and content[at] == _RETURN
        if at < size and content[at] != _LINE:
            return -1
        at += 1
        line += 1
    return line


@compiled
def gather_texts(content: Any, places: Any, stops: Any, letters: Any) -> None:
    """Write the texts of each column one after the other.

    Line by line, so that the content is read once.

    Parameters
    ----------
    places
        (columns, lines, 2), as `read_fields` tells.
    stops
        (columns, lines + 1) where in `letters` each text begins and the next one does.
    """
    for line in range(places.shape[1]):
        for column in range(len(places)):
            here, there = places[column, line, 0], stops[column, line]
            for step in range(places[column, line, 1] - here):
                letters[there + step] = content[here + step]
