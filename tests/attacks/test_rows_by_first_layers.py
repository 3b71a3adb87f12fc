"""Who has the model of `hyfem` reads rows by what goes into its first layer: open.

Columns of a sample lie at two clients. To evaluate the server's network, the client with the label
opens the sum of both parts of its first layer, under masks too: 128 numbers by default. Less its
own part, that is the other's row by the other's extractor. Who has the model solves for the row.
Before the run ends only the seed is known, by which rows are found among candidates in the first
rounds. The server that predicts over clients has the model, too, and the sum of all parts: it
solves for all columns of a sample at once.
docs/explanations/privacy/site-refusals.md says so.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from intarsia.algorithms.hyfem import algorithm as hyfem
from intarsia.algorithms.hyfem import network as nets
from intarsia.core.block import Block
from intarsia.maths.figures import CROSS_ENTROPY
from intarsia.protocols.evaluation import evaluate_server
from tests.algorithms.hyfem.test_hyfem import Records, run, started

BLOCKS = {"u": tuple(f"u{k}" for k in range(8)), "v": tuple(f"v{k}" for k in range(3))}
PLACES = {"u": slice(8), "v": slice(8, 11)}
TESTED = 20


@pytest.fixture(scope="module")
def federation():
    """Return the rows that are tested, what each client sends of them, the model and its start."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(200 + TESTED, 11)), rng.normal(size=(11, 3))
    y = (x @ weights + rng.normal(size=(len(x), 3))).argmax(axis=1) + 0.0

    def held(block, rows, labels):
        names = BLOCKS[block]
        return Block(rows, names, x[rows][:, PLACES[block]], labels[rows], {block: names})

    train, test = np.arange(200), np.arange(200, 200 + TESTED)
    blocks = {"bank": held("u", train, y), "shop": held("v", train, y)}
    tested = {"bank": held("u", test, np.full(len(x), np.nan)), "shop": held("v", test, y)}
    options, records = hyfem.HYFEM.hyperparameters(), Records()
    engine, _, found = run(options, blocks, 1, test=tested, recorder=records)
    made_of = hyfem.HYFEM.model.architecture(options, engine.schema("train"), None)
    records.clear()
    model = hyfem.HYFEM.model.server_model
    evaluate_server(
        engine, engine.schema("test"), model, made_of.blocks, CROSS_ENTROPY, part="test"
    )
    sent = {one.client: one.fields["z"] for one in records if one.type == "PartialScores"}
    key = started(options, blocks)[0].key("init").fold_in("shared")
    start = nets.drawn(made_of, np.float64, key)
    return x[test], sent, made_of, nets.numbered(made_of, found.network), start


def layer(made_of, parameters, block):
    """Return what computes a block's part of the first layer, (rows, units), of its columns."""
    slot = made_of.blocks.index(block)
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    own = [torch.tensor(parameters[f"extractors.{slot}.{name}"]).double() for name in names]
    columns = torch.tensor(nets.parts_of(made_of, parameters).columns[block]).double()

    def given(x):
        inner = torch.relu(x @ own[0].T + own[1])
        return torch.relu(inner @ own[2].T + own[3]) @ columns.T

    return given


def solved(given, z, width):
    """Return rows that give what was opened, the best of three starts each."""
    aim, found, least = torch.tensor(z.T), np.zeros((z.shape[1], width)), np.full(z.shape[1], 1e9)
    for start in range(3):
        drawn = torch.randn(*found.shape, generator=torch.Generator().manual_seed(start))
        x = drawn.double().requires_grad_()
        steps = torch.optim.Adam([x], 0.05)
        for _ in range(1000):
            steps.zero_grad()
            off = ((given(x) - aim) ** 2).mean(dim=1)
            off.sum().backward()
            steps.step()
        nearer = off.detach().numpy() < least
        least[nearer], found[nearer] = off.detach().numpy()[nearer], x.detach().numpy()[nearer]
    return found


def rows_told(found, rows):
    return int((np.abs(found - rows).max(axis=1) < 0.01).sum())


def test_the_holder_of_labels_reads_the_other_s_rows_by_the_model(federation):
    rows, sent, made_of, model, _ = federation
    opened = sent["bank"] + sent["shop"] - sent["shop"]
    assert opened.shape == (128, TESTED)
    found = solved(layer(made_of, model, "u"), opened, 8)
    assert rows_told(found, rows[:, PLACES["u"]]) >= 0.9 * TESTED


def test_it_finds_rows_among_candidates_by_the_seed_alone_in_the_first_round(federation):
    rows, sent, made_of, _, start = federation
    listed = np.vstack([rows[:, PLACES["u"]], np.random.default_rng(9).normal(size=(280, 8))])
    given = layer(made_of, start, "u")(torch.tensor(listed)).numpy()
    off = ((given[:, :, None] - sent["bank"]) ** 2).mean(axis=1)  # (candidates, samples)
    assert (off.argmin(axis=0) == np.arange(TESTED)).sum() >= TESTED / 2


def test_who_has_the_model_and_the_sum_alone_reads_all_columns(federation):
    rows, sent, made_of, model, _ = federation
    u, v = (layer(made_of, model, name) for name in "uv")
    found = solved(lambda x: u(x[:, :8]) + v(x[:, 8:]), sent["bank"] + sent["shop"], 11)
    assert rows_told(found, rows) >= TESTED / 2
