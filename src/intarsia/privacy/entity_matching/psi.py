"""Private set intersection of two clients' ids, through openmined-psi.

Elliptic-curve Diffie–Hellman with the two keys as commuting ciphers (Meadows 1986; Huberman,
Franklin and Hogg 1999). Each message is a function of the client's ids, its key and what it got:

1. The first client sends `request`: its ids under its own key, in its order.
2. The second sends `setup`: its ids under its own key, sorted; and `response`: the first client's
   entries under both keys, in their order.
3. The first takes its own key off the response and looks the entries up in the setup: `shared`.
4. The first sends `announcement`: the pseudonyms of the shared rows under a key that both clients
   have and the server does not; the second finds its own rows in it: `announced`.

Shared rows then go by these pseudonyms, and each client's other rows by pseudonyms under a key of
its own (`row_names`): a sample that one client has alone still trains its part of the model.

Who learns what
---------------
first client
    How many ids the second has, and which of its own rows the second has too.
second client
    How many ids the first has, and which of its own rows the first says that it has too.
each client
    Nothing else of the other's ids: their pseudonyms are under a key that it does not have, so that
    it cannot test a guess. It may enter ids of people whom it does not have and learn whether the
    other has them; honest clients are assumed (the bank's auditor sees what it entered).
server
    If it forwards the messages: how many ids each client has, and which pseudonymous rows are
    shared. It cannot test a guess (that is the decisional Diffie–Hellman problem in the messages,
    and needs a key in the pseudonyms).

Every message carries a code under the clients' key (HMAC-SHA256), bound to the request: one that
was altered, cut, taken from another exchange or forged by the server is refused.

An id takes 33 bytes and some framing in `request`, `setup` (raw) and `response`. With
`structure="gcs"` the setup is about a sixth of that, and some id of the first client is taken as
shared by mistake with the probability `false_positives` in all; `announced` finds out and refuses.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
from numpy.typing import NDArray
from private_set_intersection import python as library

from intarsia import errors
from intarsia.errors import TableError, TamperedError, first_line
from intarsia.privacy.entity_matching.pseudonyms import KEY_BYTES, WIDTH, pseudonyms, subkey

T = TypeVar("T")
Positions = NDArray[np.intp]
Structure = Literal["raw", "gcs"]

_STRUCTURES = {"raw": library.DataStructure.RAW, "gcs": library.DataStructure.GCS}
_ROWS = "shared rows"
_SEAL = 32  # bytes of HMAC-SHA256


def drawn_key() -> bytes:
    """Return a fresh key of one client; it serves for one intersection and is shown to nobody."""
    return bytes(library.client.CreateWithNewKey(True).GetPrivateKeyBytes())


def request(ids: NDArray[Any], key: bytes, link: bytes) -> bytes:
    """Return the first client's message: its ids under its key.

    `link` is a key that both clients have; it shows that a message is whole and the other client's.

    Raises
    ------
    TableError
        If an id repeats, or the ids are neither text nor whole numbers.
    """
    made = library.client.CreateFromKey(_sound(key), True).CreateRequest(_texts(ids))
    return _sealed("request", made.SerializeToString(), b"", link)


def setup(
    ids: NDArray[Any],
    key: bytes,
    request: bytes,
    link: bytes,
    *,
    structure: Structure = "raw",
    false_positives: float = 1e-9,
) -> bytes:
    """Return the second client's ids under its key.

    Parameters
    ----------
    request
        The first client's message.
    structure
        "raw" (exact) or "gcs" (a Golomb-compressed set, smaller).
    false_positives
        With "gcs": the probability that any id of the first client is taken as shared by mistake.

    Raises
    ------
    ExperimentError
        If the probability is not between 0 and 1, or the structure is another.
    TableError
        If an id repeats, or the ids are neither text nor whole numbers.
    TamperedError
        If the request is not what the first client sent.
    """
    if structure not in _STRUCTURES:
        raise errors.ExperimentError(f"structure is {structure!r}; expected 'raw' or 'gcs'.")
    if not 0 < false_positives < 1:
        raise errors.ExperimentError(
            f"false_positives is {false_positives}; expected a probability between 0 and 1, such "
            "as 1e-9."
        )
    asked = len(_parsed(library.Request, "request", request, b"", link).encrypted_elements)
    made = library.server.CreateFromKey(_sound(key), True).CreateSetupMessage(
        false_positives, max(1, asked), _texts(ids), _STRUCTURES[structure]
    )
    return _sealed("setup", made.SerializeToString(), request, link)


def response(request: bytes, key: bytes, link: bytes) -> bytes:
    """Return the first client's entries under both keys, in their order.

    Raises
    ------
    TamperedError
        If the request is not what the first client sent.
    """
    message = _parsed(library.Request, "request", request, b"", link)
    made = _library(
        lambda: library.server.CreateFromKey(_sound(key), True).ProcessRequest(message), "request"
    )
    return _sealed("response", made.SerializeToString(), request, link)


def shared(
    ids: NDArray[Any], key: bytes, request: bytes, setup: bytes, response: bytes, link: bytes
) -> Positions:
    """Return the positions of the first client's ids that the second has too, ascending.

    Raises
    ------
    TamperedError
        If the messages are not what the second client sent to this request.
    """
    known = _parsed(library.ServerSetup, "setup", setup, request, link)
    entries = _parsed(library.Response, "response", response, request, link)
    if len(entries.encrypted_elements) != len(ids):
        raise TamperedError(
            f"The response has {len(entries.encrypted_elements)} entries for {len(ids)} ids; "
            "expected one for each: exchange the messages again."
        )
    found = _library(
        lambda: library.client.CreateFromKey(_sound(key), True).GetIntersection(known, entries),
        "response",
    )
    return np.sort(np.asarray(found, np.intp))


def announcement(shared_ids: NDArray[Any], request: bytes, link: bytes) -> bytes:
    """Return the pseudonyms of the shared rows under the key that both clients have, sorted."""
    names = np.sort(pseudonyms(shared_ids, subkey(link, _ROWS)))
    return _sealed("announcement", names.tobytes(), request, link)


def announced(ids: NDArray[Any], request: bytes, announcement: bytes, link: bytes) -> Positions:
    """Return the positions of the second client's ids that are announced as shared, ascending.

    Raises
    ------
    TamperedError
        If the announcement is not what the first client sent.
    FederationError
        If it has rows that this client does not have.
    """
    content = _opened("announcement", announcement, request, link)
    rows = np.frombuffer(content, f"S{WIDTH}")
    found = np.flatnonzero(np.isin(pseudonyms(ids, subkey(link, _ROWS)), rows))
    if len(found) != len(rows):
        raise errors.FederationError(
            f"The other client announces {len(rows)} shared rows, of which this client has "
            f"{len(found)}; its table changed, or ids were matched by mistake: exchange the "
            'messages again, with structure = "raw".'
        )
    return found


def row_names(
    ids: NDArray[Any], shared: Positions, link: bytes, own_key: bytes
) -> NDArray[np.bytes_]:
    """Return one client's pseudonyms: of shared rows under `link`, of all others under its key."""
    names = pseudonyms(ids, own_key).copy()
    names[shared] = pseudonyms(ids[shared], subkey(link, _ROWS))
    return names


