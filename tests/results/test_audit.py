"""The audit of a run says what its transcript shows, record by record."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import intarsia
from command_line import one_error, said
from intarsia.cli.main import main
from intarsia.core.client_functions import Layout
from intarsia.core.disclosure import contents
from intarsia.data.table import _fractions
from intarsia.engines.sums.sealed import layouts
from intarsia.engines.transcript import Crossings, read_transcript
from intarsia.errors import CheckpointError
from intarsia.experiment import config as experiment
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.secure_aggregation.fixed_point import FixedPoint
from intarsia.results import audit
from intarsia.testing.toy_federations import CLASSES, ToyFederation, rows_apart
from intarsia.testing.trials import Trial
from intarsia.training.registry import algorithm_named
from intarsia.training.run import resume, run
from plain_words import check_kinds, check_plain, listed
from tests.algorithms.test_disclosure import shared_sends

CLIENTS = tuple(f"r{row}c{column}" for row in range(3) for column in range(2))


@dataclass(frozen=True)
class Recorded:
    """A run: its audit and its transcript."""

    folder: Path
    mode: str
    found: audit.Audit
    records: tuple
    algorithm: str
    away: bool  # whether clients were

    def lines(self, **wanted):
        return [
            line
            for line in self.found.lines
            if all(getattr(line, key) == value for key, value in wanted.items())
        ]


def described(folder, mode, name, *, algorithm=None, partition=None, **settings):
    options = {"rounds": 8, "evaluate_every": 3, "yardsticks": False}
    options |= {"tolerance": 0} if algorithm is None else {}
    tree = {
        "experiment": {**options, **settings, "out": str(folder)},
        "privacy": {"mode": mode, "transcript": True},
        "algorithm": {
            "name": name,
            **({"regularisation": 1e-2} if algorithm is None else algorithm),
        },
        "dataset": {"name": "breast_cancer"},
        "partition": partition or {"kind": "grid", "rows": 3, "columns": 2},
    }
    return experiment.from_dict(tree, folder)


def recorded(folder, mode, name, **settings):
    with pytest.MonkeyPatch.context() as patch:
        if mode == "ckks":  # ciphertexts for 150 samples, which a run would put under masks
            whole = modes.sealing
            patch.setattr(
                modes, "sealing", lambda *args, **how: replace(whole(*args, **how), long=100)
            )
        run(described(folder, mode, name, **settings), overwrite=True)
    records = tuple(read_transcript(folder / "transcript.bin"))
    away = "participation" in settings
    return Recorded(folder, mode, audit.load(folder), records, name, away)


RUNS = {
    "plain": ("plain", "hyfdca", {"rounds": 3}),
    "masked": ("masked", "hyfdca", {"rounds": 5}),
    "ckks": ("ckks", "hyfdca", {"rounds": 3}),
    "clients away": ("masked", "fedavg", {"participation": 0.5}),
    "clients away, plain": ("plain", "fedavg", {"participation": 0.5}),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(one, marks=[pytest.mark.slow] * (one in ("plain", "clients away, plain")))
        for one in RUNS
    ],
)
def recording(request, tmp_path_factory):
    mode, algorithm, settings = RUNS[request.param]
    return recorded(tmp_path_factory.mktemp("audit"), mode, algorithm, **settings)


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("masked"), "masked", "fedavg", rounds=5)


def sealed(value) -> bool:
    """Return whether a field of a record is bytes by cell, or factors with bytes by cell."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        assert all(isinstance(weight, float) for weight, _ in value)
        return all(sealed(cells) for _, cells in value)
    cells = value.values() if isinstance(value, dict) else ()
    return bool(cells) and all(isinstance(one, bytes) for one in cells)


# -- record by record


