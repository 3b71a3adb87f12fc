"""A round that begins again, where the noise of differential privacy was the same the second time.

A client that was there at the first attempt and not at the second opens two totals of the same
updates. With the same normal numbers at another scale in both, it takes the noise away: two
equations, two unknowns. Each attack is seen to work on noise that repeats.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import sites
from federations import BINARY, block, secret_of, started, table, train
from intarsia.algorithms.hyfdca import algorithm as hyfdca
from intarsia.algorithms.hyfdca.algorithm import HYFDCA, HyFDCA
from intarsia.algorithms.linear.fedavg import FEDAVG, FedAvg
from intarsia.core.client_functions import NoiseKey, RandomKey, evolve
from intarsia.core.disclosure import Release
from intarsia.deployment.client_folder import FolderShelf, ledger_of
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.engines.remote.wire import Call, ToOpen, ToSeal
from intarsia.errors import AbsentError, SealedError, SiteError
from intarsia.experiment import config
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols import certified_release
from intarsia.protocols.certified_release import Propose, ShareOut
from intarsia.training import loop, privacy_guarantee
from intarsia.training.registry import choose
from intarsia.training.timing import Clock

ATTACKER = "c0"
NOISE = Release(deviation=0.4, clip=0.5, releases=20)
CLOSE = 1e-6  # largest error where an attack works
PATIENCE = RetryPolicy(
    seconds=60.0, deadline=120.0, pause=0.01, probe=60.0, absent="continue", quorum=2
)


@pytest.fixture(params=["fresh", "repeated"])
def works(request, monkeypatch):
    """Let the noise be what it is, or the same in each attempt; return whether attacks work."""
    if request.param == "repeated":
        monkeypatch.setattr(ReleaseLedger, "key", repeated)
    return request.param == "repeated"


def repeated(ledger, client, secret, public, parts):
    """Return the key of a client whose count goes back with its state."""
    return NoiseKey(public, secret.fold_in("noise", client, public.words[1]), 1)


def four(samples=48, features=5):
    """Return clients with rows of their own, and the same columns."""
    x, y = table(samples, features)
    rows = np.array_split(np.arange(samples), 4)
    return {f"c{k}": block(x, y, own, range(features)) for k, own in enumerate(rows)}


@dataclasses.dataclass
class Averaging:
    """An algorithm that averages updates: what the attack knows of its messages."""

    algorithm: object
    options: object
    blocks: dict
    labels: object
    field: str  # of what all share, in a message and in a reply
    divided: bool  # whether a client divides its update by their number


def of_fedavg():
    options = FedAvg(local_steps=8, loss="logistic")
    return Averaging(FEDAVG, options, four(), BINARY, "w", True)


def of_flic():
    pytest.importorskip("torch")
    from intarsia.algorithms.flic.algorithm import FLIC, Flic
    from tests.algorithms.flic.test_flic import DOUBLE, FLIC_SMALL, LABELS, clients

    return Averaging(FLIC, Flic(**FLIC_SMALL, **DOUBLE), clients(), LABELS, "shared", False)


BOTH = pytest.mark.parametrize("make", [of_fedavg, of_flic])


@dataclasses.dataclass
class Visit:
    """A release of a client."""

    client: str
    round: int
    message: object
    reply: object
    update: np.ndarray  # as it would be without noise, which nobody but the client has


def watched(case, kept):
    """Return the private algorithm; what its clients release is taken down."""
    algorithm = case.algorithm.private(NOISE)
    (noisy,) = [fn for fn in algorithm.disclosure.functions if fn.releases]
    factor = 4 if case.divided else 1

    def call(state, block, message, key):
        after, reply = noisy.call(state, block, message, key)
        silent = evolve(state, noise=dataclasses.replace(state.noise, deviation=0.0))
        _, without = noisy.call(silent, block, message, key)
        _, round, _, client, _ = key.public.words
        update = factor * getattr(without, case.field)
        kept.append(Visit(client, round, message, factor * getattr(reply, case.field), update))
        return after, reply

    seen = dataclasses.replace(noisy, call=call, together=None)
    sends = [
        dataclasses.replace(one, function=seen) if one.function is noisy else one
        for one in algorithm.disclosure.sends
    ]
    whole = inspect.unwrap(algorithm.round)
    given = {name: seen for name, one in whole.keywords.items() if one is noisy}
    return dataclasses.replace(
        algorithm,
        round=partial(whole.func, **given),
        disclosure=dataclasses.replace(algorithm.disclosure, sends=tuple(sends)),
    )


def others_less_noise(first, second, own):
    """Return what two totals of four clients and of three, less its own part, tell the attacker.

    Each of n clients has added noise of the deviation σ / √(n - 1) to its update.
    """
    one, two = 4 * first - own, 3 * second
    return (np.sqrt(3) * one - np.sqrt(2) * two) / (np.sqrt(3) - np.sqrt(2))


def check(works, found, kept, round):
    """Check whether the attack got the sum of the others' updates in a round, at four clients."""
    visits = [one for one in kept if one.round == round][:4]
    assert len({one.client for one in visits}) == 4
    truth = sum(one.update for one in visits if one.client != ATTACKER)
    error = np.sqrt(np.mean((found - truth) ** 2))
    assert np.sqrt(np.mean(truth**2)) > 1e-3
    assert error < CLOSE if works else error > NOISE.deviation


