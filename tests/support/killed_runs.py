"""A run over sites whose server and sites are killed again and again, until it ends."""

from __future__ import annotations

import threading

import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in


class Killed(Exception):  # noqa: N818 - not an error of anybody
    """The server is gone."""


def killed_after(most):
    """Return a line to sites whose server is gone after so many calls."""
    calls = 0

    def line(client, number, data, deliver):
        nonlocal calls
        calls += 1
        if calls > most:
            raise Killed
        return deliver(data)

    return line


def run_killed(found, folder, names, description, out, *, patience, every):
    """Run over the sites in `found`; return the result, and how many servers it took.

    A server is killed after `every` calls, and before it hears of the last answer; each thirteenth
    call finds a site that was killed and started again. Nobody is killed where `every` is 0.
    """
    lock, calls, processes = threading.Lock(), 0, 0

    def line_of(process, limit):
        def line(client, number, data, deliver):
            nonlocal calls
            with lock:
                calls += 1
                here = calls
                if every and here % 13 == 0:
                    found[client] = site_in(folder / client)
            if process < processes or (every and here > limit):
                raise Killed
            answer = found[client].handle(data)
            if every and here == limit:
                raise Killed
            return answer

        return sites.Lines(found, line)

    while True:
        processes += 1
        lines = line_of(processes, calls + every)
        try:
            if processes > 1:
                return remote_running.resume_over(out, lines, patience=patience), processes
            return (
                remote_running.run_over(description, lines, names, out, patience=patience),
                processes,
            )
        except Killed:
            continue
