"""A view of a database that somebody handed over never ends, and kept Ctrl-C waiting for ever."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

duckdb = pytest.importorskip("duckdb")

ENDLESS = "with recursive n(a) as (select 1 union all select a + 1 from n) select count(*) from n"
PRODUCT = "select count(*) as a from t b, t c, t d, t e, t f, t g, t h where b.a + h.a > 3"
ROWS = "with recursive n(a) as (select 1 union all select a + 1 from n) select a from n"

READ = """
import sys
from intarsia.data.reader import read
from intarsia.data.source import Source
source = Source(name="bank", url=sys.argv[1], query="select * from loans")
print("begun", flush=True)
try:
    read(source)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
@pytest.mark.parametrize("view", [ENDLESS, PRODUCT, ROWS], ids=["endless", "product", "rows"])
def test_a_view_that_never_ends_is_stopped(tmp_path, kind, view):
    path = tmp_path / "bank.db"
    connect = sqlite3.connect if kind == "sqlite" else duckdb.connect
    with contextlib.closing(connect(str(path))) as database:
        database.execute("create table t (a integer)")
        database.execute(f"insert into t values {', '.join(f'({one})' for one in range(500))}")
        database.execute(f"create view loans as {view}")
        database.commit()
    with subprocess.Popen(
        [sys.executable, "-c", READ, f"{kind}:///{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as reading:
        try:
            assert reading.stdout.readline() == "begun\n"
            time.sleep(1.0)  # the view is being read
            reading.send_signal(signal.SIGINT)
            assert reading.communicate(timeout=30)[0] == "stopped\n"
        finally:
            reading.kill()
