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


def component(kit: Path, *, server: bool) -> dict[str, Any]:
    """Return the component of a kit's process, as its resources name it."""
    kind = Origins if server else Within
    return {
        "id": "origins",
        "path": f"{__name__}.{kind.__name__}",
        "args": {"own": kits.owner_in(kit, server=server)},
    }


class Within:
    """Ends connections within the machine of another certificate than the kit's own.

    The library lets in all of the federation: where several kits lie on a machine, a process of one
    could else call the site of another as the server.
    """

    def __init__(self, own: str) -> None:  # what the kit's certificate calls its owner
        from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler

        handle = ConnectionHandler.handle

        def handle_own(handler: Any) -> None:
            subject = (handler.request.getpeercert() or {}).get("subject", ())
            names = [one for part in subject for key, one in part if key == "commonName"]
            if names == [own]:
                handle(handler)
            else:
                shown = printable(", ".join(names))[:80]
                _LOG.error("A process with the certificate of %r connected here.", shown)

        ConnectionHandler.handle = handle_own


class Origins:
    """Refuses messages of another origin than their connection's, in the process that has it."""

    def __init__(self, own: str) -> None:  # what the certificate calls the server
        Within(own)
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
