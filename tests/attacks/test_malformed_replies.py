"""A site that answers with something malformed ends no run without being named.

A contribution to a cell that the site does not own is one of these: the server would ask that site
to open the cell, with what the owners contributed.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from departures import Departing
from federations import BINARY
from intarsia.algorithms.femam import clustering
from intarsia.algorithms.hyfem.client import local_training
from intarsia.core.block import Block
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.engines.remote.wire import Answer, Opened
from intarsia.errors import (
    ConvergenceError,
    FederationError,
    IntarsiaError,
    RangeError,
    ReplayError,
    SiteError,
    TamperedError,
)
from intarsia.protocols import evaluation, evaluation_rows, figures
from intarsia.testing.toy_federations import CLASSES, rows_apart
from intarsia.training.registry import ALGORITHMS, algorithm_named

FEDAVG = ALGORITHMS["fedavg"]
OPTIONS = FEDAVG.hyperparameters(loss="logistic", regularisation=0.1)
ODD = "r1c0"
SUM = "fedavg.part_of_scores"


def trained(alter, mode="masked", function=SUM):
    """Run a round and a certificate; a site's answers to a function are altered."""
    made = Departing(FEDAVG, OPTIONS, ODD, mode=mode)

    def line(client, number, data, deliver):
        answer = deliver(data)
        if client != ODD or not data:
            return answer
        call = codec.decode(data, wire.Call)
        if call.function != function:
            return answer
        return codec.encode(alter(codec.decode(answer, Answer), made))

    made.made.lines.fault = line
    server, engine = made.rounds(1), made.made.engine
    engine.begin_round(2)
    return FEDAVG.certify(server, engine, engine.key("certify"))


def body(change):
    """Return what puts another reply into an answer."""
    return lambda answer, made: replace(answer, body=codec.encode(change(answer, made)))


def sealed(change):
    """Return what changes the sealed record of the scores."""

    def changed(answer, made):
        reply = codec.decode(answer.body, wire.SealedReply, *RECORDS)
        return replace(reply, fields={"z": change(reply.fields["z"], made)})

    return body(changed)


def total(**changes):
    return sealed(lambda record, made: replace(record, value=replace(record.value, **changes)))


def pieces(change):
    """Return what changes the pieces of the scores."""

    def changed(record, made):
        (cells,) = record.value.cells
        return replace(record, value=replace(record.value, cells=(tuple(change(cells, made)),)))

    return sealed(changed)


def first(**changes):
    """Return what changes the first piece."""
    return pieces(lambda cells, made: (replace(cells[0], **changes), *cells[1:]))


def numbered(at, value):
    def changed(cells, made):
        numbers = list(cells[0].numbers)
        numbers[at] = value
        return (replace(cells[0], numbers=tuple(numbers)), *cells[1:])

    return pieces(changed)


def with_foreign_cell(cells, made):
    """Add a piece of zeros to a cell of others, sealed under its right name."""
    cells_of_scores = made.made.engine.schema("train").score_cells
    own = {one.numbers[2] for one in cells}
    cell, size = next(
        (k, len(one.positions))
        for k, one in enumerate(cells_of_scores)
        if k not in own and ODD not in one.owners
    )
    sealing = made.made.lines.sites[ODD]._run._place.sealing
    numbers = (*cells[0].numbers[:2], cell)
    stream = made.made.engine._locked.piece(replace(cells[0], numbers=numbers)).stream
    piece = sealing.exact[ODD].seal_digits(ODD, stream, np.zeros((1, size)), sealing.digits)
    return (*cells, made.made.engine._locked.piece_record(piece))


