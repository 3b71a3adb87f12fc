from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.image import imread

from intarsia.errors import ExperimentError
from intarsia.plots.comparison import curves_picture
from intarsia.results.comparison import Group, Spread


def group(algorithm, mean, **settings):
    spread = Spread(mean, 0.01)
    return Group(
        "toy", algorithm, settings, (0, 1), "accuracy", None, spread, None, spread, *[None] * 7
    )


def test_scores_are_drawn_against_the_number_in_which_runs_differ(tmp_path):
    groups = [
        group(name, mean - clients / 1000, **{"partition.clients": clients}, **own)
        for name, mean, own in (
            ("flic", 0.8, {"variant": "class"}),
            ("flic", 0.81, {"variant": "hl"}),
            ("local", 0.7, {}),
        )
        for clients in (20, 50, 100)
    ]
    path = curves_picture(groups, tmp_path / "new" / "a.png", title="of $ many_clients")
    image = imread(path)
    coloured = (image[..., :3].max(-1) - image[..., :3].min(-1)) > 0.2
    assert coloured.mean() > 0.003  # three lines
    higher = curves_picture([replace(one, clients=None) for one in groups[:3]], tmp_path / "b.png")
    assert higher.is_file()  # without a mean over clients, the whole model's score


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ([group("flic", 0.5)], "differ in no setting that is a number, and a picture draws"),
        (
            [group("flic", 0.5, rate=a, batch=b) for a, b in ((0.1, 10), (0.2, 20))],
            "differ in 2 numbers (rate, batch)",
        ),
    ],
)
def test_runs_that_do_not_differ_in_one_number_are_refused(tmp_path, groups, sentence):
    with pytest.raises(ExperimentError) as found:
        curves_picture(groups, tmp_path / "a.png")
    assert sentence in str(found.value)
    assert not (tmp_path / "a.png").exists()
