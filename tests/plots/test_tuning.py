"""The picture of a search for hyperparameters."""

from types import SimpleNamespace
from typing import Any

import pytest

from intarsia.plots import tuning


@pytest.mark.parametrize("count", [2, 3, 30])
def test_trials_are_counted_in_whole_numbers(monkeypatch, tmp_path, count):
    trials = [
        SimpleNamespace(
            number=k, values={"a": k}, scores={"loss": 1 / (k + 1)}, error=lambda _: 0.1
        )
        for k in range(count)
    ]
    tuned = SimpleNamespace(
        experiment="mine", objectives=("loss",), trials=trials, best=1, front=(), path=False
    )
    drawn: list[Any] = []
    monkeypatch.setattr(tuning, "save", lambda figure, _: drawn.append(figure))
    tuning.tuning_picture(tuned, tmp_path / "tuning.png")
    ticks = drawn[0].axes[0].get_xticks()
    assert len(ticks) > 1
    assert all(tick == round(tick) for tick in ticks)
