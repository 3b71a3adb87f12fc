"""Attacks on what the server of a real run has: they succeed in the clear, and fail when sealed.

Two hospitals' patients, each with two tables of different features: the clients' files are written,
an experiment is run as the command line runs it, and each attack reads the run's transcript, the
public Schema and the experiment; nothing else. What it finds is compared with the attacked client's
table, standardised.

Overman, Blum and Klabjan, "A Primal-Dual Algorithm for Hybrid Federated Learning", AAAI 2024,
section 3.1, describe two attacks:

- least squares: a change of the duals α changes client k's part of the weights by X_kᵀΔα/(λN);
  from enough rounds the server solves for the table X_k
- inner products: a change of the weights w changes the client's part of a score by x_{k,i}ᵀΔw; the
  server solves for one sample

In the Newton phase the same relations stand in other messages, and a third attack is there: the
clients send their rows in a random frame, which a server that can read it takes off.

Of sealed sums the attacker makes what it can: it opens ciphertexts with a key of its own, and reads
words as if there were no masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from intarsia.core.schema import Index, Schema
from intarsia.engines.transcript import Crossed, read_transcript
from intarsia.experiment import config as experiment
from intarsia.experiment.federation import build
from intarsia.maths.linear import losses
from intarsia.maths.linear.smoothed_losses import curvatures
from intarsia.privacy.keys.crypto import BlockCipher
from intarsia.privacy.keys.keyring import CkksSecret
from intarsia.privacy.secure_aggregation import ckks, ckks_parameters, masking, pairwise
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.ckks import CkksKeys
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Arithmetic, Secret, new_secret
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.training.run import run

PATIENTS, FEATURES = 24, 8  # 12 x 4 at each of four clients
REGULARISATION = 0.1  # with much less, duals of clear cases move too little to tell them apart
RANGE = 2.0**26  # so that a ciphertext has room for a feature's sum of squares
CIPHERTEXTS = b"c"  # first byte of a piece in ciphertexts, in the mode that has them


# ---- a run, and what its server has


@dataclass(frozen=True, eq=False)
class Server:
    """What the server of one run has."""

    folder: Path
    schema: Schema
    records: tuple[Crossed, ...]  # the transcript
    scale: float  # λN
    key: Any  # of the server's own, for ciphertexts; None where there are none
    # what it made of pieces, which come again and again
    pieces: dict[bytes, np.ndarray] = field(init=False, default_factory=dict)

    def of(self, kind: str, function: str, client: str = "") -> list[Crossed]:
        """Return the records of one kind, in their order."""
        wanted = (kind, function, client)
        return [one for one in self.records if (one.kind, one.function, one.client) == wanted]

    def read(self, value: Any, index: Index | None = None) -> np.ndarray:
        """Return what the server makes of a total, or of a contribution, over an index.

        In the clear it is there. Else it is in pieces by cell, or the sum of several such with
        known factors.
        """
        if isinstance(value, np.ndarray):
            return value
        terms = value if isinstance(value, tuple) else ((1.0, value),)
        if index is None:  # summed entry by entry, in one piece
            found = [weight * self.numbers(pieces["-1"]).reshape(1, -1) for weight, pieces in terms]
            return sum(found[1:], found[0])
        total: dict[int, np.ndarray] = {}
        for weight, pieces in terms:  # a total has no pieces of cells that nobody sent
            for name, data in pieces.items():
                cell = index.cells[int(name)]
                part = weight * self.numbers(data, cell.stop - cell.start)
                total[int(name)] = total.get(int(name), 0.0) + part
        return np.concatenate([total[number] for number in sorted(total)], axis=-1)

    def read_scores(self, value: Any) -> np.ndarray:
        """Return what the server makes of scores, whose cells are those of who opens them."""
        if isinstance(value, np.ndarray):
            return value
        cells = self.schema.score_cells
        places = [cells[int(name)].positions for name in value]
        pieces = zip(value.values(), places, strict=True)
        found = [self.numbers(data, len(place)) for data, place in pieces]
        return np.concatenate(found, axis=-1)[..., np.argsort(np.concatenate(places))]

    def piece(self, value: Any, cell: int) -> np.ndarray:
        """Return what the server makes of one cell of a total, as a vector."""
        if isinstance(value, tuple):
            there = [(weight, pieces) for weight, pieces in value if str(cell) in pieces]
            return sum(weight * self.piece(pieces, cell) for weight, pieces in there)
        data = value[str(cell)]
        return (data if isinstance(data, np.ndarray) else self.numbers(data)).reshape(-1)

    def numbers(self, data: bytes, size: int = 1) -> np.ndarray:
        """Return a sealed piece as numbers, (rows, size)."""
        if data not in self.pieces:
            self.pieces[data] = self.opened(data, size)
        return self.pieces[data]

    def opened(self, data: bytes, size: int) -> np.ndarray:
        """Return a sealed piece as what the server makes of it."""
        if self.key is not None and data[:1] == CIPHERTEXTS:
            arithmetic, secret = self.key
            piece = ckks.from_bytes(arithmetic, data[1:])
            slots = [secret.decrypted(part) for part in piece.content.parts]
            return np.concatenate(slots)[: math.prod(piece.shape)].reshape(-1, size)
        # the last word is a check; short arrays are there twice, the low digits after the
        # high ones, and high ones of usual values are 0
        words = np.frombuffer(data[-(len(data) // 8 * 8) + 8 :], np.uint64)[:-1]
        fixed = FixedPoint(range=RANGE, addends=len(self.schema.clients))
        low = words if len(words) == size else words[len(words) // 2 :]
        return fixed.decode(low).reshape(-1, size)


def patients() -> tuple[np.ndarray, np.ndarray]:
    """Return some patients' features, and which of them are well."""
    x, y = load_breast_cancer(return_X_y=True)
    return x[::23, :FEATURES][:PATIENTS], y[::23][:PATIENTS]


