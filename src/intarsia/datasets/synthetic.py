"""Draw synthetic data sets from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from intarsia.core.settings import Count, CountOrZero, NotNegative, check_ranges
from intarsia.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Gaussians:
    """Classes that are Gaussian with identity covariance around random means.

    The toy problems of Rakotomamonjy et al. (2024), section S3.1.1, before the features are dealt:
    deviation 0.8 in "noisy features", 0.5 in "linear mapping".
    """

    seed: CountOrZero = 0  # of all that is drawn
    classes: Annotated[int, Ge(2)] = 20
    features: Count = 5
    deviation: NotNegative = 0.8  # standard deviation of each entry of the means
    train_samples: Count = 2000  # of each class
    test_samples: CountOrZero = 1000  # of each class; 0: no test part

    def __post_init__(self) -> None:
        check_ranges(self, "The data set 'gaussians': ")

    def draw(self) -> Dataset:
        """Draw the samples."""
        # a stream each, so that the train part does not depend on the size of the test part
        means, train, test = (np.random.default_rng([self.seed, stream]) for stream in range(3))
        centres = self.deviation * means.normal(size=(self.classes, self.features))
        parts = [
            (np.repeat(np.arange(self.classes), count), stream)
            for count, stream in ((self.train_samples, train), (self.test_samples, test))
        ]
        x = [centres[y] + stream.normal(size=(len(y), self.features)) for y, stream in parts]
        counts = [len(y) for y, _ in parts]
        return Dataset(
            "gaussians",
            np.arange(sum(counts), dtype=np.int64),
            tuple(f"x{number}" for number in range(self.features)),
            np.concatenate(x),
            np.concatenate([y for y, _ in parts]),
            test=np.repeat([False, True], counts) if self.test_samples else None,
        )
