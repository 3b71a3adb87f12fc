from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from intarsia.data.formats import csv
from intarsia.data.source import Source

SOURCE = Source(name="bank", path="bank.csv", id="id", label="label", categorical=("town",))


def _read(text: str, much: int, monkeypatch: Any, source: Source = SOURCE) -> pa.Table:
    monkeypatch.setattr(csv, "_MUCH", much)
    return csv.delimited_text(text.encode(), source)


def _plain(text: str, monkeypatch: Any) -> bool:
    """Return whether a file is read without Arrow."""
    with monkeypatch.context() as patched:
        patched.setattr(csv.arrow_csv, "read_csv", None)
        try:
            _read(text, 0, patched)
        except TypeError:
            return False
    return True


def _same_as_arrows(text: str, monkeypatch: Any) -> pa.Table:
    found, expected = _read(text, 0, monkeypatch), _read(text, 2**40, monkeypatch)
    assert found.schema == expected.schema
    for own, other in zip(found.columns, expected.columns, strict=True):
        own.validate(full=True)
        assert repr(own.to_pylist()) == repr(other.to_pylist())  # NaN is NaN, and -0.0 is not 0.0
    return found


def test_plain_numbers_are_rounded_as_python_rounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    written = []
    for _ in range(2000):
        digits = str(draw.randrange(10 ** draw.randint(1, 14)))
        cut = draw.randrange(1, len(digits) + 1)
        written.append("-" * draw.randint(0, 1) + digits[:cut] + "." + (digits[cut:] or "0")[:4])
    text = "id,n,m\n" + "".join(f"{at},{one},{at - 7}\n" for at, one in enumerate(written))
    assert _plain(text, monkeypatch)
    found = _same_as_arrows(text, monkeypatch)
    assert found.column("n").to_pylist() == [float(one) for one in written]
    assert found.column("m").to_pylist() == [at - 7 for at in range(2000)]
    assert found.column("id").to_pylist() == [str(at) for at in range(2000)]


HEADER = '"id",town, x ,y,name,label\n'
PLAIN = {
    "texts in quotes and without": 'P1,"a, b",1.5,2,Ann Lee,yes\n"P2",c d,-0.25,-3,Bo,"no"\n',
    "no line end after the last line": "P1,a,1.5,2,Ann,yes\nP2,b,2,7,Bo,",
    "line ends of Windows": "P1,a,1.5,2,Ann,yes\r\nP2,,0.5,3,Bo,no\r\n",
    "numbers that lack": "P1,a,,2,Ann,yes\nP2,b,0.5,,Bo,NaN\nP3,,-0,-0,nan,\n",
    "zeros in front": "007,a,007.50,002,Ann,1\n8,b,-0.0,15,Bo,2\n",
    "many digits": "1,a,123456789012345,999999999999999,Ann,1\n2,b,0.12345678901234,-1,Bo,0\n",
    "words of Arrow in a column of texts": "P1,a,1.5,2,Ann,yes\nP2,b,2.5,3,NULL,no\n",
}


@pytest.mark.parametrize("lines", PLAIN.values(), ids=PLAIN)
def test_plain_lines_are_what_arrow_makes_of_them(
    lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _plain(HEADER + lines, monkeypatch)
    _same_as_arrows(HEADER + lines, monkeypatch)


ODD = {
    "an exponent": "P1,a,1.5,2,Ann,yes\nP2,b,1e-05,3,Bo,no\n",
    "more digits": "P1,a,1.5,2,Ann,yes\nP2,b,0.1234567890123456,3,Bo,no\n",
    "a sign in front": "P1,a,1.5,2,Ann,yes\nP2,b,+1,3,Bo,no\n",
    "a blank in front": "P1,a,1.5,2,Ann,yes\nP2,b, 1,3,Bo,no\n",
    "no digit before the point": "P1,a,1.5,2,Ann,yes\nP2,b,-.5,3,Bo,no\n",
    "no digit after the point": "P1,a,1.5,2,Ann,yes\nP2,b,5.,3,Bo,no\n",
    "a number in quotes": 'P1,a,1.5,2,Ann,yes\nP2,b,"2.5",3,Bo,no\n',
    "quotes in a text": 'P1,"say ""a""",1.5,2,Ann,yes\nP2,b,2.5,3,Bo,no\n',
    "quotes inside": 'P1,5" pipe,1.5,2,Ann,yes\nP2,b,2.5,3,Bo,no\n',
    "a text of two lines": 'P1,"a\nb",1.5,2,Ann,yes\nP2,b,2.5,3,Bo,no\n',
    "a word among numbers": "P1,a,1.5,2,Ann,yes\nP2,b,none,3,Bo,no\n",
    "a minus alone": "P1,a,1.5,2,Ann,yes\nP2,b,-,3,Bo,no\n",
    "an empty line": "P1,a,1.5,2,Ann,yes\n\nP2,b,2.5,3,Bo,no\n",
    "a column of nothing": "P1,a,,2,Ann,yes\nP2,b,,3,Bo,no\n",
    "letters beyond ASCII": "P1,ä,1.5,2,Ann,yes\nP2,b,2.5,3,Bo,no\n",
    "truth values": "P1,a,1.5,2,true,yes\nP2,b,2.5,3,false,no\n",
    "dates": "P1,a,2020-01-01,2,Ann,yes\nP2,b,2020-02-01,3,Bo,no\n",
    "a word for no number": "P1,a,nan(ind),2,Ann,yes\nP2,b,2.5,3,Bo,no\n",
    "a word that is a number": "P1,a,inf,2,Ann,yes\nP2,b,2.5,3,Bo,no\n",
}


@pytest.mark.parametrize("lines", ODD.values(), ids=ODD)
def test_other_lines_are_left_to_arrow(lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _plain(HEADER + lines, monkeypatch)
    _same_as_arrows(HEADER + lines, monkeypatch)


@pytest.mark.parametrize("line", ["P2,b,2.5,3,Bo\n", "P2,b,2.5,3,Bo,no,7\n"])
def test_a_line_with_another_number_of_values_is_named(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match=r"line 3 has [57] values"):
        _read(HEADER + "P1,a,1.5,2,Ann,yes\n" + line, 0, monkeypatch)


@pytest.mark.parametrize("missing", ["-9", "Ann"])
def test_what_stands_for_a_missing_value_is_what_arrow_takes_it_for(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(name="bank", path="b.csv", id="id", label="label", missing=(missing, "none"))
    text = "id,x,name,label\n1,-9,Ann,yes\n2,5,Bo,no\n"
    found, expected = (_read(text, much, monkeypatch, source) for much in (0, 2**40))
    assert found.equals(expected)


def test_small_and_dense_tables_are_read_without_numba() -> None:
    code = "import sys, intarsia.data.reader, intarsia.protocols.preprocessing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numba" not in done.stdout.split()  # importing it takes as long as reading a table
