"""A row that is added between two jobs: the totals of both differ by it, and clients open them.

All that have a column open its mean and its scale, and who has how many rows is public. A client
that follows the algorithm keeps what it opened in one night's job. It takes that off in the next,
and has the sums over the rows that others added since: of one row, all of its values. The
counts of the test part tell the label of a row that was added to it, whatever the models are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json

import numpy as np
import pytest

import sites
from intarsia.core.block import Labels
from intarsia.core.schema import Holding, Schema
from intarsia.data import table
from intarsia.data.table import Category
from intarsia.deployment import client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.deployment.earlier_jobs import ToldLevels, TrainedRows, TrainedValues, hashed
from intarsia.deployment.table_metadata import Held
from intarsia.engines.remote import site
from intarsia.errors import PolicyError, RefusedError
from intarsia.experiment import config as experiment
from intarsia.protocols.preprocessing import few_values, standardisation
from key_folders import exchanged

NAMES, ROWS, COLUMNS = ("bank", "post", "shop"), 60, 5
TEST = 0.2  # of rows, held out
HEADER = ",".join(["id", *(f"f{place}" for place in range(COLUMNS)), "label"])


class Federation:
    """Three sites that have the same columns of rows of their own, and what one of them opens."""

    def __init__(self, folder, policy=""):
        self.folder, self.rng, self.tables = folder, np.random.default_rng(0), {}
        exchanged(folder, NAMES, "three")
        for name in NAMES:
            (folder / name).mkdir()
            (folder / name / "site.toml").write_text(
                f'[site]\nname = "{name}"\nkey = "../keys/{name}/shared.key"\n'
                f'[table]\npath = "../{name}.csv"\nid = "id"\nlabel = "label"\n{policy}'
            )
            self.tables[name] = []
            self.add(name, ROWS)

    def add(self, name, count):
        """Add rows to a table; return their values."""
        known, x = self.tables[name], self.rng.normal(size=(count, COLUMNS)).round(3)
        for own in x:
            label = "yes" if own[0] > 0 else "no"
            known.append(",".join([f"{name.title()}{len(known)}", *map(str, own.tolist()), label]))
        self.write(name)
        return x

    def write(self, name):
        """Write a table."""
        (self.folder / f"{name}.csv").write_text("\n".join([HEADER, *self.tables[name]]))

    def run(self, out, **changes):
        """Run a job with new processes; return what the bank opens: means, and how many rows."""
        tree = {
            "experiment": {"rounds": 1, "yardsticks": False},
            "algorithm": {"name": "hyfdca", "loss": "logistic", "regularisation": 0.1},
            "alignment": {"ids": "pseudonyms"},
            "split": {"test": 0.0},
            "privacy": {"mode": "masked", "key": "shared.key"},
            "client": [{"name": name, "path": f"{name}.csv"} for name in NAMES],
        }
        tree |= {name: {**tree.get(name, {}), **own} for name, own in changes.items()}
        found = {name: site_in(self.folder / name) for name in NAMES}
        given = experiment.from_dict(tree, self.folder), sites.Lines(found), NAMES
        remote_running.run_over(*given, self.folder / out, patience=sites.HASTY)


def private(federation, out, **changes):
    """Run a job with differential privacy; return the weights times rows that the bank opens."""
    rounds = {"rounds": 20, "tolerance": 1e-6}
    noise = {"epsilon": 1.0, "clip": 100.0}
    found, message_of = [], site._Run._message

    def looked(run, call, sent, *given):
        opened, extra = message_of(run, call, sent, *given)
        if run._client == "bank" and sent.function.name == "measure_point":
            found.append(opened.w[0] * len(run._place.schemas["train"].samples))
        return opened, extra

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site._Run, "_message", looked)
        federation.run(
            out, experiment=rounds, preprocessing={"standardise": False}, privacy=noise, **changes
        )
    return found


@pytest.fixture
def scaling(monkeypatch):
    """Return the mean and the scale of each feature, as the bank opens them in the last job."""
    found, transform = {}, client_setup.Work._transform

    def looked(work, state, message):
        features = work.schemas["train"].features
        own = zip(state.mean, state.scale, strict=True)
        found.update(zip(features.ids[features.own("bank")], own, strict=True))
        return transform(work, state, message)

    # rare levels are scaled alike, and an owner that changed its code sees what it opens
    monkeypatch.setattr(standardisation, "RAREST", 0.0)
    monkeypatch.setattr(client_setup.Work, "_transform", looked)
    return found


@pytest.fixture
def opened(monkeypatch):
    """Return what the bank opens of each job: the sums of columns over all training rows."""
    found, transform = [], client_setup.Work._transform

    def looked(work, state, message):
        if work._settings.name == "bank":
            rows = len(work.schemas["train"].samples)
            if not found or found[-1][1] is not work:
                found.append((state.mean * rows, work))
        return transform(work, state, message)

    monkeypatch.setattr(client_setup.Work, "_transform", looked)
    return found


def added(opened):
    """Return the sums over rows that others added between two jobs."""
    before, after = (one[0] for one in opened)
    return (after - before)[1:]  # the first column is constant


def test_where_the_owner_allows_it_two_jobs_tell_a_row_that_was_added_between(tmp_path, opened):
    federation = Federation(tmp_path, policy="[policy]\nleast_changed = 0\n")
    federation.run("first")
    (row,) = federation.add("post", 1)
    federation.run("second")
    np.testing.assert_allclose(added(opened), row, atol=1e-9)


@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
def test_noise_in_the_model_hides_no_row_from_who_opens_the_weights_in_training(tmp_path, policy):
    federation = Federation(tmp_path, policy=policy)
    (before, *_) = private(federation, "first")
    (row,) = federation.add("post", 1)
    (after, *_) = private(federation, "second")
    # at weights of zero each row adds half of itself, times its label, to λ times the weights
    label = 1 if row[0] > 0 else -1
    told = row if policy else np.zeros(COLUMNS)
    np.testing.assert_allclose(2 * 0.1 * label * (after - before)[1:], told, atol=1e-8)


def dealt(server, description):
    """Let sites say what they hold as if they were simulated, of whose rows nothing is kept back.

    The server asks for no table: no step compares rows with earlier jobs'.
    """
    tree = {**experiment.to_dict(description), "protocol": client_setup.PROTOCOL, "absent": "wait"}
    said = json.dumps({key: one for key, one in tree.items() if key not in ("client", "published")})
    known = client_setup.Dealt, Held, Holding, Labels
    found = server._stage(client_setup.DEAL, said.encode(), *known)
    held = {name: one.held.train for name, one in found.items()}
    server._kept = {name: np.ones(len(one.samples), bool) for name, one in held.items()}
    server._schemas = {"train": Schema(held, found["bank"].labels)}
    return server._schemas["train"]


def test_a_site_has_no_table_dealt_as_nothing_is_kept_back_there(tmp_path, monkeypatch):
    federation = Federation(tmp_path)
    monkeypatch.setattr(remote_running.AtSites, "build", dealt)
    with pytest.raises(RefusedError, match="in deal"):
        federation.run("out")
    assert "has a table of its own" in (tmp_path / "bank/errors.log").read_text()


@pytest.mark.parametrize("change", ["added", "another key", "another split", "another rule"])
def test_few_rows_that_are_new_since_an_earlier_job_wait(tmp_path, opened, change):
    federation = Federation(tmp_path)
    federation.run("first", split={"test": 0.02 if change == "another split" else 0.0})
    if change != "another split":
        federation.add("post", 1)
    if change == "another key":
        exchanged(tmp_path, NAMES, "three", secret=bytes(range(1, 33)))  # and so pseudonyms
    more = {"alignment": {"normalise": ["case"]}} if change == "another rule" else {}
    for out in ("second", "third"):
        federation.run(out, **more)
    assert len(opened) == 3
    for later in opened[1:]:  # the same sums as of the first job's rows
        np.testing.assert_allclose(later[0], opened[0][0], rtol=1e-12, atol=1e-12)
    log = (tmp_path / "post/log/site.log").read_text()
    assert change == "another split" or log.count('"event":"new rows wait"') == 2


@pytest.mark.parametrize("change", ["removed", "another split"])
def test_a_site_takes_part_in_no_job_that_leaves_few_of_an_earlier_one_s_rows_out(
    tmp_path, opened, change
):
    federation, more = Federation(tmp_path), {}
    federation.run("first")
    if change == "removed":
        federation.tables["post"].pop()
        federation.write("post")
    else:
        more = {"split": {"test": 0.02}}
    for out in ("second", "third"):  # what was refused is no job that others are compared with
        with pytest.raises(PolicyError, match=r"\[policy\] least_changed in site\.toml"):
            federation.run(out, **more)
    assert len(opened) == 1


@pytest.mark.parametrize(("least", "joined"), [(0, 1), (5, 4), (5, 5)])
def test_few_rows_that_other_rules_join_with_another_client_s_take_no_part(
    tmp_path, opened, least, joined
):
    federation = Federation(tmp_path, policy=f"[policy]\nleast_changed = {least}\n")
    for row in range(joined):  # another patient each, whose id is in other letters
        own, other = (federation.tables[name][row].split(",") for name in ("bank", "post"))
        federation.tables["bank"][row] = ",".join([f"POST{row}", *own[1:-1], other[-1]])
    federation.write("bank")
    federation.run("first")
    if joined < least:
        with pytest.raises(
            PolicyError, match=r"another client has, too, .*\[policy\] least_changed in"
        ):
            federation.run("second", alignment={"normalise": ["case"]})
        federation.run("third")
        return
    federation.run("second", alignment={"normalise": ["case"]})
    known, told = (
        np.array([line.split(",")[1:-1] for line in federation.tables[name][:joined]], float)
        for name in ("bank", "post")
    )
    # of each two copies counts half now
    taken_off = -2 * added(opened) - known.sum(axis=0)
    np.testing.assert_allclose(taken_off, told.sum(axis=0), atol=1e-9)


def test_five_rows_that_were_added_take_part(tmp_path, opened):
    federation = Federation(tmp_path)
    federation.run("first")
    rows = federation.add("post", 4)
    federation.run("second")
    np.testing.assert_allclose(added(opened), 0, atol=1e-9)
    rows = np.concatenate([rows, federation.add("post", 1)])
    federation.run("last")
    np.testing.assert_allclose(added([opened[0], opened[-1]]), rows.sum(axis=0), atol=1e-9)
    federation.add("post", 3)  # compared with the newest of the jobs
    federation.run("after")
    np.testing.assert_allclose(added([opened[2], opened[-1]]), 0, atol=1e-9)


def test_what_waits_is_in_no_part_of_a_job(tmp_path):
    rows = TrainedRows(tmp_path / "some.rows", 5)
    first, wait = rows.settle(hashed(np.arange(100)))
    rows.keep(first)
    assert not wait.any()
    again, wait = rows.settle(hashed(np.arange(103)[::-1]))
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(np.flatnonzero(wait), [0, 1, 2])
    changed = hashed(np.arange(1, 101))  # as many, and yet others
    assert not rows.settle(changed)[1].any()
    with pytest.raises(PolicyError, match="least_changed") as caught:
        rows.check(changed)
    assert caught.value.__notes__[0].startswith("2 rows; begin it again")
    with pytest.raises(PolicyError, match="least_changed") as caught:
        rows.check(first[1:])
    assert caught.value.__notes__[0].startswith("1 row; begin it again")
    rows.keep(rows.settle(hashed(np.arange(110)))[0])
    assert rows.settle(hashed(np.arange(112)))[1].sum() == 2
    assert not rows.settle(hashed(np.arange(100)))[1].any()  # the same rows as once before
    assert not rows.settle(hashed(np.arange(50)))[1].any()


def test_in_a_set_up_a_site_hashes_each_id_once_for_each_purpose(tmp_path, monkeypatch):
    counts = dict.fromkeys(["hashed", "shown", "_fractions"], 0)

    def count(module, name):
        made = getattr(module, name)

        def counted(ids, *more):
            counts[name] += len(ids)
            return made(ids, *more)

        monkeypatch.setattr(module, name, counted)

    count(client_setup, "hashed")
    count(client_setup, "shown")
    count(table, "_fractions")
    Federation(tmp_path).run("first", split={"test": 0.2})
    every = ROWS * len(NAMES)  # no site has rows of another, so there is none to show
    assert counts == {"hashed": every, "shown": 0, "_fractions": every}


def values_of(folder):
    """Return what knows of values, and a function that has a job begin with values of rows."""
    rows = TrainedRows(folder / "some.rows", 5)
    values = TrainedValues(folder / "some.values", rows, 5)

    def job(ids, having):
        kept, out = values.settle(hashed(ids), {"lab": np.isin(ids, having)})
        rows.keep(own := rows.settle(hashed(ids))[0])
        values.keep(kept, own)
        found = np.isin(ids, having)
        return ids[found & ~out["lab"]] if out else ids[found]

    return values, job


def test_few_values_of_a_column_wait_or_all_are_left_out(tmp_path):
    _, job = values_of(tmp_path)
    ids = np.arange(100)
    np.testing.assert_array_equal(job(ids, ids[:20]), ids[:20])
    for more in (1, 4):  # new ones wait, whatever other rows came
        np.testing.assert_array_equal(job(np.arange(110), ids[: 20 + more]), ids[:20])
    np.testing.assert_array_equal(job(np.arange(110), ids[:25]), ids[:25])
    np.testing.assert_array_equal(job(np.arange(110), ids[:20]), ids[:20])  # as once before
    assert not len(job(np.arange(110), ids[:18]))  # two less
    np.testing.assert_array_equal(job(np.arange(110), ids[:10]), ids[:10])


def test_values_of_a_column_that_once_was_whole_are_compared_with_the_rows(tmp_path):
    _, job = values_of(tmp_path)
    ids = np.arange(100)
    np.testing.assert_array_equal(job(ids, ids), ids)
    np.testing.assert_array_equal(job(np.arange(110), np.arange(101)), ids)
    assert not len(job(ids, ids[:98]))
    np.testing.assert_array_equal(job(ids, ids[:50]), ids[:50])
    np.testing.assert_array_equal(job(np.arange(110), np.arange(110)), np.arange(110))


def test_values_are_compared_with_the_rows_of_jobs_in_which_the_column_was_whole_alone(tmp_path):
    _, job = values_of(tmp_path)
    ids, some = np.arange(100), np.arange(106)
    job(ids, ids)
    np.testing.assert_array_equal(job(np.arange(110), some), some)
    for _ in range(2):  # three values less: those rows are a job's by then, and not its values
        assert not len(job(some[3:], some[3:]))
    # of 110 rows of a job 109 have a value now: no other job had so many
    more = np.arange(111)
    np.testing.assert_array_equal(job(np.arange(120), more), more)
    np.testing.assert_array_equal(job(np.arange(120), np.arange(119)), np.arange(119))


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_that_train_no_more_as_another_client_lacks_their_label_are_compared(tmp_path, rows):
    federation = Federation(tmp_path)
    own = [line.split(",") for line in federation.tables["post"]]
    without = [HEADER.split(","), *own]
    (tmp_path / "post.csv").write_text("\n".join(",".join(line[:-1]) for line in without))
    site = tmp_path / "post" / "site.toml"
    site.write_text(site.read_text().replace('label = "label"\n', ""))
    # the bank alone labels the rows of the post
    site = tmp_path / "bank" / "site.toml"
    site.write_text(site.read_text() + "[policy]\nleast_changed = 0\n")
    federation.tables["bank"] += [f"{line[0]}{',' * (COLUMNS + 1)}{line[-1]}" for line in own]
    federation.write("bank")
    federation.run("first")
    del federation.tables["bank"][-rows:]
    federation.write("bank")
    if rows == 5:
        federation.run("second")
        return
    with pytest.raises(PolicyError, match=r"least_changed") as refusal:
        federation.run("second")
    assert "'post'" in str(refusal.value)


@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
def test_of_rows_that_were_added_the_only_value_of_a_column_waits(tmp_path, opened, policy):
    federation = Federation(tmp_path, policy=policy)
    federation.run("first")
    rows = federation.add("post", 5)
    own = [line.split(",") for line in federation.tables["post"]]
    for line in own[-4:]:
        line[COLUMNS] = ""  # the last column
    federation.tables["post"] = [",".join(line) for line in own]
    federation.write("post")
    federation.run("second")
    count = len(NAMES) * ROWS
    means = [one[0] / (count + more) for one, more in zip(opened, (0, 5), strict=True)]
    if not policy:  # as the rows train, and the value does not
        assert means[1][-1] == pytest.approx(means[0][-1], abs=1e-12)
        assert np.abs(means[1] - means[0])[1:-1].min() > 1e-6
        assert '"event":"new values wait"' in (tmp_path / "post/log/site.log").read_text()
    else:
        told = means[1][-1] * (count + 1) - means[0][-1] * count
        assert told == pytest.approx(rows[0, -1], abs=1e-9)


def cells_of(federation, name, *, first, of, at=COLUMNS):
    """Write what a function says of a row's number into a column of a table, the last one."""
    rows = [line.split(",") for line in federation.tables[name]]
    for number in range(first, len(rows)):
        rows[number][at] = str(of(number))
    federation.tables[name] = [",".join(row) for row in rows]
    federation.write(name)


