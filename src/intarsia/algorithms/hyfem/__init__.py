"""HyFEM: networks over feature blocks, where clients hold some blocks of some classes.

Read `algorithm` first: the server's round. `client` holds local training, `network` the network
over blocks, `extractors` the part that takes one block to features, and `matching` how classifiers
are matched neuron by neuron.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.hyfem.algorithm import HYFEM as HYFEM
    from intarsia.algorithms.hyfem.hyperparameters import HyFEM as HyFEM
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
