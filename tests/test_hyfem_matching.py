"""HyFEM from classifiers of the clients' own: put together neuron by neuron, or in their order."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from intarsia.algorithm import RandomKey  # noqa: E402  after the skip
from intarsia.algorithms.block_network import Composition, drawn, parts_of  # noqa: E402
from intarsia.algorithms.extractors import extractor  # noqa: E402
from intarsia.algorithms.hyfem import HYFEM, HyFEM  # noqa: E402
from intarsia.algorithms.hyfem_matching import OwnClassifier, joined  # noqa: E402
from intarsia.data import Block, Labels, Schema  # noqa: E402
from intarsia.engines.in_process import InProcess  # noqa: E402
from intarsia.errors import ExperimentError  # noqa: E402

BLOCKS = ("a", "b", "c")
HELD = (("a", "b"), ("b", "c"), ("a", "c"))
CLASSES = 4


def composition(hidden=(6, 5)):
    columns = tuple(tuple(f"{name}{k}" for k in range(3)) for name in BLOCKS)
    kinds = tuple(extractor(name, "linear", (3,), 2, ()) for name in BLOCKS)
    return Composition(BLOCKS, columns, kinds, hidden, CLASSES)


def shuffled(made_of, parts, held, rng):
    """Return a client's classifier: the server's with its neurons in another order."""
    first, second = (rng.permutation(width) for width in made_of.hidden)
    at, pieces = 0, []
    widths = (*made_of.hidden, made_of.outputs)
    for layer, width in enumerate(widths):
        if layer:
            size = widths[layer - 1] * width
            pieces.append(parts.rest[at : at + size].reshape(width, widths[layer - 1]))
            at += size
        pieces.append(parts.rest[at : at + width])
        at += width
    bias1, weight2, bias2, weight3, bias3 = pieces
    rest = (bias1[first], weight2[second][:, first], bias2[second], weight3[:, second], bias3)
    return OwnClassifier(
        {name: parts.columns[name][first] for name in held},
        np.concatenate([piece.ravel() for piece in rest]),
        np.ones(CLASSES, bool),
    )


def test_shuffled_classifiers_give_the_one_that_they_come_from():
    made_of, rng = composition(), np.random.default_rng(0)
    parts = parts_of(made_of, drawn(made_of, np.float64, RandomKey((0,))))
    other = parts_of(made_of, drawn(made_of, np.float64, RandomKey((1,))))
    replies = {f"c{k}": shuffled(made_of, parts, held, rng) for k, held in enumerate(HELD)}
    shares = {"c0": 0.2, "c1": 0.5, "c2": 0.3}

    _, found = joined(made_of, replies, shares, other)
    _, plain = joined(made_of, replies, shares, other, in_order=True)

    # the first client's order is the server's
    expected = replies["c0"]
    assert np.allclose(found.rest, expected.rest, rtol=0, atol=1e-12)
    for name in HELD[0]:
        assert np.allclose(found.columns[name], expected.columns[name], rtol=0, atol=1e-12)
    rows = {tuple(np.round(row, 9)) for row in parts.columns["c"]}
    assert {tuple(np.round(row, 9)) for row in found.columns["c"]} == rows
    assert found.extractors is other.extractors
    assert not np.allclose(plain.rest, expected.rest, rtol=0, atol=1e-3)


def test_what_no_client_has_is_the_servers_own_draw():
    made_of, rng = composition(), np.random.default_rng(0)
    parts = parts_of(made_of, drawn(made_of, np.float64, RandomKey((0,))))
    other = parts_of(made_of, drawn(made_of, np.float64, RandomKey((1,))))
    one = shuffled(made_of, parts, HELD[0], rng)
    blind = OwnClassifier(one.columns, one.rest, np.arange(CLASSES) != 2)

    _, found = joined(made_of, {"c0": blind}, {"c0": 1.0}, other)

    assert np.array_equal(found.columns["c"], other.columns["c"])
    assert np.array_equal(found.columns["a"], one.columns["a"])
    last, mine = (some.rest[-CLASSES:] for some in (found, one))
    assert found.rest[-CLASSES:][2] == other.rest[-CLASSES:][2]
    assert np.array_equal(np.delete(last, 2), np.delete(mine, 2))


def federation(seed=0, samples=120):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, 9))
    found = {}
    for client, held in enumerate(HELD):
        y = rng.integers(CLASSES, size=samples)
        names = {name: tuple(f"{name}{k}" for k in range(3)) for name in held}
        columns = [3 * BLOCKS.index(name) + k for name in held for k in range(3)]
        x = centres[y][:, columns] + 0.7 * rng.normal(size=(samples, len(columns)))
        rows = np.arange(client * samples, (client + 1) * samples)
        flat = tuple(name for group in names.values() for name in group)
        found[f"c{client}"] = Block(rows, flat, x, y.astype(float), names)
    return found


def loss_after_setup(start, seed):
    blocks = federation()
    labels = Labels("multiclass", tuple(map(str, range(CLASSES))))
    schema = Schema.of(blocks, labels)
    options = HyFEM(
        start=start, hidden=(16,), features=4, steps=16, extractor="linear", rate=0.3, engine="loop"
    )
    engine = InProcess({"train": (schema, blocks)}, seed)
    server = HYFEM.init_server(options, schema, engine.key("init"))
    engine.make_states(
        lambda name: HYFEM.init_client(
            options, schema, name, engine.block(name), engine.client_key(name)
        )
    )
    server = HYFEM.setup(server, engine, engine.key("init"))
    return HYFEM.certify(server, engine, engine.key())[1].loss


def test_classifiers_of_the_clients_own_are_better_matched_than_in_their_order():
    matched, unmatched = (
        [loss_after_setup(start, seed) for seed in range(3)] for start in ("matched", "unmatched")
    )

    assert np.mean(matched) < 0.9 * np.mean(unmatched)
    assert all(one < other for one, other in zip(matched, unmatched, strict=True))


@pytest.mark.parametrize("options", [{"shares": "extractors"}, {"hidden": ()}])
def test_nothing_to_match_is_said(options):
    with pytest.raises(ExperimentError, match=r'algorithm\.start is "matched"'):
        HyFEM(start="matched", **options)
