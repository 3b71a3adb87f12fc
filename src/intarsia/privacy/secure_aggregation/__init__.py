"""Secure aggregation: sums that the server computes and cannot read, by masks or by CKKS.

Read `protocol` first: what every mode provides to clients and server. `masking` and `ckks` are the
modes, `pairwise` the masks that cancel between pairs, also over ciphertexts (`ckks_masks`),
`fixed_point` how numbers become integers, `ckks_parameters` how large a ciphertext is, and `setup`
gives each client its part of a mode.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.privacy.secure_aggregation.ckks_parameters import CkksParameters as CkksParameters
    from intarsia.privacy.secure_aggregation.protocol import Aggregator as Aggregator
    from intarsia.privacy.secure_aggregation.protocol import Piece as Piece
    from intarsia.privacy.secure_aggregation.protocol import Sealer as Sealer
    from intarsia.privacy.secure_aggregation.protocol import Sealing as Sealing
    from intarsia.privacy.secure_aggregation.protocol import Stream as Stream
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
