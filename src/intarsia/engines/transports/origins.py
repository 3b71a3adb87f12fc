"""Hold what messages say of where they come from against the certificate of their connection.

Sites send each other messages over the server, and a site answers those alone that say that they
come from the server. NVIDIA FLARE holds that against a token, but not where the site of the token
has registered anew since. So a site could write the server's name, and begin jobs at the others. A
component of ours in the server's process refuses a message of another name than its connection has,
before the server hands it on.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from intarsia.engines.transports import kits
from intarsia.errors import printable

_LOG: Final = logging.getLogger(__name__)


def component(kit: Path) -> dict[str, Any]:
    """Return the component of a server's process, as its resources name it."""
    return {"id": "origins", "path": f"{__name__}.Origins", "args": {"own": kits.server_in(kit)}}


class Origins:
    """Refuses messages of another origin than their connection's, in the process that has it."""

    def __init__(self, own: str) -> None:  # what the certificate calls the server
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
        from nvflare.fuel.f3.cellnet.fqcn import FQCN
        from nvflare.fuel.f3.cellnet.utils import make_reply
        from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
        from nvflare.private.fed.server import fed_server

        validate = fed_server.validate_auth_headers

        def validate_origin(message: Any, **given: Any) -> Any:
            name = message.get_prop(MessagePropKey.COMMON_NAME)
            origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
            # its certificate calls the server by its host; an administrator's cells are numbered
            fits = FQCN.split(origin)[0] == (FQCN.ROOT_SERVER if name == own else name)
            if not (fits or (name == kits.ADMIN and is_valid_admin_client_name(origin))):
                names = printable(str(name)), printable(origin)[:80]
                _LOG.error(
                    "A message of %r says that it comes from %r; see who runs there.", *names
                )
                return make_reply(ReturnCode.UNAUTHENTICATED, error="another origin")
            return validate(message=message, **given)

        fed_server.validate_auth_headers = validate_origin
