"""The app of the server: the experiment in credit.toml over the nodes that answer for its clients.

A run whose output folder is there goes on where it was, whatever ended it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from intarsia.deployment import resume_over, run_over
from intarsia.engines.remote import RetryPolicy
from intarsia.engines.transports import line_to, nodes_of
from intarsia.experiment import load

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write the output folder."""
    config = context.run_config
    clients = str(config["clients"]).split()
    out, wait = Path(str(config["out"])), float(config["wait"])
    line = line_to(grid, clients, wait, nodes_of(str(config["nodes"])))
    # An answer that Flower lost is asked for again: a site has it on its disk. Simulated nodes lose
    # none, and would run both.
    again = wait if config["sites"] else min(wait, 120.0)
    patience = RetryPolicy(seconds=again, deadline=wait)
    if (out / "experiment.json").exists():
        result = resume_over(out, line, patience=patience)
    else:
        described = load(Path(__file__).parent / "credit.toml")
        result = run_over(described, line, clients, out, patience=patience)
    logging.getLogger("flwr").info(
        "%d rounds, accuracy %.4f: %s", result.rounds, result.metrics.server.accuracy, out
    )
