"""What the tests of the command line share: what was said, and the folder of a finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from intarsia.results.result import Certificate, Metrics, Result, Score

__all__ = ["finished", "one_error", "said"]


def said(capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capfd.readouterr()
    return captured.out, captured.err


def one_error(err: str) -> str:
    """Return the sentence of an error; there is one line, and no traceback."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


def finished(
    folder: Path, seed: int, accuracy: float, algorithm: str = "hyfdca", **settings: object
) -> Path:
    folder.mkdir()
    Result(
        algorithm,
        "credit",
        seed,
        10,
        "tolerance",
        {"total": 2.0, "training": 1.0},
        {"up": 1000, "down": 500, "by_message": {}},
        20,
        Certificate(1.0, 1.0 - 1e-7, 1e-7),
        Metrics(
            server=Score(0.5, accuracy),
            clients={"bank": Score(0.5, accuracy)},
            clients_mean=Score(0.5, accuracy),
            centralised=Score(0.4, 0.9),
            standalone={"bank": Score(0.7, 0.6)},
            standalone_mean=Score(0.7, 0.6),
        ),
        {},
        settings,
    ).write(folder)
    return folder
