"""The frame of Newton's method is a client's secret: attacks by one that opens rows in the frame.

A co-owner of a sample opens the sample in the frame, added up over its owners, and the client that
solves the small system opens that. Both know the seed, the code and each word of the run. Whoever
can compute the others' frames takes them off: each attack is seen to succeed on a public frame.
"""

from __future__ import annotations

import stat
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

import sites
from federations import BINARY, block, secrets_of, table
from intarsia.algorithms.hyfdca.algorithm import HYFDCA
from intarsia.algorithms.hyfdca.newton import server as newton
from intarsia.algorithms.hyfdca.newton.client import enter
from intarsia.algorithms.hyfdca.newton.frame import column_scale
from intarsia.core.client_functions import ClientFunction, RandomKey, SecretKey
from intarsia.core.schema import Schema
from intarsia.deployment import client_folder
from intarsia.engines import codec
from intarsia.engines.simulation import Simulation
from intarsia.errors import CodecError, KeyMaterialError
from intarsia.experiment import config as experiment
from intarsia.privacy.keys.secret_file import drawn_once
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols.differential_privacy import normal_numbers
from intarsia.training import run as running
from intarsia.training import setup as engine_setup

SEED = 7
OPTIONS = HYFDCA.hyperparameters(
    loss="logistic", regularisation=1e-2, method="newton", system="rows"
)
# Standard deviations that every column is off by, at least, where an attack fails. Frames are drawn
# anew each time: among 15 columns one draw of 1,800 comes as near by chance, among 30 hardly any.
FAR = 0.3
CLOSE = 1e-6  # at most, where it succeeds


def entered_in_public(before, block, message, rng):
    """Enter as the algorithm does, but draw the frame from the public key."""
    point, drawn = enter.call(before, block, message, SecretKey(bytes(SecretKey.SIZE)))
    numbers = rng.generator().standard_normal(drawn.frame.shape)
    return point, replace(drawn, frame=numbers * np.sqrt(before.feature_share / message.frame))


@pytest.fixture(params=["secret", "public"])
def works(request, monkeypatch):
    """Let the frame be what it is, or public; return whether attacks work."""
    if request.param == "public":
        monkeypatch.setattr(newton, "enter", ClientFunction("enter", entered_in_public))
    return request.param == "public"


class Watched(Simulation):
    """Takes down what each client is given, and the words of its keys."""

    def __init__(self, *given, **named):
        self.visits = []
        super().__init__(*given, **named)

    def _replies(self, fn, opened):
        for client, message in opened.items():
            words = (SEED, self.books.round, self.books.exchange, client, fn.name)
            self.visits.append((fn.name, client, self.states[client], message, words))
        return super()._replies(fn, opened)

    def of(self, function, client):
        """Return the state, the message and the words of each call of a client's function."""
        return [one[2:] for one in self.visits if one[:2] == (function, client)]


def trained(blocks, secrets=None, rounds=3):
    """Train under masked sums; return the engine with what its clients were given."""
    schema = Schema.of(blocks, BINARY)
    keys = modes.in_one_process(SharedKey(bytes(range(32)), "test"), b"")
    sealing = modes.sealing(Privacy(mode="masked"), list(blocks), keys)
    engine = Watched({"train": (schema, blocks)}, SEED, sealing, secrets=secrets)
    engine.count_once()
    engine.begin(HYFDCA, OPTIONS)
    key = engine.key("init")
    server = HYFDCA.setup(HYFDCA.init_server(OPTIONS, schema, key), engine, key)
    for number in range(1, rounds + 1):
        engine.begin_round(number)
        server, _ = HYFDCA.round(server, engine, engine.key())
    return engine


def frames(engine, attacker):
    """Yield the whole frame, (frame, features), in each way that the attacker can derive it.

    Its own columns it knows: `keep_frame` brought them. The columns' sizes, which divide the frame
    and of which it knows its own, are given to it: in a standardised table all are about 1.
    """
    schema = engine.schema("train")
    own = engine._host.secrets[attacker]
    starts = (own, *(SecretKey(one) for one in (bytes(32), SEED.to_bytes(32, "little"))))
    starts += tuple(SecretKey(str(SEED).encode().ljust(32, pad)) for pad in (b"\0", b"."))

    def by_key(key):
        return lambda size: normal_numbers(key.stream(8 * size))

    def ways(client, words):
        yield lambda size: RandomKey(words).generator().standard_normal(size)
        for start in starts:
            yield by_key(start.fold_in(*words))
            yield by_key(start.fold_in(client).fold_in(*words))
            yield by_key(start.fold_in(client))

    size = len(schema.features)
    scale = np.ones(size)
    for name in schema.clients:
        squares = engine.of("keep_frame", name)[-1][1].squares
        scale[schema.features.own(name)] = column_scale(squares, OPTIONS.regularisation)
    calls = {name: engine.of("enter", name)[-1] for name in schema.clients}
    for numbers in zip(*(ways(name, calls[name][2]) for name in schema.clients), strict=True):
        found = np.zeros((size, size))
        for name, draw in zip(schema.clients, numbers, strict=True):
            columns = schema.features.own(name)
            share = calls[name][0].feature_share  # 1 / holders: the schema is public
            found[:, columns] += draw(size * len(columns)).reshape(size, -1) * np.sqrt(share / size)
        known = engine.of("keep_frame", attacker)[-1][1].frame
        found[:, schema.features.own(attacker)] = known
        yield found / scale


