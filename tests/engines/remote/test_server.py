from __future__ import annotations

import copy
import dataclasses
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import federations
import sites
from federations import BINARY, rectangles, table
from intarsia.core.algorithm import Ready
from intarsia.core.block import Block
from intarsia.core.client_functions import client_function
from intarsia.core.disclosure import Disclosure, Sends
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote.server_journal import Journal
from intarsia.engines.remote.wire import Answer, Call
from intarsia.engines.simulation import Simulation
from intarsia.errors import AbsentError, SiteError, TableError
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.training.registry import ALGORITHMS, kind_of

ROUNDS = 3
HYFDCA = ALGORITHMS["hyfdca"]
SECRETS = modes.keys(Privacy(mode="masked"), ("a",), None, "test")


@dataclass(frozen=True)
class Named:
    algorithm: str
    own_algorithm = None


def clients():
    x, y = table(40, 6)
    return rectangles(x, y, 2, 2, shared_rows=2, shared_columns=1)


def masked(blocks):
    return lambda: modes.sealing(Privacy(mode="masked"), list(blocks), SECRETS)


def under_ckks(blocks):
    pytest.importorskip("tenseal")
    keys = modes.keys(Privacy(mode="ckks"), tuple(blocks), None, "test")
    # ciphertexts for arrays that a run would put under masks
    return lambda: dataclasses.replace(
        modes.sealing(Privacy(mode="ckks"), list(blocks), keys), long=4
    )


def rounds(algorithm, engine, server, numbers, present=lambda number: None):
    infos = []
    for number in numbers:
        engine.begin_round(number, present(number))
        server, info = algorithm.round(server, engine, engine.key())
        server = engine.books.settle(server)
        infos.append(info)
    return server, infos


def concluded(algorithm, engine, server):
    engine.begin_round(ROUNDS + 1)
    return algorithm.conclude(server, engine, engine.key("conclude"))


def in_process(
    algorithm,
    options,
    blocks,
    labels=BINARY,
    sealing=None,
    present=lambda n: None,
    run=sites.RUN,
):
    schema = Schema.of(blocks, labels)
    engine = Simulation(
        {"train": (schema, blocks)},
        0,
        None if sealing is None else sealing(),
        secrets=sites.in_run(blocks, run),
    )
    server = federations.initialise(algorithm, options, engine)
    server, infos = rounds(algorithm, engine, server, range(1, ROUNDS + 1), present)
    return concluded(algorithm, engine, server), infos, engine


def identical(algorithm, made, conclusion, infos, reference):
    """Check that a run over sites came to the bits of the one in this process."""
    expected, expected_infos, engine = reference
    np.testing.assert_array_equal(conclusion.weights, expected.weights)
    assert infos == expected_infos
    assert conclusion.info == expected.info
    assert made.engine.books.traffic == engine.books.traffic
    assert made.engine.books.crossings.summary() == engine.books.crossings.summary()
    sites.same_states(made.states(), engine.get_states())


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", ["hyfdca", "cocoa", "fedavg"])
def test_sites_come_to_the_bits_of_the_in_process_engine(name, sealed):
    algorithm = ALGORITHMS[name]
    options = algorithm.hyperparameters(regularisation=0.1)
    x, y = table(40, 6)
    blocks = clients() if name != "cocoa" else rectangles(x, y, 3, 1)
    sealing = masked(blocks) if sealed else None
    reference = in_process(algorithm, options, blocks, sealing=sealing)
    made = sites.federation(algorithm, options, blocks, BINARY, sealing=sealing)
    server = sites.begun(made, algorithm, options)
    server, infos = rounds(algorithm, made.engine, server, range(1, ROUNDS + 1))
    identical(algorithm, made, concluded(algorithm, made.engine, server), infos, reference)


@pytest.mark.parametrize("ratio", [0.0, 0.9])
def test_sites_answer_the_interior_point_method(ratio):
    options = HYFDCA.hyperparameters(regularisation=1e-6, l1_ratio=ratio)
    blocks = clients()
    made = sites.federation(HYFDCA, options, blocks, BINARY)
    server = sites.begun(made, HYFDCA, options)
    server, infos = rounds(HYFDCA, made.engine, server, range(1, 61))
    assert "interior point" in {info.phase for info in infos}
    found = HYFDCA.conclude(server, made.engine, made.engine.key("conclude"))
    assert found.info.gap_relative <= 1e-6


