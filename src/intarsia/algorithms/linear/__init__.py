"""Baselines for linear models: FedAvg and CoCoA.

Read `fedavg` first. `sealed_weights` is what both share: weights that the server cannot read.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.linear.cocoa import COCOA as COCOA
    from intarsia.algorithms.linear.cocoa import CoCoA as CoCoA
    from intarsia.algorithms.linear.fedavg import FEDAVG as FEDAVG
    from intarsia.algorithms.linear.fedavg import FedAvg as FedAvg
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