def by_attacker(kept, round):
    """Return what the attacker released first in a round."""
    return next(one for one in kept if (one.client, one.round) == (ATTACKER, round))


# ---- in simulation


@BOTH
def test_a_client_that_missed_the_second_attempt_learns_no_update(make, works):
    case, kept = make(), []
    algorithm = watched(case, kept)
    engine, start = started(algorithm, case.options, case.blocks, case.labels)
    states, opened = engine.get_states(), []
    for there in (None, [name for name in case.blocks if name != ATTACKER]):
        engine.set_states(states)
        engine.begin_round(1, there)
        server, _ = algorithm.round(start, engine, engine.key())
        total = getattr(server, case.field) - getattr(start, case.field)
        opened.append(np.asarray(total.content))
    found = others_less_noise(*opened, by_attacker(kept, 1).reply)
    check(works, found, kept, 1)


@BOTH
def test_the_same_call_at_the_same_state_is_the_same_release(make):
    case = make()
    algorithm = case.algorithm.private(dataclasses.replace(NOISE, releases=1))
    engine, start = started(algorithm, case.options, case.blocks, case.labels)
    states, found = engine.get_states(), []
    for _ in range(3):
        # as a run has them that goes on from a checkpoint
        written = {name: codec.encode(state) for name, state in states.items()}
        states = {name: codec.decode(one, *algorithm.states) for name, one in written.items()}
        engine.set_states(states)
        engine.begin_round(1)
        server, _ = algorithm.round(start, engine, engine.key())
        found.append(np.asarray(getattr(server, case.field).content))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    engine.set_states(states)
    engine.begin_round(1, ["c1", "c2"])  # one more would tell more than the one release
    with pytest.raises(SealedError, match="after the 1 that epsilon"):
        algorithm.round(start, engine, engine.key())


# ---- over sites


