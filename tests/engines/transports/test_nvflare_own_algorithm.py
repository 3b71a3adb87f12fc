"""The tutorial on an own algorithm over NVIDIA FLARE: a server and four sites, each a process."""

from __future__ import annotations

import os
import sys
import tomllib

import numpy as np
import pytest

import intarsia
from key_folders import exchanged
from own_algorithm import EXAMPLE, NAMES, closed_form, install, site_toml

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import Federation


@pytest.mark.slow
def test_four_sites_run_an_installed_algorithm_by_its_name(tmp_path, monkeypatch):
    target = install(tmp_path / "target")
    monkeypatch.setenv("PYTHONPATH", f"{target}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(target)
    monkeypatch.delitem(sys.modules, "intarsia_ridge", raising=False)
    tree = tomllib.loads((EXAMPLE / "ridge.toml").read_text())
    tree["split"] = {"test": 0.0}
    exchanged(tmp_path, NAMES, "ridge")
    federation = Federation(tmp_path)
    federation.tables = tmp_path
    for one in tree.pop("client"):
        local = federation.kits / one["name"] / "local"
        (local / "site.toml").write_text(site_toml(one, tmp_path, more="scales = true\n"))
    tree["client"] = [{"name": name} for name in NAMES]
    try:
        for name in ("server", *NAMES):
            federation.start(name)
        federation.submit(tree)
        found = federation.finished("ridge")
    finally:
        federation.stop_all()
    assert found.certificate.gap_relative < 1e-10
    x, expected = closed_form()
    model = intarsia.load(federation.out("ridge")).model
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-6)
