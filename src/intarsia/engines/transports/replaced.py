"""Sites of which a second process has connected, with a copy of their kit, as a server knows them.

The newer one stays. The one before it ends with a status of its own, and is not started again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from intarsia.core.block import ClientId
from intarsia.core.files.atomic_files import write_atomically

STATUS: Final = 75  # exit status of a site's process that a newer one has replaced
_FILE: Final = "local/replaced.json"  # of a server's kit


def note(kit: Path, site: ClientId) -> None:
    """Write down at a server that a site's older process was told to end, if that can be."""
    with contextlib.suppress(OSError):
        known = {one: moment.isoformat() for one, moment in replaced(kit).items()}
        known[site] = datetime.now(UTC).isoformat(timespec="seconds")
        write_atomically(kit / _FILE, json.dumps(known, indent=1).encode())


def replaced(kit: Path) -> Mapping[ClientId, datetime]:
    """Return when a server last told a site's older process to end, by site."""
    try:
        found = json.loads((kit / _FILE).read_bytes())
        return {site: datetime.fromisoformat(moment) for site, moment in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # nothing depends on it
