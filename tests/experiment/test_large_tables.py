"""Tables that lie on disk, as `[experiment] memory` asks, train to the bits of those in memory."""

import gzip
import os
import resource
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import intarsia
from intarsia.core.memory import folder_of
from intarsia.data import column_roles
from intarsia.errors import ExperimentError, TableError
from intarsia.experiment import config, federation

WIDTH = 24
HEAD = """
[experiment]
name = "large"
rounds = 3
workers = 1
memory = "{memory}"
[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 1e-3
"""
CLIENT = """
[[client]]
name = "{name}"
{place}
id = "id"
"""


def write(folder, rows, width, *, mixed=True, ending="parquet", seed=0):
    """Write the tables of two clients that share rows, and of one with further rows."""
    rng = np.random.default_rng(seed)
    ids, values = rng.permutation(rows), rng.normal(size=(rows, width))
    values[rng.random(values.shape) < 0.01] = np.nan
    columns = {f"n{at}": pa.array(values[:, at], from_pandas=True) for at in range(width)}
    columns["whole"] = pa.array(rng.integers(0, 100, rows))
    if mixed:
        columns["town"] = pa.array([f"t{one}" for one in rng.integers(0, 40, rows)])
        columns["ill"] = pa.array(rng.choice(["yes", "no", None], rows))
    y = pa.array(np.where(np.nan_to_num(values[:, 0]) + rng.normal(size=rows) > 0, "a", "b"))
    names, text = list(columns), HEAD
    half = rows // 2
    for name, held, own, labelled in (
        ("west", slice(0, half), names[::2], True),
        ("east", slice(0, half), names[1::2], False),
        ("south", slice(half, rows), names, True),
    ):
        made = {"id": pa.array(ids), **{one: columns[one] for one in own}}
        made |= {"y": y} if labelled else {}
        table = pa.table({one: column[held] for one, column in made.items()})
        text += _written(table, folder / f"{name}.{ending}") + ('label = "y"\n' if labelled else "")
    return text


def _written(table, path):
    """Write a client's table to a file of the kind that its name says; return its description."""
    client = CLIENT.format(name=path.stem, place=f'path = "{path.name}"')
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=700)
        return client
    if path.suffix != ".sqlite":
        pa.csv.write_csv(table, path)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
        return client
    names = ", ".join(table.column_names)
    with closing(sqlite3.connect(path)) as bank, bank:
        bank.execute(f"create table t ({names})")
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        bank.executemany(f"insert into t values ({', '.join('?' * table.num_columns)})", rows)
    place = f'url = "sqlite:///{path.name}"\nquery = "select * from t"'
    return CLIENT.format(name=path.stem, place=place)


@pytest.fixture(scope="module", params=["parquet", "csv", "csv.gz", "sqlite"])
def described(request, tmp_path_factory):
    """Return the text of an experiment on tables with text, missing values and many levels."""
    folder = tmp_path_factory.mktemp("tables")
    return folder, write(folder, 9000, WIDTH, ending=request.param)


def trained(folder, text, memory):
    file = folder / "run.toml"
    file.write_text(text.format(memory=memory))
    return intarsia.run(file, out=folder / memory, overwrite=True)


@pytest.mark.usefixtures("sparse_tables")
def test_a_run_on_disk_has_the_bits_of_one_in_memory(described):
    folder, text = described
    before = {path.name for path in folder.iterdir()}
    on_disk, in_memory = (trained(folder, text, memory) for memory in ("1MB", "1TB"))
    one, other = (
        (folder / memory / "model" / "linear.json").read_bytes() for memory in ("1MB", "1TB")
    )
    assert one == other
    assert on_disk.certificate == in_memory.certificate
    assert on_disk.metrics == in_memory.metrics  # with reference models
    assert {path.name for path in folder.iterdir()} - before == {"run.toml", "1MB", "1TB"}


def test_states_take_a_sixteenth_of_the_memory_at_most(tmp_path, monkeypatch):
    def most(**given):
        client = {"name": "a", "path": "a.csv", "label": "y"}
        tree = {"experiment": given, "algorithm": {"name": "fedavg"}, "client": [client]}
        return config.from_dict(tree, tmp_path).states_bytes

    assert most(memory="1.6GB") == 100_000_000
    assert most(memory="1.6GB", state_megabytes=50) == 50_000_000
    assert most(memory="1TB") == 1_536_000_000
    for free, expected in ((3_200_000_000, 200_000_000), (None, 1_536_000_000)):
        monkeypatch.setattr(config, "free_memory", lambda free=free: free)
        assert most() == expected


