"""Look for hyperparameters: trials on held-out samples, and the choice among them.

`study` runs the trials and keeps them; `choice` picks one where there are several objectives.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.tuning.choice import chosen as chosen
    from intarsia.tuning.choice import grey_relational as grey_relational
    from intarsia.tuning.study import Trial as Trial
    from intarsia.tuning.study import Tuned as Tuned
    from intarsia.tuning.study import tune as tune
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
