from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from intarsia.errors import FederationError
from intarsia.partition.client_clusters import Structure, Structures
from intarsia.plots.client_clusters import structure_picture


def names(number):
    return tuple(f"c{at:02}" for at in range(number))


def drawn(path):
    """The picture's colours, (height, width, 3), as whole numbers."""
    return np.rint(255 * imread(path)[..., :3]).astype(int)


def share(image, code):
    colour = [int(code[at : at + 2], 16) for at in (1, 3, 5)]
    return (np.abs(image - colour).max(axis=-1) <= 1).mean()


BLUE, ORANGE, GREEN, GREY = "#3b6fb6", "#e08a2b", "#4b9e5f", "#c3cbd6"


def test_groups_have_the_colours_of_the_true_groups_they_are_like(tmp_path):
    clients = names(12)
    truth = Structure(clients, {"clusters": (0,) * 6 + (1,) * 6})
    swapped = Structure(clients, {"level 1": (9,) * 6 + (4,) * 6})
    same = drawn(structure_picture(Structures(truth, truth), tmp_path / "new" / "a.png"))
    other = drawn(structure_picture(Structures(truth, swapped), tmp_path / "b.png"))
    assert share(same, BLUE) == pytest.approx(share(other, BLUE), rel=1e-3)
    assert share(same, BLUE) == pytest.approx(share(same, ORANGE), rel=0.05)
    assert share(same, GREEN) == share(other, GREEN) == 0


def test_clients_without_a_part_are_white_and_a_group_of_all_is_grey(tmp_path):
    clients = names(12)
    truth = Structure(clients, {"clusters": (0,) * 6 + (1,) * 6})
    whole = Structure(clients, {"level 1": (0,) * 12, "level 2": (0,) * 6 + (1,) * 6})
    half = Structure(clients, {"level 1": (0,) * 12, "level 2": (0,) * 6 + (None,) * 6})
    images = [
        drawn(structure_picture(Structures(truth, one), tmp_path / "a.png", title="of $ many"))
        for one in (whole, half)
    ]
    assert share(images[0], GREY) > 0.02
    assert share(images[1], BLUE) == pytest.approx(share(images[0], BLUE), rel=0.15)
    assert share(images[1], ORANGE) < 0.6 * share(images[0], ORANGE)


def test_one_structure_alone_is_drawn_and_none_is_refused(tmp_path):
    many = names(100)
    personal = Structure(many, {"level 1": (0,) * 100, "level 2": tuple(range(100))})
    assert structure_picture(Structures(None, personal), tmp_path / "a.png").is_file()
    nothing = Structure(names(3), {})
    assert structure_picture(Structures(nothing, None), tmp_path / "b.png").is_file()
    with pytest.raises(FederationError, match="no structure to draw"):
        structure_picture(Structures(), tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()
