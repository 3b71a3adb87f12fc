import pickle

import pytest

from intarsia.errors import ConvergenceError, Stopped, TableError, nearest_column


def test_an_error_joins_place_problem_and_advice_into_one_sentence():
    error = TableError("column 'age' is inf", "correct it", where="Client 'bank'")
    assert str(error) == "Client 'bank': column 'age' is inf; correct it."
    assert (error.where, error.problem, error.advice) == (
        "Client 'bank'",
        "column 'age' is inf",
        "correct it",
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_error_is_told_of_another_place_with_another_advice():
    error = TableError("its type is list", "exclude it", where="Client 'bank'")
    assert str(error.retold(where="The table", advice="drop it")) == (
        "The table: its type is list; drop it."
    )


def test_a_sentence_of_one_piece_stays_as_it_is():
    error = TableError("There is no file x; give its path.")
    assert str(error) == "There is no file x; give its path."
    assert str(error.retold(where="", advice=error.without_settings)) == str(error)


def test_of_many_columns_those_that_are_near_are_told_and_how_many_there_are():
    names = ["age", "heart_rate", "heart_rate_1", "heart_rte_12", "sex", "crp", "ph", "lactate"]
    said = "use 'heart_rate' (the nearest of 8 columns, then 'heart_rate_1' and 'heart_rte_12')"
    assert nearest_column("heart_rat", names) == said
    assert nearest_column("lactat", names) == "use 'lactate' (the nearest of 8 columns)"
    assert nearest_column("Sx", names[:5]) == (
        "use 'sex' (the nearest of 'age', 'heart_rate', 'heart_rate_1', 'heart_rte_12', 'sex')"
    )
    assert nearest_column("weight in kg", names) == f"use one of {', '.join(map(repr, names))}"


@pytest.mark.parametrize("kind", [TableError, ConvergenceError])
def test_a_notebook_shows_the_sentence_of_an_error_alone(kind):
    """IPython asks an error by this name; by itself it shows each call that led there."""
    said = [f"{kind.__name__}: Client 'bank': column 'age' is inf; correct it."]
    assert kind("Client 'bank': column 'age' is inf; correct it.")._render_traceback_() == said


def test_a_notebook_shows_how_a_stopped_run_goes_on():
    assert Stopped("stopped; this goes on")._render_traceback_() == ["stopped; this goes on"]