FORMS = {
    "a field left out": body(lambda a, m: wire.SealedReply({}, {})),
    "a field too many": body(
        lambda a, m: replace(
            reply := codec.decode(a.body, wire.SealedReply, *RECORDS),
            fields={**reply.fields, "more": reply.fields["z"]},
        )
    ),
    "a count too many": body(
        lambda a, m: replace(
            codec.decode(a.body, wire.SealedReply, *RECORDS), counts={"z": np.zeros(1, int)}
        )
    ),
    "fields without names": body(lambda a, m: wire.SealedReply((), ())),
    "a number for a reply": body(lambda a, m: 3),
    "bytes that are no reply": lambda answer, made: replace(answer, body=b"nothing"),
    "an empty body": lambda answer, made: replace(answer, body=b""),
    "numbers in the clear": sealed(lambda record, made: np.zeros(3)),
    "another layout": sealed(lambda record, made: replace(record, layout="features")),
    "another part": sealed(lambda record, made: replace(record, part="test")),
    "a text for a total": sealed(lambda record, made: replace(record, value="z")),
    "a factor": total(weights=(2.0,)),
    "no term": total(weights=(), names=(), numbers=(), leads=(), cells=()),
    "a text for axes": total(leads=("x",)),
    "one number": total(numbers=(True,)),
    "a cell left out": pieces(lambda cells, made: cells[1:]),
    "all cells left out": pieces(lambda cells, made: ()),
    "a cell twice": pieces(lambda cells, made: (*cells, cells[0])),
    "cell -99": numbered(2, -99),
    "cell 99": numbered(2, 99),
    "a cell of others": pieces(with_foreign_cell),
    "a text for a cell": numbered(2, "x"),
    "two numbers in a name": first(numbers=(1, 2)),
    "another shape": first(shape=(2, 1, 1)),
    "a negative shape": first(shape=(2, 1, -3)),
    "a huge shape": first(shape=(2, 2**40, 2**40)),
    "three digits": first(digits=3),
    "content that was cut": first(content=bytes(9)),
    "no content": first(content=b""),
    "a word of content": first(content=struct.pack("<QQ", 1, 1)),
    "another size": first(shape=(2, 1, 1), content=struct.pack("<QQQQQ", 4, *range(4))),
    "a text for content": first(content="x"),
    "numbers for contributors": first(contributors=(1,)),
    "numbers for nonces": first(nonces=(1,)),
    "a text for bytes": lambda answer, made: replace(answer, up="x"),
    "negative bytes": lambda answer, made: replace(answer, down=-1),
    "a text for the body": lambda answer, made: replace(answer, body="x"),
    "a number for the error": lambda answer, made: replace(answer, error=1),
}


def test_there_are_more_than_twenty_forms():
    assert len(FORMS) > 30


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_malformed_reply_is_named_with_its_site(form):
    with pytest.raises(SiteError) as problem:
        trained(form)
    said = str(problem.value)
    assert said.startswith(f"{ODD!r} answers ")
    assert "\n" not in said
    assert "malformed" in said


def test_a_reply_as_it_is_passes():
    trained(lambda answer, made: answer)


def scores(**changes):
    """Return what changes the reply to a sum in the clear."""

    def changed(answer, made):
        fn = next(s for s in FEDAVG.disclosure.sends if s.function.name == "part_of_scores")
        reply = codec.decode(answer.body, fn.reply)
        return dataclasses.replace(reply, **{k: v(reply.z) for k, v in changes.items()})

    return body(changed)


PLAIN = {
    "nothing": scores(z=lambda z: None),
    "a text": scores(z=lambda z: "x"),
    "a number": scores(z=lambda z: 1.0),
    "too few": scores(z=lambda z: z[:, 1:]),
    "too many": scores(z=lambda z: np.hstack([z, z])),
    "no axis": scores(z=lambda z: np.zeros(())),
    "texts": scores(z=lambda z: z.astype(str)),
    "another record": body(lambda a, m: Opened((), ())),
}


@pytest.mark.parametrize("form", PLAIN.values(), ids=PLAIN)
def test_a_malformed_reply_in_the_clear_is_named_with_its_site(form):
    with pytest.raises(SiteError, match=f"'{ODD}' answers part_of_scores with a malformed"):
        trained(form, mode="plain")


OBJECTIVE = "fedavg.part_of_objective"


def objective(change):
    """Return what changes a reply in the clear that is summed entry by entry."""

    def changed(answer, made):
        fn = next(s for s in FEDAVG.disclosure.sends if s.function.name == "part_of_objective")
        reply = codec.decode(answer.body, fn.function.reply)
        return replace(reply, at=change(reply.at))

    return body(changed)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("function", [SUM, OBJECTIVE])
def test_what_is_no_number_is_named_with_its_site(value, function):
    """A total of it was no number, and the run ended without a culprit."""
    spoil = scores(z=lambda z: z + value) if function == SUM else objective(lambda at: at * value)
    with pytest.raises(RangeError, match=f"'{ODD}' sends {value:g} in .* which is no number"):
        trained(spoil, mode="plain", function=function)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 2)])
