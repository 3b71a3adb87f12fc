"""Execute client functions, and decide what the server can read: one interface, several engines.

Read `simulation` first: all clients in one process. `remote` does the same with clients on other
machines, and `transports` carries its bytes. `sums` adds what clients send. `codec` turns messages
into bytes; `communication_log` counts them, and `transcript` is the server's view of a run.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.engines.simulation import Simulation as Simulation
    from intarsia.engines.transcript import Recorder as Recorder
    from intarsia.engines.transcript import Transcript as Transcript
    from intarsia.engines.transcript import read_transcript as read_transcript
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
