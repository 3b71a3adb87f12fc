"""The library `torch`, of the extra `intarsia[torch]`: the one place that imports it."""

from __future__ import annotations

from intarsia.errors import ExperimentError

try:
    import torch as torch
    from torch import Tensor as Tensor
    from torch import nn as nn
    from torch.optim.adam import adam as adam
    from torch.optim.sgd import sgd as sgd
except ModuleNotFoundError as error:
    raise ExperimentError(
        "Gradient training needs the library torch, which is not installed; run "
        'pip install "intarsia[torch]".'
    ) from error
