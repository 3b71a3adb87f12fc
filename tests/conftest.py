from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from intarsia.privacy.keys.secret_file import write_private

# A process per core tests at once, and threads beyond them wait for each other. torch and the BLAS
# of numpy read this when they are imported; so do the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Pictures of few pixels are drawn in a third of the time, here and in processes that tests start;
# tests/plots/ draws them as they are.
os.environ["MATPLOTLIBRC"] = str(Path(__file__).parent / "support" / "matplotlibrc")

settings.register_profile("checks", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("checks")

PROJECT = Path(__file__).parents[1]

# Tests that press Ctrl-C need processes that hear it; in the background of a script none would.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep Python's collector from what stays to the end: it would go over all tests each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory) -> Iterator[Path]:
    """The user's state folder, for these tests and the processes that they start: none of theirs.

    Runs of one seed come to the same bits, as they do for one user: here in all sessions.
    """
    folder = tmp_path_factory.mktemp("state")
    (folder / "intarsia").mkdir(mode=0o700)
    write_private(folder / "intarsia" / "secret", "secret of simulations", {}, bytes(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let tests not wait until what they write is on the disk.

    They kill processes and not the machine, so what was written is read all the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)
        yield


# The pictures that a run ends with, and the tests that have them drawn: they look at pictures, or
# have names and labels of any kind in them.
RUN_PICTURES = (
    "client_clusters.structure_picture",
    "score_curves.scores_picture",
)
DRAWN = (
    *("callbacks", "cli", "partition", "plots", "reports"),
    *("test_api.py", "test_outcome.py", "test_predict.py"),
)
BLANK = bytes.fromhex(  # a PNG of one white pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c63f80f0001010100b138f6140000000049454e44ae426082"
)


@pytest.fixture(scope="module", autouse=True)
def blank_pictures(request) -> Iterator[None]:
    """Let runs write blank pictures: of a small run, three quarters of the time is drawing."""
    if not {*DRAWN}.isdisjoint(request.path.parts):
        yield
        return
    import intarsia.api  # noqa: F401 - before: it has the true one by its name
    from intarsia.core.files.atomic_files import write_over

    def write_blank(_: object, path: Path, **settings: object) -> Path:
        write_over(path, BLANK)
        return path

    with pytest.MonkeyPatch.context() as patch:
        for name in RUN_PICTURES:
            patch.setattr(f"intarsia.plots.{name}", write_blank)
        patch.setattr("intarsia.plots.runs.pictures.drawn_holdings", lambda _: BLANK)
        yield


@pytest.fixture
def in_threads(monkeypatch) -> None:
    """Let tables be worked on side by side, however small, and on a machine of one core too."""
    monkeypatch.setattr("intarsia.core.side_by_side._LARGE", 0)
    monkeypatch.setattr("intarsia.experiment.config.cores", lambda: 4)


@pytest.fixture
def sparse_tables(monkeypatch) -> None:
    """Let small tables with a category of many levels be stored as large ones are."""
    monkeypatch.setattr("intarsia.data.encoding._SMALL", 0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of the named data sets: the setting INTARSIA_DATA, else beside the project."""
    folder = Path(os.environ.get("INTARSIA_DATA") or PROJECT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the data sets are not at {folder}; set INTARSIA_DATA")
    return folder


@pytest.fixture(scope="session")
def four(tmp_path_factory):
    """Return a federation over NVIDIA FLARE that is up: starting one takes long."""
    pytest.importorskip("nvflare", reason="nvflare is not installed: intarsia[nvflare]")
    from federation_of_four import Federation

    made = Federation(tmp_path_factory.mktemp("four"))
    made.start_all()
    yield made
    made.stop_all()
