"""Count which client owns which data, and recommend an algorithm for it; nothing is trained.

`overlap` counts samples, features, labels and feature blocks. `holdings` is what a run's folder
keeps of it, `tables` shows it, `tails` finds numbers far from the rest. `recommend` chooses an
algorithm. The package `proposals` says what an experiment file may say of tables.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.inspection.holdings import Holdings as Holdings
    from intarsia.inspection.overlap import block_classes as block_classes
    from intarsia.inspection.overlap import class_counts as class_counts
    from intarsia.inspection.overlap import holdings_table as holdings_table
    from intarsia.inspection.overlap import overlap_counts as overlap_counts
    from intarsia.inspection.recommend import Advice as Advice
    from intarsia.inspection.recommend import advise as advise
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