@pytest.mark.usefixtures("sparse_tables")
def test_where_tables_lie_follows_from_the_memory(described):
    folder, text = described
    for memory, where in (("1MB", folder), ("1TB", None)):
        (folder / "where.toml").write_text(text.format(memory=memory))
        built = federation.build(config.load(folder / "where.toml"))
        assert {folder_of(block.x) for block in built.train.values()} == {where}


def test_memory_does_not_grow_with_the_values(tmp_path):
    values, peaks = [], []
    for rows in (8_000, 24_000):
        text = write(tmp_path, rows, 80, mixed=False)
        (tmp_path / "run.toml").write_text(text.format(memory="1MB"))
        described = config.load(tmp_path / "run.toml")
        tracemalloc.start()
        built = federation.build(described)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        values.append(sum(block.x.nbytes for block in built.train.values()))
    # ids, labels and the order of rows are in memory, 80 columns of values are not
    assert peaks[1] - peaks[0] < 0.35 * (values[1] - values[0])


@pytest.mark.slow
def test_a_run_and_a_look_under_a_limit_of_the_system(tmp_path):
    text = write(tmp_path, 150_000, 400, mixed=False)  # 480 MB as numbers of 8 bytes
    (tmp_path / "run.toml").write_text(text.format(memory="1TB"))
    models = []
    for task, memory, limit in (
        ("inspect", "500MB", 500e6),
        ("run", "1GB", 1e9),
        ("run", "1TB", None),
        ("run", "1TB", 1e9),  # what the limit is for: in memory the run ends in one sentence
    ):
        out = tmp_path / f"{memory} {limit}"
        words = [task, "run.toml", "-c", f"experiment.memory={memory}"]
        words += ["--out", str(out), "--no-yardsticks"] if task == "run" else []
        done = subprocess.run(
            [sys.executable, "-m", "intarsia", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            # Arrow's own allocator would claim 1 GiB at once, whatever it needs
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda most=limit: (
                most and resource.setrlimit(resource.RLIMIT_DATA, (int(most), int(most)))
            ),
        )
        if memory == "1TB" and limit:
            assert done.returncode == 2, done.stderr
            assert "error: The memory does not suffice" in done.stderr
            assert "Traceback" not in done.stderr
            continue
        assert done.returncode == 0, done.stderr
        if task == "run":
            models.append((out / "model" / "linear.json").read_bytes())
    assert models[0] == models[1]


def test_an_error_names_the_row_in_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(column_roles, "_BATCH", 10)
    values = np.arange(50.0)
    values[41] = np.inf
    parquet.write_table(
        pa.table({"id": range(50), "a": values, "y": [0, 1] * 25}), tmp_path / "t.parquet"
    )
    text = (
        HEAD.format(memory="1MB")
        + CLIENT.format(name="t", place='path = "t.parquet"')
        + 'label = "y"\n'
    )
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(TableError, match="'a' is inf in row 42"):
        federation.build(config.load(tmp_path / "run.toml"))


@pytest.mark.parametrize("memory", ["4", "lots", "-1GB", "4 gigabytes", "4GB/2", "0GB", "0.0 MB"])
def test_a_size_without_its_unit_or_of_nothing_is_refused(memory, tmp_path):
    text = HEAD.format(memory=memory)
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ExperimentError, match=r'memory is ".*"; expected a size above 0 with its'):
        config.load(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text(text.replace(f'"{memory}"', "4"))
    with pytest.raises(ExperimentError, match=r"memory is 4; expected a size above 0"):
        config.load(tmp_path / "run.toml")


def test_less_memory_than_libraries_take_is_noted(tmp_path):
    (tmp_path / "t.csv").write_text(
        "id,a,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(30))
    )
    text = (
        HEAD.format(memory="1MB")
        + CLIENT.format(name="t", place='path = "t.csv"')
        + 'label = "y"\n'
    )
    (tmp_path / "run.toml").write_text(text)
    notes = federation.build(config.load(tmp_path / "run.toml")).notes
    assert any('memory is "1MB", and libraries alone take about 400 MB' in one for one in notes)
