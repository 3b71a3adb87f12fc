"""HyFDCA: linear models over clients that hold different samples and different features.

Read `algorithm` first: it chooses the phase of a round, and certifies. Each phase has a file
for server and clients: `dual_ascent` (the paper's Algorithm 1), `minibatch_ascent`, `dual_newton`,
`partial_participation`; Newton's method in the primal has a package, `newton`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.hyfdca.algorithm import HYFDCA as HYFDCA
    from intarsia.algorithms.hyfdca.state import HyFDCA as HyFDCA
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