def test_sites_come_to_the_bits_of_the_in_process_engine_with_encrypted_products():
    options = HYFDCA.hyperparameters(regularisation=0.1, system="encrypted")
    blocks = clients()
    reference = in_process(HYFDCA, options, blocks, sealing=masked(blocks))
    made = sites.federation(HYFDCA, options, blocks, BINARY, sealing=masked(blocks))
    server = sites.begun(made, HYFDCA, options)
    server, infos = rounds(HYFDCA, made.engine, server, range(1, ROUNDS + 1))
    identical(HYFDCA, made, concluded(HYFDCA, made.engine, server), infos, reference)
    sent = made.engine.books.traffic.summary()
    assert sent["up"] > 1_000_000  # bytes, where masks need some thousand: there were ciphertexts


@pytest.mark.parametrize("name", ["hyfdca", "fedavg"])
def test_sites_come_to_the_bits_of_the_in_process_engine_under_ckks(name):
    """Noise is drawn afresh by each; of it nothing is left in what they come to."""
    algorithm = ALGORITHMS[name]
    options = algorithm.hyperparameters(regularisation=0.1)
    blocks = clients()
    sealing = under_ckks(blocks)
    expected, expected_infos, engine = in_process(algorithm, options, blocks, sealing=sealing)
    made = sites.federation(algorithm, options, blocks, BINARY, sealing=sealing)
    server = sites.begun(made, algorithm, options)
    server, infos = rounds(algorithm, made.engine, server, range(1, ROUNDS + 1))
    conclusion = concluded(algorithm, made.engine, server)
    np.testing.assert_array_equal(conclusion.weights, expected.weights)
    assert infos == expected_infos
    sites.same_states(made.states(), engine.get_states())
    sent = engine.books.traffic.summary()
    assert sent["up"] > 1_000_000  # bytes, where masks need some thousand: there were ciphertexts


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "masked"])
def test_a_line_that_loses_repeats_and_alters_changes_no_bit(sealed):
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    sealing = masked(blocks) if sealed else None
    fault = sites.Unreliable()
    reference = in_process(HYFDCA, options, blocks, sealing=sealing)
    made = sites.federation(HYFDCA, options, blocks, BINARY, sealing=sealing, fault=fault)
    server = sites.begun(made, HYFDCA, options)
    server, infos = rounds(HYFDCA, made.engine, server, range(1, ROUNDS + 1))
    identical(HYFDCA, made, concluded(HYFDCA, made.engine, server), infos, reference)
    assert fault.seen == set(range(6))


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "masked"])
def test_sites_that_are_started_again_go_on_to_the_same_bits(sealed):
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    sealing = masked(blocks) if sealed else None
    turn = 0

    def killed(client, number, data, deliver):
        """Lose a site before a call, or after it and before its answer arrives."""
        nonlocal turn
        turn += 1
        if turn % 7 == 0:
            made.restart(client)
        if turn % 11 == 0:
            deliver(data)
            made.restart(client)
            raise ConnectionResetError
        return made.lines.sites[client].handle(data)

    reference = in_process(HYFDCA, options, blocks, sealing=sealing)
    made = sites.federation(HYFDCA, options, blocks, BINARY, sealing=sealing, fault=killed)
    server = sites.begun(made, HYFDCA, options)
    server, infos = rounds(HYFDCA, made.engine, server, range(1, ROUNDS + 1))
    identical(HYFDCA, made, concluded(HYFDCA, made.engine, server), infos, reference)
    assert turn > 22


class OneByOne(Simulation):
    """An engine that runs no function for several clients at once, as no site can."""

    def ask(self, fn, messages):
        return super().ask(dataclasses.replace(fn, together=None), messages)

    def sum(self, fn, messages):
        return super().sum(dataclasses.replace(fn, together=None), messages)


