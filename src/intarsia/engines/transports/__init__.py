"""Carry bytes to clients elsewhere: one file for each framework.

`flower` and `nvflare` give an `engines.remote.Transport` to sites. Read `flower` first, which is
the shorter one. `ray` gives a simulation the processes of a cluster.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.engines.transports.flower import ContextShelf as ContextShelf
    from intarsia.engines.transports.flower import GridLine as GridLine
    from intarsia.engines.transports.flower import Node as Node
    from intarsia.engines.transports.flower import client_app as client_app
    from intarsia.engines.transports.flower import line_to as line_to
    from intarsia.engines.transports.flower import nodes_of as nodes_of
    from intarsia.engines.transports.kits import provisioned as provisioned
    from intarsia.engines.transports.nvflare import ServerSide as ServerSide
    from intarsia.engines.transports.nvflare import SiteSide as SiteSide
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
