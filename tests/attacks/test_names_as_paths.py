"""Names of clients are anybody's text: as names of files they would write outside of the folder.

Files of clients are numbered, and a model that names a file beside its folder is refused.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from intarsia.errors import CheckpointError
from intarsia.models.linear import LinearRegressor
from intarsia.models.serialization import LinearModels, read_model, write_model

NAMES = (
    "../../outside",
    "/outside",
    "a\x00b",
    "Bank",
    "bank",
    "b\u0430nk",
    "x" * 5_000,
    ".",
    "a/b",
)


def written(folder):
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["f", "g"])
    own = {}
    for at, name in enumerate(NAMES):
        own[name] = LinearRegressor(regularisation=0.1).fit(x, x["f"] + at)
        own[name].feature_names_in_, own[name].means_ = np.array(["f", "g"]), np.zeros(2)
    write_model(LinearModels("flic-linear", own), folder)
    return own, x


def test_no_name_of_a_client_is_a_path(tmp_path):
    folder = tmp_path / "run" / "model"
    own, x = written(folder)
    there = {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()}
    numbered = {f"run/model/clients/{at:05d}.json" for at in range(len(NAMES))}
    assert there == numbered | {"run/model/clients.json"}
    found = read_model(folder)
    assert tuple(found) == NAMES
    for name in NAMES:  # those that look alike are apart
        np.testing.assert_array_equal(found[name].predict(x), own[name].predict(x))


@pytest.mark.parametrize("file", ["../secret.json", "clients/../../secret.json", "/secret.json"])
def test_a_model_names_no_file_beside_its_folder(file, tmp_path):
    folder = tmp_path / "model"
    written(folder)
    secret = tmp_path / "secret.json"
    secret.write_text((folder / "clients" / "00000.json").read_text())
    if file.startswith("/"):
        file = str(secret)
    tree = json.loads((folder / "clients.json").read_text())
    tree["clients"]["Bank"] = file
    (folder / "clients.json").write_text(json.dumps(tree))
    assert (folder / file).resolve() == secret
    with pytest.raises(CheckpointError):
        read_model(folder)