def test_every_field_in_the_transcript_stands_in_the_audit_as_it_was_read(recording):
    how = {"ask": "reply", "sum": "contribution"}
    for one in recording.records:
        if one.kind in how:
            for name, value in one.fields.items():
                (line,) = recording.lines(
                    how=how[one.kind], function=one.function, what=f"{one.type}.{name}"
                )
                assert line.reader == "server"
                assert line.readable != sealed(value), line
                assert one.client in line.clients
        elif one.kind == "reveal":
            (line,) = recording.lines(how="revealed", what=one.type)
            assert line.readable
            assert not sealed(one.fields["value"])
        else:
            for name, value in one.fields.items():
                lines = recording.lines(
                    reader="client", function=one.function, what=f"{one.type}.{name}"
                )
                assert lines, (one.function, name)
                assert all(line.readable for line in lines)
                if recording.mode != "plain":  # where totals are numbers as other fields are
                    kinds = {line.how for line in lines}
                    assert ("total" in kinds) >= sealed(value)
                    assert ("message" in kinds) >= (not sealed(value))


def test_the_audit_says_nothing_that_the_transcript_does_not_show(recording):
    seen = {
        (one.kind, one.function, f"{one.type}.{name}")
        for one in recording.records
        if one.kind != "reveal"
        for name in one.fields
    }
    revealed = {one.type for one in recording.records if one.kind == "reveal"}
    kinds = {"reply": "ask", "contribution": "sum", "message": "message", "total": "message"}
    for line in recording.found.lines:
        if line.how == "revealed":
            assert line.what in revealed
        elif line.how != "refresh":
            assert (kinds[line.how], line.function, line.what) in seen


def test_the_counts_are_those_of_the_transcript(recording):
    replies = Counter(
        (one.kind, one.function, one.client)
        for one in recording.records
        if one.kind in ("ask", "sum")
    )
    with_field = Counter()
    sent_ones = (one for one in recording.records if one.kind in ("ask", "sum"))
    for sent, some in groupby(sent_ones, key=lambda one: (one.kind, one.function)):
        own = list(some)
        # a field that one client sent counts for all that were asked with it; none may, as rows
        # are not asked for at the last certificate
        fields = {f"{one.type}.{name}" for one in own for name in one.fields}
        with_field.update((*sent, field, one.client) for field in fields for one in own)
    revealed = Counter(one.type for one in recording.records if one.kind == "reveal")
    for line in recording.found.lines:
        if line.how == "revealed":
            assert line.times == revealed[line.what]
        elif line.how in ("reply", "contribution"):
            kind = "ask" if line.how == "reply" else "sum"
            counted = {
                name: with_field[kind, line.function, line.what, name]
                for name in recording.found.clients
                if with_field[kind, line.function, line.what, name]
            }
            assert line.clients == counted
            assert max(counted.values()) <= line.times <= sum(counted.values())
    by_function = Counter()
    for line in recording.lines(how="total"):
        for name, count in line.clients.items():
            by_function[line.function, line.what, name] += count
    for (function, _, name), count in by_function.items():
        assert count <= replies["ask", function, name] + replies["sum", function, name]


def test_a_mode_that_seals_leaves_the_server_replies_reveals_and_counts(recording):
    contributions = recording.lines(how="contribution")
    assert contributions
    read = {line.what for line in contributions if line.readable}
    if recording.mode == "plain":
        assert read == {line.what for line in contributions}
        assert recording.found.sealed_at_server == ()
    else:
        assert all(".counts" in what for what in read)
        assert {line.how for line in recording.found.read_by_server} <= {
            "reply",
            "revealed",
            "contribution",
        }


def test_who_was_away_opened_nothing(tmp_path):
    """Of 6 clients 3 are there in a round, in turn: each trains in 2 of 4 rounds."""
    made = recorded(
        tmp_path,
        "masked",
        "fedavg",
        rounds=4,
        evaluate_every=0,
        participation=0.5,
        participation_pattern="cyclic",
    )
    lines = made.lines(how="message", what="Descend.number")
    assert [dict(line.clients) for line in lines] == [dict.fromkeys(CLIENTS, 2)]
    assert lines[0].times == 4
    (mine,) = [line for line in made.found.read_by("r0c0") if line.what == "Descend.number"]
    assert mine.times == 2


