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
