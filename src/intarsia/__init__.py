"""Train models across clients whose tables overlap only in part; no row leaves a client.

Begin with two tables that have some customers in common:

    tables = {"bank": bank, "shop": shop}
    result = intarsia.run(tables=tables, id="customer", label="default", loss="logistic")
    print(result)                  # federated beside each alone and all data pooled
    result.model.predict(shop)     # scikit-learn's conventions; a client's own columns will do

or with an experiment file, which `intarsia init bank.csv shop.csv` writes:

    intarsia.inspect("mine.toml")  # who holds what, and which algorithm fits
    intarsia.run("mine.toml")      # writes runs/mine; seed=3 or loss="hinge" set keys of the file
    intarsia.resume("runs/mine")   # goes on after a stop, to the same bits
    intarsia.load("runs/mine")     # the result again, with its model

More of one experiment, and of a finished run:

    intarsia.tune("mine.toml")             # hyperparameters, on held-out samples
    intarsia.contribution("mine.toml")     # what each party is worth to each other
    intarsia.compare([result, other])      # mean and deviation over seeds
    intarsia.predict("runs/mine", "shop.csv")
    intarsia.join("runs/mine", "fifth.csv")  # a client that comes later
    intarsia.export("runs/mine", "onnx")   # the model for use elsewhere

Of the packages `callbacks` tells trackers how a run goes, and `plots` draws. help(intarsia.run) has
all settings. Errors are `UserError` where you can mend it: one sentence says what was wrong, what
was expected, and what to do. Messages go to the logger "intarsia" of Python's logging.

Each name is imported when it is first used, so that the command line answers at once.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.api import Inspection as Inspection
    from intarsia.api import contribution as contribution
    from intarsia.api import inspect as inspect
    from intarsia.api import join as join
    from intarsia.api import resume as resume
    from intarsia.api import run as run
    from intarsia.api import tune as tune
    from intarsia.errors import AbsentError as AbsentError
    from intarsia.errors import AlgorithmError as AlgorithmError
    from intarsia.errors import BusyError as BusyError
    from intarsia.errors import CheckpointError as CheckpointError
    from intarsia.errors import CodecError as CodecError
    from intarsia.errors import ConvergenceError as ConvergenceError
    from intarsia.errors import ExperimentError as ExperimentError
    from intarsia.errors import FederationError as FederationError
    from intarsia.errors import GreetingError as GreetingError
    from intarsia.errors import IntarsiaError as IntarsiaError
    from intarsia.errors import KeyMaterialError as KeyMaterialError
    from intarsia.errors import PendingError as PendingError
    from intarsia.errors import PolicyError as PolicyError
    from intarsia.errors import RangeError as RangeError
    from intarsia.errors import RefusedError as RefusedError
    from intarsia.errors import ReplayError as ReplayError
    from intarsia.errors import SealedError as SealedError
    from intarsia.errors import SiteError as SiteError
    from intarsia.errors import StaleError as StaleError
    from intarsia.errors import TableError as TableError
    from intarsia.errors import TamperedError as TamperedError
    from intarsia.errors import UserError as UserError
    from intarsia.errors import VersionError as VersionError
    from intarsia.errors import WorkerError as WorkerError
    from intarsia.inference.export import export as export
    from intarsia.inference.predict import Predictions as Predictions
    from intarsia.inference.predict import predict as predict
    from intarsia.models.linear import LinearClassifier as LinearClassifier
    from intarsia.models.linear import LinearRegressor as LinearRegressor
    from intarsia.results.comparison import compare as compare
    from intarsia.results.result import Certificate as Certificate
    from intarsia.results.result import Metrics as Metrics
    from intarsia.results.result import Result as Result
    from intarsia.results.result import Score as Score
    from intarsia.training.loop import Progress as Progress
    from intarsia.training.run import load as load
    from intarsia.tuning.study import Tuned as Tuned
    from intarsia.valuation.study import Contribution as Contribution
else:
    from intarsia.core.lazy_names import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)

# who asks for no messages gets none
logging.getLogger("intarsia").addHandler(logging.NullHandler())

__version__ = "0.1.0"
