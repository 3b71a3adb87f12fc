"""Train an experiment in one process: set-up, rounds, evaluation, baselines, result.

Read `run` first: the whole sequence. `setup` builds the engine. `loop` chooses the clients of each
round, runs it and decides when to stop. `notes` says what a reader must know of how it ended and of
the scores. `outcome` makes the result and writes it. `baselines` trains on pooled data and at each
client alone, for `yardsticks`, which keeps that beside a finished run. `checks` and
`privacy_guarantee` refuse what an algorithm or the privacy settings do not allow.
`experiment_schema` describes the experiment file to editors; what the keys of algorithms mean
stands in `key_meanings`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.training.baselines import BASELINES as BASELINES
    from intarsia.training.baselines import Baseline as Baseline
    from intarsia.training.loop import Progress as Progress
    from intarsia.training.registry import ALGORITHMS as ALGORITHMS
    from intarsia.training.registry import choose as choose
    from intarsia.training.registry import kind_of as kind_of
    from intarsia.training.run import load as load
    from intarsia.training.run import resume as resume
    from intarsia.training.run import run_at as run_at
    from intarsia.training.yardsticks import YardstickProgress as YardstickProgress
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
