"""Where Newton's system is shared, what clients and the server open says nothing of others' rows.

Each attacker pools all that it was given, decrypted, over all rounds, and looks for the columns of
others that it has not: by regression on what it has of each sample, and, for columns with few
values, by clusters of samples. Each attack is seen to succeed where the protection is taken out:
the dealer's words, or the basis.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from federations import BINARY, block, table
from intarsia.algorithms.hyfdca import dual_ascent
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import frame as newton_frame
from intarsia.algorithms.hyfdca.newton import shares as newton_shares
from intarsia.core.client_functions import SecretKey
from intarsia.core.schema import Schema
from intarsia.engines.simulation import Simulation
from intarsia.engines.transcript import Crossed
from intarsia.maths.linear.word_products import BITS, joined_words, unpack
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy

OPTIONS = HYFDCA.hyperparameters(loss="logistic", regularisation=1e-2, method="newton")
FEATURES = {"bank": range(6), "shop": range(5, 24)}  # one column at both
SAMPLES = 300
FAIR = 0.5  # share of a column's variance that a failed attack leaves, at least, at the median
EXACT = 1e-4  # that a successful one leaves, at most


class Watched(Simulation):
    """Takes down what each client is given and what each call leaves behind."""

    def __init__(self, *given, **named):
        self.visits = []
        super().__init__(*given, **named)

    def _replies(self, fn, opened):
        for client, message in opened.items():
            self.visits.append((fn.name, client, self.states[client], message))
        return super()._replies(fn, opened)

    def of(self, function, client):
        """Return the state and the message of each call of a client's function."""
        return [one[2:] for one in self.visits if one[:2] == (function, client)]


class Kept:
    """A recorder that keeps what the server could read."""

    def __init__(self):
        self.lines: list[Crossed] = []

    def record(self, crossed):
        self.lines.append(crossed)


def parties():
    """Return two clients with the same samples: numbers, yes or no, and categories at the shop."""
    x, y = table(SAMPLES, 24)
    rng = np.random.default_rng(4)
    x[:, 12:18] = rng.random((SAMPLES, 6)) < 0.3
    x[:, 18:24] = np.eye(6)[rng.integers(0, 6, SAMPLES)]
    return x, {
        name: block(x, y, range(SAMPLES), own, labels=name == "bank")
        for name, own in FEATURES.items()
    }


def trained(mode="masked", options=OPTIONS, rounds=3, weighted=False):
    x, blocks = parties()
    if weighted:
        weights = np.random.default_rng(6).uniform(0.5, 2.0, SAMPLES)
        blocks["bank"] = dataclasses.replace(blocks["bank"], weights=weights)
    schema = Schema.of(blocks, dataclasses.replace(BINARY, weighted=weighted))
    keys = modes.in_one_process(SharedKey(bytes(range(32)), "test"), b"")
    sealing = None if mode == "plain" else modes.sealing(Privacy(mode=mode), list(blocks), keys)
    recorder = Kept()
    engine = Watched({"train": (schema, blocks)}, 7, sealing, recorder)
    engine.count_once()
    engine.begin(HYFDCA, options)
    key = engine.key("init")
    server = HYFDCA.setup(HYFDCA.init_server(options, schema, key), engine, key)
    for number in range(1, rounds + 1):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    columns = np.array([int(str(name)[1:]) for name in schema.features.ids])
    return x[schema.samples.ids][:, columns], engine, recorder, server


@pytest.fixture(params=["protected", "words taken out"])
def works(request, monkeypatch):
    """Let the dealer's words be what they are, or zeros; return whether attacks work."""
    if request.param != "protected":
        monkeypatch.setattr(SecretKey, "words", lambda _, count: np.zeros(count, np.uint64))
    return request.param != "protected"


def opened_rows(engine, attacker, other):
    """Return all that a client is given of each sample by the other's words, (samples, numbers).

    Each step brings some samples; those that are not there count as 0.
    """
    found = []
    width = len(engine.schema("train").features.own(other))
    for state, message in engine.of("multiply_rows", attacker):
        for turn in newton_shares.TURNS:
            value = getattr(message, turn)
            if value is not None and len(value):
                rows = value.view(np.int64).reshape(-1, width) * 2.0**-BITS
                # the weights of rows are known to all owners
                weights = np.sqrt(
                    state.point.curvature[0] / (SAMPLES * state.point.system_scale[0])
                )
                step = np.zeros((SAMPLES, width))
                step[state.point.selected] = rows / weights[:, None]
                found.append(step)
    return np.concatenate(found, axis=1)