def test_a_part_of_another_shape_is_named_with_its_site(shape):
    """NumPy repeats an entry where the others have more, so that one site could alter them all."""
    spoil = objective(lambda at: np.ones(shape))
    with pytest.raises(SiteError, match=f"'{ODD}' answers part_of_objective with a malformed"):
        trained(spoil, mode="plain", function=OBJECTIVE)


def test_a_sealed_part_of_another_shape_is_named_with_its_site():
    def changed(answer, made):
        reply = codec.decode(answer.body, wire.SealedReply, *RECORDS)
        record = reply.fields["at"]
        (cells,) = record.value.cells
        piece = replace(cells[0], shape=(2, 1), content=struct.pack("<QQQQQ", 4, *range(4)))
        own = replace(record.value, cells=((piece,),))
        return replace(reply, fields={"at": replace(record, value=own)})

    with pytest.raises(SiteError, match=f"'{ODD}' answers part_of_objective with a malformed"):
        trained(body(changed), function=OBJECTIVE)


GRADES = {
    "no rows": {"count": np.zeros(2)},
    "rows of others": {"count": np.array([7.0, 7.0])},
    "shared rows below none": {"count": np.array([6.0, -1.0])},
    "one sum": {"loss": np.zeros(1)},
    "a number": {"correct": np.array(3.0)},
    "more figures": {"macro_f1": np.zeros(3)},
    "not a number": {"count": np.array([np.nan, np.nan])},
    "less than none right": {"correct": np.array([-1.0, -1.0])},
    "more right than there are": {"correct": np.array([7.0, 7.0])},
    "squares below 0": {"error": np.array([-1.0, -1.0])},
}


@pytest.mark.parametrize("change", GRADES.values(), ids=GRADES)
def test_metrics_of_other_rows_are_named_with_their_client(change):
    """They ended the run by a division by zero, or counted for more rows than there are."""
    x = np.random.default_rng(0).normal(size=(12, 2))
    own = {
        name: Block(np.arange(6) + 6 * k, ("a", "b"), x[:6], np.tile([-1.0, 1.0], 3))
        for k, name in enumerate("ab")
    }
    schema = Schema.of(own, BINARY)
    wanted = evaluation_rows.rows_to_evaluate(schema)
    zero = np.zeros(2)
    told = evaluation.Sums(np.array([6.0, 6.0]), *[zero] * 6, np.array(0.5))
    evaluation._check_told(schema, wanted, "b", told)
    with pytest.raises(SiteError, match="'b' evaluates its 6 rows with sums that are of others"):
        evaluation._check_told(schema, wanted, "b", replace(told, **change))


def test_a_piece_of_another_client_is_refused_at_the_server():
    def theirs(cells, made):
        other = made.sealed(SUM, "r0c0").fields["z"].value.cells[0]
        known = {one.numbers[2]: one for one in other}
        assert any(one.numbers[2] in known for one in cells)
        return [known.get(one.numbers[2], one) for one in cells]

    made = Departing(FEDAVG, OPTIONS, ODD)
    made.rounds(1)
    with pytest.raises(TamperedError, match="came where 'r1c0' was asked for"):
        trained(first(contributors=("r0c0",)))


@pytest.mark.parametrize(
    "change",
    [numbered(0, 1), numbered(1, 9), first(texts=("local_descent", "z")), first(session="ab")],
    ids=["exchange", "round", "function", "session"],
)
def test_a_piece_of_another_stream_is_refused_at_the_server(change):
    with pytest.raises((TamperedError, ReplayError), match="came where 'r1c0' was asked for"):
        trained(change)


OPENED = {
    "nothing": lambda found: Opened((), ()),
    "too many": lambda found: Opened(found.values * 2, found.extra * 2),
    "a text": lambda found: Opened(("x",), found.extra),
    "another shape": lambda found: Opened((np.zeros(77),), found.extra),
    "no number": lambda found: Opened((found.values[0] * np.nan,), found.extra),
    "a text for bytes": lambda found: Opened(found.values, ("x",)),
    "less than no bytes": lambda found: Opened(found.values, (-1,)),
    "no tuple": lambda found: Opened(3, found.extra),
}


