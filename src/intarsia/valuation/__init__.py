"""What each party of a federation is worth to each other: leave one out, and Shapley values.

`study` has the sequence and the result. `coalitions` trains without some of the parties, `scores`
judges what the models say of each party's test rows, `shapley` computes worth from values.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.valuation.coalitions import Coalition as Coalition
    from intarsia.valuation.shapley import left_out as left_out
    from intarsia.valuation.shapley import shapley_values as shapley_values
    from intarsia.valuation.study import Contribution as Contribution
    from intarsia.valuation.study import Worth as Worth
    from intarsia.valuation.study import contribution as contribution
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
