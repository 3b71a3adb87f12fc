import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Lt, MultipleOf

from intarsia.core.settings import (
    Count,
    CountOrZero,
    Fraction,
    FractionBelowOne,
    NotNegative,
    Positive,
    PositiveFraction,
    check_ranges,
    hyperparameters,
)
from intarsia.errors import ExperimentError


@dataclass(frozen=True, kw_only=True)
class Options:
    rate: Positive = 1e-3
    decay: NotNegative = 0.0
    share: Fraction = 0.5
    dropout: FractionBelowOne = 0.5
    gamma: PositiveFraction = 1.0
    epochs: Count = 10
    window: CountOrZero = 50
    sigma: Annotated[float, Gt(0), "the number of clients is safe"] | None = None
    hidden: tuple[Count, ...] = (64,)
    classes: Annotated[int, Ge(2)] = 2
    price: Annotated[float, Ge(0)] = 0.5  # inf: none is opened
    port: Annotated[int, Ge(1), Lt(65535)] = 8080
    loss: Literal["hinge", "logistic"] | None = "hinge"

    def __post_init__(self) -> None:
        check_ranges(self)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rate": -1}, "rate is -1; it must be positive and finite: set e.g. 0.001."),
        ({"rate": float("inf")}, "rate is inf; it must be positive and finite: set e.g. 0.001."),
        ({"rate": float("nan")}, "rate is nan; it must be positive and finite: set e.g. 0.001."),
        ({"decay": -0.5}, "decay is -0.5; it must be finite and at least 0: set e.g. 0.0."),
        ({"share": 1.5}, "share is 1.5; it must be from 0 to 1: set e.g. 0.5."),
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1: set e.g. 0.5."),
        ({"gamma": 0.0}, "gamma is 0.0; it must be above 0 and at most 1: set e.g. 1.0."),
        ({"epochs": 0}, "epochs is 0; it must be a whole number of at least 1: set e.g. 10."),
        ({"window": -1}, "window is -1; it must be a whole number of at least 0: set e.g. 50."),
        ({"sigma": 0.0}, "sigma is 0.0; it must be above 0: the number of clients is safe."),
        ({"hidden": (8, 0)}, "hidden is [8, 0]; each must be a whole number of at least 1."),
        ({"classes": 1}, "classes is 1; it must be a whole number of at least 2: set e.g. 2."),
        ({"price": -1.0}, "price is -1.0; it must be at least 0: set e.g. 0.5."),
        ({"loss": "hing"}, "loss is 'hing'; choose from hinge, logistic."),
        (
            {"port": 65535},
            "port is 65535; it must be a whole number of at least 1 and below 65535: "
            "set e.g. 8080.",
        ),
    ],
)
def test_a_value_outside_its_range_is_one_sentence(given, sentence):
    with pytest.raises(ExperimentError) as caught:
        Options(**given)
    assert str(caught.value) == f"algorithm.{sentence}"


def test_values_at_the_ends_of_their_ranges_are_taken():
    Options(decay=0, share=1, dropout=0, gamma=1, epochs=1, window=0, hidden=(), loss=None)
    Options(price=float("inf"), port=65534, share=0)


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Options = Options()


def test_a_table_within_a_table_is_named_in_full():
    with pytest.raises(ExperimentError) as caught:
        hyperparameters(Outer, {"inner": {"epochs": 0}})
    assert str(caught.value).startswith("algorithm.inner.epochs is 0; it must be a whole number")


def test_a_limit_that_cannot_be_checked_is_refused():
    @dataclass(frozen=True)
    class Even:
        number: Annotated[int, MultipleOf(2)] = 2

    with pytest.raises(TypeError, match=r"MultipleOf\(multiple_of=2\) is no limit"):
        check_ranges(Even())


def test_a_check_of_an_inner_tables_own_names_that_table():
    @dataclass(frozen=True, kw_only=True)
    class Even:
        number: int = 2

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ExperimentError(f"algorithm.number is {self.number}; make it even.")

    @dataclass(frozen=True, kw_only=True)
    class Whole:
        even: Even

    with pytest.raises(ExperimentError) as caught:
        hyperparameters(Whole, {"even": {"number": 3}})
    assert str(caught.value) == "[algorithm.even]: algorithm.number is 3; make it even."
    with pytest.raises(ExperimentError) as caught:
        hyperparameters(Whole, {"even": {"odd": 3}})
    assert str(caught.value).startswith("[algorithm.even] has the unknown key 'odd'")


NAMED = """
from pathlib import Path
from intarsia.core.settings import absolute_path
absolute_path("b\\u00e4nk.csv", Path("/"))
"""


def test_letters_that_the_locale_has_not_are_said_to_be_such():
    given = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = subprocess.run([sys.executable, "-c", NAMED], env=given, capture_output=True)
    last = found.stderr.decode().splitlines()[-1]
    assert "'ascii' codec can't encode" in last
    assert last.endswith("; set LC_ALL=C.UTF-8 in the environment.")
