"""What a run leaves on disk, and how it is read again: checkpoints, history, result, audit.

Read `result` first: what result.json holds. `run_folder` starts and finds a run's folder, `lock`
keeps it to one process, `checkpoint` writes and reads its state, `history` its rounds. `comparison`
puts several results side by side, and `audit` lists what server and clients could read.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.results.audit import Audit as Audit
    from intarsia.results.audit import AuditLine as AuditLine
    from intarsia.results.checkpoint import Checkpoint as Checkpoint
    from intarsia.results.checkpoint import Checkpoints as Checkpoints
    from intarsia.results.comparison import compare as compare
    from intarsia.results.comparison import three_way as three_way
    from intarsia.results.history import Course as Course
    from intarsia.results.history import course_of as course_of
    from intarsia.results.result import Certificate as Certificate
    from intarsia.results.result import Guarantee as Guarantee
    from intarsia.results.result import Metrics as Metrics
    from intarsia.results.result import Result as Result
    from intarsia.results.result import Score as Score
    from intarsia.results.result import mean as mean
    from intarsia.results.result import worst as worst
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