def parties(folder: Path, x: np.ndarray, y: np.ndarray, groups: int = 2) -> list[dict[str, str]]:
    """Write the files of some hospitals, two each; return their entries in an experiment."""
    found = []
    for r, rows in enumerate(np.array_split(np.arange(len(x)), groups)):
        for c, columns in enumerate(np.array_split(np.arange(x.shape[1]), 2)):
            path = folder / f"r{r}c{c}.csv"
            with path.open("w") as file:
                file.write(",".join(["patient", *(f"f{j:02d}" for j in columns), "benign"]) + "\n")
                for i in rows:
                    values = ",".join(repr(float(value)) for value in x[i, columns])
                    file.write(f"p{i:05d},{values},{y[i]}\n")
            found.append({"name": path.stem, "path": str(path), "id": "patient", "label": "benign"})
    return found


def attacked(
    folder: Path,
    mode: str,
    rounds: int,
    source: dict[str, Any],
    *,
    long: int | None = 1,
    trust: str = "pairs",
    **settings: Any,
) -> Server:
    """Run an experiment with a transcript; return what the server has.

    In the mode ckks, arrays from `long` values (None: as many as in any run) are sealed by
    ciphertexts, shorter ones by masks.
    """
    tree = {
        "experiment": {
            "rounds": rounds,
            "tolerance": 0,
            "yardsticks": False,
            "evaluate_every": 0,
            "checkpoint_seconds": 1e9,
            "out": str(folder / "out"),
        },
        "split": {"test": 0.0},
        "preprocessing": {"intercept": False},
        "privacy": {"mode": mode, "transcript": True, "range": RANGE, "trust": trust},
        "algorithm": {"name": "hyfdca", "regularisation": REGULARISATION, **settings},
        **source,
    }
    description = experiment.from_dict(tree, folder)
    with pytest.MonkeyPatch.context() as patch:
        if mode == "ckks" and long is not None:
            patch.setattr(modes, "_LONG", long)
        run(description)
    schema = build(description).schema
    key = None
    if mode == "ckks":
        arithmetic = Arithmetic(ckks_parameters.parameters(RANGE, len(schema.clients)))
        key = arithmetic, Secret(arithmetic, new_secret(arithmetic.parameters))
    records = tuple(read_transcript(folder / "out" / "transcript.bin"))
    scale = tree["algorithm"]["regularisation"] * len(schema.samples)
    return Server(folder, schema, records, scale, key)


# ---- the attacks; each returns the client's table, (samples, features)