class Over:
    """A masked run over sites; the attacker's answer to the first call of a kind is lost."""

    def __init__(self, case, algorithm, kind, apart=False):
        keys = modes.in_one_process(SharedKey(bytes(range(32)), "x"))
        self._case, self.algorithm, self._kind = case, algorithm, kind
        self.lost, self.round, self.opened = 0, 0, None
        self.sent = {}  # the last call to each site
        self.made = sites.federation(
            *(algorithm, case.options, case.blocks, case.labels),
            fault=self._line,
            patience=PATIENCE,
            sealing=lambda: modes.sealing(Privacy(mode="masked"), list(case.blocks), keys),
            apart=apart,
        )
        self.engine, caller = self.made.engine, self.made.caller
        call = caller.call

        def hurried(kind, *given, **named):
            # only what is to be lost is waited for in vain
            caller.patience = dataclasses.replace(
                PATIENCE, deadline=2.0 if kind == self._kind else PATIENCE.deadline
            )
            return call(kind, *given, **named)

        caller.call = hurried
        self.server = sites.begun(self.made, algorithm, case.options)

    def _line(self, client, number, data, deliver):
        self.sent[client] = data
        answer = deliver(data)
        call = codec.decode(data, Call) if data else None
        lost = call is not None and (client, call.kind) == (ATTACKER, self._kind)
        if lost and self.lost in (0, self.round):
            self.lost = self.round
            self.opened = self._open(codec.decode(call.body, ToSeal, ToOpen, *RECORDS))
            raise TimeoutError
        return answer

    def _open(self, asked):
        """Return what the attacker opened to do as it was asked."""
        run = self.made.lines.sites[ATTACKER]._of(self.made.caller.run)
        totals = run._locked(run._ready())
        (cell,) = asked.cells
        return totals.opened(ATTACKER, totals.restored(asked.total), cell)[0]

    def take(self, rounds, releases=20):
        """Run rounds as training does, with its own way to begin one again."""
        known = self.algorithm, self._case.options, self.engine, "train", None, Clock()
        release = dataclasses.replace(NOISE, releases=releases)
        task = loop.Task(None, *known, release=release)
        for self.round in range(1, rounds + 1):
            self.engine.return_of(wait=False)
            self.engine.begin_round(self.round)
            found = loop._round(task, self.server)
            if found is None:
                return self.round
            self.server, _ = found
        return None


@BOTH
def test_one_lost_answer_over_sites_tells_no_update(make, works):
    """Who seals a total anew opens it: its answer is lost, and the round begins without it."""
    case, kept = make(), []
    run = Over(case, watched(case, kept), "seal")
    run.take(5)
    assert run.lost == 4
    before, after = (getattr(by_attacker(kept, k).message, case.field) for k in (4, 5))
    own = by_attacker(kept, 4).reply
    found = others_less_noise(run.opened - before, after - before, own)
    check(works, found, kept, 4)


@BOTH
def test_a_round_whose_total_was_opened_does_not_begin_again(make):
    case = make()
    run = Over(case, case.algorithm.private(NOISE), "seal", apart=True)
    with pytest.raises(AbsentError, match=r"c0 did not answer.*totals of it were opened"):
        run.take(5)
    assert run.lost == 4


@pytest.mark.parametrize("name", ["hyfdca", "cocoa", "fedavg", "flic"])
@pytest.mark.parametrize("mode", ["masked", "ckks"])
def test_with_noise_a_run_never_begins_such_a_round_again(name, mode):
    if name == "flic":
        pytest.importorskip("torch")
    for epsilon, apart in ((1.0, True), (0.0, name == "flic")):
        settings = {"mode": mode, "epsilon": epsilon, "least_clients": 2}
        tree = {"algorithm": {"name": name}, "privacy": settings, "dataset": {"name": "heart"}}
        description = config.from_dict(tree)
        assert privacy_guarantee.keeps_apart(description, *choose(description)) is apart


# ---- a model that is released once


def of_hyfdca():
    return HYFDCA.private(dataclasses.replace(NOISE, releases=1)), HyFDCA(regularisation=0.1)


def with_noise(engine):
    """Return the sealed total of the clients' weights as they are, with noise."""
    gap = certified_release.find_gap(engine, Propose(), hyfdca.propose)
    return engine.sum(certified_release.add_noise, dict.fromkeys(engine.ids, ShareOut(gap)))


