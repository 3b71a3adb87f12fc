"""Each rule finds an algorithm that breaks it, and none where the fault is taken away."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import intarsia
import own_algorithm
from intarsia import core as fl
from intarsia.errors import AlgorithmError, ConvergenceError, ExperimentError, FederationError
from intarsia.experiment.config import load
from intarsia.testing import ToyFederation, check_algorithm, find_faults, rules, trials
from intarsia.testing.toy_federations import (
    BINARY,
    NUMBERS,
    overlapping,
    rectangles,
    rows_apart,
    table,
)
from intarsia.testing.watched_clients import contents_of
from intarsia.training.registry import errors_placed

ridge = own_algorithm.ridge()
TOY = ToyFederation("toy", rows_apart("numbers"), NUMBERS, rounds=3)
OPTIONS = {"regularisation": 0.1}


def test_an_algorithm_without_a_fault_keeps_all_rules_on_every_federation():
    check_algorithm(ridge.RIDGE, **OPTIONS)
    assert find_faults(ridge.RIDGE, TOY, **OPTIONS) == ()


def _sends():
    return ridge.RIDGE.disclosure.sends


def declared(monkeypatch, **functions):
    """Return ridge with other client functions."""
    for name, function in functions.items():
        monkeypatch.setattr(ridge, name, function)
    takes = {"Vector.v": (fl.PUBLIC,), "Scores.z": "Scores.z"}
    sends = (*fl.sums(ridge.score), *fl.sums(ridge.slope, reveals=["v", "labels"]))
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=fl.opening(takes, sends)))


def with_score(monkeypatch, more):
    """Return ridge whose `score` does more: (client, block) -> a number that is added."""
    once = ridge.score.call

    def score(client, block, message: ridge.Vector, rng) -> tuple[object, ridge.Scores]:
        found, reply = once(client, block, message, rng)
        return found, ridge.Scores(reply.z + more(client, block))

    return declared(monkeypatch, score=fl.client_function(score))


def server_reads_a_block(monkeypatch):
    held = {}

    def init_client(options, schema, client, block, rng):
        held[client] = block
        return ridge.RIDGE.init_client(options, schema, client, block, rng)

    def round(server, clients, rng):
        server, info = ridge.round(server, clients)
        return server, replace(info, loss=float(np.mean([one.y.mean() for one in held.values()])))

    return replace(ridge.RIDGE, init_client=init_client, round=round)


def server_reads_what_a_client_computed(monkeypatch):
    held = {}

    def more(client, block):
        held[block.samples[0]] = float(np.square(block.x).sum())
        return 0.0

    found = with_score(monkeypatch, more)

    def round(server, clients, rng):
        server, info = ridge.round(server, clients)
        return server, replace(info, loss=sum(held.values()))

    return replace(found, round=round)


def message_with_numbers_in_the_clear(monkeypatch):
    sends = [replace(one, takes=()) if one.function is ridge.score else one for one in _sends()]
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=tuple(sends)))


@fl.describe("labels")
class Labels:
    z: np.ndarray


@fl.client_function
def send_labels(client, block, message: fl.Ready, rng) -> tuple[object, Labels]:
    return client, Labels(block.y)


def array_of_each_client_that_the_server_reads(monkeypatch):
    def setup(server, clients, rng):
        clients.ask(send_labels, fl.Ready())
        return ridge.setup(server, clients)

    sends = (*_sends(), *fl.asks(send_labels))
    return replace(ridge.RIDGE, setup=setup, disclosure=fl.Disclosure(sends=sends))


def numpys_shared_generator(monkeypatch):
    return with_score(monkeypatch, lambda *_: 1e-9 * np.random.normal())  # noqa: NPY002


def server_that_seeds_numpy(monkeypatch):
    def round(server, clients, rng):
        np.random.seed(0)  # noqa: NPY002
        return ridge.round(server, clients)

    return replace(ridge.RIDGE, round=round)


def secret_from_a_seed(monkeypatch):
    with_score(monkeypatch, lambda *_: 1e-9 * np.random.default_rng(7).normal())
    return declared(monkeypatch, score=replace(ridge.score, secret=True))


def changed_state(monkeypatch):
    def more(client, block):
        client.labels[:] *= 1.0 + 1e-9
        return 0.0

    return with_score(monkeypatch, more)


def changed_labels(monkeypatch):
    def more(client, block):
        block.y[:] += 1e-9
        return 0.0

    return with_score(monkeypatch, more)


def fresh_random_numbers(monkeypatch):
    return with_score(monkeypatch, lambda *_: 1e-9 * np.random.default_rng().normal())


def number_of_the_process(monkeypatch):
    return with_score(monkeypatch, lambda *_: 1e-9 * os.getpid())


def count_of_calls(monkeypatch):
    calls = []

    def more(*_):
        calls.append(1)
        return 1e-9 * len(calls)

    return with_score(monkeypatch, more)


def field_that_is_revealed_undeclared(monkeypatch):
    sends = [replace(one, reveals=()) for one in _sends()]
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=tuple(sends)))


def function_that_is_not_declared(monkeypatch):
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=_sends()[:1]))


def declaration_of_what_never_crosses(monkeypatch):
    sends = [replace(one, reveals=one.reveals or ("z",)) for one in _sends()]
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=tuple(sends)))


def message_that_cannot_be_written(monkeypatch):
    def multiply(options, clients, v, labels):
        return clients.sum(ridge.score, ridge.Vector(v, [labels]))

    monkeypatch.setattr(ridge, "multiply", multiply)
    return ridge.RIDGE


def state_of_no_declared_class(monkeypatch):
    return replace(ridge.RIDGE, states=ridge.RIDGE.states[1:])


def state_beside_its_fields(monkeypatch):
    once = ridge.score.call

    def score(client, block, message: ridge.Vector, rng) -> tuple[object, ridge.Scores]:
        times, (found, reply) = getattr(client, "times", 0) + 1, once(client, block, message, rng)
        object.__setattr__(found, "times", times)
        return found, ridge.Scores(reply.z + 1e-9 * times)

    return declared(monkeypatch, score=fl.client_function(score))


def first_client_that_counts_more(monkeypatch):
    def setup(options, clients):
        first, schema = clients.ids[0], clients.schema()
        zero = np.zeros(len(schema.features))
        told = ridge.Vector(zero[schema.features.own(first)], 1.0)
        some = clients.sum(ridge.score, {first: told})
        found = clients.reveal(clients.sum(ridge.slope, {first: ridge.Scores(some.z)}))
        b = found.v / len(schema.samples)
        return ridge.Server(options, w=zero, p=b, r=b)

    return replace(ridge.RIDGE, setup=setup)


def weights_of_another_shape(monkeypatch):
    def conclude(*given):
        found = ridge.RIDGE.conclude(*given)
        return replace(found, weights=found.weights[0])

    return replace(ridge.RIDGE, conclude=conclude)


def scores_of_another_shape(monkeypatch):
    model = ridge.RIDGE.model
    return replace(
        ridge.RIDGE, model=replace(model, predict=lambda *given: model.predict(*given)[0])
    )


def weights_that_are_no_numbers(monkeypatch):
    def round(server, clients, rng):
        server, info = ridge.round(server, clients)
        return replace(server, w=server.w * np.nan), info

    return replace(ridge.RIDGE, round=round)


def scores_that_are_not_the_models(monkeypatch):
    model = ridge.RIDGE.model
    return replace(
        ridge.RIDGE, model=replace(model, predict=lambda *given: 2 * model.predict(*given))
    )


def round_that_asks_for_ever(monkeypatch):
    def round(server, clients, rng):
        while True:
            with contextlib.suppress(Exception):
                clients.sum(ridge.score, ridge.Vector(server.p, 0.0))

    return replace(ridge.RIDGE, round=round)


def round_that_computes_for_ever(monkeypatch):
    monkeypatch.setattr(rules, "SECONDS", 0.5)

    def round(server, clients, rng):
        while True:
            pass

    return replace(ridge.RIDGE, round=round)


def function_that_comes_again(monkeypatch):
    def round(server, clients, rng):
        clients.sum(ridge.score, ridge.Vector(server.p, 0.0))
        return ridge.round(server, clients)

    return replace(ridge.RIDGE, round=round)


def total_that_is_read_sealed(monkeypatch):
    def multiply(options, clients, v, labels):
        return np.asarray(clients.sum(ridge.score, ridge.Vector(v, labels)).z)

    monkeypatch.setattr(ridge, "multiply", multiply)
    return ridge.RIDGE


def hyperparameters_that_change(monkeypatch):
    @dataclass(kw_only=True)
    class Ridge:
        loss: str = "squared"
        regularisation: float = 1e-3

    states = (ridge.Server, fl.LinearClient, Ridge)
    return replace(ridge.RIDGE, hyperparameters=Ridge, states=states)


def reply_that_is_not_described(monkeypatch):
    monkeypatch.delattr(ridge.Vector, "__contents__")
    return ridge.RIDGE


def refusal_of_every_federation(monkeypatch):
    def init_server(*given):
        raise FederationError("It is not for these.")

    return replace(ridge.RIDGE, init_server=init_server)


def with_reply(monkeypatch, answer):
    """Return ridge whose `slope` returns something else: of its state and its reply."""
    once = ridge.slope.call

    def slope(client, block, message: ridge.Scores, rng) -> tuple[object, ridge.Vector]:
        return answer(*once(client, block, message, rng))

    return declared(monkeypatch, slope=fl.client_function(slope))


def dict_for_a_reply(monkeypatch):
    return with_reply(monkeypatch, lambda client, reply: (client, vars(reply)))


def three_values_for_two(monkeypatch):
    return with_reply(monkeypatch, lambda client, reply: (client, reply, 0))


def dict_for_a_state(monkeypatch):
    return with_reply(monkeypatch, lambda client, reply: (vars(client), reply))


def reply_that_is_too_short(monkeypatch):
    return with_reply(monkeypatch, lambda own, reply: (own, replace(reply, v=reply.v[:-1])))


def rows_without_a_layout(monkeypatch):
    """Return ridge whose scores are declared as arrays that all clients have of one shape."""

    @fl.describe("each row's label or score")
    class Scores:
        z: fl.Array

    def score(client, block, message):
        z = block.x @ message.v + message.labels * client.labels
        return replace(client, w=message.v), Scores(z)

    def slope(client, block, message):
        return client, ridge.Vector(block.x.T @ message.z, client.labels @ message.z)

    monkeypatch.setattr(ridge, "Scores", Scores)
    score.__annotations__ = {"message": ridge.Vector, "return": tuple[object, Scores]}
    slope.__annotations__ = {"message": Scores, "return": tuple[object, ridge.Vector]}
    functions = {"score": score, "slope": slope}
    return declared(monkeypatch, **{k: fl.client_function(one) for k, one in functions.items()})


def lambda_at_clients(monkeypatch):
    def multiply(options, clients, v, labels):
        return clients.sum(lambda *given: given[::2], ridge.Vector(v, labels))

    monkeypatch.setattr(ridge, "multiply", multiply)
    return ridge.RIDGE


def total_that_is_divided(monkeypatch):
    def multiply(options, clients, v, labels):
        return clients.sum(ridge.score, ridge.Vector(v, labels)).z / 2

    monkeypatch.setattr(ridge, "multiply", multiply)
    return ridge.RIDGE


def blocks_of_clients(monkeypatch):
    def round(server, clients, rng):
        return ridge.round(server, clients.blocks)

    return replace(ridge.RIDGE, round=round)


def total_of_what_is_not_declared(monkeypatch):
    sends = [replace(one, takes=()) if one.function is ridge.slope else one for one in _sends()]
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=tuple(sends)))


def total_of_another_name(monkeypatch):
    takes = (("z", "Scorse.z"),)
    sends = [replace(one, takes=takes) if one.function is ridge.slope else one for one in _sends()]
    return replace(ridge.RIDGE, disclosure=fl.Disclosure(sends=tuple(sends)))


def misspelled_loss(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Ridge:
        loss: str = "sqared"
        regularisation: float = 1e-3

    return replace(ridge.RIDGE, hyperparameters=Ridge)


def steps_that_are_too_large(monkeypatch):
    def round(server, clients, rng):
        server, info = ridge.round(server, clients)
        return replace(server, w=10 * (1 + server.w)), info

    return replace(ridge.RIDGE, round=round)


def with_multiply(monkeypatch, totals):
    """Return ridge whose product begins otherwise: (clients, v, labels) -> sealed scores."""

    def multiply(options, clients, v, labels):
        total = clients.sum(ridge.slope, ridge.Scores(totals(clients, v, labels).z))
        return clients.reveal(total)

    monkeypatch.setattr(ridge, "multiply", multiply)
    return ridge.RIDGE


def sum_without_its_arguments(monkeypatch):
    return with_multiply(monkeypatch, lambda clients, v, labels: clients.sum())


def fields_for_a_message(monkeypatch):
    def totals(clients, v, labels):
        return clients.sum(ridge.score, {"v": v, "labels": labels})

    return with_multiply(monkeypatch, totals)


def setup_that_returns_nothing(monkeypatch):
    return replace(ridge.RIDGE, setup=lambda options, clients: None)


def state_without_weights(monkeypatch):
    @dataclass(frozen=True)
    class Bare:
        left: int

    return replace(
        ridge.RIDGE,
        setup=lambda options, clients: Bare(1),
        round=lambda server, clients: (server, fl.RoundMetrics()),
        certify=lambda server, clients: (server, fl.RoundMetrics()),
        states=(Bare, fl.LinearClient),
    )


def columns_without_a_layout(monkeypatch):
    """Return ridge whose vector is declared as an array that all clients have whole."""

    @fl.describe("sums over all rows, for each feature and for the labels")
    class Vector:
        v: fl.Array
        labels: float

    def score(client, block, message):
        return client, ridge.Scores(block.x @ message.v + message.labels * client.labels)

    def slope(client, block, message):
        return client, Vector(block.x.T @ message.z, client.labels @ message.z)

    monkeypatch.setattr(ridge, "Vector", Vector)
    score.__annotations__ = {"message": Vector, "return": tuple[object, ridge.Scores]}
    slope.__annotations__ = {"message": ridge.Scores, "return": tuple[object, Vector]}
    functions = {"score": score, "slope": slope}
    return declared(monkeypatch, **{k: fl.client_function(one) for k, one in functions.items()})


def test_a_message_without_a_layout_is_named_where_arrays_do_not_fit(monkeypatch):
    """Clients have columns of their own, of which the vector has too many."""
    toy = ToyFederation("toy", overlapping(), BINARY, rounds=3)
    said = "in score: ValueError: .*; Vector.v is declared without a layout, so that each client"
    with pytest.raises(AlgorithmError, match=said):
        check_algorithm(columns_without_a_layout(monkeypatch), toy, **OPTIONS)


def state_in_a_global(monkeypatch):
    """Return ridge whose server has its directions beside its state."""
    held = {}

    def setup(options, clients):
        server = ridge.setup(options, clients)
        held.update(p=server.p, r=server.r)
        return replace(server, p=0 * server.p, r=0 * server.r)

    def round(server, clients):
        server, info = ridge.round(replace(server, **held), clients)
        held.update(p=server.p, r=server.r)
        return replace(server, p=0 * server.p, r=0 * server.r), info

    return replace(ridge.RIDGE, setup=setup, round=round)


def generator_of_the_server_in_a_global(monkeypatch):
    held = {}

    def setup(options, clients):
        held["rng"] = np.random.default_rng(0)
        return ridge.setup(options, clients)

    def round(server, clients):
        server, info = ridge.round(server, clients)
        return replace(server, w=server.w + 1e-9 * held["rng"].normal(size=4)), info

    return replace(ridge.RIDGE, setup=setup, round=round)


def with_question(kind, tell):
    """Return ridge that asks each client for a reply of a kind: block -> its field."""

    Note = fl.describe("how it went")(type("Note", (), {"__annotations__": {"how": kind}}))

    def report(client, block, message):
        return client, Note(tell(block))

    report.__annotations__ = {"message": fl.Ready, "return": tuple[object, Note]}
    asked = fl.client_function(report)

    def round(server, clients):
        clients.ask(asked, fl.Ready())
        return ridge.round(server, clients)

    sends = (*_sends(), *fl.asks(asked))
    return replace(ridge.RIDGE, round=round, disclosure=fl.Disclosure(sends=sends))


def table_in_a_tuple(monkeypatch):
    return with_question(tuple[float, ...], lambda block: tuple(block.x.ravel().tolist()))


def table_in_text(monkeypatch):
    return with_question(str, lambda block: repr(block.x.tolist()))


def table_in_bytes(monkeypatch):
    return with_question(bytes, lambda block: b"..." + block.x.tobytes())


def value_in_a_number(monkeypatch):
    return with_question(float, lambda block: float(block.x[0, 0]))


def label_in_a_number(monkeypatch):
    return with_question(float, lambda block: float(np.float32(block.y[0])))


def thread_that_raises(monkeypatch):
    def fail():
        raise RuntimeError("in a thread")

    def more(client, block):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        return 0.0

    return with_score(monkeypatch, more)


def exit_of_the_process(monkeypatch):
    def round(server, clients):
        raise SystemExit(0)

    return replace(ridge.RIDGE, round=round)


def name_that_is_taken(monkeypatch):
    return replace(ridge.RIDGE, name="hyfdca")


def name_that_is_a_number(monkeypatch):
    return replace(ridge.RIDGE, name=5)


SERVER = r"the server depends on .*: a server that was given the same answers"
TABLE = r"Note\.how is asked for and has values of a client's table, to the bit"
FAULTS = [
    (state_in_a_global, SERVER),
    (generator_of_the_server_in_a_global, SERVER),
    (table_in_a_tuple, TABLE),
    (table_in_text, TABLE),
    (table_in_bytes, TABLE),
    (value_in_a_number, TABLE),
    (label_in_a_number, TABLE),
    (thread_that_raises, "a thread that it starts raises RuntimeError: in a thread"),
    (exit_of_the_process, r"py:\d+, in round: SystemExit: 0"),
    (name_that_is_taken, "its name is 'hyfdca', which is that of one of intarsia"),
    (name_that_is_a_number, "its name is 5; give a text that can be printed"),
    (
        sum_without_its_arguments,
        r"clients.sum\(\) missing .*; it takes a client function and its m",
    ),
    (
        fields_for_a_message,
        "score is given a dict with 'v', 'labels', which are no clients; a dict",
    ),
    (setup_that_returns_nothing, "setup of ridge returns nothing; return the server's state"),
    (
        state_without_weights,
        "The server's state, a Bare, has no 'w', with which a linear model ends",
    ),
    (rows_without_a_layout, r"z of client 'c1' has the shape \(27,\), .* declare it fl.PerSample"),
    (
        reply_that_is_too_short,
        r"v of client 'c0' has the shape \(3,\), and \(4,\) is expected",
    ),
    (dict_for_a_reply, "slope replies with a dict, .* and a Vector"),
    (three_values_for_two, "slope returns a tuple of 3 values, and a client function returns two"),
    (dict_for_a_state, "slope returns a dict in the place of a LinearClient"),
    (lambda_at_clients, "a lambda is to run at clients and is no client function"),
    (total_that_is_divided, r"A sealed total was read \(divided; multiply it by 1 / n"),
    (blocks_of_clients, r"clients have no 'blocks': .* reads no rows"),
    (
        total_of_what_is_not_declared,
        r'when slope is called, .* fl.opening\({"Scores.z": "Scores.z"}, ...\)',
    ),
    (total_of_another_name, "a total of Scores.z when slope is called, and declared is 'Scorse.z'"),
    (misspelled_loss, "There is no loss 'sqared'; use 'squared'"),
    (steps_that_are_too_large, "training diverges: after 3 rounds the mean loss is"),
    (server_reads_a_block, SERVER),
    (
        server_reads_what_a_client_computed,
        "the server depends on .* did not cross, or it depends on .* such as a global, a counter",
    ),
    (message_with_numbers_in_the_clear, r"Vector\.v holds numbers in the clear"),
    (array_of_each_client_that_the_server_reads, r"Labels\.z is asked for, so that the server"),
    (server_that_seeds_numpy, "a server draws from or seeds the random numbers that all of a proc"),
    (numpys_shared_generator, "score uses the random numbers that all of a process share"),
    (secret_from_a_seed, "score is declared to hide something, and comes to the same"),
    (changed_state, "score changes its state; leave it as it is, and return new ones"),
    (changed_labels, "score changes y of its block; leave it as it is"),
    (fresh_random_numbers, "score answers otherwise when it is called again"),
    (count_of_calls, "score answers otherwise when it is called again"),
    (
        number_of_the_process,
        "processes come to the same: with two processes .* another: ",
    ),
    (field_that_is_revealed_undeclared, r"'reveal Vector\.labels' crosses and is not declared"),
    (function_that_is_not_declared, "'sum slope -> Vector' crosses and is not declared"),
    (declaration_of_what_never_crosses, r"'reveal Scores\.z' is declared and never crosses"),
    (message_that_cannot_be_written, "CodecError: A value of type list cannot be written"),
    (state_of_no_declared_class, "it goes on from bytes: CodecError: A record 'Server'"),
    (state_beside_its_fields, "score keeps 'times' in the state beside its fields"),
    (first_client_that_counts_more, "another order .* come to another model"),
    (weights_of_another_shape, r"weights: the shape is \(4,\), and outputs and features"),
    (scores_of_another_shape, r"what predict says at c0: the shape is \(30,\)"),
    (weights_that_are_no_numbers, "weights: 4 of 4 are no finite numbers"),
    (scores_that_are_not_the_models, "do not add up to the scores of the weights"),
    (round_that_asks_for_ever, "calls client functions more than 2000 times, the last score"),
    (round_that_computes_for_ever, "EndlessError: takes more than 0.5 seconds"),
    (function_that_comes_again, "score comes again in a round"),
    (
        total_that_is_read_sealed,
        r"py:\d+, in setup: SealedError: A sealed total was read",
    ),
    (hyperparameters_that_change, "Ridge is no frozen dataclass"),
    (reply_that_is_not_described, "Vector does not say what it holds in 'v', 'labels'"),
    (refusal_of_every_federation, "it refuses every federation: toy: It is not for these"),
]


def test_entries_in_another_order_are_no_change_and_edits_of_a_value_or_an_index_are():
    x = csr_array(np.array([[1.0, 2.0, 0.0], [0.0, 4.0, 5.0]]))
    given = fl.Block(np.arange(2), ("a", "b", "c"), x, np.ones(2))
    before = contents_of(given)
    x.indices[:2], x.data[:2] = x.indices[:2][::-1].copy(), x.data[:2][::-1].copy()
    assert list(x.indices) == [1, 0, 1, 2]
    assert contents_of(given) == before
    for entries, value in ((x.data, 9.0), (x.indices, 2)):
        kept = entries[0]
        entries[0] = value
        found = contents_of(given)
        assert {name for name in before if found[name] != before[name]} == {"x"}
        entries[0] = kept
    assert contents_of(given) == before


def test_a_function_may_take_powers_of_a_sparse_block_with_its_columns_in_front(monkeypatch):
    squares = with_score(monkeypatch, lambda _, block: 0.0 * float((block.x.T**2).sum()))
    x, y = table(61, 91)
    blocks = rectangles(csr_array(x * (abs(x) > 0.8)), y, 2, 2, shared_rows=3, shared_columns=1)
    wide = ToyFederation("wide", blocks, NUMBERS, rounds=2)
    assert find_faults(squares, wide, **OPTIONS) == ()


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fault_is_found(fault, said, monkeypatch):
    with pytest.raises(AlgorithmError, match=said) as caught:
        check_algorithm(fault(monkeypatch), TOY, **OPTIONS)
    assert "breaks rules that every one keeps" in str(caught.value)
    first, *more = str(caught.value).splitlines()[1:]
    assert re.search(said, first)
    if fault is not first_client_that_counts_more:  # for which a site has another reason to refuse
        # the fault, and nothing of what follows from it
        assert {one.partition(":")[0] for one in more} <= {first.partition(":")[0]}


def test_labels_are_found_in_their_order_and_not_each_class_by_itself():
    classes = ToyFederation("classes", overlapping(), BINARY, rounds=2)
    every = with_question(tuple[float, ...], lambda block: tuple(block.y.tolist()))
    assert [one.rule for one in find_faults(every, classes, **OPTIONS)] == [
        "rows_and_columns_reach_clients_sealed"
    ]
    first = with_question(tuple[float, ...], lambda block: (1.0, -1.0, float(len(block.y))))
    assert find_faults(first, classes, **OPTIONS) == ()


def test_a_user_who_ends_a_check_ends_it():
    def round(server, clients):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_faults(replace(ridge.RIDGE, round=round), TOY, **OPTIONS)


def test_a_process_ends_whose_round_swallows_the_limit(monkeypatch, capfd):
    ended = []

    def round(server, clients):
        while not ended:
            with contextlib.suppress(BaseException):
                threading.Event().wait(1.0)
        raise ValueError("the end")  # before there are forks

    monkeypatch.setattr(rules, "SECONDS", 0.5)
    monkeypatch.setattr(trials, "AGAIN", 0.05)
    monkeypatch.setattr(trials.os, "_exit", ended.append)
    find_faults(replace(ridge.RIDGE, round=round), TOY, **OPTIONS)
    assert ended[0] == 1
    assert "takes more than 0.5 seconds, and goes on after EndlessError" in capfd.readouterr().err


def test_faults_that_do_not_follow_from_each_other_are_all_found(monkeypatch):
    found = find_faults(reply_that_is_not_described(monkeypatch), TOY, **OPTIONS)
    both = find_faults(fresh_random_numbers(monkeypatch), [TOY, replace(TOY, name="2")], **OPTIONS)
    assert [one.rule for one in both] == [
        *(one.rule for one in found),
        "functions_depend_on_their_arguments_alone",
    ]
    assert both[-1].where == "2 federations"


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(ExperimentError, match="unknown key 'regularization'"):
        find_faults(ridge.RIDGE, TOY, regularization=0.1)


def test_an_algorithm_may_refuse_some_federations():
    shared = ToyFederation("columns", overlapping(), dataclasses.replace(BINARY), rounds=2)

    def init_server(options, schema, rng):
        if schema.labels.task == "binary":
            raise FederationError("Two classes are not for it.")
        return ridge.RIDGE.init_server(options, schema, rng)

    some = replace(ridge.RIDGE, init_server=init_server)
    assert find_faults(some, [shared, TOY], **OPTIONS) == ()


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("regression", r"tasks is the text 'regression'; write a tuple: tasks=\('regression',\)"),
        (("binary", "regresion"), "tasks names 'regresion'; use 'regression'"),
    ],
)
def test_tasks_that_are_none_are_refused_where_the_model_is_made(tasks, said):
    with pytest.raises(AlgorithmError, match=said):
        fl.Model(additive=True, kind="linear", tasks=tasks)


def test_a_bound_and_an_objective_in_each_others_place_are_found():
    def certify(server, clients):
        server, info = ridge.certify(server, clients)
        return server, fl.RoundMetrics.certified(info.dual - 1.0, info.primal, info.phase)

    found = find_faults(replace(ridge.RIDGE, certify=certify), TOY, **OPTIONS)
    assert [one.rule for one in found] == ["ends_as_it_should"]
    assert "give RoundMetrics.certified the model's objective first" in found[0].said


def tables():
    x = np.random.default_rng(0).normal(size=(40, 2))
    columns = {"row": np.arange(40), "p": x[:, 0], "q": x[:, 1], "y": x.sum(axis=1)}
    return {"a": pd.DataFrame(columns), "b": pd.DataFrame(columns).drop(columns="q")}


def trained(algorithm, rounds=5):
    """Return what a run in one process comes to."""
    how = {"id": "row", "label": "y", "yardsticks": False, "out": None, **OPTIONS}
    return intarsia.run(tables=tables(), algorithm=algorithm, rounds=rounds, tolerance=0.0, **how)


def test_a_run_notes_what_its_algorithm_does_not_declare(monkeypatch):
    assert not any("declare" in one for one in trained(ridge.RIDGE).notes)
    found = trained(field_that_is_revealed_undeclared(monkeypatch))
    [note] = [one for one in found.notes if "declare" in one]
    assert "crossed: reveal Vector.labels, reveal Vector.v. Sites refuse that: add it" in note


@pytest.mark.parametrize("value", [np.nan, 1e200])
def test_a_training_that_diverges_ends_with_a_sentence_whatever_the_algorithm_reports(value):
    """It reports no objective and no weights: its clients' own models tell."""

    def tell(server, clients):
        multiplied = np.full(len(clients.schema().features), value)
        ridge.multiply(server.options, clients, multiplied, labels=0.0)
        return server, fl.RoundMetrics()

    quiet = replace(
        ridge.RIDGE,
        round=tell,
        certify=lambda server, clients: (server, fl.RoundMetrics()),
        conclude=lambda server, clients: fl.FinalResult(fl.RoundMetrics()),
    )
    with np.errstate(all="ignore"), pytest.raises(ConvergenceError, match="of all samples is"):
        trained(quiet)


@pytest.mark.parametrize("what", [None, ("server", None), (None, fl.RoundMetrics())])
def test_a_round_that_returns_something_else_is_named(what):
    wrong = replace(ridge.RIDGE, round=lambda server, clients: what)
    with pytest.raises(AlgorithmError, match=r"round of ridge returns .*; return the server's new"):
        trained(wrong)


def test_a_sealed_total_that_is_read_ends_a_run_with_the_line_that_reads_it(monkeypatch):
    path = Path(__file__).parents[2] / "experiments" / "credit.toml"
    description = replace(
        load(path), own_algorithm=total_that_is_read_sealed(monkeypatch), algorithm="x"
    )
    trial = trials.Trial(description.own_algorithm, ridge.Ridge(**OPTIONS), TOY)
    said = r"^\w+\.py:\d+, in \w+: SealedError: .*; mend"
    with pytest.raises(AlgorithmError, match=said), errors_placed(description):
        _ = trial.plain