@pytest.mark.usefixtures("sparse_tables")
@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
@pytest.mark.parametrize("levels", [4, 25])  # many are not centred, and 0 where a row lacks one
@pytest.mark.parametrize("level", ["l1", "new"])
def test_the_only_level_of_rows_that_were_added_waits(tmp_path, scaling, policy, levels, level):
    federation = Federation(tmp_path, 'categorical = ["f4"]\n' + policy)
    for name in NAMES:
        cells_of(
            federation, name, first=0, of=lambda row: f"l{row // 2 % (levels - 1)}" * (row % 2)
        )
    federation.run("first")
    federation.add("bank", 5)
    cells_of(federation, "bank", first=ROWS, of=lambda row: "new")
    federation.add("post", 5)
    cells_of(federation, "post", first=ROWS, of=lambda row: level * (row == ROWS))
    federation.run("second")
    held = [row.split(",")[COLUMNS] for name in NAMES for row in federation.tables[name]]
    mean, scale = scaling[f"f4={level}"]
    found = scale**2 * len(held) if levels > 20 else mean * (sum(map(bool, held)) - (not policy))
    assert found == pytest.approx(held.count(level) - (not policy), abs=1e-9)


@pytest.mark.usefixtures("sparse_tables")
@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
def test_a_value_beside_a_category_of_many_levels_waits(tmp_path, scaling, policy):
    federation = Federation(tmp_path, 'categorical = ["f4"]\n' + policy)
    values = np.random.default_rng(1).normal(size=ROWS + 1)
    for name in NAMES:
        cells_of(federation, name, first=0, of=lambda row: f"l{row % 25}")
        cells_of(federation, name, first=0, of=lambda row: values[row] if row % 2 else "", at=3)
    federation.run("first")
    before, _ = scaling["f2"]
    federation.add("post", 5)
    cells_of(federation, "post", first=ROWS, of=lambda row: f"l{row % 25}")
    cells_of(
        federation, "post", first=ROWS, of=lambda row: values[row] if row == ROWS else "", at=3
    )
    federation.run("second")
    count = len(NAMES) * ROWS // 2
    after, _ = scaling["f2"]
    told = after * (count + 1) - before * count if policy else after - before
    assert told == pytest.approx(values[ROWS] if policy else 0, abs=1e-9)


