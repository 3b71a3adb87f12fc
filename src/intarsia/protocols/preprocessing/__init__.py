"""Before training: labels and copies that agree, values counted once, standardised features.

Read `standardisation` first: what server and clients do in turn. `agreement` compares labels and
copies of values without showing them, `few_values` says which copies a client leaves out before,
`rare_values` which values weights would tell, and `preparation` is what a client keeps, and makes
of its blocks.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.protocols.preprocessing.preparation import Preparation as Preparation
    from intarsia.protocols.preprocessing.preparation import initial as initial
    from intarsia.protocols.preprocessing.preparation import prepared as prepared
    from intarsia.protocols.preprocessing.standardisation import (
        entries_summed as entries_summed,
    )
    from intarsia.protocols.preprocessing.standardisation import prepare as prepare
    from intarsia.protocols.preprocessing.standardisation import sends as sends
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
