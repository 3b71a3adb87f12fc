"""Add what clients send: in the clear, or so that the server cannot read it.

Read `plain` first: how contributions are laid out and who opens a total. `secure` does the same
with masks or ciphertexts, and `sealed` is a total in the server's hands.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.engines.sums.plain import PlainTotals as PlainTotals
    from intarsia.engines.sums.plain import Totals as Totals
    from intarsia.engines.sums.secure import SecureTotals as SecureTotals
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