@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
def test_a_value_of_a_site_s_own_column_is_not_told_by_its_means(tmp_path, monkeypatch, policy):
    """They go to the server where the site says `scales`; no other client has the column."""
    federation, told, keep = Federation(tmp_path, policy), [], client_setup.Work._keep
    settings = tmp_path / "post" / "site.toml"
    settings.write_text(settings.read_text().replace("[table]", "scales = true\n[table]"))

    def kept(work, state, message):
        state, scales = keep(work, state, message)
        if work._settings.name == "post":
            features = work.schemas["train"].features
            place = [*features.ids[features.own("post")]].index("rare")
            told.append(scales.mean[place])
        return state, scales

    monkeypatch.setattr(client_setup.Work, "_keep", kept)
    values = np.random.default_rng(1).normal(size=ROWS)
    for out, count in ("first", 20), ("second", 21):
        cells_of(
            federation, "post", first=0, of=lambda row, n=count: values[row] if row < n else ""
        )
        text = (tmp_path / "post.csv").read_text()
        (tmp_path / "post.csv").write_text(text.replace("f4", "rare", 1))
        federation.run(out)
    before, after = told
    found = after * 21 - before * 20 if policy else after - before
    assert found == pytest.approx(values[20] if policy else 0, abs=1e-9)


def evaluated(federation, out, salt, test=TEST):
    """Run a job; return how many rows were evaluated over all clients, and how many say yes."""
    how = {"split": {"test": test, "salt": salt}, "alignment": {"ids": "plain"}}
    federation.run(out, **how)
    found = json.loads((federation.folder / out / "result.json").read_text())["metrics"]["server"]
    return found["samples"], round(found["samples"] * found["figures"]["base_rate"])


