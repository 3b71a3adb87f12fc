"""Trained models with scikit-learn's interface, and their files.

Read `linear` or `networks` first. `build` makes a model from the states of an algorithm, a linear
one as `linear_parameters`; `serialization` writes and reads it, `feature_mapping` finds a model's
features in a table, and `coefficients` lists what a linear model says of each.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.models.coefficients import Scorecard as Scorecard
    from intarsia.models.coefficients import Summary as Summary
    from intarsia.models.linear import LinearClassifier as LinearClassifier
    from intarsia.models.linear import LinearRegressor as LinearRegressor
    from intarsia.models.networks import ClientNetwork as ClientNetwork
    from intarsia.models.networks import Networks as Networks
    from intarsia.models.serialization import read_model as read_model
    from intarsia.models.serialization import write_model as write_model
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