def test_what_is_marked_sealed_is_not_the_numbers_in_another_dress(tmp_path, masked):
    """The first contributions are the same in all modes; under masks no word is that of one."""
    plain = recorded(tmp_path, "plain", "fedavg", rounds=1)
    fixed = FixedPoint(addends=len(CLIENTS))
    compared = 0
    for clear, hidden in zip(plain.records, masked.records, strict=False):
        if clear.kind != "sum" or clear.function != "measure_features":
            continue
        assert (clear.function, clear.client) == (hidden.function, hidden.client)
        values = np.ravel(clear.fields["total"])
        words = {word.tobytes() for word in fixed.encode(values * (np.abs(values) < fixed.limit))}
        for data in hidden.fields["total"].values():
            held = {data[at : at + 8] for at in range(8, len(data), 8)}
            assert not held & words
            compared += len(held)
    assert compared > 100


# -- in sentences


BY_ROW = (Layout.SAMPLES, Layout.SELECTED, *(one for one in Layout if one.is_scores))


def words_of(algorithm):
    """Return the words and the layout of each field, "Reply.field", that may cross."""
    sends = (*shared_sends(), *algorithm_named(algorithm).disclosure.sends)
    return {
        f"{one.reply.__name__}.{name}": (contents(one.reply)[name], layout)
        for one in sends
        for name, layout in layouts(one.reply)
    }


def check_sentences(made, algorithm):
    """Hold the sentences of a run against what stands in its transcript."""
    said_, known = audit.sentences(made.found), words_of(algorithm)
    check_plain(said_)
    answers, kinds = Counter(), set()
    times = {name: defaultdict(Counter) for name in ("open", "sealed", "rows")}
    for one in made.records:
        if one.kind not in ("ask", "sum"):
            continue
        answers[one.client] += 1
        seen = set()
        for name, value in one.fields.items():
            if value is not None and not (isinstance(value, dict) and not value):
                words, layout = known[f"{one.type}.{name}"]
                seen.add(("sealed" if sealed(value) else "open", words))
                if layout in BY_ROW and not sealed(value):
                    seen.add(("rows", words))
        for where, words in seen:
            times[where][words][one.client, one.function] += 1
            kinds.add(words)

    def bounds(counts):
        """An exchange is with one client or more: at least what the busiest one did."""
        by_function = defaultdict(list)
        for (_, function), number in counts.items():
            by_function[function].append(number)
        least = sum(map(max, by_function.values()))
        return least, sum(map(sum, by_function.values())) if made.away else least

    crossed = {where: {one: bounds(n) for one, n in some.items()} for where, some in times.items()}
    least, most = min(answers.values()), max(answers.values())
    often = f"{most} answers" if least == most else f"{least} to {most} answers"
    assert said_[1].startswith(f"{len(kinds)} kinds of values")
    assert f"each client sent it {often}," in said_[2]
    check_kinds(said_[3], crossed["open"])
    revealed = Counter(one.type for one in made.records if one.kind == "reveal")
    totals = defaultdict(dict)
    for name, number in revealed.items():
        words = {known[one][0] for one in name.split(" and ")}
        assert len(words) == 1
        kind = " ".join(sorted({one.split(".")[0] for one in name.split(" and ")}))
        before = totals[words.pop()]
        before[kind] = max(number, before.get(kind, 0))
    check_kinds(said_[4], {one: (sum(n.values()),) * 2 for one, n in totals.items()})
    check_kinds(said_[5], crossed["sealed"])
    check_kinds(said_[8].partition(";")[0], crossed["rows"])
    return said_


def test_the_sentences_say_what_the_transcript_shows(recording):
    said_ = check_sentences(recording, recording.algorithm)
    assert ("Nothing was hidden" in said_[6]) == (recording.mode == "plain")
    assert ("hidden by random masks" in said_[6]) == (recording.mode != "plain")
    assert ("cancel only in the sum" in said_[6]) == (recording.mode != "plain")
    assert ("were encrypted" in said_[6]) == (recording.mode == "ckks")
    assert ("could read: nothing" in said_[8]) == (recording.mode != "plain")


