"""Tell which words of a table stand for a missing value.

They come to stand in the experiment file, which others may get, and the word of one cell may say
something of one row. So they are well-known words for missing values, or words of several cells.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from intarsia.data.parsing import number, spellings_of
from intarsia.data.source import LEAST_ROWS
from intarsia.data.texts import Texts
from intarsia.inspection.proposals.column_names import is_id

# wherever they stand, in small letters; and what spreadsheets write where a formula failed
_ALWAYS = {
    *("na", "n/a", "#n/a", "<na>", "nat", "--", "---", "#nv", "#div/0!", "#value!", "#wert!"),
    *("#valeur!", "#ref!", "#bezug!", "#name?", "#num!", "#zahl!", "#null!"),
}
# in a column whose other values are numbers, in several languages
_AMONG_NUMBERS = {
    *("-", "–", "—", ".", "..", "...", "*", "/", "?", "??", "none", "nil", "nul", "unknown"),
    *("unk", "missing", "n.a.", "n. a.", "n.d.", "n/d", "nd", "n.s.", "n/k", "not available"),
    *("not known", "not measured", "not done", "pending", "empty", "blank", "(blank)", "(null)"),
    *("k.a.", "k. a.", "keine angabe", "unbekannt", "fehlt", "fehlend", "leer", "n.v.", "o.a."),
    *("inconnu", "non renseigné", "manquant", "nr", "s/d", "s.d.", "sin dato", "desconocido"),
    *("non noto", "sconosciuto", "desconhecido", "sem dados", "onbekend", "ukjent", "okänd"),
    *("brak", "b/d", "нет", "н/д", "нет данных", "неизвестно", "无", "未知", "不明", "なし"),
}
# among words, where no other value is made of signs alone, as + and ++ are
_AMONG_WORDS = {"-", "–", "—", ".", "..", "...", "?", "??", "/"}
_INFINITE = re.compile(r"[+-]?(inf(inity)?|\d{1,3}(\.\d*)?e\+?\d{3,4})", re.IGNORECASE)
# patterns of RE2
_SURELY = f"^(?i:{'|'.join(map(re.escape, sorted(_ALWAYS)))})$"
_FIGURE, _LETTER = r"\p{Nd}", r"[\pL\pN_]"
_HUGE = r"[eE]\+?\p{Nd}{3}|\p{Nd}{200}"  # what a number beyond those of 64 bits has
_MOST_WORDS = 3  # among the numbers of a column, that are taken for missing and not well known
_LEAST_NUMBERS = 10  # different ones, beside such words


def missing_words(
    texts: Mapping[str, tuple[NDArray[np.int32], Texts]],
) -> list[str]:
    """Return the words of a table that stand for a missing value, beside those that always do.

    `texts` has the codes (rows,) of each column, -1 where missing, and its texts.
    """
    found: dict[str, None] = {}
    kept: dict[str, None] = {}  # signs that are values of a column of words
    cells: Counter[str] = Counter()
    for name, (codes, own) in texts.items():
        if own.plain:
            continue
        always = [*own.like(_SURELY)]
        found |= dict.fromkeys(always)
        given = own.unlike(_SURELY)
        figured, others = given.like(_FIGURE), given.unlike(_FIGURE)
        # a number beyond those of 64 bits is a word, as "inf" is
        infinite = {one for one in figured.like(_HUGE) if math.isinf(number(one) or 0.0)}
        rest = Texts.of([one for one in figured if one not in infinite]) if infinite else figured
        if not (others or infinite) or not rest or not spellings_of(rest):
            signs = [*others.unlike(_LETTER)]
            told = len(given) - len(signs) > 1 and _AMONG_WORDS.issuperset(signs)
            (found if told else kept).update(dict.fromkeys(signs))
            continue
        words = [one for one in given if one in {*others, *infinite}] if infinite else [*others]
        known = [
            one for one in words if one.casefold() in _AMONG_NUMBERS or _INFINITE.fullmatch(one)
        ]
        found |= dict.fromkeys(known)
        # such as the word before a total
        if len(rest) < _LEAST_NUMBERS or len(words) - len(known) > _MOST_WORDS or is_id(name):
            continue
        rows = np.bincount(codes[codes >= 0], minlength=len(own)).tolist()
        count = dict(zip(own, rows, strict=True))
        cells.update({one: count[one] for one in words if one not in known})
    found = {one: None for one in found if one not in kept}
    return [*found, *(one for one, many in cells.items() if many >= LEAST_ROWS)]