def least_squares_attack(server: Server, client: str) -> np.ndarray:
    """Solve ΔA X_k = λN ΔW_k for X_k, over all rounds of dual ascent.

    Of the last trial the server took a share: what changes next, changes from there.
    """
    index, changes = server.schema.samples, []
    counted = trial = np.zeros((1, len(index)))
    for one in server.records:
        if one.kind == "message" and isinstance(one.fields.get("taken"), float):
            counted = counted + one.fields["taken"] * (trial - counted)
            trial = counted
        if (one.kind, one.function) == ("message", "aggregate_primal"):
            trial = server.read(one.fields["alpha"], index)
            changes.append((trial - counted)[0, index.own(client)])
    return solved_for_table(server, changes, server.of("sum", "aggregate_primal", client))


def least_squares_attack_on_newton(server: Server, client: str) -> np.ndarray:
    """Solve the same system over the points of the Newton phase.

    Where conjugate gradients find the directions, each iteration adds X_kᵀ(h q), with the
    curvatures h and the products q of the samples with a direction.
    """
    index = server.schema.samples
    own = index.own(client)
    cell = int(index.cell_of[own[0]])  # in these federations a client's samples are one cell
    alpha, curvature, chosen = np.zeros(len(own)), np.zeros(0), np.zeros(0, np.intp)
    products: Any = 0.0
    duals, weights = [], []
    for one in server.records:
        crossed, given = (one.kind, one.function, one.client), one.fields
        if crossed == ("message", "gather_point", ""):
            alpha = server.read(given["alpha"], index)[0, own]
            # the loss of these runs has no smoothing
            curvature = curvatures(losses.LOGISTIC, alpha[None], np.ones(1))[0]
            duals.append(alpha)
        elif crossed == ("sum", "gather_point", client):
            weights.append(server.read(given["w"], server.schema.features)[0] * server.scale)
        elif crossed == ("sum", "start_search", client):  # how many have curvature is in the clear
            chosen = np.sort(np.argsort(curvature)[len(own) - int(given["counts"][0]) :])
            products = 0.0
        elif crossed == ("message", "curve", ""):
            products = given["keep"] * products + server.piece(given["products"], cell)
            duals.append(np.zeros(len(own)))
            duals[-1][chosen] = curvature[chosen] * products
        elif crossed == ("sum", "curve", client):
            weights.append(server.read(given["product"], server.schema.features)[0])
    return solved(np.stack(duals), np.stack(weights))


def solved_for_table(server: Server, changes: list[np.ndarray], sent: list[Crossed]) -> np.ndarray:
    """Return the table that made changes of the weights from changes of the duals."""
    index = server.schema.features
    weights = [server.read(one.fields["w"], index)[0] for one in sent]
    return solved(np.stack(changes), np.stack(weights) * server.scale)


def inner_product_attack(server: Server, client: str) -> np.ndarray:
    """Solve ΔW_k x_{k,i} = Δz_{k,i} for each sample i, over all rounds of dual ascent."""
    index, changes = server.schema.features, []
    counted = trial = np.zeros((1, len(index)))
    for one in server.records:
        if one.kind == "message" and isinstance(one.fields.get("taken"), float):
            counted = counted + one.fields["taken"] * (trial - counted)
            trial = counted
        if (one.kind, one.function) == ("message", "inner_products"):
            trial = server.read(one.fields["w"], index)
            changes.append((trial - counted)[0, index.own(client)])
    return solved_for_samples(server, changes, server.of("sum", "inner_products", client))


def inner_product_attack_on_newton(server: Server, client: str) -> np.ndarray:
    """Solve the same for the directions of the Newton phase: a solution in a frame, times it."""
    frame = frame_of(server, client)
    asked = server.of("message", "multiply")
    directions = [server.read(one.fields["y"]).reshape(-1) @ frame for one in asked]
    return solved_for_samples(server, directions, server.of("sum", "multiply", client))


def solved_for_samples(
    server: Server, changes: list[np.ndarray], sent: list[Crossed]
) -> np.ndarray:
    """Return the rows that made scores from weights."""
    scores = [server.read_scores(one.fields["z"])[0] for one in sent]
    return solved(np.stack(changes), np.stack(scores)).T


def frame_attack(server: Server, client: str) -> np.ndarray:
    """Solve P_kᵀ x = r for each sample, whose row r in the frame P the client sends."""
    frame = frame_of(server, client)
    sent = server.of("sum", "gather_point", client)[0].fields["rows"]
    rows = server.read(sent, server.schema.samples)
    return solved(frame, rows).T


