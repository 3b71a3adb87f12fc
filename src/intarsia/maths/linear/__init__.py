"""Linear models on one machine: losses, their conjugates, and dual coordinate ascent.

Read `losses` first: a new loss goes there. `sdca` is the solver on all data, `local_sdca` and
`minibatch_sdca` its steps at one client, and `sgd` descent in the primal. `smoothed_losses` and
`dual_newton_system` belong to Newton's method, `products` and `row_products` multiply blocks.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.maths.linear.losses import CLASSIFICATION as CLASSIFICATION
    from intarsia.maths.linear.losses import LOSSES as LOSSES
    from intarsia.maths.linear.sdca import Fit as Fit
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
