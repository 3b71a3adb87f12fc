"""`intarsia doctor --warm`: train small federations, so that what runs compile is compiled before.

Kernels are compiled when they are first called, for dense and for sparse tables, and kept on disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.experiment import config
from intarsia.training import run as running

_CLASSES = ("hinge", "squared_hinge", "logistic")
_NUMBERS = ("squared", "huber", "quantile", "poisson", "gamma")
_ROWS, _MANY = 80, 60_000  # long sums have kernels of their own
_LEVELS = 40  # of a category: many make a table sparse


def warm(told: Callable[[str], object]) -> int:
    """Train a small federation with each loss, and return how many; `told` gets each one's name."""
    count = 0
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder:
        write_tables(Path(folder), _ROWS)
        write_tables(Path(folder), _MANY)
        for count, (name, tree) in enumerate(trees(), 1):  # noqa: B007 - it is returned
            told(name)
            running.run(config.from_dict(tree, folder), out=None)
    return count


def trees() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the experiments by name: each loss, in the clear and masked, dense and sparse.

    Dual ascent and federated averaging have kernels of their own, which are one for all losses.
    """
    for loss in (*_CLASSES, *_NUMBERS):
        for sparse in (False, True):
            for mode in ("plain", "masked"):
                name = f"{loss}, {'sparse' if sparse else 'dense'}, {mode}"
                yield name, _tree(loss, mode, sparse=sparse)
    for method, own in (("ascent", {"method": "ascent"}), ("fedavg", {"name": "fedavg"})):
        for sparse in (False, True):
            tree = _tree("hinge", "plain", sparse=sparse)
            tree["algorithm"] |= own
            yield f"{method}, {'sparse' if sparse else 'dense'}, plain", tree
    yield "long sums, masked", _tree("logistic", "masked", sparse=False, rows=_MANY)


def _tree(loss: str, mode: str, *, sparse: bool, rows: int = _ROWS) -> dict[str, Any]:
    label = "class" if loss in _CLASSES else "number"
    other = {"class": "number", "number": "class"}[label]
    bank: dict[str, Any] = {"name": "bank", "path": f"bank{rows}.csv", "id": "id", "label": label}
    bank |= {"categorical": ["town"]} if sparse else {}
    bank["exclude"] = [other] if sparse else [other, "town"]
    others = [{"name": name, "path": f"{name}{rows}.csv", "id": "id"} for name in ("shop", "gym")]
    return {
        "experiment": {"name": "warm", "rounds": 12, "workers": 1},
        "algorithm": {"name": "hyfdca", "loss": loss, "regularisation": 0.01},
        "labels": {"task": "regression" if label == "number" else "binary"},
        "client": [bank, *others],
        "privacy": {"mode": mode},
    }


def write_tables(folder: Path, rows: int) -> None:
    """Write the tables of three clients that share rows, of so many."""
    draw = np.random.default_rng(0)
    bank, shop = ["id,age,income,town,class,number"], ["id,visits,basket,member"]
    gym = ["id,hours"]
    for row in range(rows):
        age, income = draw.normal(40, 10), draw.normal(30, 8)
        said = "yes" if age + income + draw.normal(0, 5) > 70 else "no"
        town = f"t{row % _LEVELS}"
        number = 1 + draw.integers(9)
        if row < 3 * rows // 4:
            bank.append(f"{row},{age:.2f},{income:.2f},{town},{said},{number}")
        if row >= rows // 4:
            shop.append(f"{row},{draw.integers(20)},{draw.normal(50, 9):.2f},m{row % 3}")
        gym.append(f"{row},{draw.normal(5, 1):.2f}")
    (folder / f"gym{rows}.csv").write_text("\n".join(gym) + "\n")
    (folder / f"bank{rows}.csv").write_text("\n".join(bank) + "\n")
    (folder / f"shop{rows}.csv").write_text("\n".join(shop) + "\n")