def opened_ids(federation):
    """Let the sites tell ids, so that a test can choose who is held out."""
    for name in NAMES:
        path = federation.folder / name / "site.toml"
        path.write_text(path.read_text().replace("[table]", "ids = true\n[table]"))
    return federation


def held_out_by(salt, name, number):
    key = hashlib.blake2b(salt.encode()).digest()
    return table._fractions(np.array([f"{name.title()}{number}"]), key)[0] < TEST


@pytest.fixture
def salt():
    """Return a salt by which the row that the post adds is in the test part."""
    return next(salt for salt in map(str, range(100)) if held_out_by(salt, "post", ROWS))


@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
def test_counts_of_two_jobs_tell_no_label_of_a_test_row_added_between(tmp_path, salt, policy):
    federation = opened_ids(Federation(tmp_path, policy))
    before = evaluated(federation, "first", salt)
    (row,) = federation.add("post", 1)
    after = evaluated(federation, "second", salt)
    told = (1, int(row[0] > 0)) if policy else (0, 0)
    assert (after[0] - before[0], after[1] - before[1]) == told
    log = (tmp_path / "post/log/site.log").read_text()
    assert ('"event":"new labels wait"' in log) == (not policy)


@pytest.fixture
def told_levels(monkeypatch):
    """Return which levels of a column the server is told by the post in each set-up."""
    found, read = [], client_setup.Work._read

    def looked(work, state, message):
        state, said = read(work, state, message)
        if work._settings.name == "post":
            found.append(said.levels["f4"])
        return state, said

    monkeypatch.setattr(client_setup.Work, "_read", looked)
    return found


