"""privacy/randomness.md lists every file that draws random numbers, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/intarsia"
PAGE = ROOT / "docs/explanations/privacy/randomness.md"
HEADING = "### What is drawn, and from which key"

# names that are called where random numbers are drawn, or where what they are drawn from is made
OF_KEYS = {
    *("RandomKey", "SecretKey", "NoiseKey", "generator", "integer", "stream"),
    *("drawn_once", "pseudorandom", "normal_numbers", "draw_noise", "add_to_weights"),
}
OF_THE_SYSTEM = {"urandom", "token_bytes", "token_hex", "token_urlsafe", "randbits", "getrandbits"}
OF_LIBRARIES = {
    *("default_rng", "Generator", "Philox", "SeedSequence", "RandomState", "check_random_state"),
    *("permutation", "normal", "standard_normal", "integers", "choice", "random", "shuffle"),
    *("randint", "multinomial", "dirichlet", "uniform", "gamma", "randn", "rand", "randperm"),
    *("bernoulli", "uniform_", "normal_", "manual_seed", "fork_rng", "drawing_from"),
    *("KeyGenerator", "generate", "CreateWithNewKey", "uuid4"),
}
DRAWING = OF_KEYS | OF_THE_SYSTEM | OF_LIBRARIES


def draws(text):
    """Return what draws random numbers in a module, by name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", ""))
            found |= {name} & DRAWING
            owner = getattr(getattr(called, "value", None), "id", "")
            found |= {"draw"} if name == "draw" and owner.endswith("Key") else set()
            found |= {one.arg for one in node.keywords if one.arg == "random_state"}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names if one.name in ("random", "uuid")}
    return found


def drawing_files():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    return {path.relative_to(SOURCE).as_posix() for path, text in texts.items() if draws(text)}


def listed_files(text):
    table = text.split(f"\n{HEADING}\n")[1].split("\n#")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert all(len(row) == 6 and all(cell.strip() for cell in row[1:5]) for row in rows)
    return [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row[1])]


def test_every_file_that_draws_random_numbers_is_in_the_table():
    listed = listed_files(PAGE.read_text(encoding="utf-8"))
    assert len(listed) == len(set(listed))
    drawing = drawing_files()
    assert drawing - set(listed) == set(), "draws and is not in the table"
    assert set(listed) - drawing == set(), "is in the table and draws nothing"


@pytest.mark.parametrize(
    "line",
    [
        "x = np.random.default_rng(3)",
        "x = rng.generator().permutation(4)",
        "x = os.urandom(3)",
        "x = secrets.token_bytes(3)",
        "x = torch.randn(3)",
        "x = SecretKey.draw()",
        "import random",
        "x = LinearSVC(random_state=4)",
    ],
)
def test_a_file_that_draws_is_found(line):
    assert draws(line)


LOOKS = SOURCE / "testing" / "watched_clients.py"  # whether an algorithm draws from them


def test_nothing_draws_from_the_global_generators():
    """No hidden state: neither numpy's legacy functions nor Python's own."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == LOOKS:
            uses = re.findall(r"\brandom\.(\w+)\(", text)
            # nothing is drawn, and what is seeded is put back
            assert set(uses) == {"get_state", "getstate", "seed", "set_state", "setstate"}
            continue
        assert not re.search(r"\b(np|numpy)\.random\.(?!default_rng|Generator|Philox)", text), path
        assert not re.search(r"^\s*(import random|from random import)\b", text, re.MULTILINE), path


def test_no_function_that_hides_something_gets_a_public_key():
    """Who adds noise gets a NoiseKey; the words of the seed make neither secret nor noise."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in re.findall(r"\bnormal_numbers\((.+)\)", text):
            assert re.search(r"\b(secret\.stream|rng\.stream|stream: bytes)", call), (path, call)
