"""Arrays on disk are those in memory, and work by pieces comes to what work on the whole does."""

import errno
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from intarsia.core import memory
from intarsia.core.block import Copies, taken
from intarsia.errors import ExperimentError

ROWS, COLUMNS = 60, 9


def table(sparse: bool):
    """Return a table of which no two rows or columns are alike."""
    if sparse:
        return csr_array(random_array((ROWS, COLUMNS), density=0.4, rng=0, format="csr"))
    return np.random.default_rng(0).normal(size=(ROWS, COLUMNS))


def whole(x):
    return x.toarray() if isinstance(x, csr_array) else x


@pytest.fixture(autouse=True)
def in_many_pieces(monkeypatch):
    monkeypatch.setattr(memory, "_PIECE", 50)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_and_columns_are_taken_with_a_column_of_ones(sparse, on_disk, tmp_path):
    x = table(sparse)
    given = memory.kept(x, tmp_path) if on_disk else x
    rng = np.random.default_rng(1)
    rows, columns = rng.permutation(ROWS)[:40], rng.permutation(COLUMNS + 1)[:7]
    expected = np.hstack([whole(x), np.ones((ROWS, 1))])[rows][:, columns]
    found = taken(given, rows, columns, ones=True)
    np.testing.assert_array_equal(whole(found), expected)
    order = rng.permutation(COLUMNS)
    every = taken(given, None, order)
    np.testing.assert_array_equal(whole(every), whole(x)[:, order])
    if sparse:  # so that no client function sorts them in place
        assert found.has_sorted_indices
        assert every.has_sorted_indices
        assert given.has_sorted_indices
    assert memory.folder_of(found) == (tmp_path if on_disk else None)
    assert not list(tmp_path.iterdir())  # what lies on the disk has no name


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kinds", [1, 2])
def test_values_are_divided_by_their_holders(kinds, sparse):
    x, rng = table(sparse), np.random.default_rng(2)
    counts = rng.integers(1, 5, (kinds, 3)).astype(np.float64)
    copies = Copies(rng.integers(0, kinds, ROWS), rng.integers(0, 3, COLUMNS), counts)
    expected = whole(x) / counts[copies.rows][:, copies.columns]
    np.testing.assert_array_equal(whole(copies.divide(x)), expected)


def test_a_disk_without_room_is_told_before_it_is_written_to(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ExperimentError, match=r"0\.8 GB .* \(No space left on device\); free disk"):
        memory.new_array((10**6, 100), tmp_path)


def test_free_memory_is_no_more_than_the_limit_of_the_container(monkeypatch, tmp_path):
    limit, used, counted = (tmp_path / name for name in ("max", "current", "stat"))
    limit.write_text("10000000\n")
    used.write_text("5000000\n")
    counted.write_text("anon 4000000\ninactive_file 1000000\n")
    monkeypatch.setattr(memory, "_GROUPS", ((limit, used, counted, "inactive_file"),))
    if (found := memory.free_memory()) is None:
        pytest.skip("this system does not tell")
    assert found == 6_000_000
    limit.write_text("max\n")
    assert memory.free_memory() > 6_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep what they do")
def test_what_is_freed_is_there_for_the_next_arrays():
    # pages that the system had to give, for arrays of 12 MB that are made and freed 50 times
    code = """
import resource, sys
import numpy as np
from intarsia.core.memory import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
pages = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = [np.ones(400_000) for _ in range(4)]
before = pages()
for _ in range(50):
    held = [np.ones(400_000) for _ in range(4)]
    del held
print(pages() - before)
"""
    given = [sys.executable, "-c", code]
    kept, left = (
        int(subprocess.run([*given, way], check=True, capture_output=True, text=True).stdout)
        for way in ("kept", "left")
    )
    assert kept < 10_000 < 50_000 < left


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep what they do")
def test_under_a_limit_of_what_is_mapped_freed_arrays_leave_no_holes():
    # of 100 arrays of 2 MB the last one stays, behind all others
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from intarsia.core.memory import keep_freed
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
keep_freed()
def mapped():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith("VmData:"))
before = mapped()
held = [np.ones(250_000) for _ in range(100)]
del held[:-1]
print(mapped() - before)
"""
    given = [sys.executable, "-c", code]
    limited, free = (
        int(subprocess.run([*given, way], check=True, capture_output=True, text=True).stdout)
        for way in ("limited", "free")
    )
    assert limited < 20_000 < 150_000 < free  # KiB
