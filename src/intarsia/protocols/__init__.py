"""Federated steps that runs of every algorithm share, in the algorithm vocabulary.

`preprocessing` comes before training: deduplicated values, standardised features, an intercept.
`evaluation` scores models on test samples, `early_stopping` keeps what a run had after its best
round, `inference` scores new samples, and `differential_privacy` clips rows and draws noise, which
`certified_release` adds to a model near the optimum. `certificate` bounds how far a linear model is
from it, where sums are rounded.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.protocols.evaluation import Evaluation as Evaluation
    from intarsia.protocols.evaluation import evaluate as evaluate
    from intarsia.protocols.evaluation import evaluate_own as evaluate_own
    from intarsia.protocols.evaluation import evaluate_server as evaluate_server
    from intarsia.protocols.preprocessing.preparation import Preparation as Preparation
    from intarsia.protocols.preprocessing.standardisation import prepare as prepare
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