@pytest.mark.parametrize("policy", ["[policy]\nleast_changed = 0\n", ""])
@pytest.mark.parametrize("change", ["added", "added before a job", "removed"])
def test_a_level_that_five_rows_have_by_one_that_changed_is_told_as_before(
    tmp_path, told_levels, salt, policy, change, monkeypatch
):
    """The server knows how many rows a site has: of one that is new it learned the level.

    Rows of the test part do not wait, and levels are told before a site refuses a job.
    """
    federation = opened_ids(Federation(tmp_path, 'least_rows = 5\ncategorical = ["f4"]\n' + policy))
    rare = 5 if change == "removed" else 4
    levels = dict.fromkeys(range(rare), "rare") | {ROWS: "rare"}
    for name in NAMES:
        cells_of(federation, name, first=0, of=lambda row: levels.get(row, f"l{row % 3}"))
    if change == "added before a job":  # a server that departs begins none

        def stop(*_):
            raise PolicyError("none begins")

        monkeypatch.setattr(client_setup.Work, "_encode", stop)
    how = {"split": {"test": TEST, "salt": salt}, "alignment": {"ids": "plain"}}

    def run(out):
        with contextlib.suppress(PolicyError):
            federation.run(out, **how)

    run("first")
    if change == "removed":
        del federation.tables["post"][0]
        federation.write("post")
    else:
        federation.add("post", 1)
        cells_of(federation, "post", first=ROWS, of=levels.get)
    run("second")
    before, after = ("rare" in one for one in told_levels)
    assert before == (change == "removed")
    assert (before != after) == bool(policy)
    if change == "added" and not policy:
        federation.add("post", 20)
        cells_of(federation, "post", first=ROWS, of=lambda _: "rare")
        run("third")
        assert "rare" in told_levels[-1]


