"""What a site writes down of each call: what was asked, what left, what was opened.

An entry has names, places, numbers of bytes and digests, and no value of the site's table: its
owner may show it to others. Digests are of sealed pieces, which every owner of a cell gets alike.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from intarsia.core.client_functions import Layout
from intarsia.core.disclosure import Sends, contents
from intarsia.engines import codec
from intarsia.engines.remote import wire
from intarsia.engines.remote.declared import Declared
from intarsia.engines.remote.wire import Call
from intarsia.engines.sums.sealed import SealedTotal, layouts
from intarsia.engines.sums.secure import CombinationRecord

Entry = dict[str, Any]


def of_call(call: Call, data: bytes) -> Entry:
    """Return what tells a call: of a run, by its number there."""
    return {
        "run": call.run,
        "exchange": call.sequence,
        "round": call.round,
        "kind": call.kind,
        "function": call.function,
        "part": call.part,
        "asked": sorted(call.asked),
        "digest": hashlib.blake2b(data, digest_size=16).hexdigest(),
    }


def of_refusal(call: Call, data: bytes, error: Exception) -> Entry:
    """Return the entry of a call that was refused: with what is said of it outside."""
    name, sentence = wire.sentence_of(error)
    return {"event": "refused", **of_call(call, data), "error": name, "sentence": sentence}


def of_reply(one: Sends, reply: Any, protection: str) -> list[Entry]:
    """Return the fields of a reply that the server can read; `protection` says why it can."""
    return [
        _left(one, name, protection) for name, value in vars(reply).items() if value is not None
    ]


def of_sealed(one: Sends, reply: Any, total: SealedTotal, mode: str) -> list[Entry]:
    """Return the fields of a reply that left sealed, and its counts, which the server reads.

    Words under masks are arrays, ciphertexts are not; short arrays are under masks in each mode.
    """
    found: list[Entry] = []
    for name, own in total.by_field.items():
        if getattr(reply, name) is None:
            continue
        if own.layout is Layout.COUNTS:
            found.append(_left(one, name, "none: the server needs them to add"))
            continue
        pieces = [piece for _, cells in own.content.terms for piece in cells.pieces.values()]
        ciphered = mode == "ckks" and any(
            not isinstance(piece.content, np.ndarray) for piece in pieces
        )
        opened = "server" if name in one.reveals else "owners" if name in one.opens else "nobody"
        protection = "ckks" if ciphered else "masked"
        found.append({**_left(one, name, protection), "total opened by": opened})
    return found


def _left(one: Sends, field: str, protection: str) -> Entry:
    """Return the entry of a field that left to the server."""
    layout = dict(layouts(one.reply))[field]
    found: Entry = {"field": f"{one.reply.__name__}.{field}", "to": "server"}
    found |= {"layout": "entry" if layout is None else layout.value, "protection": protection}
    found |= {"contents": contents(one.reply).get(field, "")}
    return {**found, "noise": True} if one.function.releases else found


def of_total(record: CombinationRecord, declared: Declared) -> list[Entry]:
    """Return what a sealed total is made of: exchanges, contributors and a digest by cell."""
    return [
        {
            "exchange": name[1],
            "total": f"{name[2]}.{name[3]}",
            "contents": declared.words_of(name[2], name[3]),
            "factor": weight,
            "cells": {
                str(piece.numbers[2]): {
                    "by": list(piece.contributors),
                    "digest": hashlib.blake2b(codec.encode(piece), digest_size=16).hexdigest(),
                }
                for piece in cells
            },
        }
        for weight, name, cells in zip(record.weights, record.names, record.cells, strict=True)
    ]
