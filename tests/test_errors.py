import pickle

from intarsia.errors import TableError


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