def test_levels_are_those_of_the_nearest_table_before(tmp_path):
    told = ToldLevels(tmp_path / "told.levels", 5)

    def job(rows, having, **more):
        codes = np.where(np.arange(rows) < having, 0, -1).astype(np.int32)
        columns = {"f": Category(codes, ("rare",), 5)} | more
        return told.settle(hashed(np.arange(rows)), columns)

    assert job(100, 4)["f"] == ("other",)
    for rows in range(101, 105):
        assert job(rows, 9)["f"] == ("other",)
    assert job(105, 9)["f"] == ("rare",)
    assert job(103, 4)["f"] == ("rare",)  # two less than then, three more than the first
    assert job(101, 9)["f"] == ("other",)
    assert job(105, 4)["f"] == ("other",)  # values that were corrected, of the same rows
    assert job(200, 9)["f"] == ("rare",)
    for rows in range(300, 300 + 100 * 64, 100):  # the first are forgotten
        assert job(rows, 9)["f"] == ("rare",)
    assert job(101, 9)["f"] == ("rare",)
    found = job(102, 9, g=Category(np.zeros(102, np.int32), ("new",), 5))
    assert found == {"f": ("rare",), "g": ("new",)}
    # told since: the next table does not differ from this one in it
    lacking = job(101, 0, g=Category(np.full(101, -1, np.int32), ("new",), 5))
    assert lacking["g"] == ("new",)


