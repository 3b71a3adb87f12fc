"""The benchmark problems: real data sets dealt to a grid of clients, and their optima.

An optimum is computed once to a gap that is far below what is measured, checked against two
independent solvers, and cached outside the repository.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack, issparse

from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.core.schema import Schema
from intarsia.data.dataset import Dataset
from intarsia.datasets import registry as datasets
from intarsia.maths.linear import losses, sdca
from intarsia.maths.linear.products import row_norms, scores
from intarsia.partition.registry import partition

__all__ = [
    "PROBLEMS",
    "Optimum",
    "Problem",
    "cached",
    "crossed_credit",
    "deal",
    "heavy_tailed",
    "ill_conditioned",
    "one_hot",
    "problem",
    "store",
    "synthetic",
]


@dataclass(frozen=True)
class Recipe:
    """How a problem is made of a named data set."""

    dataset: str
    regularisation: float  # λ
    options: Mapping[str, Any]
    standardise: bool = False
    grid: tuple[int, int] = (4, 4)  # unless another is asked for


PROBLEMS: Mapping[str, Recipe] = {
    "covtype15k": Recipe("covtype15k", 5e-5, {"positive": "2"}, standardise=True),
    "a9a": Recipe("a9a", 1e-4, {}),
    "mnist": Recipe("mnist", 1e-3, {"labels": "parity"}),
    "20news": Recipe("20news", 1e-4, {}),
    "20news-1e-5": Recipe("20news", 1e-5, {}),
    "breast_cancer": Recipe("breast_cancer", 1e-3, {}, standardise=True, grid=(2, 2)),
}

_CATEGORIES = ("SEX", "EDUCATION", "MARRIAGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6")


@dataclass(frozen=True)
class Optimum:
    """The smallest primal value known, and what certifies it."""

    primal: float
    dual: float  # largest dual value known: the optimum is not below it
    found: Mapping[str, float]  # smallest primal value by solver

    @property
    def gap(self) -> float:
        """Return the relative gap: how far the optimum may be below `primal`."""
        return (self.primal - self.dual) / self.primal


@dataclass(frozen=True, eq=False)
class Problem:
    """One data set with a loss and a regularisation, pooled and dealt."""

    name: str
    loss: str
    regularisation: float  # λ
    grid: tuple[int, int]
    blocks: Mapping[ClientId, Block]  # aligned
    labels: Labels
    x: Any  # (samples, features) pooled, in the data set's order
    y: Array  # (samples,)
    features: tuple[str, ...]
    samples: Array  # (samples,) ids

    @property
    def code(self) -> int:
        """Return the loss's code."""
        return losses.loss_code(self.loss)

    @property
    def data_bytes(self) -> int:
        """Return the bytes of the values that all clients hold together."""
        return sum(value_bytes(block.x) for block in self.blocks.values())

    @cached_property
    def norms(self) -> Array:
        """Return the squared norm of each sample, (samples,)."""
        return row_norms(self.x)

    def schema(self) -> Schema:
        """Return a new schema: what it derives is then computed in a run's own time."""
        return Schema.of(self.blocks, self.labels)

    def primal(self, w: Array) -> float:
        """Return P(w) for weights (1, features) in the data set's order."""
        y = self.y[None]
        rate = self.regularisation
        return sdca.primal_objective(scores(self.x, w), y, w, regularisation=rate, loss=self.code)

    def dual(self, alpha: Array) -> float:
        """Return D(α) for duals (1, samples) in the data set's order."""
        w = sdca.weights_from_duals(self.x, alpha, self.regularisation)
        y = self.y[None]
        return sdca.dual_objective(alpha, y, w, regularisation=self.regularisation, loss=self.code)


def value_bytes(x: Any) -> int:
    """Return the bytes of a dense or CSR table."""
    if issparse(x):
        return int(x.data.nbytes + x.indices.nbytes + x.indptr.nbytes)
    return int(x.nbytes)


