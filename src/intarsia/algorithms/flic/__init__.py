"""FLIC: clients with different features, aligned through class anchors in a latent space.

Read `algorithm` first: hyperparameters, the round, and where anchors and layers are averaged.
`objective` holds the terms that a client minimises, `initial_anchors` how anchors start,
`barycentre` their Wasserstein average, and `linear` the closed form for linear models.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.flic.algorithm import FLIC as FLIC
    from intarsia.algorithms.flic.hyperparameters import Flic as Flic
    from intarsia.algorithms.flic.linear import FLIC_LINEAR as FLIC_LINEAR
    from intarsia.algorithms.flic.linear import FlicLinear as FlicLinear
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
