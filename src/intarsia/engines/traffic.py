"""How much crossed between the server and the clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Traffic"]


@dataclass
class Traffic:
    """Bytes by message type, and exchanges: what a network would have carried."""

    up: dict[str, int] = field(default_factory=dict[str, int])
    down: dict[str, int] = field(default_factory=dict[str, int])
    exchanges: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the totals as they stand in result.json."""
        names = sorted({*self.up, *self.down})
        return {
            "up": sum(self.up.values()),
            "down": sum(self.down.values()),
            "by_message": {
                name: {"up": self.up.get(name, 0), "down": self.down.get(name, 0)} for name in names
            },
        }
