"""Call the command line in a process that a signal meets at a place of the run, not at a time.

python stopped_run.py SIGNAL OUT ROUNDS STEPS ARGUMENT...

The process sends itself the signal when it has written so many rounds to the history in the folder
OUT, and then opened, made, renamed or removed so many files there. What lies in the folder changes
at these steps alone: a run that is killed between two of them leaves what the first of them left.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from intarsia.cli.main import main

_STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def stop_at(number: int, out: Path, rounds: int, steps: int) -> None:
    """Send this process a signal so many steps after so many rounds."""
    left, begun = {"rounds": rounds, "steps": steps}, out / "experiment.json"

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event not in _STEPS or not isinstance(given[0], str | Path) or left["steps"] < 0:
            return
        path = Path(given[0])
        if not path.is_relative_to(out) or (left["rounds"] == rounds and not begun.exists()):
            return
        if left["rounds"]:
            left["rounds"] -= event == "open" and path.name == "history.jsonl" and "a" in given[1]
            return
        left["steps"] -= 1
        if left["steps"] < 0:
            os.kill(os.getpid(), number)

    sys.addaudithook(watch)


if __name__ == "__main__":
    how, out, rounds, steps, *arguments = sys.argv[1:]
    stop_at(signal.Signals[how], Path(out), int(rounds), int(steps))
    sys.exit(main(arguments))
