from __future__ import annotations

import matplotlib
import pytest


@pytest.fixture(autouse=True)
def all_pixels(monkeypatch):
    """Draw pictures of as many pixels as users get."""
    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", "figure")
