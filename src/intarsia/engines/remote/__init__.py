"""The engine whose clients are processes on other machines, over a transport that may fail.

Read `server` first: the engine. `caller` repeats lost calls until a deadline, `server_journal`
keeps answers since a checkpoint, `site` is a client's side and keeps its last answer: a repeated
call gets the same one. `wire` defines calls and answers; `site_entries` says what a site writes
down of each, and `round_count` how it counts rounds.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.engines.remote.caller import RetryPolicy as RetryPolicy
    from intarsia.engines.remote.caller import Transport as Transport
    from intarsia.engines.remote.server import Remote as Remote
    from intarsia.engines.remote.site import Site as Site
    from intarsia.engines.remote.site import StateStore as StateStore
    from intarsia.engines.remote.site import Workplace as Workplace
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
