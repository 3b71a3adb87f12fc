from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

import intarsia
from intarsia.errors import CheckpointError, ExperimentError
from intarsia.plots.learning_curves import rounds_figure, rounds_picture
from intarsia.plots.style import COLOURS
from intarsia.results.history import Course, course_of
from intarsia.results.result import Metrics, Result, Score


def write(folder, lines, cut=""):
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "history.jsonl").write_text(text + cut)
    return folder


def line(round_, phase, accuracy=None):
    return {"round": round_, "phase": phase, "accuracy": accuracy}


def test_a_course_has_the_evaluated_rounds_and_where_each_phase_began(tmp_path):
    lines = [line(1, "level 1"), line(2, "level 1", 0.25), line(3, "level 2"), line(4, "", 0.5)]
    found = course_of(write(tmp_path / "mine", lines, cut='{"round": 5, "acc'))
    begun, reached = {"level 1": 1, "level 2": 3}, {"level 1": 0.25}
    assert found == Course("mine", {2: 0.25, 4: 0.5}, begun, reached=reached)
    assert course_of(tmp_path / "mine", "femam").name == "femam"


def test_a_folder_without_evaluated_rounds_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no history\.jsonl"):
        course_of(tmp_path)
    with pytest.raises(ExperimentError, match="no round with an accuracy; set"):
        course_of(write(tmp_path / "mine", [line(1, "level 1")]))


def test_lines_stand_where_levels_were_added(tmp_path):
    accuracy = {r: 0.3 + 0.1 * (r > 10) + 0.1 * (r > 20) for r in range(1, 31)}
    stairs = Course("of $ many", accuracy, {"level 1": 1, "level 2": 11, "level 3": 21})
    flat = Course("fedavg", dict.fromkeys(range(1, 31), 0.3), {"training": 1})
    images = {
        number: np.rint(255 * imread(rounds_picture(courses, tmp_path / "new" / "a.png"))[..., :3])
        for number, courses in ((2, [stairs, flat]), (1, [flat]))
    }
    # columns that are dashed in the colour of the lines all the way up
    dashed = {
        number: ((np.abs(image - [59, 111, 182]).max(axis=-1) < 60).mean(axis=0) > 0.3).sum()
        for number, image in images.items()
    }
    assert 2 <= dashed[2] <= 6  # two lines, a pixel or two wide
    assert dashed[1] == 0
    with pytest.raises(ExperimentError, match="0 runs to draw"):
        rounds_picture([], tmp_path / "b.png")


def test_names_of_short_phases_stand_apart():
    begun = {f"level {k}": 1 + 5 * k for k in range(4)} | {"level 4": 21}
    short = Course("femam", dict.fromkeys(range(1, 23), 0.4), begun)
    long = Course("flic", dict.fromkeys(range(1, 201), 0.3), {"training": 1})
    figure = rounds_figure([long, short])
    (axes,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [one.get_window_extent(renderer) for one in axes.texts]
    assert [one.get_text() for one in axes.texts] == [*begun]
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    assert boxes[0].x0 >= axes.get_window_extent(renderer).x0
    dashed = [one for one in axes.lines if one.get_linestyle() == "--"]
    assert {one.get_color() for one in dashed} == {COLOURS[1]}


def test_a_course_ends_with_the_result(tmp_path):
    folder = write(tmp_path / "mine", [line(1, "level 1", 0.25), line(2, "level 1")])
    metrics = Metrics(server=Score(0.5, 0.75))
    Result(
        "femam", "mine", 0, 2, "rounds", {}, {}, 3, None, metrics, environment={},
        hyperparameters={},
    ).write(folder)  # fmt: skip
    found = course_of(folder)
    assert (found.accuracy, found.result) == ({1: 0.25}, (2, 0.75))


def test_the_result_is_a_point_after_the_last_round(tmp_path):
    colour = np.array([59, 111, 182])
    right = {}  # the first and last column of the line's colour above the legend, and the highest
    for result in (None, (20, 0.9)):
        course = Course("flic", dict.fromkeys(range(1, 20), 0.3), {"training": 1}, result=result)
        image = np.rint(255 * imread(rounds_picture([course], tmp_path / "a.png"))[..., :3])
        inside = image[100:640]
        found = np.argwhere(np.abs(inside - colour).max(axis=-1) < 3)
        right[result] = found[found[:, 0].argmin()]
        assert found[:, 1].max() > 0.9 * image.shape[1]
    assert right[(20, 0.9)][0] < right[None][0] - 100
    assert right[(20, 0.9)][1] > 0.9 * image.shape[1]


@pytest.mark.parametrize("every", [0, 2])
def test_a_run_that_predicts_numbers_has_its_loss_drawn(tmp_path, every):
    x = np.random.default_rng(0).normal(size=(60, 2))
    intarsia.run(
        tables={"a": (x[:30], x[:30, 0]), "b": (x[30:], x[30:, 0])}, task="regression",
        algorithm="fedavg", loss="squared", rounds=4, tolerance=0, evaluate_every=every,
        yardsticks=False, out=tmp_path / "run",
    )  # fmt: skip
    if not every:
        with pytest.raises(ExperimentError, match="no round with an accuracy; set"):
            course_of(tmp_path / "run")
        return
    found = course_of(tmp_path / "run")
    assert not found.accuracy
    assert found.loss[4] < found.loss[2]
    assert rounds_picture([found], tmp_path / "a.png").is_file()
    with pytest.raises(ExperimentError, match="draw the two kinds apart"):
        rounds_picture([found, Course("flic", {1: 0.5}, {})], tmp_path / "b.png")


@pytest.mark.parametrize(("score", "drawn"), [(Score(0.5, None, 0.25), True),
                                              (Score(0.5, 0.75), False)])  # fmt: skip
def test_losses_of_a_run_that_predicts_numbers_are_drawn_without_evaluation(tmp_path, score, drawn):
    folder = write(tmp_path / "mine", [{"round": 1, "loss": 0.5}, {"round": 2, "loss": 0.25}])
    Result(
        "hyfdca", "mine", 0, 2, "tolerance", {}, {}, 3, None, Metrics(server=score),
        environment={}, hyperparameters={},
    ).write(folder)  # fmt: skip
    if drawn:
        assert course_of(folder).loss == {1: 0.5, 2: 0.25}
    else:
        with pytest.raises(ExperimentError, match="no round with an accuracy; set"):
            course_of(folder)
