"""The app of a node: the site whose folder is on the node's own disk.

Where nodes run for real, each is started with its folder (`--node-config 'folder="…"'`), and the
server names no path. Where they are simulated, `sites` in the run's configuration is the folder of
all their folders, and a node takes the one of its number.
"""

from __future__ import annotations

import logging
from pathlib import Path

from intarsia.deployment import site_in
from intarsia.engines.remote import Site
from intarsia.engines.transports import Node, client_app


def site(node: Node) -> Site:
    """Return the site in the node's folder; what goes wrong is in the site's own log."""
    config = node.context.node_config
    if "folder" in config:
        own = Path(str(config["folder"]))
    else:
        every = Path(str(node.context.run_config["sites"])).glob("*/site.toml")
        own = sorted(every)[int(config["partition-id"])].parent
    return site_in(own, lambda error: logging.getLogger(__name__).error("%s", error))


app = client_app(site)
