"""What the threads of a process use in turn: torch's random numbers and switches, and modules."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intarsia.maths.training.torch_import import Tensor, nn, torch

_TURN = threading.RLock()


@contextmanager
def drawing_from(seed: int, device: Any = None) -> Iterator[None]:
    """Let torch draw from the stream of a seed, and go on with its own after that.

    `device` is a torch.device whose stream is lent too.
    """
    on_cuda = device is not None and device.type == "cuda"
    with _TURN, torch.random.fork_rng(devices=[device] if on_cuda else []):
        # not torch.manual_seed: it notes for each accelerator who called, at 20 times the cost
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def unrounded(device: Any) -> Iterator[None]:
    """Let an accelerator convolve in the precision of its numbers, which torch there rounds.

    By default single precision goes into such products with 10 of its 23 bits (TF32).
    """
    if device.type != "cuda":
        yield
        return
    with _TURN:
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before


def applied(module: nn.Module, parameters: Mapping[str, Tensor], *given: Any) -> Any:
    """Return what a module gives with these parameters, which it holds only meanwhile."""
    with _TURN, unrounded(next((one.device for one in parameters.values()), torch.device("cpu"))):
        return torch.func.functional_call(module, dict(parameters), given)
