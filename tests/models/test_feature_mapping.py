import pandas as pd
import pytest

from intarsia.errors import TableError
from intarsia.models.feature_mapping import known_columns


def test_an_error_shows_a_value_with_a_semicolon_whole_and_what_a_dataframe_needs():
    table = pd.DataFrame({"age": ["30", "40", "x;y; z"]})
    with pytest.raises(TableError) as caught:
        known_columns(table, ["age"])
    assert str(caught.value) == (
        "The table: column 'age' mixes numbers and text: 'x;y; z' in row 3 beside values such as "
        "'30'; correct it, or replace it by NaN, which counts as missing."
    )


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (["30 %", "40 %"], "write the numbers without '%'."),
        (["<5", "7"], "write a number for what lies beyond a limit, such as the limit itself."),
    ],
)
def test_an_error_of_numbers_in_words_says_how_a_dataframe_has_them(values, advice):
    with pytest.raises(TableError) as caught:
        known_columns(pd.DataFrame({"rate": values}), ["rate"])
    assert str(caught.value).endswith(f"; {advice}")
