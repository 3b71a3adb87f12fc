"""Protect what clients send: secure aggregation, keys, private entity matching, noise.

Read `settings` first: the table [privacy]. `secure_aggregation` has masks and CKKS, `keys` the keys
of pairs of clients and the one that all share, `entity_matching` pseudonyms and private set
intersection. `accounting` says how much noise (ε, δ) needs; the noise itself is drawn in
`protocols.differential_privacy`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.privacy.accounting import minimiser_sensitivity as minimiser_sensitivity
    from intarsia.privacy.accounting import noise_multiplier as noise_multiplier
    from intarsia.privacy.settings import Privacy as Privacy
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