@pytest.mark.parametrize("form", OPENED.values(), ids=OPENED)
def test_a_malformed_opening_is_named_with_its_site(form):
    made = Departing(FEDAVG, OPTIONS, ODD)

    def line(client, number, data, deliver):
        answer = deliver(data)
        if data and codec.decode(data, wire.Call).kind == "open":
            found = codec.decode(answer, Answer)
            own = codec.decode(found.body, Opened)
            return codec.encode(replace(found, body=codec.encode(form(own))))
        return answer

    made.made.lines.fault = line
    server, engine = made.rounds(1), made.made.engine
    engine.begin_round(2)
    with pytest.raises(IntarsiaError, match="'r0c0' answers open with a malformed"):
        FEDAVG.certify(server, engine, engine.key("certify"))


def changed(**fields):
    return lambda answer: codec.encode(replace(answer, **fields))


ANSWERS = {
    "a number": lambda answer: codec.encode(3),
    "a tuple": lambda answer: codec.encode((1, 2)),
    "an array for the run": changed(run=np.zeros(3)),
    "an array for its number": changed(sequence=np.zeros(3)),
    "a fraction for its number": changed(sequence=1.0),
    "an array for the client": changed(client=np.zeros(3)),
    "an array for the error": changed(error=np.zeros(3)),
    "an array for the sentence": changed(sentence=np.zeros((9, 9))),
    "an array for the body": changed(body=np.zeros(3)),
}


def heard(form, *, call=True):
    """Begin a run with a site that answers so, or ask it for its version."""
    made = Departing(FEDAVG, OPTIONS, ODD)

    def line(client, number, data, deliver):
        answer = deliver(data)
        odd = client == ODD and bool(data) is call
        return form(codec.decode(answer, Answer)) if odd else answer

    made.made.lines.fault = line
    if not call:
        return made.made.caller.compare_versions()
    return made.rounds(1)


@pytest.mark.parametrize("form", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("call", [True, False], ids=["call", "version"])
def test_what_is_no_answer_is_named_with_its_site(form, call):
    """It ended the server's job by a traceback that named nobody."""
    with pytest.raises(SiteError, match=f"^'{ODD}' answers .* malformed answer") as problem:
        heard(form, call=call)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("package", [3, ("0", "1")])
@pytest.mark.parametrize("protocol", ["x", 24.0, None])
def test_what_is_no_version_is_named_with_its_site(package, protocol):
    said = codec.encode(wire.Version(package, protocol))
    with pytest.raises(SiteError, match=f"^'{ODD}' answers version with a malformed version"):
        heard(lambda answer: codec.encode(replace(answer, body=said)), call=False)


@pytest.mark.parametrize("error", ["Odd", "PolicyError", "__class__"])
def test_no_sentence_of_a_site_makes_lines_of_its_own_in_the_servers_log(error):
    form = changed(error=error, sentence="ended\n2026-01-01 00:00:00 UTC\x1b[2J revoked 'bank'")
    with pytest.raises(IntarsiaError, match=f"'{ODD}'") as problem:
        heard(form)
    assert str(problem.value).isprintable()


def test_no_part_of_a_weight_is_without_a_bound():
    """-inf, which says of a term of the objective that it is no bound, spoiled all weights.

    Another site was named, that sent what came of them.
    """
    spoil = scores(z=lambda z: np.where(z == z[:, :1], -np.inf, z))
    with pytest.raises(RangeError, match=f"'{ODD}' sends -inf in Scores.z of part_of_scores"):
        trained(spoil, mode="plain")


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("value", [1.7e308, -1e200, 1e160])
@pytest.mark.parametrize("function", ["send_zeros", "local_descent"])
def test_who_sent_what_others_come_to_no_number_by_is_named(value, function):
    """The squares of such weights are none: the client was named that squared them."""
    fn = next(s.function for s in FEDAVG.disclosure.sends if s.function.name == function)

    def changed(answer, made):
        reply = codec.decode(answer.body, fn.reply)
        return replace(reply, w=np.full_like(reply.w, value))

    said = f"'{ODD}' sent {abs(value):g} in .* of {function}, before 'r0c0' sends .* site '{ODD}'"
    with pytest.raises(RangeError, match=said.replace("+", r"\+")):
        trained(body(changed), mode="plain", function=f"fedavg.{function}")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spoils_no_scores_that_are_evaluated(value):
    """All clients' metrics were no numbers, and the run ended well."""
    made = Departing(FEDAVG, OPTIONS, ODD, mode="plain")
    schema = made.made.engine.schema("train")
    fn = evaluation._partial_scores(lambda state, block: np.zeros((1, 1)), schema, "train")
    replies = made.made.engine._replies
    size = len(schema.samples.own(ODD))
    replies.check(ODD, fn, fn.reply(np.zeros((1, size))), summed=True)
    with pytest.raises(RangeError, match=f"'{ODD}' sends {value:g} in PartialScores.z"):
        replies.check(ODD, fn, fn.reply(np.full((1, size), value)), summed=True)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 15, 3), (0, 1 << 20), (14, 3)])
