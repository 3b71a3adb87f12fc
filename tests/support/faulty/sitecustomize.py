"""Lines over NVIDIA FLARE that lose, repeat and alter, in a process with this folder on its path.

The environment variable FAULTS names the file that says which faults there were.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path


class Spoiler(importlib.abc.MetaPathFinder):
    """Changes the module of the transport when it is imported."""

    def find_spec(self, name, path, target=None):
        if name != "intarsia.engines.transports.nvflare":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def spoiled(module):
            run(module)
            spoil(module)

        spec.loader.exec_module = spoiled
        return spec


def spoil(module):
    """Let what a server sends meet with each of the faults in turn."""
    sys.path.append(str(Path(__file__).parents[1]))
    import sites

    send, fault, attempts = module.Lines.send, sites.Unreliable(), {}

    def faulty(self, client, data, seconds):
        attempts[client] = attempts.get(client, 0) + 1

        def deliver(one):
            return send(self, client, one, seconds)

        try:
            return fault(client, attempts[client], data, deliver)
        finally:
            Path(os.environ["FAULTS"]).write_text(" ".join(map(str, sorted(fault.seen))))

    module.Lines.send = faulty


sys.meta_path.insert(0, Spoiler())