def left(known, columns):
    """Return the share of each column's variance that a regression on what is known leaves.

    It is fitted on one half of the samples and judged by the other.
    """
    half = len(known) // 2
    scale = np.abs(known).max(axis=0)
    known = np.column_stack([known / np.where(scale > 0, scale, 1), np.ones(len(known))])
    found = np.linalg.lstsq(known[:half], columns[:half], rcond=1e-9)[0]
    error = ((known[half:] @ found - columns[half:]) ** 2).mean(axis=0)
    return error / columns[half:].var(axis=0)


def purity(known, values):
    """Return how many of the pairs of samples with the closest rows have equal values.

    A cluster of equal rows would show in it.
    """
    scale = known.std(axis=0)
    z = known / np.where(scale > 0, scale, 1)
    distance = ((z[:, None] - z[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    return (values[distance.argmin(axis=0)] == values).all(axis=-1).mean()


@pytest.mark.parametrize(("attacker", "other"), [("bank", "shop"), ("shop", "bank")])
def test_a_co_owner_cannot_regress_the_columns_of_the_other_on_what_it_opened(
    works, attacker, other
):
    x, engine, _, _ = trained()
    known = opened_rows(engine, attacker, other)
    index = engine.schema("train").features
    theirs = np.setdiff1d(index.own(other), index.own(attacker))
    error = left(known, x[:, theirs])
    assert (error < EXACT).all() if works else np.median(error) > 0.9


def test_a_co_owner_cannot_tell_categories_from_clusters_of_what_it_opened(works):
    x, engine, _, _ = trained()
    index = engine.schema("train").features
    names = [int(str(name)[1:]) for name in index.ids]
    categories = x[:, [names.index(column) for column in range(18, 24)]]
    mixed = opened_rows(engine, "bank", "shop")
    if works:
        # rows in the basis, which an attacker does not know: brought to a standard form by how
        # they vary together, those of one category are alike in the directions that vary least
        known = left(mixed, categories)
        assert (known < EXACT).all()
    chance = (categories.mean(axis=0) ** 2).sum()
    found = purity(mixed, categories)
    assert found > chance + 0.1 if works else found < chance + 0.1


def test_all_that_a_client_opens_tells_little_more_than_the_scores_and_duals_do():
    """Everything per sample that a client was given, the dual points of all rounds among it."""
    x, engine, _, _ = trained()
    pooled = [opened_rows(engine, "shop", "bank")]
    for _, client, _, opened in engine.visits:
        for value in vars(opened).values() if client == "shop" else ():
            if isinstance(value, np.ndarray) and value.shape[-1:] == (SAMPLES,):
                pooled.append(value.reshape(-1, SAMPLES).T.astype(float))
    known = np.concatenate(pooled, axis=1)
    index = engine.schema("train").features
    own = x[:, index.own("shop")]
    theirs = x[:, np.setdiff1d(index.own("bank"), index.own("shop"))]
    error = left(np.concatenate([known[:, -8:], own], axis=1), theirs)
    assert np.median(error) > FAIR / 2
    assert error.min() > 1e-3


def numbers(engine, client, fields=None):
    """Return numbers of samples that a client was given, (samples, numbers); None: all fields."""
    found = [np.zeros((SAMPLES, 0))]
    for _, name, _, opened in engine.visits:
        for field, value in vars(opened).items() if name == client else ():
            wanted = fields is None or field in fields
            if wanted and isinstance(value, np.ndarray) and value.shape[-1:] == (SAMPLES,):
                found.append(value.reshape(-1, SAMPLES).T.astype(float))
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("told", [False, True], ids=["protected", "lengths told"])
@pytest.mark.parametrize(("attacker", "other"), [("bank", "shop"), ("shop", "bank")])
def test_a_co_owner_is_not_told_how_long_rows_of_the_other_are(told, attacker, other, monkeypatch):
    """As it was: each row's squared length. Less its own part, it tells one column up to its sign.

    Of one categorical column it tells the category.
    """
    if told:
        monkeypatch.setattr(dual_ascent, "_needs_no_norms", lambda server: False)
    _, engine, _, _ = trained()
    own, theirs = ((engine.block(name).x ** 2).sum(axis=1)[:, None] for name in (attacker, other))
    error = left(np.concatenate([numbers(engine, attacker), own], axis=1), theirs)
    assert (error < EXACT).all() if told else (error > FAIR).all()


@pytest.mark.parametrize(
    ("more", "weighted"),
    [({}, False), ({"errors": True}, False), ({"l1_ratio": 0.5}, False), ({}, True)],
    ids=["as it is", "standard errors", "elastic net", "weights of rows"],
)
def test_who_reads_scores_has_one_number_of_the_others_row_for_each_step(more, weighted):
    """So a run of fewer steps than the other has columns leaves its rows open.

    Two with the elastic net: it opens scores of the direction, and of the model with its zeros.
    """
    rounds = 4
    options = dataclasses.replace(OPTIONS, **more)
    x, engine, _, server = trained(options=options, rounds=rounds, weighted=weighted)
    HYFDCA.conclude(server, engine, engine.key("conclude"))
    index = engine.schema("train").features
    own, theirs = x[:, index.own("bank")], np.setdiff1d(index.own("shop"), index.own("bank"))
    scores = numbers(engine, "bank", ("z", "q"))
    scores = scores[:, np.abs(scores).max(axis=0) > 0]
    basis, _ = np.linalg.qr(np.column_stack([own, np.ones(SAMPLES)]))
    parts = scores - basis @ (basis.T @ scores)  # what is not the client's own
    sizes = np.linalg.svd(parts / np.linalg.norm(parts, axis=0), compute_uv=False)
    rank = int((sizes > 1e-6 * sizes[0]).sum())
    each = 2 if options.l1_ratio else 1
    assert rounds <= rank <= each * rounds + 1 < len(theirs)
    # duals and curvatures of all points are functions of these scores
    error = left(np.concatenate([numbers(engine, "bank"), own], axis=1), x[:, theirs])
    assert np.median(error) > FAIR / 2


def test_the_client_that_opens_the_system_for_the_server_reads_random_words(works):
    _, _engine, recorder, server = trained()
    (line, *_) = [one for one in recorder.lines if one.type == "SystemShare.system"]
    size = server.dealer.features
    words = joined_words(line.fields["value"])[: size * (size + 3) // 2].view(np.int64)
    diagonal = np.diag(unpack(words * 2.0 ** (-2 * BITS), size)[0])
    # a Hessian has a positive diagonal within its room; random words are as large as words are
    assert (diagonal > 0).all() & (diagonal < 2**10).all() if works else (diagonal < 0).any()
    assert works or np.median(abs(words.astype(float))) > 2.0**61


def test_no_row_stands_in_what_the_server_could_read():
    x, engine, recorder, _ = trained()
    wanted = {round(float(value), 9) for value in x[:, 5:12].ravel() if value}
    scores = {
        round(float(value), 9) for state in engine.get_states().values() for value in state.z[0]
    }
    for line in recorder.lines:
        for value in line.fields.values():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                read = {round(float(one), 9) for one in value.ravel()}
                assert not read & wanted, line
                assert len(read & scores - {0.0}) == 0, line


def unturned(point, number):
    """Stand in for `turn_basis`: the basis of the phase in every step."""
    return newton_frame._in_frame(point, point.basis)


def systems(engine, recorder, server, monkeypatch):
    """Return the Hessian that the server solves in one more round, and the true one."""
    seen = []
    solve = np.linalg.solve
    monkeypatch.setattr(
        newton_shares.np.linalg,
        "solve",
        lambda one, other: (seen.append(one), solve(one, other))[1],
    )
    state = engine.get_states()["shop"]
    engine.begin_round(4)
    HYFDCA.round(server, engine, engine.key())
    return seen[0], state


@pytest.mark.parametrize("public", [False, True], ids=["secret basis", "no basis"])
def test_the_server_cannot_tell_the_products_of_columns(monkeypatch, public):
    if public:
        monkeypatch.setattr(
            newton_frame, "_secret_basis", lambda drawn, cells, scale: np.diag(1 / scale)
        )
        monkeypatch.setattr(newton_shares, "turn_basis", unturned)
    x, engine, recorder, server = trained()
    found, state = systems(engine, recorder, server, monkeypatch)
    h = np.zeros(SAMPLES)
    h[state.selected] = state.curvature[0]
    truth = x.T @ (h[:, None] * x)
    for one in (found, truth):
        size = np.sqrt(np.diag(one).copy())
        one /= np.outer(size, size)
    apart = ~np.eye(len(truth), dtype=bool)
    off = np.corrcoef(found[apart], truth[apart])[0, 1]
    assert off > 0.99 if public else off < 0.5


def test_rows_in_a_frame_are_not_asked_for_where_sums_are_sealed():
    _, engine, recorder, _ = trained()
    for mode, asked in (("masked", engine), ("plain", trained("plain")[1])):
        shared = [name for name, *_ in asked.visits if name == "multiply_rows"]
        assert bool(shared) == (mode == "masked")
    for name, client, state, opened in engine.visits:
        if name == "measure_point":
            assert opened.rows is None, client
            assert len(state.framed) == 0
    reads = {one.type for one in recorder.lines if one.kind == "reveal"}
    assert "SystemShare.system" in reads
    explicit = dataclasses.replace(OPTIONS, system="rows")
    assert any(name == "solve" for name, *_ in trained(options=explicit)[1].visits)
