"""Train networks by gradients: one client in a plain loop, or many clients vectorised.

Read `local_training` first: the record that says what trains, and the plain loop. `vectorised`
trains many such records in one batched step, with `stacked_learners` below it. `optimisers` has the
optimisers, `layers` what several networks are built of.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.maths.training.local_training import Learner as Learner
    from intarsia.maths.training.local_training import LocalTraining as LocalTraining
    from intarsia.maths.training.local_training import Trained as Trained
    from intarsia.maths.training.local_training import train_alone as train_alone
    from intarsia.maths.training.optimisers import SGD as SGD
    from intarsia.maths.training.optimisers import Adam as Adam
    from intarsia.maths.training.vectorised import UnbatchableWarning as UnbatchableWarning
    from intarsia.maths.training.vectorised import train as train
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