def test_figures_of_another_shape_are_named_with_their_client(shape):
    """They come in the clear, with sealed sums too, and ended the run without a culprit."""
    with pytest.raises(SiteError, match=f"^'{ODD}' tells figures in the shape"):
        figures.figures_of_one(ODD, figures.ClientFigures(np.zeros(shape)))
    whole = np.zeros((len(figures.MEASURES), 3))
    assert figures.figures_of_one(ODD, figures.ClientFigures(whole)).auc == 0.0


@pytest.mark.parametrize("shape", [(), (0,), (2,), (1, 3), (1 << 20, 0)])
def test_a_model_of_another_size_is_named_with_its_client(shape):
    """Where the server reads models, to find clusters, one of another size ended the run."""
    models = {"a": np.zeros(3), ODD: np.zeros(shape), "c": np.zeros(3)}
    asked = SimpleNamespace(ask=lambda *_: {k: SimpleNamespace(model=v) for k, v in models.items()})
    with pytest.raises(SiteError, match=f"^'{ODD}' sends a model of the shape"):
        clustering.models_of(asked)
    models[ODD] = np.ones(3)
    assert clustering.models_of(asked) == models


def test_parts_with_other_outputs_or_blocks_of_another_shape_are_named_with_their_site():
    """NumPy repeats an entry where the others have more, or ended the run without a culprit."""
    made = Departing(FEDAVG, OPTIONS, ODD, mode="plain")
    replies = made.made.engine._replies
    fn = next(s.function for s in FEDAVG.disclosure.sends if s.function.name == "part_of_scores")
    clients = made.made.engine.ids
    alike = {name: {"z": np.zeros((2, 3 + k))} for k, name in enumerate(clients)}
    replies.check_alike(fn, alike)
    with pytest.raises(SiteError, match=f"^'{ODD}' answers part_of_scores with .* shape .1,."):
        replies.check_alike(fn, {**alike, ODD: {"z": np.zeros((1, 3))}})
    fn = local_training
    blocks = {name: {"columns": {"left": np.zeros((12, 4)), name: np.ones(2)}} for name in clients}
    replies.check_alike(fn, blocks)
    for shape in [(), (1, 4), (12, 1), (0, 1 << 20)]:
        odd = {"columns": {"left": np.zeros(shape)}}
        with pytest.raises(SiteError, match=f"^'{ODD}' answers local_training with a malformed"):
            replies.check_alike(fn, {**blocks, ODD: odd})


CLASSIFIERS = {
    "no block": {"columns": lambda found: {}},
    "a block of nobody": {"columns": lambda found: {**found, "other": np.zeros((8, 4))}},
    "no array of a block": {"columns": lambda found: dict.fromkeys(found)},
    "texts of a block": {"columns": lambda found: {k: v.astype(str) for k, v in found.items()}},
    "fewer units": {"columns": lambda found: {k: v[1:] for k, v in found.items()}},
    "no other weights": {"rest": lambda found: found[:0]},
    "one weight": {"rest": lambda found: np.zeros(())},
    "a weight too few": {"rest": lambda found: found[:-1]},
    "other classes": {"classes": lambda found: found[1:]},
    "one class": {"classes": lambda found: np.ones((), bool)},
    "numbers for classes": {"classes": lambda found: np.full(found.shape, 2**62)},
    "huge weights": {"rest": lambda found: np.full(found.shape, 1e300)},
    "weights that float32 has not": {
        "columns": lambda found: {k: np.full(v.shape, 1e90) for k, v in found.items()}
    },
    "no numbers": {"rest": lambda found: np.full(found.shape, -np.inf)},
}