def deal(name: str, grid: tuple[int, int], seed: int) -> tuple[Dataset, Labels, dict[str, Block]]:
    """Return the training part of a problem's data set, and its blocks."""
    recipe = PROBLEMS[name]
    dataset, labels = datasets.encoded(datasets.load(recipe.dataset, **recipe.options))
    dataset = dataset.split()[0]
    if recipe.standardise:
        x = np.asarray(dataset.x, np.float64)
        deviation = x.std(axis=0)
        x = (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        dataset = replace(dataset, x=x)
    rows, columns = grid
    return dataset, labels, partition("grid", dataset, rows=rows, columns=columns, seed=seed)


def problem(name: str, *, loss: str, grid: tuple[int, int] | None = None, seed: int = 0) -> Problem:
    """Return a named problem; `grid` is (rows, columns) of clients."""
    grid = grid or PROBLEMS[name].grid
    dataset, labels, blocks = deal(name, grid, seed)
    rate = PROBLEMS[name].regularisation
    return _pooled(name, dataset, labels, blocks, loss, rate, grid)


def synthetic(
    samples: int,
    features: int,
    *,
    loss: str,
    regularisation: float,
    grid: tuple[int, int],
    seed: int,
) -> Problem:
    """Return a dense problem with correlated columns and noisy labels."""
    rng = np.random.default_rng([seed, samples, features])
    factors = rng.standard_normal((samples, 8)) @ rng.standard_normal((8, features))
    x = rng.standard_normal((samples, features)) + 0.5 * factors
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    score = x @ rng.standard_normal(features) / np.sqrt(features)
    y = np.where(score + 0.5 * score.std() * rng.standard_normal(samples) > 0, 1.0, -1.0)
    return _dealt("synthetic", x, y, loss, regularisation, grid, seed)


def one_hot(
    samples: int,
    features: int,
    *,
    loss: str,
    regularisation: float,
    grid: tuple[int, int],
    seed: int,
    standardise: bool,
    positive: float = 0.1,
) -> Problem:
    """Return a problem of five numeric columns and categorical ones written out, a column a level.

    Two of the numeric columns have heavy tails. Levels are as frequent as Zipf's law says, so that
    many have a row or two. `positive` is the share of the rarer class. Standardised tables are
    dense.
    """
    rng = np.random.default_rng([seed, samples, features])
    numeric = rng.standard_normal((samples, 5))
    numeric[:, 3] = rng.standard_t(2, samples)
    numeric[:, 4] = np.exp(2 * numeric[:, 4])
    score = numeric[:, :4] @ np.array([1.0, -0.7, 0.4, 0.1])
    parts, left = [csr_array(numeric)], features - 5
    while left > 0:
        levels = min(left, max(20, (features - 5) // 3))
        chance = np.arange(1, levels + 1) ** -1.3
        level, columns = _written_out(rng.choice(levels, samples, p=chance / chance.sum()))
        score += rng.standard_normal(levels)[level]
        parts.append(columns)
        left -= columns.shape[1]
    score += rng.logistic(size=samples)
    y = np.where(score > np.quantile(score, 1 - positive), 1.0, -1.0)
    x = _standardised(parts) if standardise else sdca.as_rows(csr_array(hstack(parts)))
    return _dealt("one-hot", x, y, loss, regularisation, grid, seed)


def crossed_credit(
    *,
    loss: str,
    regularisation: float,
    grid: tuple[int, int],
    seed: int,
    standardise: bool,
) -> Problem:
    """Return the credit card clients of Taiwan, with each pair of categories crossed.

    The columns of numbers have scale 1. A pair has a column for each combination that there is,
    most of them rare; with the categories themselves the columns are linearly dependent.
    """
    dataset, _ = datasets.encoded(datasets.load("credit_default"))
    place = {name: number for number, name in enumerate(dataset.features)}
    values = np.asarray(dataset.x, np.float64)
    categories = [name for name in _CATEGORIES if name in place]
    numbers = [place[name] for name in dataset.features if name not in categories]
    parts = [csr_array(_scaled(values[:, numbers]))]
    for k, one in enumerate(categories):
        for other in categories[k:]:
            pair = values[:, [place[one], place[other]]]
            parts.append(_written_out(np.unique(pair, axis=0, return_inverse=True)[1])[1])
    x = _standardised(parts) if standardise else sdca.as_rows(csr_array(hstack(parts)))
    return _dealt("crossed-credit", x, dataset.y, loss, regularisation, grid, seed)


def ill_conditioned(
    samples: int,
    features: int,
    *,
    loss: str,
    regularisation: float,
    grid: tuple[int, int],
    seed: int,
    standardise: bool,
    numbers: bool = False,
) -> Problem:
    """Return a dense problem whose columns are nearly dependent, with heavy tails and outliers.

    Columns are of a random walk, whose steps have Student's distribution of 2 degrees of freedom:
    the condition of XᵀX is about `features`² times that of its tails. A row in a hundred is 30
    times as large, and half of these have a random label. Where they are not standardised, the
    columns' sizes differ by up to 10⁴. `numbers` has the score as its labels, and has it 10 times
    as large in half of the large rows.
    """
    rng = np.random.default_rng([seed, samples, features])
    x = np.cumsum(rng.standard_t(2, (samples, features)), axis=1)
    score = np.sign(x) * np.log1p(np.abs(x)) @ rng.standard_normal(features)
    score = score / score.std() + 0.3 * rng.logistic(size=samples)
    y = np.where(score > np.quantile(score, 0.7), 1.0, -1.0)
    far = rng.random(samples) < 0.01
    x[far] *= 30.0
    wrong = rng.random(far.sum()) < 0.5
    y[far] = np.where(wrong, -y[far], y[far])
    score[far] *= np.where(wrong, 10.0, 1.0)
    x = _scaled(x)
    if not standardise:
        x *= 10 ** rng.uniform(-2, 2, features)
    return _dealt("ill-conditioned", x, score if numbers else y, loss, regularisation, grid, seed)


def heavy_tailed(
    samples: int,
    numeric: int,
    *,
    loss: str,
    regularisation: float,
    grid: tuple[int, int],
    seed: int,
    spread: float,
    numbers: bool = False,
) -> Problem:
    """Return a dense problem of heavy-tailed columns and 40 levels written out, most of them rare.

    Sizes of columns are 10 to the power of -`spread` to `spread`. `numbers` has labels that lie far
    from 0, with heavy tails.
    """
    rng = np.random.default_rng([seed, samples, numeric])
    chance = np.arange(1, 41) ** -1.3
    columns = _written_out(rng.choice(40, samples, p=chance / chance.sum()))[1].toarray()
    x = np.hstack([rng.standard_t(1.5, (samples, numeric)), columns])
    score = x @ rng.standard_normal(x.shape[1])
    score = score / np.abs(score).mean()
    if numbers:
        y = 20 + score + rng.standard_t(1.2, samples)
    else:
        score += rng.logistic(size=samples)
        y = np.where(score > np.quantile(score, rng.uniform(0.3, 0.9)), 1.0, -1.0)
    x = x * 10 ** rng.uniform(-spread, spread, x.shape[1])
    return _dealt("heavy-tailed", x, y, loss, regularisation, grid, seed)


def _written_out(level: Any) -> tuple[Any, csr_array]:
    """Return each row's level, numbered without gaps, and a column for each."""
    level = np.unique(level, return_inverse=True)[1]
    places = np.arange(len(level)), level
    return level, csr_array((np.ones(len(level)), places), shape=(len(level), level.max() + 1))


def _scaled(x: Array) -> Array:
    """Bring dense columns to mean 0 and deviation 1, in place; constant ones are 0."""
    for start in range(0, x.shape[1], 256):  # a copy of all would be as large as the table
        some = x[:, start : start + 256]
        some -= some.mean(axis=0)
        deviation = some.std(axis=0)
        some /= np.where(deviation > 0, deviation, 1.0)
    return x


def _standardised(parts: list[csr_array]) -> Array:
    return _scaled(csr_array(hstack(parts)).toarray())


def _dealt(
    name: str,
    x: Any,
    y: Array,
    loss: str,
    rate: float,
    grid: tuple[int, int],
    seed: int,
) -> Problem:
    """Return a table, with numbers or the two classes -1 and 1, dealt to a grid of clients."""
    samples = np.arange(len(y), dtype=np.int64)
    labels = Labels("regression")
    if losses.loss_code(loss) not in losses.NUMBERS:
        labels = Labels("binary", ("-1", "1"))
    names = tuple(f"f{j:04d}" for j in range(x.shape[1]))
    dataset = Dataset(name, samples, names, x, y)
    blocks = partition("grid", dataset, rows=grid[0], columns=grid[1], seed=seed)
    return _pooled(name, dataset, labels, blocks, loss, rate, grid)


def _pooled(
    name: str,
    dataset: Dataset,
    labels: Labels,
    blocks: Mapping[ClientId, Block],
    loss: str,
    rate: float,
    grid: tuple[int, int],
) -> Problem:
    schema = Schema.of(blocks, labels)
    aligned = {client: schema.align(client, block) for client, block in blocks.items()}
    if dataset.sparse:
        x = sdca.as_rows(csr_array(dataset.x))
    else:
        x = np.asarray(dataset.x, np.float64)
        x = x if dataset.scale == 1 else x * dataset.scale
    y = dataset.y.astype(np.float64)
    return Problem(name, loss, rate, grid, aligned, labels, x, y, dataset.features, dataset.samples)


# ---- optima, kept outside the repository


def _place(one: Problem) -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    home = Path(root) if root else Path.home() / ".cache"
    if not os.access(home if home.is_dir() else home.parent, os.W_OK):
        home = Path(tempfile.gettempdir())
    values = one.x.data if issparse(one.x) else one.x[:: max(1, len(one.x) // 997)]
    stamp = zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data)
    stamp = zlib.crc32(np.ascontiguousarray(one.y).view(np.uint8).data, stamp)
    name = f"{one.name}-{one.loss}-{one.regularisation:g}-{stamp:08x}.json"
    return home / "intarsia-benchmarks" / name


def cached(one: Problem) -> Optimum | None:
    """Return the optimum that was stored for exactly this problem."""
    path = _place(one)
    return Optimum(**json.loads(path.read_text())) if path.is_file() else None


def store(one: Problem, optimum: Optimum) -> None:
    """Keep an optimum for the next run."""
    path = _place(one)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(optimum), indent=2))
