"""Points of the latent space as a picture: from runs of networks, with their anchors."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from command_line import one_error, said

pytest.importorskip("torch")

import intarsia
from intarsia.cli.main import main
from intarsia.inference.latent_space import latent_of

FILE = """
[experiment]
rounds = 1
yardsticks = false

[dataset]
name = "gaussians"
classes = 4
features = 3
deviation = 3.0
train_samples = 60
test_samples = 10

[partition]
kind = "prior_shift"
clients = 4
classes = 3
mapping = [3, 6]

[preprocessing]
intercept = false

[algorithm]
name = "flic"
variant = "class"
hidden = 16
latent = 8
rate = 0.01
anchor_scale = 3.0
local_epochs = 1
final_epochs = 0
engine = "loop"
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs: embeddings as they were drawn, and after they were aligned with the anchors."""
    home = tmp_path_factory.mktemp("runs")
    (home / "toy.toml").write_text(FILE)
    made = []
    for epochs in (0, 120):
        out = home / f"after-{epochs}"
        intarsia.run(home / "toy.toml", out=out, pretraining_epochs=epochs)
        made.append(out)
    return made


def spread(latent):
    """Return the mean distance of samples to their class's anchor."""
    return np.mean(
        [
            np.linalg.norm(point - latent.anchors[label])
            for point, label in zip(latent.points, latent.classes, strict=True)
        ]
    )


def test_alignment_takes_samples_to_the_anchors_of_their_classes(folders):
    before, after = (latent_of(folder, most=20) for folder in folders)
    assert set(before.clients) == {"client0", "client1", "client2"}
    assert before.points.shape == (180, 8)  # three classes of 20 samples at three clients
    assert before.title == "after-0"
    assert spread(after) < 0.6 * spread(before)


def test_a_picture_has_a_panel_for_each_run(folders, tmp_path, capfd):
    target = tmp_path / "new" / "a.png"
    named = ["--client", "client3", "--client", "client1"]
    assert main(["embeddings", *map(str, folders), "-o", str(target), *named]) == 0
    assert str(target) in said(capfd)[1]
    image = imread(target)
    coloured = (image[..., :3].max(-1) - image[..., :3].min(-1)) > 0.2
    half = image.shape[1] // 2
    assert coloured[:, : half // 2].sum() > 500
    assert coloured[:, half : half + half // 2].sum() > 500


def test_what_cannot_be_drawn_is_said(folders, tmp_path, capfd):
    assert main(["embeddings", str(folders[0]), "--client", "client9"]) == 2
    assert "has no client 'client9'" in one_error(said(capfd)[1])
    file = tmp_path / "linear.toml"
    file.write_text(FILE.partition("[algorithm]")[0] + '[algorithm]\nname = "hyfdca"\n')
    intarsia.run(file, out=tmp_path / "linear")
    assert main(["embeddings", str(tmp_path / "linear")]) == 2
    assert "'hyfdca', which has no latent space" in one_error(said(capfd)[1])


def test_tables_with_a_category_of_many_levels_have_points(tmp_path):
    rng, rows = np.random.default_rng(0), range(200)
    kinds = rng.choice(["a", "b"], 200)
    lines = [f"{rng.normal():.3f},shop {row % 40},{kinds[row]}" for row in rows]
    (tmp_path / "one.csv").write_text("\n".join(["x,shop,y", *lines]))
    (tmp_path / "one.toml").write_text(
        '[algorithm]\nname = "flic"\n[[client]]\nname = "one"\npath = "one.csv"\nlabel = "y"\n'
        '[[client]]\nname = "two"\npath = "one.csv"\nlabel = "y"\nfeatures = ["x"]\n'
    )
    intarsia.run(tmp_path / "one.toml", out=tmp_path / "run", rounds=1, yardsticks=False)
    latent = latent_of(tmp_path / "run", clients=["one"])
    assert len(latent.points) > 100
    assert np.isfinite(latent.points).all()
