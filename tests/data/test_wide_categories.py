"""Levels of a wide category are sparse columns from the table to the kernel, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import intarsia
import sites
from intarsia.core import memory
from intarsia.core.block import Block
from intarsia.data import encoding
from intarsia.data.encoding import MOST_CENTRED, assemble
from intarsia.data.reader import table_from
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.errors import CheckpointError
from intarsia.experiment import config as experiment
from intarsia.experiment.checksums import checksum
from intarsia.experiment.federation import build
from intarsia.inspection.overlap import missing_percent
from intarsia.models.feature_mapping import encode_known
from intarsia.protocols.preprocessing import standardisation
from intarsia.training import run as running
from tests.deployment.test_run import HASTY

pytestmark = pytest.mark.usefixtures("sparse_tables")

LEVELS, ROWS = 60, 400
OWN = {"north": ("a", "b", "colour", "town"), "south": ("b", "c", "town", "job")}


def write_tables(folder, *, gaps=True):
    """Write two clients' tables that share rows and columns, a wide category among them."""
    rng = np.random.default_rng(3)
    columns = {name: np.round(rng.normal(size=ROWS), 3).astype(str) for name in "abc"}
    columns["colour"] = np.array(["red", "blue", "green"])[rng.integers(0, 3, ROWS)]
    for name in ("town", "job"):
        columns[name] = np.char.add("t", rng.integers(0, LEVELS, ROWS).astype(str))
    score = columns["a"].astype(float) + (np.char.str_len(columns["town"]) == 2)
    y = (score + rng.normal(size=ROWS) > 0.2).astype(int)
    if gaps:
        for name in ("b", "colour", "job"):
            columns[name][rng.random(ROWS) < 0.1] = ""
    rows = {"north": np.arange(0, 300), "south": np.arange(150, ROWS)}
    for client, own in OWN.items():
        lines = [",".join(("id", *own, "y"))]
        lines += [
            ",".join((str(i), *(columns[name][i] for name in own), str(y[i]))) for i in rows[client]
        ]
        (folder / f"{client}.csv").write_text("\n".join(lines) + "\n")


def described(folder, name="hyfdca", mode="plain", **options):
    """Return the experiment of both clients."""
    clients = [
        {
            "name": client,
            "path": f"{client}.csv",
            "id": "id",
            "label": "y",
            "categorical": sorted({"town", "job"}.intersection(own)),
        }
        for client, own in OWN.items()
    ]
    tree = {
        "experiment": {"name": "two", "rounds": 60, "tolerance": 1e-13, "yardsticks": True},
        "algorithm": {"name": name, "loss": "logistic", "regularisation": 1e-2, **options},
        "privacy": {"mode": mode},
        "client": clients,
    }
    return experiment.from_dict(tree, folder)


@pytest.fixture
def dense(monkeypatch):
    """Return what lets tables be stored dense from then on."""
    stored = encoding._one_hot

    def begin():
        def whole(*given):
            x = stored(*given)
            assert not isinstance(x, np.ndarray)
            return x.written().toarray()

        monkeypatch.setattr(encoding, "_one_hot", whole)

    return begin


