"""The library `torch`, of the extra `intarsia[torch]`: the one place that imports it."""

from __future__ import annotations

from intarsia.errors import ExperimentError

try:
    import torch
    from torch import Tensor, nn
    from torch.func import functional_call, grad_and_value, vmap
    from torch.optim.adam import adam
    from torch.optim.sgd import sgd
except ModuleNotFoundError as error:
    raise ExperimentError(
        "Gradient training needs the library torch, which is not installed; run "
        'pip install "intarsia[torch]".'
    ) from error

__all__ = ["Tensor", "adam", "functional_call", "grad_and_value", "nn", "sgd", "torch", "vmap"]
