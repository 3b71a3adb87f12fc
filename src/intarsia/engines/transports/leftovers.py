"""Let NVIDIA FLARE keep nothing of connections that are gone, nor a count of every message.

Its server keeps an endpoint of every process that ever connected, such as of each job and of each
`intarsia federation status`, and by each of them a histogram of its messages, which nobody reads:
some 10 kB a status and 200 kB a job, for as long as the server runs.
"""

from __future__ import annotations

from typing import Any

from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.stats_pool import HistPool


def keep_none() -> None:
    """Change the library in this process; once."""
    close = ConnManager.close_connection

    def close_and_forget(own: Any, connection: Any) -> None:
        known = own.sfm_conns.get(connection.name)
        close(own, connection)
        end = None if known is None else known.sfm_endpoint
        if end is not None:
            name = end.endpoint.name
            with own.lock:
                if not end.connections and own.sfm_endpoints.get(name) is end:
                    del own.sfm_endpoints[name]

    ConnManager.close_connection = close_and_forget
    HistPool.record_value = _count_nothing


def _count_nothing(pool: Any, category: str, value: float) -> None:
    """Take the place of what counts a message."""
