"""A site that writes that the server sent its messages, in processes with this folder on the path.

It registers twice, and so has a token that the server signed and has no site for any more. With
that it hands on what the server asks of it to the others, as a run of another name, and writes the
server's cell as the origin. The environment variable HEARD names a folder for the token.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

CALLS = 6  # of the server that are handed on
TOKEN = Path(os.environ["HEARD"]) / "token.json"


class Actor(importlib.abc.MetaPathFinder):
    """Changes modules when they are imported."""

    def find_spec(self, name, path, target=None):
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def changed(module):
            run(module)
            change(module)

        spec.loader.exec_module = changed
        return spec


def register_twice(module):
    """Keep the token of a first registration, which the second one makes void."""
    once = module.Authenticator.authenticate

    def twice(self, *given):
        token, signature, *_ = once(self, *given)
        TOKEN.write_text(json.dumps([token, signature]))
        return once(self, *given)

    module.Authenticator.authenticate = twice


def write_origin(module):
    """Write the server's cell into calls as where they come from."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
    from nvflare.private.defs import CellMessageHeaderKeys

    send = module.CoreCell._send_to_endpoint

    def forged(self, to_endpoint, message):
        own = (
            message.get_header(MessageHeaderKey.CHANNEL),
            message.get_header(MessageHeaderKey.MSG_TYPE),
        )
        if own == ("intarsia", MessageType.REQ):
            token, signature = json.loads(TOKEN.read_text())
            job = self.my_info.fqcn.rpartition(".")[2]
            message.set_header(MessageHeaderKey.ORIGIN, f"server.{job}")
            message.set_header(CellMessageHeaderKeys.TOKEN, token)
            message.set_header(CellMessageHeaderKeys.TOKEN_SIGNATURE, signature)
        return send(self, to_endpoint, message)

    module.CoreCell._send_to_endpoint = forged


def act(module):
    """Let each call of the server to this site be one to the others."""
    from intarsia.engines import codec
    from intarsia.engines.remote.wire import Call

    begin, answer = module.SiteSide.begin, module.SiteSide._answer
    others = []

    def beginning(self):
        others.extend(module.collab.other_clients)
        begin(self)

    def acting(self, folder, data):
        if data and codec.decode(data, Call).sequence <= CALLS:
            own = codec.encode(replace(codec.decode(data, Call), run="ab" * 8))
            for proxy in others:
                (TOKEN.parent / "called.json").write_text(json.dumps(proxy.name))
                try:  # what they answer goes to the server
                    module._sent_in_one(proxy.name, proxy.backend, own, 2.0)
                except Exception as problem:
                    sys.stderr.write(f"{problem}\n")
        return answer(self, folder, data)

    beginning.__dict__.update(begin.__dict__)  # what lets it be called
    module.SiteSide.begin, module.SiteSide._answer = beginning, acting


CHANGES = {
    "nvflare.private.fed.authenticator": register_twice,
    "nvflare.fuel.f3.cellnet.core_cell": write_origin,
    "intarsia.engines.transports.nvflare": act,
}
sys.meta_path.insert(0, Actor())