def test_a_second_model_is_not_released_in_simulation(works):
    """The noise would be taken away by the difference of two models with the same."""
    algorithm, options = of_hyfdca()
    engine, server = started(algorithm, options, four())
    states = engine.get_states()
    engine.begin_round(1)
    empty = engine.reveal(with_noise(engine))
    engine.set_states(states)
    engine.begin_round(1)
    server, _ = algorithm.round(server, engine, engine.key())
    exact = HYFDCA.conclude(server, engine, engine.key()).weights
    if not works:
        with pytest.raises(SealedError, match="after the 1 that epsilon"):
            algorithm.conclude(server, engine, engine.key())
        return
    noisy = algorithm.conclude(server, engine, engine.key()).weights
    np.testing.assert_allclose(noisy - empty.w, exact, atol=CLOSE)


def test_the_same_call_at_another_state_is_another_release():
    algorithm, options = of_hyfdca()
    engine, _ = started(algorithm, options, four())
    states = engine.get_states()
    engine.begin_round(1)
    with_noise(engine)
    engine.set_states({name: evolve(one, w=one.w + 1.0) for name, one in states.items()})
    engine.begin_round(1)
    with pytest.raises(SealedError, match="after the 1 that epsilon"):
        with_noise(engine)


def test_a_second_model_is_not_released_over_sites(works):
    """An answer to the released model is lost; what follows goes on from the states before it."""
    algorithm, options = of_hyfdca()
    case = Averaging(algorithm, options, four(), BINARY, "w", False)
    run = Over(case, algorithm, "none")
    engine, server = run.engine, run.server
    engine.begin_round(1)
    empty = engine.reveal(with_noise(engine))
    assert engine.without(AbsentError("lost", (ATTACKER,)))
    engine.return_of(wait=True)
    engine.begin_round(1)
    server, _ = algorithm.round(server, engine, engine.key())
    if not works:
        with pytest.raises(SealedError, match="all releases with noise"):
            algorithm.conclude(server, engine, engine.key())
        return
    noisy = algorithm.conclude(server, engine, engine.key()).weights
    alone, server = started(HYFDCA, options, four())
    exact = train(HYFDCA, alone, server, 1).weights
    np.testing.assert_allclose(noisy - empty.w, exact, atol=CLOSE)


# ---- every release counts


@BOTH
def test_attempts_count_and_training_ends_when_the_noise_is_used_up(make):
    case = make()
    run = Over(case, case.algorithm.private(dataclasses.replace(NOISE, releases=5)), "seal")
    assert run.take(6, releases=5) == 5  # four rounds, one of them twice
    assert run.lost == 4
    made = run.engine.books.releases
    assert made == {"c0": 4, "c1": 5, "c2": 5, "c3": 5}
    counted = {name: len(one._numbers[name]) for (name, _), one in run.made.ledgers.items()}
    assert counted == made


def test_a_site_counts_what_it_released_whatever_the_server_says():
    case, kept = of_fedavg(), []
    algorithm = watched(case, kept)
    algorithm = dataclasses.replace(
        algorithm, init_client=FEDAVG.private(dataclasses.replace(NOISE, releases=2)).init_client
    )
    run = Over(case, algorithm, "none")
    engine = run.engine
    for _ in range(2):
        engine.begin_round(1)  # the server says that it is the same round
        run.made.caller.go_back()
        algorithm.round(run.server, engine, engine.key())
    assert len(kept) == 8
    sites.begun(run.made, algorithm, case.options)  # that the run begins
    with pytest.raises(SealedError, match="all releases with noise"):
        algorithm.round(run.server, engine, engine.key())


# ---- the ledger


PUBLIC = RandomKey((0, 1, 1, "a", "noisy_descent"))


def released(ledger, *parts, client="a"):
    key = ledger.key(client, secret_of(client), PUBLIC, [part.encode() for part in parts])
    ledger.settle()
    return key


