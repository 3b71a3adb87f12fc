"""Draw synthetic data sets from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ExperimentError


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn."""

    x: NDArray[np.float64]  # (samples, features)
    y: NDArray[np.int64]  # (samples,)
    test: NDArray[np.bool_]  # (samples,)


def gaussians(
    *,
    seed: int = 0,
    classes: int = 20,
    features: int = 5,
    deviation: float = 0.8,
    train_samples: int = 2000,
    test_samples: int = 1000,
) -> Drawn:
    """Draw classes that are Gaussian with identity covariance around random means.

    Parameters
    ----------
    seed
        Of all that is drawn.
    classes, features
        How many.
    deviation
        Standard deviation of each entry of the means.
    train_samples, test_samples
        Of each class; no test samples: no test part.

    Notes
    -----
    The toy problems of Rakotomamonjy et al. (2024), section S3.1.1, before the features are
    dealt: deviation 0.8 in "noisy features", 0.5 in "linear mapping".

    Raises
    ------
    ExperimentError
        If a number is out of range.
    """
    for key, value, least in (
        ("seed", seed, 0),
        ("classes", classes, 2),
        ("features", features, 1),
        ("train_samples", train_samples, 1),
        ("test_samples", test_samples, 0),
    ):
        _check_whole(key, value, least)
    if isinstance(deviation, bool) or not isinstance(deviation, (int, float)) or not deviation >= 0:
        raise ExperimentError(
            f"The data set 'gaussians' has deviation = {deviation!r}; expected a number of at "
            "least 0, for example 0.8."
        )
    # a stream each, so that the train part does not depend on the size of the test part
    means, train, test = (np.random.default_rng([seed, stream]) for stream in range(3))
    centres = deviation * means.normal(size=(classes, features))
    parts = [
        (np.repeat(np.arange(classes), count), stream)
        for count, stream in ((train_samples, train), (test_samples, test))
    ]
    x = [centres[y] + stream.normal(size=(len(y), features)) for y, stream in parts]
    return Drawn(
        np.concatenate(x),
        np.concatenate([y for y, _ in parts]),
        np.repeat([False, True], [len(y) for y, _ in parts]),
    )


def _check_whole(key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ExperimentError(
            f"The data set 'gaussians' has {key} = {value!r}; expected a whole number of at least "
            f"{least}."
        )
