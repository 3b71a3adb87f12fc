"""Compare and match: distributions, points, clusters, and the neurons of networks.

`distribution_distances` has the distances to class anchors; `covariance_roots`, `inverse_roots` and
`learner_operations` serve it. `neuron_matching` matches classifiers; one turn of a client is
`neuron_assignment`, the result `matched_classifiers`. `kmeans` clusters models.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.maths.matching.kmeans import k_means as k_means
    from intarsia.maths.matching.matched_classifiers import Classifier as Classifier
    from intarsia.maths.matching.matched_classifiers import Matching as Matching
    from intarsia.maths.matching.neuron_assignment import BetaBernoulli as BetaBernoulli
    from intarsia.maths.matching.neuron_assignment import Cost as Cost
    from intarsia.maths.matching.neuron_assignment import SquaredDistance as SquaredDistance
    from intarsia.maths.matching.neuron_matching import match as match
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