def frame_of(server: Server, client: str) -> np.ndarray:
    """Return the random frame of the client's features, (frame, features)."""
    (asked,) = server.of("message", "keep_frame")
    index = server.schema.features
    return server.read(asked.fields["frame"], index)[:, index.own(client)]


def solved(equations: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Solve by least squares."""
    assert len(equations) == len(values)
    found, *_ = np.linalg.lstsq(equations, values)
    return np.asarray(found)


# ---- what the attacks find


def tables(attack: Any, server: Server, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each client's table as the attack finds it, and as it is."""
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    own = server.schema.samples.own, server.schema.features.own
    return [
        (attack(server, client), x[np.ix_(own[0](client), own[1](client))])
        for client in server.schema.clients
    ]


def least_error(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the relative error of the client's table that is found best, at its best."""
    cosines = [np.vdot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs]
    return float(np.sqrt(1 - min(1.0, max(abs(one) for one in cosines)) ** 2))


def errors(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """Return the relative error over all clients' tables, as found and at its best.

    At its best: each client's table brought to the length of the truth, and all multiplied by what
    fits best.
    """
    found, truth = [one for one, _ in pairs], [other for _, other in pairs]
    length = np.linalg.norm(np.concatenate(truth, axis=None))
    wrong = np.concatenate(found, axis=None) - np.concatenate(truth, axis=None)
    products = [np.vdot(a, b) * np.linalg.norm(b) / np.linalg.norm(a) for a, b in pairs]
    cosine = min(1.0, sum(products) / length**2)
    return float(np.linalg.norm(wrong) / length), float(np.sqrt(1 - cosine**2))


# What can be guessed from the Schema is 0, the mean of standardised features: error 1. A random
# table has about 1.4, and at its best, which takes the truth to find, 0.96 to 1: one in 10^9 has
# less than 0.9.
GUESS = 0.9
# For a single client's table of 48 numbers a random one is found to less than 0.6 as rarely.
GUESS_OF_ONE = 0.6


RUNS: dict[str, tuple[int, dict[str, Any]]] = {  # rounds, and settings of the algorithm
    "ascent": (16, {"method": "ascent", "loss": "logistic", "local_samples": 0.5}),
    "newton": (8, {"system": "rows"}),  # by shares: tests/attacks/test_shared_system.py
    "newton by conjugate gradients": (8, {"frame": False, "loss": "logistic"}),
}
GIVE_AWAY = (
    ("ascent", least_squares_attack),
    ("ascent", inner_product_attack),
    ("newton", inner_product_attack_on_newton),
    ("newton", frame_attack),
    ("newton by conjugate gradients", least_squares_attack_on_newton),
)
SEALED = [
    # in ciphertexts quickly with the server's own key beside the keys of an owner, below
    pytest.param(mode, run, attack, marks=[pytest.mark.slow] * (mode == "ckks"))
    for mode in ("masked", "ckks")
    for run, attack in (*GIVE_AWAY, ("newton", least_squares_attack_on_newton))
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Return a function from a mode and one of RUNS to what the server of the run has."""
    found: dict[tuple[str, str], Server] = {}

    def server(mode: str, kind: str) -> Server:
        if (mode, kind) not in found:
            folder = tmp_path_factory.mktemp("attacked")
            rounds, settings = RUNS[kind]
            source = {"client": parties(folder, *patients())}
            found[mode, kind] = attacked(folder, mode, rounds, source, **settings)
        return found[mode, kind]

    return server


@pytest.mark.parametrize(("kind", "attack"), GIVE_AWAY)
def test_in_the_clear_every_table_is_recovered(servers, kind, attack):
    found, _ = errors(tables(attack, servers("plain", kind), patients()[0]))
    assert found < 1e-3


@pytest.mark.parametrize(("mode", "kind", "attack"), SEALED)
def test_of_sealed_sums_no_attack_makes_more_than_a_guess(servers, mode, kind, attack):
    pairs = tables(attack, servers(mode, kind), patients()[0])
    found, best = errors(pairs)
    assert found > GUESS
    assert best > GUESS
    assert least_error(pairs) > GUESS_OF_ONE


def test_in_the_clear_few_steps_of_newtons_method_give_tables_away_in_part(servers):
    """In a frame there are fewer changes of the duals than samples, and these alone tell half."""
    found, _ = errors(
        tables(least_squares_attack_on_newton, servers("plain", "newton"), patients()[0])
    )
    assert 0.3 < found < 0.7


# ---- the same attacks, where they must get through


class Zeros(BlockCipher):
    """Masks that hide nothing, as for somebody who can make them too."""

    def write(self, blocks, encrypted):
        encrypted[:] = 0


@pytest.mark.parametrize("kind", RUNS)
def test_without_the_masks_every_table_is_recovered(tmp_path, kind, monkeypatch):
    """That the masks are what stops the attacks, not the reading of words."""
    for module in (masking, pairwise):
        monkeypatch.setattr(module, "BlockCipher", Zeros)
    rounds, settings = RUNS[kind]
    source = {"client": parties(tmp_path, *patients())}
    server = attacked(tmp_path, "masked", rounds, source, **settings)
    for attack in [attack for one, attack in GIVE_AWAY if one == kind]:
        assert errors(tables(attack, server, patients()[0]))[0] < 1e-3


@pytest.fixture(scope="module", params=["pairs", pytest.param("clients", marks=pytest.mark.slow)])
def without_masks(request, tmp_path_factory):
    """Return whose keys there are, and the server of a run in ciphertexts whose masks are zeros."""
    folder = tmp_path_factory.mktemp("without-masks")
    rounds, settings = RUNS["ascent"]
    source = {"client": parties(folder, *patients())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "BlockCipher", Zeros)
        server = attacked(folder, "ckks", rounds, source, trust=request.param, **settings)
    return request.param, server


@pytest.mark.parametrize("attack", [least_squares_attack, inner_product_attack])
def test_with_the_keys_of_an_owner_tables_are_recovered_where_all_have_them(without_masks, attack):
    """A client that gives the server its keys, of ciphertexts and of the masks that it takes off.

    One of them alone will not do: totals are in ciphertexts, what one client alone has in masks.
    With keys of pairs neither will both: what two others have in common hides their parts.
    """
    trust, server = without_masks
    assert errors(tables(attack, server, patients()[0]))[0] > 0.5  # a key of its own
    given = CkksSecret.load(server.folder / "out" / "keys" / "ckks.key")
    arithmetic, _ = server.key
    secret = Secret(arithmetic, CkksKeys.from_secret_bytes(given.secret).secret)
    pairs = tables(attack, replace(server, key=(arithmetic, secret)), patients()[0])
    found, best = errors(pairs)
    if trust == "clients":
        assert found < 1e-2  # the noise of opened totals is in it
    else:
        assert min(found, best) > GUESS


# ---- larger federations


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "masked", "ckks"])
def test_long_arrays_give_away_rows_in_the_clear_and_none_in_ciphertexts(tmp_path, mode):
    """From 4,096 samples in a cell the mode ckks has ciphertexts of itself."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(8192, 4)) @ rng.normal(size=(4, 4))
    y = (x[:, 0] + rng.normal(size=len(x)) > 0).astype(int)
    source = {"client": parties(tmp_path, x, y)}
    server = attacked(tmp_path, mode, 8, source, long=None, **RUNS["ascent"][1])
    found, best = errors(tables(inner_product_attack, server, x))
    assert found < 1e-3 if mode == "plain" else min(found, best) > GUESS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "masked"])
def test_a_whole_data_set_is_recovered_in_the_clear_only(tmp_path, mode):
    x, y = load_breast_cancer(return_X_y=True)
    source = {"client": parties(tmp_path, x, y, groups=10)}
    settings = {**RUNS["ascent"][1], "local_samples": 0.2, "regularisation": 0.03}
    server = attacked(tmp_path, mode, 120, source, **settings)
    for attack in (least_squares_attack, inner_product_attack):
        found, best = errors(tables(attack, server, x))
        assert found < 1e-3 if mode == "plain" else min(found, best) > GUESS


# ---- the Newton phase: scalars only

# numbers that the server reads of each field, whatever the size of the tables
BEFORE = {"Norms.total": 1, "Zeros.sparse": 1}
SCALARS = {
    **BEFORE,
    "DualPoint.sums": 4,
    "Measured.norms": 3,
    "Products.line": 2,
    "Slopes.slopes": 13,
}
CHUNKS = {
    "RowSum.sums": 1,
    "DirectionScores.square": 1,
    "SquaredNorm.square": 1,
    "ChunkScores.line": 2,
    "ChunkSteps.sums": 2,
    "Settled.sums": 2,
}
DUAL = {
    "FirstScores.norms": 1,
    "CentredDuals.sums": 4,
    "DualNorms.norms": 2,
    "GatheredRows.square": 1,
    "SelectedScores.square": 1,
    "DirectionProducts.line": 2,
    "TriedSlopes.slopes": 19,
}
# the scores of all test samples, without whose each is: how many of each class lie at each place
FIGURES = {
    "ClassCounts.counts": 4,
    "ScoreCounts.counts": 65536,
    "ScoreCounts.places": 65536,
    "ScoreSums.brier": 2,
    "ScoreSums.calibration": 30,
    "ScoreSums.count": 1,
    "ScoreSums.score": 1,
    "ScoreSums.square": 1,
}
BOUNDS = {"Bounds.at": 7}  # of the certificate
WIDE = 200  # features of sparse tables
CONJUGATE = {"Applied.squares": 2, "Curved.squares": 2}


@pytest.mark.parametrize("mode", ["masked", pytest.param("ckks", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "read"),
    [("newton", SCALARS), ("newton by conjugate gradients", {**SCALARS, **CONJUGATE})],
)
def test_the_server_of_newtons_method_reads_scalars_and_figures_only(servers, mode, kind, read):
    server = servers(mode, kind)
    # before and after the phase
    model = {"Constant.features": 2 * FEATURES, "OwnWeights.w": FEATURES}
    assert revealed(server) == {**read, **model, **FIGURES, **BOUNDS}
    # before the phase, which hide labels and copies that several clients have
    hidden = {"compare_labels.numbers", "compare_copies.numbers"}
    assert in_the_clear(server) - hidden == set()


def test_the_server_of_newtons_method_in_the_dual_reads_scalars_and_figures_only(tmp_path):
    """Sparse tables with more features than samples, and the ascent in chunks before."""
    rng = np.random.default_rng(0)
    source = []
    for name in ("north", "south"):
        path = tmp_path / f"{name}.svm"
        with path.open("w") as file:
            for i in range(30):
                columns = np.sort(rng.choice(WIDE, 12, replace=False)) + 1
                values = " ".join(f"{j}:{rng.random() + 0.1:.4f}" for j in columns)
                file.write(f"{i % 2} {values}\n")
        source.append({"name": name, "path": str(path)})
    server = attacked(tmp_path, "masked", 12, {"client": source})
    assert server.of("sum", "take_steps", "north")
    assert server.of("sum", "sweep", "north")
    model = {"Constant.features": 2 * WIDE, "ShareOfWeights.w": WIDE}
    assert revealed(server) == {**BEFORE, **CHUNKS, **DUAL, **model, **FIGURES, **BOUNDS}
    assert in_the_clear(server) == set()


def test_in_the_clear_the_server_of_newtons_method_reads_vectors(servers):
    assert {"gather_point.alpha", "gather_point.rows"} <= in_the_clear(servers("plain", "newton"))


def revealed(server: Server) -> dict[str, int]:
    """Return how many numbers the server read of each total that was opened to it."""
    opened = [one for one in server.records if one.kind == "reveal"]
    return {one.type: np.size(one.fields["value"]) for one in opened}


def in_the_clear(server: Server) -> set[str]:
    """Return what else the server could read that is as long as an index, or is of one client.

    Not counted: how many samples a client selected, and what evaluates the model at the end.
    """
    found = set()
    for one in server.records:
        for name, value in one.fields.items():
            readable = isinstance(value, np.ndarray | float) or (
                isinstance(value, dict) and not all(type(v) is bytes for v in value.values())
            )
            own = one.kind in ("ask", "sum") or np.size(value) > max(SCALARS.values())
            if one.kind != "reveal" and readable and own:
                found.add(f"{one.function}.{name}")
    counts = {name for name in found if name.endswith(".counts")}
    return {
        name
        for name in found - counts
        if not name.startswith(("send_metrics.", "measure.", "draw_key."))
    }


def test_one_recovered_table_is_noticed():
    """A hundred random tables, and the same with one of them recovered."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        truth = rng.normal(size=(4, 12, 4))
        pairs = list(zip(rng.normal(size=truth.shape), truth, strict=True))
        assert least_error(pairs) > GUESS_OF_ONE
        assert least_error([(truth[0], truth[0]), *pairs[1:]]) < 1e-6