@pytest.mark.parametrize("form", CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_a_classifier_of_other_layers_is_named_with_its_site(form):
    """The server matched neurons with it: an error of NumPy's, or of another client."""
    pytest.importorskip("torch")
    small = {"features": 4, "extractor_hidden": (), "hidden": (8,), "steps": 1}
    options = {**small, "matching": "rounds"}
    said = r"^'c1' (answers send_|sends a |sends -inf in OwnClassifier.rest of send_)classifier"
    with pytest.raises((SiteError, ConvergenceError, RangeError), match=said):
        run_with("hyfem", options, "send_classifier", form)


def run_with(name, options, function, changes):
    """Run two rounds in which a client answers a function with changed fields."""
    algorithm = algorithm_named(name)
    fn = next(s for s in algorithm.disclosure.sends if s.function.name == function)
    own = algorithm.hyperparameters(engine="loop", **options)
    blocks = rows_apart("classes")
    made = Departing(algorithm, own, "c1", mode="plain", blocks=blocks, labels=CLASSES)

    def line(client, number, data, deliver):
        answer = deliver(data)
        called = codec.decode(data, wire.Call).function
        if client != "c1" or called != wire.function_name(fn.function, name):
            return answer
        found = codec.decode(answer, Answer)
        if found.error:
            return answer
        reply = wire.decode_as(fn.reply, found.body)
        reply = replace(reply, **{k: change(getattr(reply, k)) for k, change in changes.items()})
        return codec.encode(replace(found, body=codec.encode(reply)))

    made.made.lines.fault = line
    made.rounds(2)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-np.inf, "'c1' sends -inf in Change.shared of train_both"),
        (1e12, "At client 'c0' in .* diverged .* Before that 'c1' sent 1e.12 in Change.shared"),
        (1e20, "At client 'c0' in .* diverged .* Before that 'c1' sent 1e.20 in Change.shared"),
        (1e60, "At client 'c0' in .* diverged .* Before that 'c1' sent 1e.60 in Change.shared"),
    ],
)
def test_who_sent_what_networks_of_others_come_to_no_number_by_is_named(value, said):
    """The first client that took the average was named alone."""
    pytest.importorskip("torch")
    spoil = {"shared": lambda found: np.full_like(found, value)}
    with pytest.raises((RangeError, ConvergenceError), match=said):
        run_with("ditto", {"hidden": 8, "latent": 4, "local_epochs": 1}, "train_both", spoil)


@pytest.mark.parametrize("number", [-1, 2, 2**62])
def test_the_choice_of_a_model_that_is_none_is_named_with_its_site(number):
    """The server ended by an IndexError, or took -1 for the last model."""
    pytest.importorskip("torch")
    options = {"hidden": 8, "latent": 4, "local_epochs": 1, "clusters": 2}
    with pytest.raises(SiteError, match=f"^'c1' chooses the model {number} of 2"):
        run_with("ifca", options, "choose_model", {"number": lambda found: number})


@pytest.mark.parametrize(
    "odd", [[60, 61, 60, 0], [60, 5, 60, -1], [60, 5, -1, 0], [60, np.nan, 60, 0]]
)
def test_counts_that_no_rows_add_up_to_are_refused_in_a_sentence(odd):
    """The root of a share below 0 ended the server's run."""
    counts = clustering._whole_counts
    assert counts(np.array([60.0, 5, 60, 7])).tolist() == [60, 5, 60, 7]
    near = counts(np.array([60.0, -3e-8, 60, 60 + 3e-8]))  # as CKKS adds up
    assert near.tolist() == [60, 0, 60, 60]
    with pytest.raises(FederationError, match="which no rows add up to"):
        counts(np.array(odd, float))


@pytest.mark.parametrize("odd", [-np.inf, np.nan])
@pytest.mark.parametrize("place", range(7))
def test_losses_that_no_rows_add_up_to_are_refused_in_a_sentence(odd, place):
    """No number of clusters was as good as any, and the server's run ended by an IndexError."""
    total = np.array([60.0, 20, 30, 9, 10, 10, 16])
    assert clustering.fewest(total, 2, 1.0)[0] == 0
    total[place] = odd
    with pytest.raises(FederationError, match="which is none of rows"):
        clustering.fewest(total, 2, 1.0)
