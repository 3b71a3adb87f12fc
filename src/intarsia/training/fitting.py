"""What an experiment has against its parties, said before anything is computed or replaced."""

from __future__ import annotations

from typing import Any

from intarsia.core.algorithm import Algorithm, RandomKey
from intarsia.core.schema import Schema
from intarsia.data.labels import check_classes
from intarsia.errors import ExperimentError
from intarsia.experiment.config import Experiment, NamedDataset
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.training import privacy_guarantee
from intarsia.training.baselines_part import Baseline

__all__ = ["check_fit", "check_task"]


def check_fit(
    description: Experiment, algorithm: Algorithm | Baseline, options: Any, schema: Schema
) -> None:
    """Refuse parties that the algorithm, its loss or the privacy settings are not for.

    Raises
    ------
    UserError
        With what does not fit.
    """
    check_task(description, schema, options)
    if isinstance(algorithm, Algorithm):
        algorithm.init_server(options, schema, RandomKey((description.seed,)))
        modes.adding(description.privacy, schema.clients)
        modes.check_key(description.privacy)
    privacy_guarantee.check_summands(description, algorithm, options, schema)


def check_task(description: Experiment, schema: Schema, options: Any) -> None:
    """Refuse labels that the loss is not for, and classes that are as many as samples."""
    if not isinstance(description.dataset, NamedDataset):  # whose classes are meant
        check_classes(schema, description.labels)
    if schema.labels.task == "regression" and options.loss not in ("squared", "cross_entropy"):
        raise ExperimentError(
            f"The labels are numbers to predict (regression) but the loss is {options.loss!r}; set "
            'algorithm.loss = "squared", or labels.task for classes.'
        )