SMALL = {"hidden": 8, "latent": 4, "local_epochs": 1}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("local", SMALL),
        pytest.param("flic", {**SMALL, "pretraining_epochs": 1}, marks=pytest.mark.slow),
        pytest.param("femam", SMALL, marks=pytest.mark.slow),
        pytest.param("hyfem", {"hidden": (8,)}, marks=pytest.mark.slow),
    ],
)
def test_the_sentences_of_networks_say_what_the_transcript_shows(tmp_path, algorithm, options):
    pytest.importorskip("torch")
    columns = 2 if algorithm == "hyfem" else 1
    partition = {"kind": "grid", "rows": 3, "columns": columns}
    made = recorded(
        *(tmp_path, "masked", algorithm), rounds=2, algorithm=options, partition=partition
    )
    said_ = check_sentences(made, algorithm)
    assert "counts and losses of evaluated rows" in said_[3]


def test_the_sentences_say_whom_masks_protect(masked):
    def protection(trust):
        return audit.sentences(replace(masked.found, trust=trust))[6]

    assert masked.found.trust == "pairs"  # the default
    assert "cancel only in the sum" in protection("pairs")
    assert "a client that saw another's part could read it" in protection("clients")
    assert ";" not in protection("")  # of older runs it is not known


def test_in_sentences_every_field_that_clients_opened_is_told(masked):
    words = {one.contents for one in masked.lines(how="total")}
    assert words >= {"model weights or their changes", "each row's model score"}
    assert words >= listed(audit.sentences(masked.found)[7]).keys()
    assert "" not in words


def test_what_an_older_run_or_another_algorithm_does_not_describe_is_said_so(masked, tmp_path):
    found = json.loads((masked.folder / "audit.json").read_text())
    for one in found["crossings"]["exchanges"].values():
        del one["contents"]
    (tmp_path / "audit.json").write_text(json.dumps({**found, "undeclared": ["ask f -> R"]}))
    said_ = audit.sentences(audit.load(tmp_path))
    check_plain(said_)
    assert "kept no words for some of what crossed" in said_[0]
    assert said_[3].endswith("such as sums over rows and parameters of models (5 times).")
    assert "numbers of single columns" in said_[5]
    assert "kept no words" not in audit.sentences(audit.load(masked.folder))[0]
    assert said_[9].startswith("1 thing crossed, listed below, that the algorithm does not declare")


def test_rows_that_clients_share_in_the_test_part_alone_are_declared(tmp_path):
    """Copies of their values are compared there, and in the training part there is nothing to."""
    rng = np.random.default_rng(0)
    ids = np.array([f"r{number}" for number in range(200)])
    tested = ids[_fractions(ids, hashlib.blake2b(b"").digest()) < 0.2]
    own = np.setdiff1d(ids, tested)
    rows = {"a": [*tested, *own[:80]], "b": [*tested, *own[80:]]}
    x = dict(zip(ids.tolist(), rng.normal(size=200), strict=True))
    tables = {
        name: pd.DataFrame({"id": some, "x": [x[one] for one in some]}).assign(
            y=lambda frame: np.where(frame.x > 0, "yes", "no")
        )
        for name, some in rows.items()
    }
    found = intarsia.run(
        tables=tables, id="id", label="y", algorithm="hyfdca", out=tmp_path / "run", rounds=2
    )
    assert "sum find_lacking -> Lacking" in audit.list_crossings(
        json.loads((tmp_path / "run" / "audit.json").read_text())["crossings"]
    )
    assert not any("does not declare" in note for note in found.notes)
    assert not audit.load(tmp_path / "run").undeclared


# -- of runs that were stopped


class StoppedError(Exception):
    """Ends a run in a test."""


def stopped(folder, **settings):
    """Run until round 4 of 9, with a checkpoint after each."""

    def stop(progress):
        if progress.round == 4:
            raise StoppedError

    description = described(folder, "masked", "fedavg", checkpoint_seconds=0, rounds=9, **settings)
    with pytest.raises(StoppedError):
        run(description, progress=stop)


def test_the_audit_of_a_stopped_run_is_that_of_its_checkpoint(tmp_path):
    stopped(tmp_path)
    found = audit.load(tmp_path)
    assert (found.mode, found.checkpoint, found.clients) == ("masked", 4, CLIENTS)
    (line,) = [one for one in found.lines if one.how == "contribution" and one.what == "Change.w"]
    assert line.times == 4
    assert not line.readable


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_the_audit_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path, participation):
    stopped(tmp_path / "stopped", participation=participation)
    resume(tmp_path / "stopped")
    run(described(tmp_path / "whole", "masked", "fedavg", rounds=9, participation=participation))
    found, expected = (audit.load(tmp_path / name) for name in ("stopped", "whole"))
    assert found == expected
    assert found.checkpoint is None