def test_where_few_of_the_rows_that_were_evaluated_are_left_out_none_are(tmp_path):
    rows = TrainedRows(tmp_path / "some.rows", 5)
    ids = np.arange(40)
    first, wait = rows.settle_evaluated(hashed(ids[:20]))
    rows.keep(first)
    assert not wait.any()
    again, wait = rows.settle_evaluated(hashed(ids[1:20]))
    assert not len(again)
    assert wait.all()
    rows.keep(again)
    _, wait = rows.settle_evaluated(hashed(ids[:21]))  # those of before
    np.testing.assert_array_equal(np.flatnonzero(wait), [20])
    assert not rows.settle_evaluated(hashed(ids[:25]))[1].any()
    assert not rows.settle_evaluated(hashed(ids[20:]))[1].any()


def test_training_rows_that_are_evaluated_are_compared_with_test_parts(tmp_path):
    """Without a test part training rows are evaluated: all but one may have been a test part."""
    federation = opened_ids(Federation(tmp_path))
    evaluated(federation, "first", "", test=0.8)
    order = {name: _fractions_of(federation, name) for name in NAMES}
    for name, at in order.items():  # of each site those remain that were in the test part, and one
        rows = np.array(federation.tables[name])
        kept = at < (0.8 if name != "post" else np.sort(at[at >= 0.8])[0] + 1e-12)
        federation.tables[name] = rows[kept].tolist()
        federation.write(name)
    with pytest.raises(PolicyError, match="least_changed"):
        evaluated(federation, "second", "", test=0.0)


