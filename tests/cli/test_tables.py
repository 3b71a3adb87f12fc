"""Tables of results, as the terminal shows them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from numba import njit
from rich.console import Console

from intarsia.cli.console import console
from intarsia.cli.tables import Watch, show_comparison, show_result
from intarsia.core.text_tables import as_text, new_table
from intarsia.results.comparison import compare
from intarsia.results.result import Metrics, Result, Score
from intarsia.training.yardsticks import YardstickProgress


def result(metrics: Metrics, seed: int = 0) -> Result:
    return Result(
        "hyfem", "mine", seed, 2, "rounds", {}, {}, 3, None, metrics, environment={},
        hyperparameters={},
    )  # fmt: skip


def cells(text: io.StringIO) -> list[list[str]]:
    lines = text.getvalue().replace("┃", "│").splitlines()
    return [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]


def shown(metrics: Metrics) -> list[list[str]]:
    """Return the cells of the comparison of a run with these scores, line by line."""
    text = io.StringIO()
    show_result(Console(file=text, width=200), result(metrics), Path("out"))
    return cells(text)


def test_what_compiles_is_said_once():
    text = io.StringIO()
    with Watch(Console(file=text, width=200)):
        for kernel in (njit(lambda x: x + 1), njit(lambda x: x + 2)):  # kept nowhere
            kernel(1)
            kernel(1)
    assert text.getvalue().count("compiling what is not compiled yet") == 1
    assert "intarsia doctor --warm" in text.getvalue()
    with Watch(Console(file=text, width=200)):
        kernel(1)
    assert text.getvalue().count("compiling") == 1


@pytest.mark.parametrize("in_notebook", [False, True])
def test_a_notebook_is_told_lines_and_no_bar_whose_states_it_would_keep(in_notebook, monkeypatch):
    if in_notebook:
        monkeypatch.setenv("JPY_PARENT_PID", "1")
    else:
        monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    text = io.StringIO()
    with Watch(Console(file=text, width=200, force_terminal=True)) as watch:
        watch.beside(YardstickProgress("centralised", "round", 1, 300))
    assert ("━" not in text.getvalue()) == in_notebook
    assert "all tables pooled" in text.getvalue()


def test_a_notebook_gets_text_where_text_is_asked_for(monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = new_table("rows", "client", "rows")
    table.add_row("bank", "12")
    lines = ["rows", " client ┃ rows", "━━━━━━━━╇━━━━━━", " bank   │   12", "two"]
    assert as_text([table, "two"]).splitlines() == lines
    assert not console().is_jupyter


def test_the_comparison_says_over_how_many_rows_a_score_is():
    own = {"a": Score(0.5, 0.75, samples=1200), "b": Score(0.5, 0.5, samples=40)}
    both = Score(0.5, 0.625)
    every = Score(0.5, 0.5, samples=1210)
    assert shown(Metrics(every, own, both, every, own, both)) == [
        ["", "rows", "stand-alone", "federated", "centralised"],
        ["a", "1,200", "75.00 %  0.5000", "75.00 %  0.5000", "–"],
        ["b", "40", "50.00 %  0.5000", "50.00 %  0.5000", "–"],
        ["mean of clients", "–", "62.50 %  0.5000", "62.50 %  0.5000", "–"],
        ["all samples", "1,210", "–", "50.00 %  0.5000", "50.00 %  0.5000"],
    ]


@pytest.mark.parametrize("samples", [None, 40])  # None: a result of an older version
def test_a_column_without_a_figure_is_left_out(samples):
    own = {"a": Score(0.5, 0.75, samples=samples)}
    rows = [] if samples is None else ["40"]
    assert shown(Metrics(own["a"], own, own["a"])) == [
        ["", *(["rows"] if rows else []), "federated"],
        ["a", *rows, "75.00 %  0.5000"],
        ["all samples", *rows, "75.00 %  0.5000"],
    ]


def test_a_comparison_of_runs_says_over_how_many_rows_its_scores_are():
    own = {"a": Score(0.5, 0.75, samples=40)}
    runs = [Metrics(Score(0.5, 0.5, samples=rows), own, Score(0.5, 0.75)) for rows in (40, 44)]
    text = io.StringIO()
    groups = compare(result(one, seed) for seed, one in enumerate(runs))
    show_comparison(Console(file=text, width=200), groups)
    names, over, line, *_ = cells(text)
    assert [names[3:], over[3:], line[3:]] == [
        ["federated", "federated", "rows"],
        ["mean of clients", "all samples", "all samples"],
        ["75.00 ± 0.00 %", "50.00 ± 0.00 %", "42 ± 2.828"],
    ]
