"""Run a federation over sites on separate machines: server, client processes, startup kits.

Read `run` first: the server's side of a run. `client_setup` is a site's side, from its own table to
the functions that the server may call. `federation_file` makes the kits, `server` queues and
supervises runs, `process` keeps a kit's process alive. `client_folder` and `client_models` are what
stays on disk, and `table_metadata` is what a site says about its table. What a site's owner allows
is in `policy` and `job_requests`; `site_log` reads the log of what left.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.deployment.client_folder import SiteSettings as SiteSettings
    from intarsia.deployment.client_setup import site_in as site_in
    from intarsia.deployment.federation_file import FederationFile as FederationFile
    from intarsia.deployment.process import KitProcess as KitProcess
    from intarsia.deployment.run import resume_over as resume_over
    from intarsia.deployment.run import run_over as run_over
    from intarsia.deployment.server import Jobs as Jobs
    from intarsia.deployment.server import supervise as supervise
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