def _fractions_of(federation, name):
    ids = np.array([line.split(",")[0] for line in federation.tables[name]])
    return table._fractions(ids, hashlib.blake2b(b"").digest())


@pytest.mark.parametrize("works", [False, True])
def test_a_row_that_two_sites_have_and_a_third_lacks_is_left_out(
    tmp_path, opened, works, monkeypatch
):
    """Beside these three have the same rows: the third takes all of them off."""
    if works:
        monkeypatch.setattr(few_values, "without_few", lambda block, *_: block)
    federation = Federation(tmp_path)
    more = federation.tables["shop"][-1]
    for name in ("post", "shop"):
        federation.tables[name] = [*federation.tables["bank"], more]
        federation.write(name)
    federation.run("first")
    known = federation.tables["shop" if works else "bank"]
    values = np.array([line.split(",")[1:-1] for line in known], float)
    notes = json.loads((tmp_path / "first/result.json").read_text())["notes"]
    assert sum("Values of 1 training sample at" in note for note in notes) == 1
    found = opened[0][0][1:] / (ROWS + 1)  # without the constant
    np.testing.assert_allclose(found, values.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("between", [63, 64])
def test_a_row_is_told_where_64_jobs_on_other_rows_lie_between_two(tmp_path, between):
    """Open: docs/explanations/privacy/site-refusals.md says so, and what bounds it."""
    rows, rng = TrainedRows(tmp_path / "some.rows", 5), np.random.default_rng(0)
    first = np.arange(100)
    for ids in (first, *(rng.choice(first, 80, replace=False) for _ in range(between))):
        own, wait = rows.settle(hashed(ids))
        assert not wait.any()
        rows.check(own)
        rows.keep(own)
    assert rows.settle(hashed(np.arange(101)))[1].sum() == (between == 63)


def test_a_client_that_makes_up_copies_has_a_value_by_two_jobs(tmp_path, scaling):
    """Open: docs/explanations/privacy/site-refusals.md says so. A value with two copies counts half
    at each, and the bank has one copy less in the second job.
    """
    federation = Federation(tmp_path)
    site = tmp_path / "bank" / "site.toml"  # the attacker's own
    site.write_text(site.read_text() + "[policy]\nleast_changed = 0\n")
    own = [line.split(",") for line in federation.tables["post"][:15]]
    base, means = federation.tables["bank"], []
    for out, copies in ("first", 10), ("second", 9):
        blank = "," * (COLUMNS - 1)
        made_up = [f"{row[0]}{blank},{'0' * (at < copies)}," for at, row in enumerate(own)]
        federation.tables["bank"] = [*base, *made_up]
        federation.write("bank")
        federation.run(out)
        means.append(scaling["f4"][0])
        notes = json.loads((tmp_path / out / "result.json").read_text())["notes"]
        assert any(f"{copies} train samples have different copies" in one for one in notes)
    told = 2 * len(NAMES) * ROWS * (means[1] - means[0])
    assert told == pytest.approx(float(own[9][COLUMNS]), abs=1e-8)