def off_by(engine, attacker, x):
    """Return how far off the best guess is of any column that the attacker has not, and its rows.

    `x` is the table in the order of the schema.
    """
    schema = engine.schema("train")
    mine, rows = schema.features.own(attacker), schema.samples.own(attacker)
    others = np.setdiff1d(np.arange(len(schema.features)), mine)
    held = np.zeros(x.shape, bool)
    for name in schema.clients:
        held[np.ix_(schema.samples.own(name), schema.features.own(name))] = True
    opened, places = [], []
    for point, message, _ in engine.of("measure_point", attacker):
        new = point.selected[~point.known[point.selected]]
        opened.append(message.rows)
        places.append(rows[new])
    framed, place = np.concatenate(opened, axis=1), np.concatenate(places)
    worst = []
    for frame in frames(engine, attacker):
        rest = framed - frame[:, mine] @ x[np.ix_(place, mine)].T
        found = np.linalg.lstsq(frame[:, others], rest)[0].T
        there = held[np.ix_(place, others)]
        error = np.where(there, found - x[np.ix_(place, others)], 0.0)
        worst.append(np.sqrt((error**2).sum(axis=0) / there.sum(axis=0)))
    return np.array(worst).min(axis=0), len(place)


def three(x, y):
    """Return three clients as in experiments/credit.toml: rows at several, some columns too."""
    rng = np.random.default_rng(1)
    third = x.shape[1] // 3
    columns = {
        "bank": range(third + 1),
        "telecom": range(third, 2 * third + 1),
        "retailer": [0, *range(2 * third, x.shape[1])],
    }
    return {
        name: block(x, y, np.flatnonzero(rng.random(len(x)) < 0.65), own)
        for name, own in columns.items()
    }


@pytest.mark.parametrize("attacker", ["bank", "retailer"])
def test_a_co_owner_of_rows_cannot_compute_the_columns_of_others(works, attacker):
    x, y = table(160, 30)
    blocks = three(x, y)
    engine = trained(blocks)
    error, rows = off_by(engine, attacker, x[engine.schema("train").samples.ids])
    assert rows > 80
    assert len(error) == 19
    assert (error < CLOSE).all() if works else (error > FAR).all()


def gram_of(engine, client):
    """Return Xᵀ h X / N of a client's selected rows, at the first point."""
    block = engine.block(client)
    point = engine.of("measure_point", client)[0][0]
    rows = block.x[point.selected] * np.sqrt(point.curvature[0] / point.samples)[:, None]
    return rows.T @ rows


def test_the_solver_cannot_compute_the_gram_matrix_of_columns_that_it_has_not(works):
    x, y = table(90, 12)
    engine = trained(
        {"a": block(x, y, range(40), range(6)), "b": block(x, y, range(40, 90), range(6, 12))}
    )
    (_, system, _), *_ = engine.of("solve", "a")
    theirs = engine.schema("train").features.own("b")
    truth = gram_of(engine, "b") + OPTIONS.regularisation * np.eye(6)
    errors = []
    for frame in frames(engine, "a"):
        inverse = np.linalg.inv(frame)
        found = (inverse @ system.hessian[0] @ inverse.T)[np.ix_(theirs, theirs)]
        errors.append(np.linalg.norm(found - truth) / np.linalg.norm(truth))
    assert min(errors) < CLOSE if works else min(errors) > FAR


def test_of_two_owners_of_the_same_columns_the_solver_has_the_gram_matrix_of_the_other():
    """What privacy/newton.md says of them: both know the frame, whatever it is drawn from."""
    x, y = table(90, 5)
    parties = {"a": block(x, y, range(40), range(5)), "b": block(x, y, range(40, 90), range(5))}
    engine = trained(parties, secrets_of(parties))  # a frame whose inverse is known to 1e-8
    point, system, _ = engine.of("solve", "a")[0]
    inverse = np.linalg.inv(point.frame)
    whole = inverse @ system.hessian[0] @ inverse.T - OPTIONS.regularisation * np.eye(5)
    np.testing.assert_allclose(whole - gram_of(engine, "a"), gram_of(engine, "b"), atol=1e-8)


# ---- the secret


def frames_of(engine):
    names = engine.schema("train").clients
    return {name: engine.of("keep_frame", name)[0][1].frame for name in names}