class Killed(Exception):  # noqa: N818 - not an error of anybody
    """The end of the server's process."""


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "masked"])
def test_a_server_that_is_killed_in_a_round_goes_on_to_the_same_bits(sealed, tmp_path):
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    sealing = masked(blocks) if sealed else None
    reference = in_process(HYFDCA, options, blocks, sealing=sealing)
    shelves, calls, executed = {}, 0, []

    def counted(client, number, data, deliver):
        nonlocal calls
        calls += 1
        if calls == limit:
            deliver(data)  # the site has done it, and nobody hears of it
        if calls >= limit:
            raise Killed
        executed.append((client, data))
        return deliver(data)

    limit, process = 30, 0
    done, infos = 0, []
    versions = traffic = crossings = written = None

    def save():
        nonlocal versions, traffic, crossings, written
        made.caller.journal.checkpoint(made.caller.sequence)
        versions = dict(engine.states)
        written = codec.encode(engine.books.seal(server))
        traffic = dataclasses.asdict(engine.books.traffic)
        crossings = copy.deepcopy(engine.books.crossings.summary())

    while True:
        process += 1
        made = sites.federation(
            *(HYFDCA, options, blocks, BINARY),
            sealing=sealing,
            fault=counted,
            journal=Journal(tmp_path),
            shelves=shelves,
        )
        engine = made.engine
        try:
            if written:
                engine.set_states(versions)
                engine.books.restore_traffic(copy.deepcopy(traffic))
                engine.books.crossings.restore(copy.deepcopy(crossings))
                server = engine.books.unseal(codec.decode(written, *HYFDCA.states, *RECORDS))
            else:
                server = sites.begun(made, HYFDCA, options)
                save()  # as a run does: the server's secret is in it
            for number in range(done + 1, ROUNDS + 1):
                server, own = rounds(HYFDCA, engine, server, [number])
                infos = infos[: number - 1] + own
                done = number
                save()
            conclusion = concluded(HYFDCA, engine, server)
            break
        except Killed:
            limit += 25
            made.caller.journal.close()
    identical(HYFDCA, made, conclusion, infos, reference)
    assert process > 3
    assert len(set(executed)) == len(executed)  # nobody was asked what the journal knew


def test_a_round_goes_on_without_a_site_that_is_away_and_the_site_catches_up():
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    gone = "r0c1"
    others = tuple(name for name in blocks if name != gone)

    def present(number):
        return others if number == 2 else None

    # first, so that no call has to wait for a function that is being compiled
    reference = in_process(HYFDCA, options, blocks, present=present)
    patience = dataclasses.replace(sites.HASTY, deadline=2.0, absent="continue", quorum=3)

    def line(client, number, data, deliver):
        if away and client == gone and not (data and data in late):
            if data and len(late) < 3:
                late.append(data)  # it arrives when the round has gone on
            raise TimeoutError
        return deliver(data)

    away, late = False, []
    made = sites.federation(HYFDCA, options, blocks, BINARY, fault=line, patience=patience)
    server, engine, infos = sites.begun(made, HYFDCA, options), made.engine, []

    for number in (1, 2, 3):
        away = number == 2
        engine.return_of(wait=False)
        engine.begin_round(number)
        before = server
        if away:
            with pytest.raises(AbsentError) as absent:
                HYFDCA.round(before, engine, engine.key())
            assert absent.value.clients == (gone,)
            assert engine.without(absent.value)
        server, info = HYFDCA.round(before, engine, engine.key())
        infos.append(info)
        for data in late:
            made.lines.sites[gone].handle(data)  # too late: it must not count
        late.clear()
        server = engine.books.settle(server)
    conclusion = concluded(HYFDCA, engine, server)
    np.testing.assert_array_equal(conclusion.weights, reference[0].weights)
    assert infos == reference[1]
    sites.same_states(made.states(), reference[2].get_states())


def test_a_round_below_the_quorum_is_not_run_and_nothing_hangs():
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    asleep, woken = threading.Event(), []

    def line(client, number, data, deliver):
        if client == "r0c0" and number > 1:
            asleep.wait(600)  # a transport that does not keep to its time either
            woken.append(number)
        return deliver(data)

    patience = dataclasses.replace(sites.HASTY, deadline=3.0, absent="continue", quorum=4)
    made = sites.federation(HYFDCA, options, blocks, BINARY, fault=line, patience=patience)
    with pytest.raises(AbsentError, match="r0c0 did not answer") as absent:
        sites.begun(made, HYFDCA, options)
    assert not woken
    assert not made.engine.without(absent.value)
    asleep.set()


