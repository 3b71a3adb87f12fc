from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread
from sklearn.metrics import precision_recall_curve, roc_curve

from intarsia.core.block import Labels
from intarsia.maths.linear import losses
from intarsia.plots.score_curves import scores_figure, scores_picture
from intarsia.protocols.figures import ScoredRows, own_figures
from intarsia.reports.charts import figure_charts


def figures_of(task, z, y, classes=()):
    return own_figures(
        ScoredRows(z, y, np.ones(len(y)), Labels(task, classes), losses.LOGISTIC, 5, False)
    )


@pytest.fixture
def lines(monkeypatch):
    """Return the points of the lines that are drawn, by the order they are drawn in."""
    found = []
    plot = Axes.plot

    def kept(self, *args, **settings):
        found.append(np.stack([np.asarray(one, float) for one in args[:2]], axis=1))
        return plot(self, *args, **settings)

    monkeypatch.setattr(Axes, "plot", kept)
    return found


def two_classes(count=300):
    rng = np.random.default_rng(0)
    y = rng.random(count) < 0.4
    return y, rng.normal(size=count) + 1.2 * y


def test_the_curves_of_two_classes_go_through_points_of_scikit_learns(tmp_path, lines):
    y, z = two_classes()
    found = figures_of("binary", z[None], np.where(y, 1.0, -1.0), ("no", "yes"))
    path = scores_picture(found, tmp_path / "a.png", title="a $ b", whose="300 rows")
    _, roc, precise, _ = lines  # diagonal, curves, diagonal; bars are no line here
    false, true, _ = roc_curve(y, z, drop_intermediate=False)
    known = {(round(a, 9), round(b, 9)) for a, b in zip(false, true, strict=True)}
    assert {(round(a, 9), round(b, 9)) for a, b in roc.tolist()} <= known
    assert roc[0].tolist() == [0, 0]
    assert roc[-1].tolist() == [1, 1]
    precision, recall, _ = precision_recall_curve(y, z)
    known = {(round(a, 9), round(b, 9)) for a, b in zip(recall, precision, strict=True)}
    assert {(round(a, 9), round(b, 9)) for a, b in precise.tolist()} <= known
    image = imread(path)
    assert ((image[..., :3].max(-1) - image[..., :3].min(-1)) > 0.2).mean() > 0.003


def test_there_is_a_curve_for_each_class_and_a_panel_for_numbers(tmp_path, lines):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 200) * 1.0
    x = rng.normal(size=(200, 3))
    x[np.arange(200), y.astype(int)] += 1
    found = figures_of("multiclass", x.T, y, ("a", "b", "c"))
    scores_picture(found, tmp_path / "a.png", title="t", whose="w", classes=("a", "b", "c"))
    assert len(lines) == 8  # three and three curves, two diagonals
    lines.clear()
    numbers = figures_of("regression", (x[:, 0] + 100)[None], x[:, 0] + 100)
    wide = imread(scores_picture(numbers, tmp_path / "b.png", title="t", whose="w"))
    assert len(lines) == 1
    assert wide.shape[1] == 8.5 * 140


def test_names_of_axes_stay_in_the_picture_beside_large_numbers():
    x = np.random.default_rng(1).normal(size=200)
    found = figures_of("regression", (-1e6 * x)[None], -1e6 * x)
    figure = scores_figure(found, title="t", whose="w")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.yaxis.label.get_window_extent().x0 > 0
    assert "2,000,000" in {one.get_text() for one in axes.get_yticklabels()}


def test_curves_have_the_names_of_their_classes_where_one_has_no_sample(tmp_path, monkeypatch):
    told = []
    plot = Axes.plot

    def kept(self, *args, **settings):
        told.append(settings.get("label"))
        return plot(self, *args, **settings)

    monkeypatch.setattr(Axes, "plot", kept)
    y = np.tile([0.0, 2.0], 50)  # none of b
    z = np.random.default_rng(2).normal(size=(3, 100))
    found = figures_of("multiclass", z, y, ("a", "b", "c"))
    scores_picture(found, tmp_path / "a.png", title="t", whose="w", classes=("a", "b", "c"))
    assert [one for one in told if one is not None] == ["a", "c"] * 2
    (_, chart), *_ = figure_charts(found, ("a", "b", "c"))
    assert [name for name in "abc" if f">{name}</text>" in chart] == ["a", "c"]


def test_no_point_is_of_fewer_than_five_samples():
    y, z = two_classes()
    found = figures_of("binary", z[None], np.where(y, 1.0, -1.0), ("no", "yes"))
    assert min(map(sum, found.curves[0])) >= 5
    numbers = figures_of("regression", z[None], z + y)
    assert min(one.samples for one in numbers.predictions) >= 5


def test_a_picture_of_many_classes_says_whose_curves_it_has():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 12, 600)
    names = tuple(f"cat-{one:02d}" for one in range(12))
    z = rng.normal(size=(12, 600)) + 3 * (y == np.arange(12)[:, None])
    figure = scores_figure(
        figures_of("multiclass", z, y, names), title="mine", whose="600 rows", classes=names
    )
    assert any("curves of the first 10 of 12 classes" in one.get_text() for one in figure.texts)
