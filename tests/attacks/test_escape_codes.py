"""Another party's column name with escape codes reached the terminal as it was.

Escape codes move the cursor, set the title of the window, hide text, or make a link of it. So do
names in markup, and characters that turn the direction of writing mislead whoever reads.
"""

from __future__ import annotations

import io
import json
import sys
import unicodedata

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from intarsia.cli import console as consoles
from intarsia.cli.console import console, put, say
from intarsia.cli.main import main
from intarsia.deployment.client_folder import errors_in
from intarsia.errors import ExperimentError, FederationError, IntarsiaError, SiteError, printable

CODES = {
    "clear": "\x1b[2J",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://sample.org\x1b\\",
    "short": "\x9b31m",
    "back": "fine\b\b\b\bbad",
    "return": "fine\rbad",
    "turned": "\u202egpj.exe",
    "isolated": "\u2066a\u2069",
    "unseen": "a\u200bb",
    "deleted": "\x7f",
    "line": "a\u2028b",
    "half": "\ud83d",
}
MARKUP = "[link=http://sample.org][red]name[/link] :skull: [/]"
EVIL = "".join(CODES[one] for one in CODES if one not in ("half", "return")) + MARKUP


def shown(text):
    """Return whether a terminal shows all of a text."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return not [one for one in text if unicodedata.category(one) in hidden and one not in "\n\t"]


@pytest.mark.parametrize("name", CODES)
def test_what_a_terminal_obeys_is_written_out(name):
    told = printable(f"a {CODES[name]} b")
    assert shown(told)
    assert "\\" in told
    assert told.startswith("a ")
    for kind in (IntarsiaError, ExperimentError, SiteError):
        assert shown(str(kind(f"Column {CODES[name]} is wrong.")))


def test_ordinary_text_stays_as_it_is():
    for text in ("Größe 漢字 🙂 – …", "two\nlines\tand a tab", ""):
        assert printable(text) == text


def test_tables_have_no_codes_and_no_markup(capfd):
    table = Table(EVIL, title=EVIL)
    table.add_row(Text(EVIL))
    table.add_row(EVIL)
    console().print(table)
    console().print(Text(EVIL), soft_wrap=True)
    console().print(EVIL)
    console().print("[bold]as it stands[/bold] :skull:")
    err = capfd.readouterr().err
    assert shown(err)
    assert "".join(err.split()).count("[red]name[/link]:skull:[/]") >= 2
    assert "owned" in err
    assert "[bold]as it stands[/bold] :skull:" in err


def test_a_terminal_gets_styles_but_no_codes_of_others(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    console().print(Text(EVIL, style="bold"))
    say(EVIL)
    put(EVIL)
    for stream in (sys.stderr, sys.stdout):
        told = stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert told
        assert shown(told)
    assert "\x1b[1m" in sys.stderr.getvalue()


def test_a_file_gets_what_there_is(capfd):
    put("a\x1bb")
    assert capfd.readouterr().out == "a\x1bb\n"
    assert consoles.OUTPUT == "standard output"


def test_a_site_s_log_has_one_line_for_an_error_and_no_codes(tmp_path):
    report = errors_in(tmp_path)
    report(FederationError(EVIL))
    report(ValueError(f"{EVIL}\n2026-01-01 00:00:00 all is well"))
    text = (tmp_path / "errors.log").read_text(encoding="utf-8")
    assert shown(text)
    assert text.splitlines()[0].startswith("20")


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Return an experiment in which another client's names are hostile."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(90, 2))
    kinds = np.array(["in\x1b[31mside", "out\u202eside"])[(rows[:, 0] > 0).astype(int)]
    levels = np.array(["one\x1b[2J", "two\x9b2J"])[rng.integers(0, 2, 90)]
    for client in ("bank", "shop"):
        lines = [f"id,\x1b[8mx{client},$\\frac{{$,level\x1b]0;owned\x07,kind"]
        lines += [f"{at},{a},{b},{levels[at]},{kinds[at]}" for at, (a, b) in enumerate(rows)]
        (tmp_path / f"{client}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    evil = '"sh\\u001b[2Jop\\u202e"'
    (tmp_path / "one.toml").write_text(
        '[experiment]\nname = "one[red]\\u001b[2J"\nrounds = 3\nout = "out"\n'
        '[algorithm]\nname = "hyfdca"\nloss = "logistic"\n'
        '[[client]]\nname = "bank"\npath = "bank.csv"\nid = "id"\nlabel = "kind"\n'
        f'[[client]]\nname = {evil}\npath = "shop.csv"\nid = "id"\nlabel = "kind"\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_command_shows_codes_of_another_client(hostile, capfd):
    commands = [
        (["inspect", "one.toml"], 0),
        (["run", "one.toml"], 0),
        (["compare", "out", "--picture", "a.png"], None),
        (["rounds", "out", "--out", "rounds.png"], None),
        (["audit", "out"], 0),
        (["audit", "out", "--client", "none\x1b[2J"], 2),
        (["predict", "out", "none\x1b[2J.csv"], 2),
        (["predict", "out", "bank.csv", "--id", "none"], 2),
        (["run", "one.toml", "-c", "labels.positive='nobody\\u001b'"], 2),
    ]
    for command, status in commands:
        found = main(command)
        out, err = capfd.readouterr()
        assert status is None or found == status, err
        assert shown(err), (command, err)
        assert "\x1b" not in out
        assert command[0] == "predict" or shown(out), (command, out)
        assert err or out


def test_json_for_programs_has_the_names(hostile, capfd):
    assert main(["inspect", "one.toml", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [one["client"] for one in found["clients"]] == ["bank", "sh\x1b[2Jop\u202e"]