def test_rows_that_are_written_later_are_those_of_the_table(monkeypatch):
    monkeypatch.setattr(memory, "_PIECE", 2**10)  # several pieces
    rng = np.random.default_rng(5)
    columns = {"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)}
    columns["a"][::7] = np.nan
    for name, levels in (("sex", 2), ("town", LEVELS), ("job", LEVELS // 2)):
        codes = rng.integers(0, levels, ROWS)
        columns[name] = np.array([f"l{one}" for one in codes], object)
        columns[name][rng.random(ROWS) < 0.1] = None
    frame = pd.DataFrame({"id": np.arange(ROWS)[::-1], **columns, "y": rng.integers(0, 2, ROWS)})
    wide = ("town", "job")
    order = ["a", "town", "sex", "b", "job"]
    table = table_from(
        frame[["id", *order, "y"]], client="c", id="id", label="y", categorical=("sex", *wide)
    )
    known = encoding.encoding_of({"c": table})
    later = encoding.encode(table, known, later=True)
    # by pandas, column by column: a gap is NaN in columns of few levels, and no level else
    parts = []
    for name in order:
        if name in ("a", "b"):
            parts.append(frame[[name]].to_numpy())
            continue
        levels = frame[name].to_numpy()[:, None] == np.array(known.levels[name], object)
        gaps = np.nan if name == "sex" else 0.0
        parts.append(np.where(frame[name].isna().to_numpy()[:, None], gaps, levels))
    truth = np.hstack(parts)
    taken = rng.permutation(ROWS)[:150]
    columns = rng.permutation(truth.shape[1] + 1)[:-3]
    without = columns[columns < truth.shape[1]]
    with_ones = np.hstack([truth, np.ones((ROWS, 1))])
    for x, expected in (
        (later.x.written(), truth),
        (later.take(taken).x.written(), truth[taken]),
        (later.take(taken, without).x, truth[taken][:, without]),
        (later.take(None, columns, intercept=True).x, with_ones[:, columns]),
    ):
        np.testing.assert_array_equal(x.toarray(), expected)
        x.check_format()
        assert x.has_canonical_format  # as the kernels read them
    whole = encoding.encode(table, known)
    assert isinstance(later.x, encoding.OneHotRows)
    assert isinstance(whole.x, csr_array)
    # rows are in another order than their ids
    assert checksum({"c": later}) == checksum({"c": whole})
    np.testing.assert_array_equal(later.missing(), whole.missing())
    lacking = np.isnan(truth).sum(axis=0)
    for name in wide:
        features = [at for at, one in enumerate(later.features) if one.startswith(f"{name}=")]
        lacking[features] = frame[name].isna().sum()
    np.testing.assert_array_equal(later.missing(), lacking)


@pytest.mark.parametrize(
    ("name", "mode", "near"),
    [
        ("hyfdca", "plain", 1e-10),
        ("hyfdca", "masked", 1e-6),  # sealed numbers are in fixed point, or have noise
        ("hyfdca", "ckks", 1e-6),
        ("fedavg", "plain", 1e-10),
    ],
)
def test_a_model_is_the_same_however_its_tables_are_stored(tmp_path, dense, name, mode, near):
    write_tables(tmp_path)
    # steep enough for levels of few rows, whose weights fixed point would say in fewer digits
    description = described(tmp_path, name, mode, regularisation=0.1)
    assert all(block.sparse for block in build(description).train.values())
    secrets = sites.in_run(OWN)  # Newton's system is turned by fresh secrets otherwise
    sparse = running.run(description, out=None, secrets=secrets)
    dense()
    assert not any(block.sparse for block in build(description).train.values())
    whole = running.run(description, out=None, secrets=secrets)
    np.testing.assert_allclose(sparse.model.means_, whole.model.means_, rtol=0, atol=near)
    np.testing.assert_allclose(sparse.model.coef_, whole.model.coef_, rtol=0, atol=near)
    # comparisons, to gaps of 1e-5 and 1e-4: pooled and alone
    ours, theirs = sparse.metrics, whole.metrics
    assert ours.centralised.accuracy == pytest.approx(theirs.centralised.accuracy, abs=0.02)
    assert ours.standalone.keys() == theirs.standalone.keys() == OWN.keys()
    for client, score in ours.standalone.items():
        assert score.accuracy == pytest.approx(theirs.standalone[client].accuracy, abs=0.02)


@pytest.mark.parametrize("small", [0, 10**6])
def test_sites_store_tables_as_one_process_does(tmp_path, monkeypatch, small):
    monkeypatch.setattr(encoding, "_SMALL", small)
    write_tables(tmp_path)
    assert all(one.sparse != small for one in build(described(tmp_path)).train.values())
    found = {}
    for client, own in OWN.items():
        (tmp_path / client).mkdir()
        (tmp_path / client / "site.toml").write_text(
            f'[site]\nname = "{client}"\nplain = true\nids = true\n[table]\n'
            f'path = "../{client}.csv"\nid = "id"\nlabel = "y"\n'
            f"categorical = {sorted({'town', 'job'}.intersection(own))}\n"
        )
        found[client] = site_in(tmp_path / client)
    description = described(tmp_path)
    over = remote_running.run_over(
        description, sites.Lines(found), tuple(OWN), tmp_path / "sites", patience=HASTY
    )
    secrets = sites.in_run_of(tmp_path / "sites", {name: tmp_path / name for name in found})
    one = running.run(description, out=tmp_path / "one", secrets=secrets)
    assert over.certificate == one.certificate
    np.testing.assert_array_equal(over.model.coef_, one.model.coef_)


def test_a_wide_category_is_scaled_and_every_other_column_is_centred(tmp_path):
    write_tables(tmp_path)
    description = described(tmp_path)
    every = replace(description, split=replace(description.split, test=0.0))
    found = running.run(every, out=None).model
    names = list(found.feature_names_in_)
    means, centres = (dict(zip(names, own, strict=True)) for own in (found.means_, found.centres_))
    wide = [name for name in means if name.startswith(("town=", "job="))]
    assert len(wide) > 2 * MOST_CENTRED
    assert not any(centres[name] for name in wide)
    assert all(centres[name] == means[name] != 0 for name in means if name not in wide)
    # rows without a job have none of the levels in training, and so have new ones
    rows = (tmp_path / "south.csv").read_text().splitlines()[1:]
    jobs = [row.split(",")[4] for row in rows]
    assert "" in jobs
    assert not any(means[name] for name in wide if name.startswith("job="))
    towns = [means[name] for name in wide if name.startswith("town=")]
    assert min(towns) > 0
    assert sum(towns) == pytest.approx(1.0, abs=1e-12)


def two_columns(levels, rows=200):
    """Return a table of a number with a gap and of a category with one."""
    town = [f"t{row % levels}" for row in range(rows)]
    town[1] = None
    number = [None, *np.arange(1.0, rows)]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": number, "town": town, "y": [0, 1] * (rows // 2)})
    return table_from(frame, label="y", categorical=("town",), client="one")


@pytest.mark.parametrize("levels", [3, MOST_CENTRED, MOST_CENTRED + 1, 100])
def test_missing_values_are_counted_however_a_table_is_stored(levels):
    table = two_columns(levels)
    blocks, _ = assemble({"one": table})
    block = blocks["one"]
    assert block.sparse == (levels > MOST_CENTRED)
    assert block.shape == (200, levels + 1)
    assert block.missing().tolist() == [1] * (levels + 1)
    assert block.rows_that_lack().sum() == 2
    gaps = ~block.observed()
    assert gaps.sum(axis=0).tolist() == [1] * (levels + 1)
    np.testing.assert_array_equal(gaps.any(axis=1), block.rows_that_lack())
    np.testing.assert_array_equal(~block.observed(np.array([2, 0])), gaps[:, [2, 0]])
    assert missing_percent(block) == pytest.approx(100 / 200)
    if block.sparse:
        assert block.x.nnz == 2 * 200 - 1
        whole = Block(
            *(block.samples, block.features, block.x.toarray(), block.y),
            indicators=block.indicators,
        )
        assert whole.missing().tolist() == block.missing().tolist()
        assert whole.rows_that_lack().sum() == 2
        part = block.take(np.arange(2), np.arange(levels, -1, -1))
        assert part.missing().tolist() == [1] * (levels + 1)


def test_a_small_table_is_dense_unless_there_are_many_clients(monkeypatch):
    monkeypatch.setattr(encoding, "_SMALL", 200 * 101 * 3)
    table = two_columns(100)
    for clients in (1, 3, 4):
        tables = {f"c{at}": replace(table, client=f"c{at}") for at in range(clients)}
        blocks, _ = assemble(tables)
        assert all(block.sparse == (clients > 3) for block in blocks.values())
        assert all((block.indicators == [0, *[1] * 100]).all() for block in blocks.values())


def test_rare_levels_of_a_wide_category_join_other_as_unknown_ones_do():
    pandas = pytest.importorskip("pandas")
    often = [f"t{at:02d}" for at in range(30) for _ in range(6)]
    texts = [*often, "here once", "here twice", "here twice"]
    frame = pandas.DataFrame({"town": texts, "y": [0, 1] * 90 + [0, 1, 1]})
    settings = {"label": "y", "categorical": ("town",), "least_rows": 5}
    blocks, _ = assemble({"one": table_from(frame, client="one", **settings)})
    block = blocks["one"]
    assert block.sparse
    assert block.features == ("town=other", *(f"town=t{at:02d}" for at in range(30)))
    other = block.x[:, [0]].toarray().ravel()
    assert np.flatnonzero(other).tolist() == [180, 181, 182]

    new = table_from(
        pandas.DataFrame({"town": ["nobody knows", "t07"]}), client="new", categorical=("town",)
    )
    levels = {"town": tuple(name.removeprefix("town=") for name in block.features)}
    x = encode_known(new, levels, "The column ").x.toarray()
    assert [row.nonzero()[0].tolist() for row in x] == [[0], [8]]


@pytest.mark.parametrize("numbers", [1, 60])  # a sparse block, and one that is smaller dense
@pytest.mark.parametrize("standardise", [True, False])
def test_a_level_that_one_client_lacks_counts_as_the_other_has_it(numbers, standardise):
    rng = np.random.default_rng(5)
    rows, of_level = 200, rng.integers(0, 25, 200)
    score = rng.normal(size=25)[of_level] + rng.normal(size=rows)
    bank = pd.DataFrame({"id": range(rows), "town": [f"t{one}" for one in of_level]})
    shop = bank.assign(**{f"x{at}": rng.normal(size=rows) for at in range(numbers)})
    bank["y"] = np.where(score > 0, "yes", "no")

    def trained(bank, shop):
        return intarsia.run(
            tables={"bank": bank, "shop": shop},
            **{"id": "id", "label": "y", "loss": "logistic", "categorical": ["town"]},
            **{"standardise": standardise, "tolerance": 1e-10, "yardsticks": False},
        )

    whole = trained(bank, shop)
    gaps = trained(
        bank.assign(town=bank["town"].mask(bank["id"] % 5 == 0)),
        shop.assign(town=shop["town"].mask(shop["id"] % 7 == 1)),
    )
    both = (bank["id"] % 5 == 0) & (bank["id"] % 7 == 1)
    nobody = trained(*(one.assign(town=one["town"].mask(both)) for one in (bank, shop)))
    assert not any("copies" in note for one in (whole, gaps, nobody) for note in one.notes)
    np.testing.assert_allclose(gaps.model.coef_, nobody.model.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(gaps.model.means_, nobody.model.means_, rtol=1e-12, atol=1e-15)
    assert abs(gaps.model.coef_ - whole.model.coef_).max() > 1e-3


def test_a_level_that_two_clients_have_otherwise_is_told():
    bank = pd.DataFrame({"id": range(50), "town": [f"t{one % 25}" for one in range(50)]})
    shop = bank.assign(town=bank["town"].mask(bank["id"] == 3).where(bank["id"] != 4, "t0"))
    tables = {"bank": bank.assign(y=bank["id"] % 2), "shop": shop}
    run = intarsia.run(
        tables=tables, id="id", label="y", categorical=["town"], test=0.0, yardsticks=False
    )
    assert sum(note.startswith("1 train sample has different copies") for note in run.notes) == 1


def test_a_new_level_counts_as_the_mean_where_training_had_none_of_few_rows():
    rng = np.random.default_rng(1)
    level = rng.integers(0, 25, 600)
    mean = np.exp(3 + rng.normal(size=25)[level] / 2)
    rows = pd.DataFrame({"town": [f"t{one}" for one in level], "y": rng.poisson(mean)})
    rows["x"] = rng.normal(size=600)
    # the bank has one row of t0, which the shop has in many: nothing is left for "other"
    bank = rows[:300][(level[:300] > 0) | (np.arange(300) == np.flatnonzero(level == 0)[0])]
    tables = {"bank": bank, "shop": rows[300:]}
    how = {"label": "y", "loss": "poisson", "task": "regression", "yardsticks": False}
    model = intarsia.run(tables=tables, **how).model
    assert "town=other" not in model.feature_names_in_
    new = pd.DataFrame({"town": ["t99", None], "x": 0.0})
    found = model.predict(new)
    assert found[0] == found[1]
    # as an own level without a weight it was told 4.6
    assert rows["y"].mean() / 1.5 < found[0] < rows["y"].mean() * 1.5
    few = np.repeat(["t98", "t97"], [4, 3])
    fewer = tables | {"bank": bank.assign(town=[*few, *bank["town"][7:]])}
    model = intarsia.run(tables=fewer, test=0.0, **how).model
    assert "town=other" in model.feature_names_in_  # of seven rows
    assert model.predict(new)[0] != model.predict(new)[1]


def test_a_run_that_scaled_rare_levels_otherwise_is_not_gone_on_with(tmp_path, monkeypatch):
    def stop(progress):
        raise KeyboardInterrupt

    write_tables(tmp_path)
    one = replace(described(tmp_path), out=str(tmp_path / "older"))
    with monkeypatch.context() as older:
        older.setattr(standardisation, "RAREST", 0.0)  # each by its own deviation
        with pytest.raises(KeyboardInterrupt):
            running.run(one, progress=stop)
    with pytest.raises(CheckpointError, match="another version of intarsia prepared them"):
        running.resume(tmp_path / "older")