def test_a_round_does_not_begin_with_fewer_than_the_quorum_while_sites_are_away():
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    names = tuple(blocks)
    gone: set[str] = set()

    def line(client, number, data, deliver):
        if client in gone:
            raise TimeoutError
        return deliver(data)

    hasty = dataclasses.replace(sites.HASTY, deadline=1.5, absent="continue", quorum=2, probe=0.05)
    made = sites.federation(HYFDCA, options, blocks, BINARY, fault=line, patience=hasty)
    server, engine = sites.begun(made, HYFDCA, options), made.engine
    engine.begin_round(1)
    gone.add(names[0])
    with pytest.raises(AbsentError) as absent:
        HYFDCA.round(server, engine, engine.key())
    assert engine.without(absent.value)
    # of the next round's two one is away: fewer than the quorum
    engine.return_of(wait=False)
    with pytest.raises(AbsentError, match=f"{names[0]} did not come back"):
        engine.begin_round(2, names[:2])
    # two that are there are enough, though a third was drawn
    engine.begin_round(2, names[:3])
    assert engine.ids == names[1:3]
    # of a round for one alone no more can be there, and it is
    engine.begin_round(2, names[3:])
    assert engine.ids == names[3:]
    # it waits for those of the round alone, and no longer than until they are enough
    gone.add(names[3])
    made.caller.away.add(names[3])
    gone.remove(names[0])
    engine.begin_round(4, names[:2])
    assert engine.ids == names[:2]
    assert engine.away  # names[3] is, and nobody waited for it
    gone.clear()
    engine.begin_round(5, names[2:])
    assert engine.ids == names[2:]


def call(**changes):
    given = Call(
        *("ab", 1, 0, 0, 0, 0),
        *("stage", "begin", "train", ("r0c0",), b""),
    )
    return codec.encode(dataclasses.replace(given, **changes))


REFUSED = {
    "again with other content": (call(exchange=1), "ReplayError"),
    "older": (call(sequence=0), "ReplayError"),
    "a state that is not there": (call(sequence=7, base=5), "StaleError"),
    "altered": (call()[:-1] + b"x", "CodecError"),
    "cut": (call()[:40], "CodecError"),
    "not a call": (codec.encode(3), "CodecError"),
    "an unknown function": (call(sequence=2, base=1, kind="ask", function="f"), "StaleError"),
    "an unknown kind": (call(sequence=2, base=1, kind="run"), "StaleError"),
    "a folder for a run": (call(run="../x"), "StaleError"),
    "the terms of a sum, in the clear": (
        call(sequence=2, base=1, kind="ask", function="cocoa.objectives", body=codec.encode(3)),
        "RefusedError",
    ),
    "a sum over clients without this one": (
        call(sequence=2, base=1, kind="sum", function="cocoa.objectives", asked=()),
        "RefusedError",
    ),
    "a sum over clients of nowhere": (
        call(sequence=2, base=1, kind="sum", function="cocoa.objectives", asked=("r0c0", "x")),
        "RefusedError",
    ),
    "a number for a message": (
        call(
            sequence=2,
            base=1,
            kind="sum",
            function="cocoa.objectives",
            body=codec.encode(3),
        ),
        "CodecError",
    ),
    "a message of another function": (
        call(
            sequence=2,
            base=1,
            kind="sum",
            function="cocoa.objectives",
            body=codec.encode(Ready()),
        ),
        "CodecError",
    ),
    "a message of no class": (
        call(
            sequence=2,
            base=1,
            kind="sum",
            function="cocoa.objectives",
            body=b"code",
        ),
        "CodecError",
    ),
}