# -- the command


def test_the_command_shows_what_the_server_read_first(masked, capfd):
    assert main(["audit", str(masked.folder)]) == 0
    out, err = said(capfd)
    assert err == ""
    tables = out[out.index("What the server could read") :]  # below the sentences
    places = [
        tables.index(text) for text in ("the server held and could not", "What the clients could")
    ]
    assert places == sorted(places)
    words = {line.what: line.contents for line in masked.found.lines}
    read, sealed = words["Objective.at"], words["Change.w"]
    assert tables.index(read) < places[0] < tables.index(sealed, places[0]) < places[1]
    assert "Objective.at" not in out
    assert "Change.w" not in out
    assert "mode: masked" in out
    assert "whoever runs the server" not in out


def test_the_command_names_each_field_as_the_code_does_where_it_is_asked_to(masked, capfd):
    assert main(["audit", str(masked.folder), "--fields"]) == 0
    out = said(capfd)[0]
    assert "Kinds of values, and their names in the tables below" in out
    tables = out[out.index("What the server could read") :]
    assert tables.index("Objective.at") < tables.index("Change.w  ")


def test_the_command_writes_the_audit_as_json(masked, capfd):
    assert main(["audit", str(masked.folder), "--json"]) == 0
    content = json.loads(said(capfd)[0])
    assert content == masked.found.to_dict()
    assert content["mode"] == "masked"
    assert {line["readable"] for line in content["lines"]} == {True, False}


def test_the_command_shows_one_client(masked, capfd):
    assert main(["audit", str(masked.folder), "--client", "r1c0"]) == 0
    assert "What r1c0 could read" in said(capfd)[0]
    assert main(["audit", str(masked.folder), "--client", "r1c9"]) == 2
    assert "'r1c0'" in one_error(said(capfd)[1])


def test_the_command_says_that_plain_sums_are_open(tmp_path, capfd):
    run(described(tmp_path, "plain", "fedavg", rounds=1))
    assert main(["audit", str(tmp_path)]) == 0
    out = said(capfd)[0]
    assert "mode: plain: whoever runs the server could read every contribution" in out
    assert "the server held and could not read: nothing." in " ".join(out.split())


def test_the_command_says_that_a_run_was_stopped(tmp_path, capfd):
    stopped(tmp_path)
    capfd.readouterr()
    assert main(["audit", str(tmp_path)]) == 0
    assert "up to its checkpoint of round 4" in said(capfd)[0]


def test_a_folder_without_an_audit_is_an_error(tmp_path, capfd):
    found = {tmp_path: "neither audit.json nor a checkpoint", tmp_path / "nowhere": "there is none"}
    for folder, reason in found.items():
        assert main(["audit", str(folder)]) == 2
        assert reason in one_error(said(capfd)[1])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"mode": "masked", "crossings": {}}'])
def test_a_damaged_audit_is_an_error(masked, tmp_path, text):
    shutil.copytree(masked.folder, tmp_path / "run")
    (tmp_path / "run" / "audit.json").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read as an audit"):
        audit.load(tmp_path / "run")


# -- the note of a run in the clear


TABLES = """
[experiment]
rounds = 2

[algorithm]
name = "{algorithm}"
loss = "logistic"
regularisation = 1e-2

[[client]]
name = "bank"
path = "bank.csv"
label = "default"

[[client]]
name = "shop"
path = "shop.csv"
label = "default"
"""


def notes_of(folder, algorithm="fedavg", *overrides):
    rng = np.random.default_rng(0)
    for name in ("bank", "shop"):
        rows = [f"{a:.3f},{b:.3f},{int(a > b)}" for a, b in rng.normal(size=(20, 2))]
        (folder / f"{name}.csv").write_text("\n".join(["age,income,default", *rows]) + "\n")
    (folder / "two.toml").write_text(TABLES.format(algorithm=algorithm))
    return run(experiment.load(folder / "two.toml", overrides), out=None).notes


