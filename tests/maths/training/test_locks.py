from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from intarsia.maths.training.locks import (  # noqa: E402 - torch may be missing
    applied,
    drawing_from,
    unrounded,
)


def at_once(work, count=4):
    """Return what each of several threads came to, all started together."""
    found, start = [None] * count, threading.Barrier(count)

    def run(number):
        start.wait()
        found[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_draw_what_each_would_draw_alone():
    def drawn(seed):
        with drawing_from(seed):
            values = []
            for _ in range(5):
                values.append(torch.rand(3))
                time.sleep(0.002)
            return torch.cat(values)

    alone = [drawn(seed) for seed in range(4)]
    for own, together in zip(alone, at_once(drawn), strict=True):
        assert torch.equal(own, together)


def test_the_stream_of_the_process_goes_on_as_if_nothing_was_drawn():
    torch.default_generator.manual_seed(5)
    expected = torch.rand(3)
    torch.default_generator.manual_seed(5)
    with drawing_from(1), drawing_from(2):
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)


def test_threads_apply_one_module_with_parameters_of_their_own():
    class Slow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            time.sleep(0.002)
            return x * self.weight

    module = Slow()

    def product(number):
        parameters = {"weight": torch.full((1,), float(number))}
        return [float(applied(module, parameters, torch.ones(1))) for _ in range(5)]

    assert at_once(product) == [[float(number)] * 5 for number in range(4)]
    assert float(module.weight.detach()) == 0.0


def test_an_accelerator_rounds_for_products_again_once_nobody_trains():
    cuda, rounds = torch.device("cuda"), torch.backends.cudnn
    assert rounds.allow_tf32
    with unrounded(cuda):
        assert not rounds.allow_tf32
        with pytest.raises(ZeroDivisionError), unrounded(cuda):
            raise ZeroDivisionError
        assert not rounds.allow_tf32
    assert rounds.allow_tf32
    with unrounded(torch.device("cpu")):
        assert rounds.allow_tf32
