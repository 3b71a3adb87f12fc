from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from intarsia.plots import contribution


def axes_of(monkeypatch: pytest.MonkeyPatch, *worths: tuple[float, float, float]) -> list:
    """Return the axes of a picture of parties with a value and the ends of its interval."""
    own = {
        f"plant{at}": SimpleNamespace(value=value, low=low, high=high)
        for at, (value, low, high) in enumerate(worths)
    }
    left_out = {"the others, on average": own, "the federation": own}
    found = SimpleNamespace(
        experiment="mine", measure="r2", parties=[*own], left_out=left_out, shapley=None
    )
    drawn: list = []
    monkeypatch.setattr(contribution, "save", lambda figure, path: drawn.append(figure))
    contribution.contribution_picture(found, Path("unused.png"))
    return [one for one in drawn[0].axes if one.get_visible()]


def test_values_stay_apart_beside_an_interval_that_is_much_longer(monkeypatch):
    """Of twelve sites with 30 rows one went up to 22 of R², and all values lay at 0."""
    for axes in axes_of(monkeypatch, (0.7, 0.5, 22.0), (0.1, -0.2, 0.4), (-0.1, -0.3, 0.1)):
        assert axes.get_xlim()[1] == pytest.approx(0.7 + 3 * 0.8)
        assert axes.get_xlim()[0] > -0.6
    first, *_ = axes_of(monkeypatch, (0.7, 0.5, 22.0), (0.1, -0.2, 0.4))
    assert first.get_xlabel() == "an interval that reaches the edge goes on"


def test_intervals_about_as_long_as_values_are_apart_are_drawn_whole(monkeypatch):
    first, second = axes_of(monkeypatch, (0.7, 0.5, 0.9), (-0.1, -0.3, 0.1))
    assert first.get_xlim()[0] < -0.3 < 0.9 < second.get_xlim()[1]
    assert first.get_xlabel() == ""