def test_a_run_on_parties_tables_says_that_its_sums_are_not_sealed(tmp_path):
    notes = [note for note in notes_of(tmp_path) if "not sealed" in note]
    assert len(notes) == 1
    assert 'privacy = "masked"' in notes[0]


def test_the_note_is_shown_once(tmp_path, capfd):
    notes_of(tmp_path)
    capfd.readouterr()
    assert main(["run", str(tmp_path / "two.toml")]) == 0
    assert said(capfd)[1].count("The sums are not sealed") == 1


def test_sealed_runs_and_pooled_baselines_and_simulations_have_no_such_note(tmp_path, masked):
    assert not [one for one in notes_of(tmp_path, "fedavg", "privacy=masked") if "sealed" in one]
    assert not [one for one in notes_of(tmp_path, "centralised") if "sealed" in one]
    (tmp_path / "sim").mkdir()
    found = run(described(tmp_path / "sim", "plain", "fedavg", rounds=1))
    assert not [note for note in found.notes if "sealed" in note]


# -- counting


@dataclass(frozen=True)
class Message:
    """A message with an open and a sealed field."""

    rate: float
    w: object


@dataclass(frozen=True)
class Reply:
    """A reply."""

    at: float


def test_crossings_are_counted_by_client_where_not_all_are_asked():
    counts = Crossings(("a", "b", "c"))
    for clients in (("a", "b", "c"), ("a",), ("c", "a"), ("b", "a", "c")):
        counts.exchange("sum", "step", Message, (("w", "Change.w"),), Reply, clients)
    found = audit._audit("masked", json.loads(json.dumps(counts.summary())))
    assert {(one.what, one.how, one.times) for one in found.lines} == {
        ("Reply.at", "contribution", 4),
        ("Message.rate", "message", 4),
        ("Message.w", "total", 4),
    }
    assert all(one.clients == {"a": 4, "b": 2, "c": 3} for one in found.lines)
    restored = Crossings(("a", "b", "c"))
    restored.restore(json.loads(json.dumps(counts.summary())))
    assert restored.summary() == counts.summary()
    restored.exchange("sum", "step", Message, (("w", "Change.w"),), Reply, ("b",))
    assert restored.summary() != counts.summary()


def test_a_total_that_some_clients_get_and_others_do_not_is_counted_for_those_who_got_it():
    counts = Crossings(("a", "b", "c"))
    opened = (("w", "Change.w"),)
    counts.exchange("sum", "step", Message, opened, Reply, ("a", "b", "c"), (), {"w": ["b"]})
    counts.exchange("sum", "step", Message, opened, Reply, ("a", "b", "c"), (), {"w": ["b", "c"]})
    found = audit._audit("masked", json.loads(json.dumps(counts.summary())))
    who = {(one.what, one.how): (one.times, dict(one.clients)) for one in found.lines}
    assert who["Message.w", "total"] == (2, {"b": 2, "c": 1})
    assert who["Message.w", "message"] == (2, {"a": 2, "c": 1})
    assert who["Message.rate", "message"] == (2, dict.fromkeys("abc", 2))


def test_a_model_that_the_server_writes_in_the_clear_is_told_in_words():
    pytest.importorskip("torch")
    small = {"hidden": 8, "latent": 4, "local_epochs": 1, "batch": 12, "engine": "loop"}
    blocks = rows_apart("classes")
    for name, more, read in (("fesem", {"clusters": 2}, True), ("fedavg", {}, False)):
        if not read:
            small, blocks = {}, dict(list(blocks.items())[:2])
        algorithm = algorithm_named(name)
        options = algorithm.hyperparameters(**small, **more)
        trial = Trial(algorithm, options, ToyFederation("", blocks, CLASSES, 4, ()))
        found = audit._audit("masked", trial.plain.engine.books.crossings.summary())
        assert (f"among them {audit.MODEL} (" in audit.sentences(found)[2]) == read
        told = {one.what for one in found.lines if one.contents == audit.MODEL}
        assert told == ({"Begin.own", "Closing.model"} if read else set())