def shared_rows(
    first: NDArray[Any], second: NDArray[Any], link: bytes
) -> tuple[Positions, Positions]:
    """Return the positions of the shared rows at both clients, all messages in one process."""
    key, other = drawn_key(), drawn_key()
    asked = request(first, key, link)
    found = shared(
        first, key, asked, setup(second, other, asked, link), response(asked, other, link), link
    )
    return found, announced(second, asked, announcement(first[found], asked, link), link)


def _texts(ids: NDArray[Any]) -> list[str]:
    """Return ids as text with their type, so that 7 and "7" never match."""
    if ids.dtype.kind not in "iuU":
        raise TableError(
            f"Ids of type {ids.dtype} cannot be intersected; expected text or whole numbers."
        )
    texts = ids.tolist()
    if len(set(texts)) < len(texts):
        twice, count = Counter(texts).most_common(1)[0]
        raise TableError(
            f"The id {twice!r} is there {count} times; every sample needs one row: aggregate or "
            "drop the repeated rows."
        )
    kind = "text" if ids.dtype.kind == "U" else "number"
    return [f"{kind} {one}" for one in texts]


def _sound(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise errors.KeyMaterialError(
            f"The key for an intersection has {len(key)} bytes; expected {KEY_BYTES}: draw one "
            "with drawn_key."
        )
    return key


def _seal(name: str, content: bytes, request: bytes, link: bytes) -> bytes:
    """Return what only the two clients can make of a message and the request it belongs to."""
    bound = hashlib.sha256(request).digest() + content
    return hmac.digest(subkey(link, f"intersection {name}"), bound, "sha256")


def _sealed(name: str, content: bytes, request: bytes, link: bytes) -> bytes:
    return _seal(name, content, request, link) + bytes(content)


def _opened(name: str, message: bytes, request: bytes, link: bytes) -> bytes:
    content = message[_SEAL:]
    if not hmac.compare_digest(message[:_SEAL], _seal(name, content, request, link)):
        raise TamperedError(
            f"The {name} of {len(message)} bytes is not what the other client sent to this "
            "request: it was altered or cut, belongs to another exchange, or the keys that the "
            "clients share differ; compare their fingerprints and exchange the messages again."
        )
    return content


def _parsed(kind: Callable[[], Any], name: str, message: bytes, request: bytes, link: bytes) -> Any:
    parsed = kind()
    try:
        parsed.ParseFromString(_opened(name, message, request, link))
    except DecodeError:
        raise TamperedError(
            f"The {name} of {len(message)} bytes is the other client's, but no message of this "
            "protocol; both need the same version of openmined-psi."
        ) from None
    return parsed


def _library(work: Callable[[], T], name: str) -> T:
    """Return what the library makes of a message; its errors are about the message."""
    try:
        return work()
    except (RuntimeError, ValueError) as problem:
        raise TamperedError(
            f"The {name} cannot be used ({first_line(problem)}); exchange the messages again."
        ) from None
