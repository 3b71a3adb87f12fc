"""The keys that clients have and the server never has: made, exchanged and stored.

Read `key_exchange` first: cards, fingerprints, and wrapped keys. `shared_key` is the key of all,
`pair_keys` those of each two clients and of the owners of a cell, `keyring` a client's folder,
`secret_file` a file that its owner alone reads, and `crypto` the ciphers below all of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.privacy.keys.key_exchange import Card as Card
    from intarsia.privacy.keys.key_exchange import Identity as Identity
    from intarsia.privacy.keys.keyring import KeyFolder as KeyFolder
    from intarsia.privacy.keys.shared_key import SharedKey as SharedKey
    from intarsia.privacy.keys.shared_key import fingerprint as fingerprint
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
