"""FeMAM, and FeSEM and IFCA beside it: clients that form clusters, found while training.

Read `algorithm` first: the server's round over the levels. `client` holds what clients do,
`clustering` how clusters are found, `validation` which levels stay and their temperature scaling.
`class_priors` is the level "shares", `fesem` holds FeSEM and IFCA, and `femam_flic` puts the
levels over FLIC.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.algorithms.femam.algorithm import FEMAM as FEMAM
    from intarsia.algorithms.femam.femam_flic import FEMAM_FLIC as FEMAM_FLIC
    from intarsia.algorithms.femam.femam_flic import FeMAMFlic as FeMAMFlic
    from intarsia.algorithms.femam.fesem import FESEM as FESEM
    from intarsia.algorithms.femam.fesem import IFCA as IFCA
    from intarsia.algorithms.femam.fesem import FeSEM as FeSEM
    from intarsia.algorithms.femam.fesem import Ifca as Ifca
    from intarsia.algorithms.femam.hyperparameters import FeMAM as FeMAM
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
