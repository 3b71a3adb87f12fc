"""Personalised federated learning: each client ends with a network of its own.

Read `fedrep` first; it holds FedRep, FedAvg with fine-tuning, FedProx, HetFedRep and local
training. `custom_networks` trains modules that users bring.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.personalised.custom_networks import OWN_NETWORKS as OWN_NETWORKS
    from intarsia.algorithms.personalised.custom_networks import OwnNetworks as OwnNetworks
    from intarsia.algorithms.personalised.ditto import DITTO as DITTO
    from intarsia.algorithms.personalised.ditto import Ditto as Ditto
    from intarsia.algorithms.personalised.fedhenn import FEDHENN as FEDHENN
    from intarsia.algorithms.personalised.fedhenn import FedHeNN as FedHeNN
    from intarsia.algorithms.personalised.fedrep import FEDAVG_FT as FEDAVG_FT
    from intarsia.algorithms.personalised.fedrep import FEDPROX as FEDPROX
    from intarsia.algorithms.personalised.fedrep import FEDREP as FEDREP
    from intarsia.algorithms.personalised.fedrep import HETFEDREP as HETFEDREP
    from intarsia.algorithms.personalised.fedrep import LOCAL as LOCAL
    from intarsia.algorithms.personalised.fedrep import FedAvgFT as FedAvgFT
    from intarsia.algorithms.personalised.fedrep import FedProx as FedProx
    from intarsia.algorithms.personalised.fedrep import FedRep as FedRep
    from intarsia.algorithms.personalised.fedrep import HetFedRep as HetFedRep
    from intarsia.algorithms.personalised.fedrep import Local as Local
    from intarsia.algorithms.personalised.l2gd import L2GD as L2GD
    from intarsia.algorithms.personalised.l2gd import L2gd as L2gd
    from intarsia.algorithms.personalised.pfedme import PFEDME as PFEDME
    from intarsia.algorithms.personalised.pfedme import PFedMe as PFedMe
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
