from __future__ import annotations

import sys
import threading

import pytest

kit_process = pytest.importorskip("intarsia.kit_process", exc_type=ImportError)


def test_a_process_that_cannot_be_started_is_started_when_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr(kit_process, "_LONGEST", 0.05)
    monkeypatch.setattr(kit_process, "_PAUSE", 0.05)
    (tmp_path / "transfer").write_text("no folder can be made here, as on a full disk")
    told, said = threading.Event(), []

    def report(sentence):
        said.append(sentence)
        told.set()
        raise OSError("what is said goes to the same disk")

    code = "import pathlib, time; pathlib.Path('runs').touch(); time.sleep(60)"
    process = kit_process.KitProcess(tmp_path, [sys.executable, "-c", code], report)
    pause = threading.Event()
    with process.running():
        assert told.wait(10)
        assert not process.stopped()
        (tmp_path / "transfer").unlink()
        for _ in range(400):
            if (tmp_path / "runs").exists():
                break
            pause.wait(0.05)
        assert (tmp_path / "runs").exists()
    assert "could not be kept running ([Errno 17] File exists" in said[0]
