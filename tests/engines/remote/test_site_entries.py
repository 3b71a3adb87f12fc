"""What an entry of a site's log says of a field is what became of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from intarsia.core.client_functions import Layout
from intarsia.engines.remote import site_entries
from intarsia.engines.sums.sealed import SealedField, SealedTotal
from intarsia.privacy.secure_aggregation.ckks_ciphertexts import Ciphertexts
from intarsia.training.registry import ALGORITHMS

SENDS = {one.function.name: one for one in ALGORITHMS["hyfdca"].disclosure.sends}


def left(mode, **contents):
    """Return the entries of a reply whose fields left as pieces with these contents."""
    one = SENDS["mask_rows"]
    names = [*one.reply.__dataclass_fields__]
    fields = {}
    for name in names:
        cells = SimpleNamespace(pieces={1: SimpleNamespace(content=contents.get(name))})
        layout = Layout.COUNTS if name == "counts" else Layout.SELECTED
        total = SimpleNamespace(terms=((1.0, cells),))
        fields[name] = SealedField(total, layout, "train", f"{one.reply.__name__}.{name}")
    reply = SimpleNamespace(**{name: contents.get(name) for name in names})
    found = site_entries.of_sealed(one, reply, SealedTotal(one.reply, fields), mode)
    return {entry["field"].split(".")[1]: entry["protection"] for entry in found}


def test_ciphertexts_and_masks_are_told_apart_in_the_mode_of_ciphertexts():
    words, ciphertexts = np.zeros(3, np.uint64), Ciphertexts(())
    assert left("ckks", first=ciphertexts, second=words) == {"first": "ckks", "second": "masked"}
    assert left("masked", first=words) == {"first": "masked"}


def test_counts_are_in_the_clear_and_what_was_not_sent_is_not_there():
    found = left("masked", counts=np.zeros(2))
    assert found == {"counts": "none: the server needs them to add"}
