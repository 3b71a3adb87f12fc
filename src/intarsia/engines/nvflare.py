"""The classes that jobs and kits of NVIDIA FLARE name; see `intarsia.engines.transports`."""

from intarsia.engines.transports.nvflare import Arrivals as Arrivals
from intarsia.engines.transports.nvflare import Replaced as Replaced
from intarsia.engines.transports.nvflare import ServerSide as ServerSide
from intarsia.engines.transports.nvflare import SiteSide as SiteSide
