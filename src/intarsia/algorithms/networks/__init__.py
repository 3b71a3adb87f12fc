"""What the algorithms on neural networks share; no algorithm by itself.

Read `client_network` first: a client's embedding, hidden layer and classifier, and their training.
`parameter_sharing` holds the steps of a round that averages parameters, `architecture` what a
network is built of, `user_modules` whole networks that a user brings, and `named_modules` how what
users name is found.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.networks.architecture import Architecture as Architecture
    from intarsia.algorithms.networks.options import NetworkOptions as NetworkOptions
    from intarsia.algorithms.networks.user_modules import Named as Named
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