def test_the_ledger_counts_on_when_it_is_read_again(tmp_path):
    first = ReleaseLedger(tmp_path / "keys" / "releases")
    keys = [released(first, "state", f"call {k}") for k in range(3)]
    assert [key.number for key in keys] == [1, 2, 3]
    second = ReleaseLedger(tmp_path / "keys" / "releases")
    again = released(second, "state", "call 1")
    assert again.number == 2
    assert again.secret.stream(16) == keys[1].secret.stream(16)
    assert released(second, "other state", "call 1").number == 4
    assert released(first, "state", "call 3").number == 5  # it sees what the other wrote
    assert released(second, "state", "call 1", client="b").number == 1


def test_no_two_releases_have_the_same_noise(tmp_path):
    ledger = ReleaseLedger()
    found = {
        released(ledger, *parts, client=client).secret.stream(16)
        for parts in (("s", "c"), ("sc",), ("s", "c", ""), ("t", "c"), ("s", "d"))
        for client in ("a", "b")
    }
    assert len(found) == 10
    assert released(ReleaseLedger(), "s", "c").secret.stream(16) not in found  # of another run


def test_a_record_that_was_cut_is_as_if_it_never_was(tmp_path):
    path = tmp_path / "releases"
    ledger = ReleaseLedger(path)
    kept = released(ledger, "state", "call 1")
    size = path.stat().st_size
    released(ledger, "state", "call 2")
    for end in range(size, path.stat().st_size):
        path.write_bytes(path.read_bytes()[:end])
        again = ReleaseLedger(path)
        assert released(again, "state", "call 3").number == 2
        assert released(ReleaseLedger(path), "state", "call 1").number == kept.number


KILLED = """
import os, signal, sys
from pathlib import Path
from federations import secret_of
from intarsia.core.algorithm import RandomKey
from intarsia.engines.release_ledger import ReleaseLedger

ledger = ReleaseLedger(Path(sys.argv[1]))
ledger.key("a", secret_of("a"), RandomKey((0, 1, 1, "a", "noisy_descent")), [b"state", b"call 1"])
ledger.settle()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_counted_survives_a_kill(tmp_path):
    path = tmp_path / "releases"
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert released(ReleaseLedger(path), "state", "call 1").number == 1
    assert released(ReleaseLedger(path), "state", "call 2").number == 2


def test_a_site_that_is_killed_before_it_answers_releases_the_same_again():
    case, kept = of_fedavg(), []
    run = Over(case, watched(case, kept), "none")
    shelf = run.made.shelves[ATTACKER][run.made.caller.run]
    run.engine.begin_round(1)
    shelf.full = True  # it counts and computes, and comes to keep nothing
    with pytest.raises(SiteError):
        run.algorithm.round(run.server, run.engine, run.engine.key())
    shelf.full = False
    run.made.restart(ATTACKER)
    run.made.lines.sites[ATTACKER].handle(run.sent[ATTACKER])
    one, two = (visit for visit in kept if visit.client == ATTACKER)
    assert (one.reply == two.reply).all()
    ledger = run.made.ledgers[ATTACKER, run.made.caller.run]
    assert len(ledger._numbers[ATTACKER]) == 1


def test_a_run_s_folder_at_a_site_that_is_put_back_takes_back_no_release(tmp_path):
    """The ledger lies beside it, and the noise of another call is another one."""
    shelf, ledger = FolderShelf(tmp_path / "runs" / "5e"), ledger_of(tmp_path, "5e")
    shelf.write("index", b"before")
    first = released(ledger, "state", "call 1")
    shelf.write("index", b"after")
    shelf.write("index", b"before")  # from a copy
    second = released(ledger_of(tmp_path, "5e"), "state", "call 2")
    assert (first.number, second.number) == (1, 2)
    lost = released(ReleaseLedger(tmp_path / "lost"), "state", "call 2")
    assert lost.number == 1  # what cannot be held: the count, where the ledger is gone too
    assert lost.secret.stream(16) not in (first.secret.stream(16), second.secret.stream(16))
