"""Train an algorithm on a small federation, once or over and over, within a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from intarsia.core.algorithm import Algorithm, FinalResult, RoundMetrics
from intarsia.core.block import Array, Block, ClientId
from intarsia.core.schema import Schema
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.release_ledger import ReleaseLedger
from intarsia.engines.simulation import Simulation
from intarsia.errors import first_line
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.testing import toy_sites
from intarsia.testing.toy_federations import ToyFederation, initialise, secrets_of
from intarsia.testing.watched_clients import Between, EndlessError, Listening

AGAIN: Final = 1.0  # seconds after which what did not end is told again
_RAISED: Final = 10  # times that it is told
SEED: Final = 0


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    conclusion: FinalResult
    infos: tuple[RoundMetrics, ...]
    engine: Simulation
    clients: Between

    def bits(self) -> dict[str, bytes]:
        """Return all of it as bytes, by what it is."""
        states = {f"the state of {n}": one for n, one in self.engine.get_states().items()}
        found = {"the result": self.conclusion, "the metrics of rounds": self.infos, **states}
        found["the traffic"] = dataclasses.asdict(self.engine.books.traffic)
        return {name: codec.encode(one) for name, one in found.items()}


class Trial:
    """An algorithm on a federation.

    Parameters
    ----------
    options
        Its hyperparameters.
    """

    def __init__(self, algorithm: Algorithm, options: Any, federation: ToyFederation) -> None:
        self.algorithm, self.options, self.federation = algorithm, options, federation
        self.schema = Schema.of(federation.blocks, federation.labels)

    @cached_property
    def plain(self) -> Trained:
        """Return the training with clients that listen alone, done once."""
        return self.trained(Listening)

    def engine(
        self,
        blocks: Mapping[ClientId, Block] | None = None,
        ledger: ReleaseLedger | None = None,
        workers: int = 1,
    ) -> Simulation:
        """Return the clients, who have the same secrets each time."""
        own = self.federation.blocks if blocks is None else blocks
        schema = self.schema if blocks is None else Schema.of(own, self.federation.labels)
        given: Any = {"secrets": secrets_of(own), "ledger": ledger, "workers": workers}
        return Simulation({"train": (schema, own)}, SEED, **given)

    def present(self, number: int) -> Sequence[ClientId] | None:
        """Return who is there in a round; None: all."""
        return self.schema.clients[1:] if number in self.federation.away else None

    def trained(
        self,
        through: Callable[[Simulation], Between] = Between,
        *,
        blocks: Mapping[ClientId, Block] | None = None,
        cut: int = 0,
        workers: int = 1,
    ) -> Trained:
        """Train; `cut` writes everything to bytes after that round, and another engine goes on."""
        stages = self.stages(through, blocks=blocks, cut=cut, workers=workers)
        while True:
            try:
                next(stages)
            except StopIteration as end:
                trained: Trained = end.value
                return trained

    def stages(
        self,
        through: Callable[[Simulation], Between] = Between,
        *,
        blocks: Mapping[ClientId, Block] | None = None,
        cut: int = 0,
        workers: int = 1,
    ) -> Generator[None, None, Trained]:
        """Train as `trained`, and wait after the set-up and after each round."""
        algorithm, ledger = self.algorithm, ReleaseLedger()
        engine = self.engine(blocks, ledger, workers)
        clients = through(engine)
        server = initialise(algorithm, self.options, engine, clients)
        yield
        infos: list[RoundMetrics] = []
        number = 0
        for number in range(1, self.federation.rounds + 1):
            engine.begin_round(number, self.present(number))
            clients.begin_round()
            server, info = algorithm.round(server, clients, engine.key())
            infos.append(info)
            if info.finished:
                break
            if number == cut:
                written = codec.encode((engine.books.seal(server), engine.get_states()))
                traffic = dataclasses.asdict(engine.books.traffic)
                engine = self.engine(blocks, ledger)
                clients = through(engine)
                if algorithm.model.additive:
                    engine.count_once()
                sealed, states = codec.decode(written, *algorithm.states, *RECORDS)
                engine.set_states(states)
                engine.books.restore_traffic(traffic)
                server = engine.books.unseal(sealed)
            yield
        engine.begin_round(number + 1)
        clients.begin_round()
        conclusion = algorithm.conclude(server, clients, engine.key("conclude"))
        return Trained(conclusion, tuple(infos), engine, clients)

    @cached_property
    def masked(self) -> FinalResult | str:
        """Return what a training over sites with masks comes to, or why a site refuses, once."""
        federation, names = self.federation, tuple(self.federation.blocks)
        privacy = Privacy(mode="masked")
        keys = modes.keys(privacy, names, None, "test")
        assert keys is not None
        made = toy_sites.federation(
            *(self.algorithm, self.options, federation.blocks, federation.labels),
            sealing=lambda: modes.sealing(privacy, names, keys),
            complete=not federation.away,
            rounds=federation.rounds,
        )
        engine, number = made.engine, 0
        try:
            with np.errstate(invalid="ignore"):  # a dual outside its box is -inf under masks
                server = toy_sites.begun(made, self.algorithm, self.options)
                for number in range(1, federation.rounds + 1):
                    engine.begin_round(number, self.present(number))
                    server, info = self.algorithm.round(server, engine, engine.key())
                    server = engine.books.settle(server)
                    if info.finished:
                        break
                engine.begin_round(number + 1)
                return self.algorithm.conclude(server, engine, engine.key("conclude"))
        except Exception:
            if not made.errors:
                raise
            said = made.errors[0]
            return f"{type(said).__name__}: {first_line(said)}"

    def scores(self, trained: Trained) -> dict[ClientId, Array]:
        """Return what each client's model, or its part, says of its training rows."""
        states, engine = trained.engine.get_states(), trained.engine
        return {
            name: self.algorithm.model.predict(state, engine.block(name))
            for name, state in states.items()
        }


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise EndlessError where what is done takes longer; only in a process's main thread.

    It is raised again where it is swallowed, `_RAISED` times; then the process ends with status 1.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    raised = 0

    def over(*_: object) -> None:
        nonlocal raised
        raised += 1
        said = f"takes more than {seconds:g} seconds"
        if raised > _RAISED:  # nothing else ends it
            told = f"What is checked {said}, and goes on after EndlessError; the process ends.\n"
            os.write(2, told.encode())
            os._exit(1)
        raise EndlessError(said)

    before = signal.signal(signal.SIGALRM, over)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, every)
        signal.signal(signal.SIGALRM, before)
