"""Entity alignment: normalise sample ids and put pseudonyms in their place, by `[alignment]`.

plain
    Ids as they are: whoever sees the public index sets sees them.
pseudonyms
    Under a key of all clients: see `privacy.entity_matching.pseudonyms` for who learns what.
psi
    Of two clients: shared rows under a key of both, all others under a key of the client; see
    `privacy.entity_matching.psi` for who learns what.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import ClientId
from intarsia.data.parsing import canonical, date_orders
from intarsia.errors import ExperimentError, several
from intarsia.experiment.config import Alignment
from intarsia.privacy.entity_matching import normalisation
from intarsia.privacy.entity_matching.normalisation import Rule
from intarsia.privacy.entity_matching.pseudonyms import pseudonyms, subkey

Ids = NDArray[Any]

_DECIMAL = re.compile(r"[+-]?[0-9]*[.,]?[0-9]+")
_MOST_IDS, _MOST_COMPARED = 50_000, 12  # of a client, and clients, whose ids are compared
_RULES: tuple[Rule, ...] = ("width", "spaces", "case", "punctuation", "zeros")
_ALIKE = 0.2  # share of the ids of the smaller of two clients


@dataclass(frozen=True, eq=False)
class Names:
    """What stands for each client's samples in everything public; the ids stay with the client."""

    public: Mapping[ClientId, Ids]
    ids: Mapping[ClientId, Ids]  # in the same order

    def take(self, client: ClientId, rows: NDArray[np.intp]) -> Names:
        """Return the names of a client with some of its samples, by position."""
        public, ids = ({**every, client: every[client][rows]} for every in (self.public, self.ids))
        return Names(public, ids)

    def id_of(self, client: ClientId, name: Any) -> Any:
        """Return a client's own id of one of its samples."""
        return self.ids[client][np.flatnonzero(self.public[client] == name)[0]].item()


def normalised(settings: Alignment, ids: Mapping[ClientId, Ids]) -> Mapping[ClientId, Ids]:
    """Return the clients' ids after the declared rules; plain ids without any stay as they are."""
    if settings.ids == "plain" and not settings.normalise:
        return ids
    return normalisation.of_one_type(
        {
            name: normalisation.normalised(own, settings.normalise, f"Client {name!r}")
            for name, own in ids.items()
        }
    )


def same_numbers(own: Ids, others: Ids) -> int:
    """Return how many text ids are others' as numbers, and not as they are written.

    Such as 1.50 and 1.5. 0 where two ids of one table would be one number: they are no numbers.
    """
    return _same_numbers(_as_numbers(own), _as_numbers(others))


def _same_numbers(own: Mapping[str, str], others: Mapping[str, str]) -> int:
    return sum(others.get(number, one) != one for number, one in own.items())


def _as_numbers(ids: Ids) -> dict[str, str]:
    """Return text ids by the number that each is; {}: they are no numbers."""
    texts: list[str] = ids.tolist() if ids.dtype.kind == "U" else []
    written = {one: canonical(one.replace(",", ".")) for one in texts if _DECIMAL.fullmatch(one)}
    found = {number: one for one, number in written.items()}
    return found if len(found) == len(written) else {}


def notes_on_ids(ids: Mapping[ClientId, Ids]) -> tuple[str, ...]:
    """Return notes on clients whose ids are the same but for how they are written.

    Of a few clients with text as ids, and not of very many rows.
    """
    texts = {n: own for n, own in ids.items() if own.dtype.kind == "U" and len(own) <= _MOST_IDS}
    few = {name: texts[name] for name in [*texts][:_MOST_COMPARED]} if len(texts) > 1 else {}
    numbers = {name: _as_numbers(own) for name, own in few.items()}
    written = {name: {*own.tolist()} for name, own in few.items()}
    # what is the same by one of the rules is so by all of them
    bare = {name: {*normalisation.by_rules(own, _RULES).tolist()} for name, own in few.items()}
    told: list[str] = []
    for one, other in combinations(few, 2):
        if rows := _same_numbers(numbers[one], numbers[other]):
            told.append(
                f"{several(rows, 'id')} of {one!r} and {other!r} {'is' if rows == 1 else 'are'} "
                "the same number in two ways, as 1.50 and 1.5 are, and count as different samples; "
                "write them alike in both tables."
            )
            continue
        least = _ALIKE * min(len(written[one]), len(written[other]))
        if written[one] & written[other] or len(bare[one] & bare[other]) < max(least, 1):
            continue
        rules, rows = normalisation.rules_that_match(few[one], few[other], date_orders)
        if rows >= least:
            said = ", ".join(f'"{rule}"' for rule in rules)
            told.append(
                f"{one!r} and {other!r} have no id in common, and {rows} that a rule makes the "
                f"same; if these are the same samples, set normalise = [{said}] in [alignment]."
            )
    return tuple(told)


def public_names(
    settings: Alignment,
    ids: Mapping[ClientId, Ids],
    secret: bytes,
    generated: Collection[ClientId] = (),
) -> Names:
    """Return what stands for the samples of all clients; `generated` are those without ids.

    The clients keep `secret`, of 32 bytes, and the server does not have it. Here it stands for the
    keys of single clients, and for the shared key where the settings name no file.
    """
    if settings.ids == "plain":
        return Names(ids, ids)
    shared_key = key_in_file(settings, "pseudonyms") or subkey(secret, "shared")
    own_keys = {name: subkey(secret, f"rows of {name}") for name in ids}
    if settings.ids == "psi":
        return Names(_intersected(ids, shared_key, own_keys, generated), ids)
    return Names(
        {
            name: pseudonyms(own, own_keys[name] if name in generated else shared_key)
            for name, own in ids.items()
        },
        ids,
    )


def public_groups(
    settings: Alignment, groups: Mapping[ClientId, Ids], secret: bytes
) -> dict[ClientId, Ids]:
    """Return what stands for the values that rows are split by, alike at all clients.

    They never leave a client. Which rows are held out is public, and so it is to say nothing of
    them without the key, where ids are not plain.
    """
    found = {name: normalisation.by_rules(own, settings.normalise) for name, own in groups.items()}
    if settings.ids == "plain" or not found:
        return dict(found)
    key = key_in_file(settings, "split") or subkey(secret, "split")
    return {name: pseudonyms(own, key) for name, own in found.items()}


def key_in_file(settings: Alignment, purpose: str) -> bytes | None:
    """Return what the clients' shared key gives for a purpose; None: the settings name no file."""
    if settings.key is None:
        return None
    from intarsia.privacy.keys.shared_key import SharedKey  # here: it imports cryptography

    return SharedKey.load(Path(settings.key)).derive(purpose)


def _intersected(
    ids: Mapping[ClientId, Ids],
    shared_key: bytes,
    own_keys: Mapping[ClientId, bytes],
    generated: Collection[ClientId],
) -> dict[ClientId, Ids]:
    if len(ids) != 2:
        raise ExperimentError(
            f'[alignment] ids is "psi", which aligns two clients, but there are {len(ids)} '
            'clients; set ids = "pseudonyms".'
        )
    for name in generated:
        raise ExperimentError(
            f'[alignment] ids is "psi" but client {name!r} has no ids to intersect; set id there, '
            'or set ids = "pseudonyms".'
        )
    from intarsia.privacy.entity_matching import psi  # here: the library is optional

    (one, first), (other, second) = ids.items()
    found, announced = psi.shared_rows(first, second, shared_key)
    return {
        one: psi.row_names(first, found, shared_key, own_keys[one]),
        other: psi.row_names(second, announced, shared_key, own_keys[other]),
    }