def test_the_frame_follows_the_secrets_and_not_the_seed():
    x, y = table(60, 15)
    blocks = three(x, y)
    drawn = [frames_of(trained(blocks, rounds=1)) for _ in range(2)]
    known = [frames_of(trained(blocks, secrets_of(blocks), rounds=1)) for _ in range(2)]
    for name in blocks:
        assert (np.abs(drawn[0][name] - drawn[1][name]) > 1e-6).any(axis=0).all()
        np.testing.assert_array_equal(known[0][name], known[1][name])


@dataclass(frozen=True)
class Leak:
    """A message that holds a secret."""

    key: SecretKey


def test_a_secret_cannot_stand_in_a_message_nor_in_a_text():
    key = SecretKey(bytes(range(32)))
    for write in (codec.encode, codec.size):
        with pytest.raises(CodecError, match="SecretKey cannot be written"):
            write(Leak(key))
    said = f"{key!r} {key} {Leak(key)}"
    assert "\\x" not in said
    assert key.to_file().hex() not in said


def test_streams_below_a_secret_differ_and_are_the_same_again():
    key = SecretKey(bytes(range(32)))
    found = {key.fold_in(*words).stream(16) for words in ((), ("a",), ("b",), ("a", 1), (1, "a"))}
    assert len(found) == 5
    assert key.fold_in("a", 1).stream(16) == key.fold_in("a").fold_in(1).stream(16)
    assert key.stream(16) == key.stream(99)[:16]
    with pytest.raises(KeyMaterialError, match="5 bytes"):
        SecretKey(b"short")


def test_processes_that_draw_a_secret_at_once_have_the_same(tmp_path):
    barrier, found = threading.Barrier(8), []

    def draw():
        barrier.wait()
        found.append(drawn_once(tmp_path / "secret", "secret", 32))

    workers = [threading.Thread(target=draw) for _ in range(8)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert len(found) == 8
    assert len({*found}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_simulations_of_one_user_have_the_same_secrets_and_others_have_others(
    tmp_path, monkeypatch
):
    def given():
        found = engine_setup.client_secrets(HYFDCA, ("a", "b"), None)
        return {name: one.to_file() for name, one in found.items()}

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    first = given()
    assert first == given()
    assert first["a"] != first["b"]
    assert stat.S_IMODE((tmp_path / "one" / "intarsia" / "secret").stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "two"))
    assert given() != first
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # no folder: nothing can be kept
    assert given() != given()


def test_a_site_keeps_its_secret_to_itself_and_each_run_has_another(tmp_path):
    secret = client_folder.secret_of(tmp_path).to_file()
    assert client_folder.secret_of(tmp_path).to_file() == secret
    assert stat.S_IMODE((tmp_path / "site.secret").stat().st_mode) == 0o600
    x, y = table(40, 6)
    blocks = {"a": block(x, y, range(40), range(3)), "b": block(x, y, range(40), range(3, 6))}
    found = []
    for run in ("aa", "bb", "aa"):
        made = sites.federation(HYFDCA, OPTIONS, blocks, BINARY, run=run)
        server = sites.begun(made, HYFDCA, OPTIONS)
        made.engine.begin_round(1)
        HYFDCA.round(server, made.engine, made.engine.key())
        found.append({name: state.frame for name, state in made.states().items()})
    for name in blocks:
        assert (np.abs(found[0][name] - found[1][name]) > 1e-6).all()
        np.testing.assert_array_equal(found[0][name], found[2][name])


class Stopped(Exception):  # noqa: N818 - not an error of anybody
    """The end of a process."""


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "of a version before"])
def test_a_run_goes_on_with_the_secrets_that_it_began_with(tmp_path, monkeypatch, kept):
    x, y = table(80, 8)
    for name, columns in (("a", (0, 1, 2, 3)), ("b", (4, 5, 6, 7))):
        lines = [",".join(["id", *(f"x{c}" for c in columns), "y"])]
        lines += [
            ",".join([str(k), *(repr(float(x[k, c])) for c in columns), str(int(y[k] > 0))])
            for k in range(80)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    tree = {
        "experiment": {"name": "two", "rounds": 6, "tolerance": 0.0, "checkpoint_seconds": 0.0}
        | {"yardsticks": False},
        "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 1e-2},
        "client": [{"name": n, "path": f"{n}.csv", "id": "id", "label": "y"} for n in "ab"],
    }
    description = experiment.from_dict(tree, tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    whole = running.run(description, out=tmp_path / "whole")

    def stop(before, block, message, rng):
        raise Stopped

    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(newton, "enter", replace(enter, call=stop))  # before a frame is drawn
        with pytest.raises(Stopped):
            running.run(description, out=out)
    path = out / "keys" / "clients.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    if not kept:
        path.unlink()
        path.parent.rmdir()
    found = running.resume(out)
    assert path.is_file()
    assert found.certificate.gap_relative < 1e-6
    if kept:
        assert found.certificate == whole.certificate
        assert (out / "model/linear.json").read_bytes() == (
            tmp_path / "whole/model/linear.json"
        ).read_bytes()
