"""Sites in this process and in folders, lines to them with faults, and what they came to."""

from __future__ import annotations

import json
import threading

from federations import secret_of
from intarsia.deployment import client_folder
from intarsia.engines import codec
from intarsia.testing.toy_sites import (  # noqa: F401  # tests have them from here, too
    HASTY,
    RUN,
    Desk,
    Federation,
    Lines,
    Memory,
    begun,
    federation,
    without_keys,
)


def in_run(names, run=RUN, secret_of=secret_of):
    """Return what the sites have of their secrets in a run, for the same run in one process."""
    return {name: secret_of(name).fold_in("run", run) for name in names}


def in_run_of(out, folders):
    """Return the same for sites in folders, and the run over them in an output folder."""
    run = json.loads((out / "run.id").read_text())["run"]
    return in_run(folders, run, lambda name: client_folder.secret_of(folders[name]))


class Unreliable:
    """Each of several faults, one after the other."""

    def __init__(self, every=3):
        self.every, self.before, self.seen = every, {}, set()
        self._lock = threading.Lock()

    def __call__(self, client, number, data, deliver):
        turn, kind = divmod(number, self.every)
        if kind or not data:
            return deliver(data)
        with self._lock:
            self.seen.add(turn % 6)
        match turn % 6:
            case 0:  # lost on the way there
                raise TimeoutError
            case 1:  # lost on the way back
                deliver(data)
                raise ConnectionResetError
            case 2:  # twice
                assert deliver(data) == deliver(data)
                return deliver(data)
            case 3:  # altered on the way there
                return deliver(data[:-1] + bytes([data[-1] ^ 1]))
            case 4:  # altered on the way back
                answer = deliver(data)
                return answer[:20] + bytes([answer[20] ^ 1]) + answer[21:]
            case _:  # an old call comes again, and its answer instead of the new one
                answer = deliver(self.before.get(client, data))
                self.before[client] = data
                return answer


def same_states(one, two):
    """Check that two clients' states are equal to the bit."""
    assert one.keys() == two.keys()
    for name in one:
        assert codec.encode(one[name]) == codec.encode(two[name]), name