@pytest.mark.parametrize(("data", "error"), REFUSED.values(), ids=REFUSED)
def test_a_site_refuses_by_name_what_does_not_follow(data, error):
    cocoa = ALGORITHMS["cocoa"]
    x, y = table(20, 3)
    blocks = {"r0c0": federations.block(x, y, range(20), range(3))}
    made = sites.federation(
        cocoa, cocoa.hyperparameters(regularisation=0.1), blocks, BINARY, run="ab"
    )
    site = made.lines.sites["r0c0"]
    assert codec.decode(site.handle(call()), Answer).error == ""
    before = dict(made.shelves["r0c0"]["ab"].files)
    assert codec.decode(site.handle(data), Answer).error == error
    assert made.shelves["r0c0"]["ab"].files == before
    assert codec.decode(site.handle(call()), Answer).error == ""


def test_an_error_leaves_a_site_without_its_values():
    @client_function
    def fail(state, block, message, rng):
        raise TableError(f"The value {block.x[0, 0]} of sample 17 is wrong.")

    @client_function
    def break_down(state, block, message, rng):
        raise KeyError("patient 17")

    cocoa = ALGORITHMS["cocoa"]
    said = tuple(Sends(fn, "ask", Ready) for fn in (fail, break_down))
    algorithm = dataclasses.replace(cocoa, disclosure=Disclosure(sends=said))
    x, y = table(20, 3)
    blocks = {"r0c0": federations.block(x, y, range(20), range(3))}
    made = sites.federation(algorithm, cocoa.hyperparameters(regularisation=0.1), blocks, BINARY)
    made.engine.begin(algorithm, None)
    for fn, kind in ((fail, TableError), (break_down, SiteError)):
        with pytest.raises(kind, match="At client 'r0c0'") as problem:
            made.engine.ask(fn, {"r0c0": None})
        assert "17" not in str(problem.value)
        assert problem.value.__cause__ is None


def test_a_site_whose_disk_is_full_says_so_and_goes_on_when_it_is_not():
    options = HYFDCA.hyperparameters(regularisation=0.1)
    blocks = clients()
    sealing = masked(blocks)
    made = sites.federation(HYFDCA, options, blocks, BINARY, sealing=sealing, run="ab")
    server = sites.begun(made, HYFDCA, options)
    made.engine.begin_round(1)
    shelf = made.shelves["r0c0"]["ab"]
    shelf.full = True
    with pytest.raises(SiteError, match="could not read or write a file"):
        HYFDCA.round(server, made.engine, made.engine.key())
    shelf.full = False
    made.caller.go_back()
    server, infos = rounds(HYFDCA, made.engine, server, range(1, ROUNDS + 1))
    reference = in_process(HYFDCA, options, blocks, sealing=sealing, run="ab")
    conclusion = concluded(HYFDCA, made.engine, server)
    np.testing.assert_array_equal(conclusion.weights, reference[0].weights)
    assert infos == reference[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flic", "fedrep", "femam", "hyfem"])  # fedrep: two of one name
def test_a_network_algorithm_over_sites_comes_to_the_bits_of_the_in_process_engine(name):
    pytest.importorskip("torch")
    algorithm = kind_of(Named(name))
    own = name == "flic"  # columns of its own at each client
    rng = np.random.default_rng(0)
    blocks = {
        client: Block(
            np.arange(24) + 100 * k,
            federations.names(range(3 * k * own, 3 * k * own + 3)),
            rng.normal(size=(24, 3)),
            np.arange(24) % 2 * 2.0 - 1,
        )
        for k, client in enumerate(("one", "two"))
    }
    plans = {  # of femam each level in a round
        "flic": {"pretraining_epochs": 1},
        "femam": {
            **{"levels": ("global", 2, "personal", "shares"), "first_clustering": 1},
            **{"first_rounds": 1, "level_rounds": 1, "level_schedule": "paper"},
        },
    }
    options = algorithm.hyperparameters(**plans.get(name, {}))
    made = sites.federation(algorithm, options, blocks, BINARY)
    server = sites.begun(made, algorithm, options)
    server, infos = rounds(algorithm, made.engine, server, range(1, 5))
    schema = Schema.of(blocks, BINARY)
    engine = OneByOne({"train": (schema, blocks)}, 0)
    expected = federations.initialise(algorithm, options, engine)
    expected, expected_infos = rounds(algorithm, engine, expected, range(1, 5))
    assert infos == expected_infos
    sites.same_states(made.states(), engine.get_states())
