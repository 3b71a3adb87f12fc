"""The rules that every algorithm keeps, each of which is tried on small federations.

A rule is a function of a `Trial`, one algorithm on one federation; it yields a sentence for each
fault. `check_algorithm` tries all of them, and the tests of this package do the same with its own
algorithms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from intarsia.core.algorithm import Algorithm
from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import RandomKey
from intarsia.core.disclosure import Release, Sends, contents
from intarsia.core.settings import check_ranges, hyperparameters
from intarsia.engines import codec
from intarsia.errors import (
    AlgorithmError,
    ExperimentError,
    IntarsiaError,
    UserError,
    first_line,
    listed,
)
from intarsia.maths.linear.losses import shape_of
from intarsia.privacy.secure_aggregation import setup as modes
from intarsia.privacy.settings import Privacy
from intarsia.protocols.evaluation import evaluate_scores, evaluation_loss
from intarsia.results import audit
from intarsia.testing.told_values import tells_values, values_of
from intarsia.testing.toy_federations import (
    ToyFederation,
    small_federations,
    with_other_values,
)
from intarsia.testing.trials import SEED, Trained, Trial, within
from intarsia.testing.watched_clients import (
    Listening,
    Replayed,
    Together,
    Watching,
    Written,
    shared_generators_apart,
    told_in_the_clear,
)
from intarsia.training.checks import check_loss
from intarsia.training.registry import (
    algorithm_named,
    built_in,
    lacking_keys,
    raised_at,
    said_of,
)

NOISE: Final = Release(deviation=1e-3, clip=1.0, releases=9)  # of an algorithm's private form
SECONDS: Final = 60.0  # in which a training ends
NEAR: Final = 1e-3  # how far two trainings may be apart that differ in rounding
_GROWTH: Final = 10.0  # mean loss over that of a model that says 0, where training diverges


@dataclass(frozen=True)
class Finding:
    """A rule that an algorithm breaks."""

    rule: str
    where: str  # the federation, or how many; "": in the declaration
    said: str

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.rule.replace('_', ' ')}: {self.said}{where}."


def check_algorithm(
    algorithm: Algorithm,
    federations: ToyFederation | Sequence[ToyFederation] | None = None,
    /,
    **options: Any,
) -> None:
    """Check that an algorithm keeps all rules; parameters and what is tried as `find_faults`.

    Raises
    ------
    AlgorithmError
        If it does not, with a line for each rule that it breaks.

    Examples
    --------
    >>> check_algorithm(MINE, regularisation=0.1)
    """
    found = find_faults(algorithm, federations, **options)
    if found:
        lines = "\n".join(f"- {one}" for one in found)
        raise AlgorithmError(f"{algorithm.name} breaks rules that every one keeps:\n{lines}")


def find_faults(
    algorithm: Algorithm,
    federations: ToyFederation | Sequence[ToyFederation] | None = None,
    /,
    **options: Any,
) -> tuple[Finding, ...]:
    """Return the rules that an algorithm breaks on small federations, in the clear and masked.

    Parameters
    ----------
    federations
        Whose clients train; None: those of `small_federations`. The algorithm may refuse some by an
        error of `intarsia.errors`, but not all.
    options
        Its hyperparameters.

    Raises
    ------
    ExperimentError
        If a hyperparameter is wrong, or the extra is not installed.

    Notes
    -----
    It does not find a server that draws by the number of its process or by `hash` of a text, values
    of a table that are changed before they are sent, a global without effect on what is computed,
    or files that a client function writes. In the main thread a training that takes more than
    60 seconds is a fault; where it swallows the error, the process ends with status 1.
    """
    if not isinstance(algorithm, Algorithm):
        raise ExperimentError(
            f"What is to be checked is {repr(algorithm)[:80]}; give an intarsia.core.Algorithm."
        )
    given = small_federations() if federations is None else federations
    given = [given] if isinstance(given, ToyFederation) else list(given)
    made: Any = hyperparameters(algorithm.hyperparameters, options, "The algorithm")
    check_ranges(made)
    modes.keys(Privacy(mode="masked"), tuple(given[0].blocks), None, "test")  # needs the library
    found = [Finding("usable_in_a_run", "", said) for said in usable_in_a_run(algorithm, made)]
    if found:  # no training of it could be evaluated
        return tuple(found)
    found += [Finding("declared_in_words", "", said) for said in declared_in_words(algorithm)]
    forms: list[tuple[Algorithm, Sequence[Rule]]] = [(algorithm, RULES)]
    if algorithm.private is not None:
        forms.append((algorithm.private(NOISE), [functions_depend_on_their_arguments_alone]))
    with _threads_heard(algorithm) as heard:
        for form, rules in forms:
            trials, refusals = [], []
            for federation in given:
                trial = Trial(form, made, federation)
                try:
                    broken = [*_looked_at(ends_as_it_should, trial)][:1]
                except UserError as refusal:
                    refusals.append(f"{federation.name}: {first_line(refusal)}")
                    continue
                if not broken:
                    trials.append(trial)
                found += broken
            if trials:
                found += _found_in(
                    trials, rules, complete=len(trials) + len(refusals) == len(given)
                )
            elif len(refusals) == len(given):
                found.append(
                    Finding("trains_on_some", "", f"it refuses every federation: {refusals[0]}")
                )
    return tuple(_merged([*heard, *found]))


def _found_in(trials: Sequence[Trial], rules: Sequence[Rule], *, complete: bool) -> list[Finding]:
    """Return what rules find in trainings that end, the causes first.

    What follows from a fault is not looked at. `complete`: no other training broke off.
    """
    crossing = what_crosses_is_what_is_declared
    found = [Finding(crossing.__name__, "", said) for said in crossing(trials, complete=complete)]
    undeclared = any(crossing(trials, complete=False))
    follows = _FOLLOWS[crossing] if undeclared else ()
    every: list[tuple[Trial, list[Rule]]] = [(one, [*follows]) for one in trials]
    for rule in rules:
        for trial, skipped in every:
            if rule not in skipped:
                own = [*_looked_at(rule, trial)]
                found += own
                skipped += _FOLLOWS.get(rule, ()) if own else ()
    return found


def _merged(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings, those of several federations once: they differ in numbers and names."""
    alike: dict[tuple[str, str], list[list[Finding]]] = {}
    for one in dict.fromkeys(found):  # an algorithm's private form may have the same
        some = alike.setdefault((one.rule, re.sub(r"\w*\d[\w.]*", "", one.said)), [])
        group = next((group for group in some if one.where not in [it.where for it in group]), None)
        if group is None:
            some.append([one])
        else:
            group.append(one)
    for group in (group for some in alike.values() for group in some):
        where = group[0].where if len(group) == 1 else f"{len(group)} federations"
        yield replace(group[0], where=where)


def _looked_at(rule: Rule, trial: Trial) -> Iterator[Finding]:
    """Yield what a rule finds; what the algorithm's own code raises is found, too."""
    name, where = rule.__name__, trial.federation.name
    try:
        with within(SECONDS):
            yield from (Finding(name, where, said) for said in rule(trial))
    except AlgorithmError as problem:  # a sentence of its own
        yield Finding(name, where, str(problem).rstrip("."))
    except UserError:
        if rule is ends_as_it_should:
            raise  # it is not for these clients
        yield Finding(name, where, f"it refuses what it took before: {_said(trial.algorithm)}")
    except (KeyboardInterrupt, GeneratorExit):  # of the user, and of who reads no further
        raise
    except BaseException:  # whatever the algorithm's own code raises, SystemExit too
        yield Finding(name, where, _said(trial.algorithm))


def _said(algorithm: Algorithm) -> str:
    """Return where the algorithm's own code raised the error that is handled, and the error."""
    error = sys.exc_info()[1]
    assert error is not None
    said = said_of(error, algorithm)
    if isinstance(error, IntarsiaError):
        said = f"{type(error).__name__}: {str(error).rstrip('.')}"
    return f"{raised_at(error, algorithm)}{said}"


@contextlib.contextmanager
def _threads_heard(algorithm: Algorithm) -> Iterator[list[Finding]]:
    """Yield a list that has, at the end, what threads raised that the algorithm started."""
    found: list[Finding] = []

    def hear(given: threading.ExceptHookArgs) -> None:
        error = given.exc_value or given.exc_type()
        where = raised_at(error, algorithm)
        said = f"a thread that it starts raises {where}{said_of(error, algorithm)}"
        found.append(Finding(ends_as_it_should.__name__, "", said))

    before, threading.excepthook = threading.excepthook, hear
    try:
        yield found
    finally:
        threading.excepthook = before


Rule = Callable[[Trial], Iterator[str]]


# -- what is declared


def usable_in_a_run(algorithm: Algorithm, options: Any) -> Iterator[str]:
    """Yield faults of its name, and of hyperparameters that runs cannot read."""
    cls: Any = algorithm.hyperparameters
    if not getattr(getattr(cls, "__dataclass_params__", None), "frozen", False):
        yield f"{cls.__name__} is no frozen dataclass"
        return
    if lacking := lacking_keys(algorithm):
        yield f"{cls.__name__} has no {listed(lacking)}, by which models are evaluated and compared"
    else:
        try:
            evaluation_loss(options.loss)
        except ExperimentError as problem:
            yield f"{cls.__name__}.loss, by which models are evaluated: {str(problem).rstrip('.')}"
    for one in inspect.signature(cls).parameters.values():
        if one.kind is not one.KEYWORD_ONLY:
            yield f"{cls.__name__}.{one.name} is not by keyword alone"
    name: Any = algorithm.name
    if not isinstance(name, str) or not name.isprintable() or name != name.strip() or not name:
        yield f"its name is {name!r}; give a text that can be printed, without spaces around it"
    elif name in built_in() and algorithm_named(name) is not algorithm:
        yield f"its name is {name!r}, which is that of one of intarsia; give it one of its own"


def declared_in_words(algorithm: Algorithm) -> Iterator[str]:
    """Yield client functions of one name, and replies that are not described."""
    functions = algorithm.disclosure.functions
    names = [one.name for one in functions]
    if doubled := sorted({one for one in names if names.count(one) > 1}):
        yield f"several client functions are called {listed(doubled)}"
    for one in algorithm.disclosure.sends:
        for kind in (one.function.message, one.reply):
            if not dataclasses.is_dataclass(kind):
                yield f"{one.function.name} is not annotated with the dataclasses that cross"
        if not dataclasses.is_dataclass(one.reply):
            continue
        words = contents(one.reply)
        if lacking := [f.name for f in dataclasses.fields(one.reply) if not words.get(f.name)]:
            yield (
                f"{one.reply.__name__} does not say what it holds in {listed(lacking)}, which an "
                "audit tells; describe it by fl.describe"
            )
    if odd := [one for one in algorithm.states if not dataclasses.is_dataclass(one)]:
        yield f"states has {odd[0]!r}, which is no dataclass"


def what_crosses_is_what_is_declared(
    trials: Sequence[Trial], *, complete: bool = True
) -> Iterator[str]:
    """Yield what crosses in a training and is not declared, and what crosses in none and is.

    The second only where the first is all in order, and `complete`: where all trainings are there.
    """
    first = trials[0]
    sends = first.algorithm.disclosure.needed(first.options)
    found: set[str] = set()
    taken: dict[tuple[str, str], str] = {}
    for trial in trials:
        found |= crossings(trial.plain)
        assert isinstance(trial.plain.clients, Listening)
        taken |= trial.plain.clients.taken
    declared = audit.list_declared(sends)
    odd = sorted(found - declared, key=lambda one: (one.startswith("reveal"), one))
    undeclared = [f"{one!r} crosses and is not declared" for one in odd]
    for (function, field), origin in sorted(taken.items()):
        known = {one.function.name: one for one in sends}.get(function)
        said = () if known is None else known.origin(field.partition(".")[2]) or ("none",)
        names = (said,) if isinstance(said, str) else said
        if names and not {*origin.split(" and ")} <= {*names}:
            undeclared.append(
                f"{field} holds a total of {origin} when {function} is called, and declared is "
                f'{listed(names)}; declare it: fl.opening({{"{field}": "{origin}"}}, ...)'
            )
    yield from undeclared
    for one in sorted(declared - found) if complete and not undeclared else ():
        yield (
            f"{one!r} is declared and never crosses; take it out, or say with which options it "
            "does by fl.each(..., needed=)"
        )


def crossings(trained: Trained) -> set[str]:
    """Return what crossed in a training that was listened to, in the words of declarations."""
    assert isinstance(trained.clients, Listening)
    found = {f"open {one}" for one in trained.clients.opened}
    return found | audit.list_crossings(trained.engine.books.crossings.summary())


# -- the rules of a training


def ends_as_it_should(trial: Trial) -> Iterator[str]:
    """Yield what a training comes to that are no finite numbers, or of wrong shapes."""
    check_loss(trial.federation.labels, trial.options)
    found, outputs = trial.plain, trial.federation.labels.outputs
    for number, info in enumerate(found.infos, 1):
        for name, value in vars(info).items():
            if isinstance(value, float) and np.isnan(value):
                yield f"{name} is NaN after round {number}"
    for info in (*found.infos, found.conclusion.info):
        if info.primal is not None and info.dual is not None and _swapped(info.primal, info.dual):
            yield (
                f"primal is {info.primal:.6g} and dual {info.dual:.6g}, which bounds it from "
                "below; give RoundMetrics.certified the model's objective first, then its bound"
            )
            break
    weights = found.conclusion.weights
    wanted = (outputs, len(trial.schema.features))
    if weights is not None:
        yield from _unlike(weights, wanted, "weights", "outputs and features")
    elif trial.algorithm.model.kind == "linear":
        yield "a linear model ends without weights"
    for name, one in (found.conclusion.network or {}).items():
        yield from _unlike(one, np.shape(one), f"the network's {name}", "")
    scores = trial.scores(found)
    for name, one in scores.items():
        wanted = (outputs, len(trial.schema.samples.own(name)))
        yield from _unlike(one, wanted, f"what predict says at {name}", "outputs and samples")
    yield from _grown(trial, scores)


def _swapped(primal: float, dual: float) -> bool:
    """Return whether a lower bound is above what it bounds, beyond rounding."""
    return dual - primal > NEAR * max(abs(primal), abs(dual), 1e-9)


def _grown(trial: Trial, scores: Mapping[ClientId, Array]) -> Iterator[str]:
    """Yield whether a training diverges: its model is far worse than one that says 0."""
    labels, options, index = trial.federation.labels, trial.options, trial.schema.samples
    if trial.algorithm.model.additive:
        total = np.zeros((labels.outputs, len(index)))
        for name, own in scores.items():
            total[:, index.own(name)] += own
        scores = {name: total[:, index.own(name)] for name in scores}
    how: Any = {"loss": evaluation_loss(options.loss), "labels": labels, "shape": shape_of(options)}
    losses = []
    for name, own in scores.items():
        block = trial.plain.engine.block(name)
        ends = [evaluate_scores(block, factor * own, **how) for factor in (0.0, 1.0)]
        losses += [[one.loss for one in ends if one is not None]] if all(ends) else []
    before, after = np.mean(losses, axis=0) if losses else (0.0, 0.0)
    if not after <= _GROWTH * max(before, 1.0):
        yield (
            f"training diverges: after {len(trial.plain.infos)} rounds the mean loss is "
            f"{after:.3g}, and {before:.3g} of a model that says 0; take smaller steps"
        )


def _unlike(found: Any, wanted: tuple[int, ...], what: str, axes: str) -> Iterator[str]:
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f":
        yield f"{what}: {type(found).__name__} where an array of floats is expected"
    elif found.shape != wanted:
        yield f"{what}: the shape is {found.shape}, and {axes} are {wanted}"
    elif not np.isfinite(found).all():
        odd = int((~np.isfinite(found)).sum())
        yield (
            f"{what}: {odd} of {found.size} are no finite numbers; training diverges, or divides "
            "by 0: take smaller steps"
        )


def client_scores_add_up_to_the_models(trial: Trial) -> Iterator[str]:
    """Yield whether the clients' parts of a row's score are another than that by the weights."""
    weights = trial.plain.conclusion.weights
    if weights is None or trial.algorithm.model.kind != "linear":
        return
    engine, index = trial.plain.engine, trial.schema
    total = np.zeros((len(weights), len(index.samples)))
    pooled = np.zeros((len(index.samples), len(index.features)))
    for name, state in engine.get_states().items():
        block = engine.block(name)
        once = block if trial.algorithm.model.additive else block.counted_once()
        rows = index.samples.own(name)
        total[:, rows] += trial.algorithm.model.predict(state, once)
        x: Any = once.x
        dense = x.toarray() if issparse(x) else x
        pooled[np.ix_(rows, index.features.own(name))] += dense
    if not _near(total, weights @ pooled.T):
        yield "the clients' parts do not add up to the scores of the weights"


def a_rerun_is_identical(trial: Trial) -> Iterator[str]:
    """Yield what a second training with the same seed does not have to the same bits."""
    yield from _differ(trial.plain, trial.trained(), "a second training comes to another")


def processes_come_to_the_same(trial: Trial) -> Iterator[str]:
    """Yield what several processes do not have to the same bits as one."""
    alone, spread = (trial.trained(Together, workers=workers) for workers in (1, 2))
    yield from _differ(alone, spread, "with two processes a training comes to another")


def everything_can_be_written(trial: Trial) -> Iterator[str]:
    """Yield what messages, replies and states lose where they are written and read."""
    found = trial.trained(lambda engine: Written(engine, trial.algorithm.states))
    yield from _differ(trial.plain, found, "with all that crosses written and read, there is other")
    assert isinstance(found.clients, Written)
    summary = found.engine.books.traffic.summary()
    if (summary["down"], summary["up"]) != (found.clients.down, found.clients.up):
        yield f"{found.clients.down + found.clients.up} bytes were written, and {summary} counted"


def it_goes_on_from_bytes(trial: Trial) -> Iterator[str]:
    """Yield what a training has to other bits that goes on from a checkpoint."""
    for cut in sorted({1, len(trial.plain.infos) - 1} & {*range(1, len(trial.plain.infos))}):
        stopped = trial.trained(Listening, cut=cut)
        yield from _differ(trial.plain, stopped, f"from a checkpoint of round {cut} there is other")


def functions_depend_on_their_arguments_alone(trial: Trial) -> Iterator[str]:
    """Yield client functions that are not pure, or hide something by what is public."""
    own = trial.trained(Watching).clients
    assert isinstance(own, Watching)
    for name, parts in sorted(own.changed.items()):
        changed = " and ".join(sorted(parts))
        yield f"{name} changes {changed}; leave it as it is, and return new ones"
    for name in sorted(own.shared):
        yield (
            f"{name} uses the random numbers that all of a process share, of numpy.random or "
            "random; draw from its argument: rng.generator()"
        )
    for name in sorted(own.impure() - own.shared - own.changed.keys()):
        if beside := own.beside.get(name):
            yield (
                f"{name} keeps {listed(sorted(beside))} in the state beside its fields, and a "
                "checkpoint has the fields alone; make it one"
            )
        else:
            yield (
                f"{name} answers otherwise when it is called again with the same arguments; it may "
                "depend on nothing else, such as a global, a counter or a file"
            )
    for name in sorted(name for name, differs in own.hidden.items() if not differs):
        yield (
            f"{name} is declared to hide something, and comes to the same with another secret; "
            "draw what hides from its SecretKey, and nothing of it from a seed"
        )
    engine = trial.engine()
    for name in trial.schema.clients:
        given = trial.options, trial.schema, name, engine.block(name), engine.client_key(name)
        one, two = (codec.encode(trial.algorithm.init_client(*given)) for _ in range(2))
        if one != two:
            yield "init_client comes to another state when it is called again"
            break


def the_server_depends_on_what_it_is_given_alone(trial: Trial) -> Iterator[str]:
    """Yield whether a server comes to something else when it is given the same answers again.

    Another training, of clients with other values, goes on in turns with it: what both have in a
    global is that of the other one.
    """
    heard = trial.plain
    other = trial.stages(blocks=with_other_values(trial.federation))

    def turn() -> None:
        with contextlib.suppress(IntarsiaError):  # whatever it comes to: it is with other values
            next(other, None)

    assert isinstance(heard.clients, Listening)
    algorithm, first = trial.algorithm, RandomKey((SEED, 0, "server", "init"))
    clients = Replayed(heard.clients, trial.schema.clients)
    drawn = False

    def begun(step: Callable[..., Any], *given: Any) -> Any:
        nonlocal drawn
        with shared_generators_apart() as touched:
            found = step(*given)
        drawn |= touched()
        return found

    turn()
    try:
        server = begun(algorithm.begin, trial.options, trial.schema, first)
        server = begun(algorithm.setup, server, clients, first)
        number, infos = 0, []
        for number in range(1, len(heard.infos) + 1):
            clients.ids = trial.present(number) or trial.schema.clients
            turn()
            key = RandomKey((SEED, number, "server"))
            server, info = begun(algorithm.round, server, clients, key)
            infos.append(info)
        turn()
        clients.ids = trial.schema.clients
        key = RandomKey((SEED, number + 1, "server", "conclude"))
        found = begun(algorithm.conclude, server, clients, key)
        same = codec.encode((found, tuple(infos))) == codec.encode((heard.conclusion, heard.infos))
        why = "comes to another result"
    except LookupError as problem:
        same, why = False, f"asks for something else: {first_line(problem)}"
    if not same:
        yield (
            f"a server that was given the same answers {why} when clients have other values: it "
            "reads something of theirs that did not cross, or it depends on something beside its "
            "arguments, such as a global, a counter or a file"
        )
    if drawn:
        yield (
            "a server draws from or seeds the random numbers that all of a process share; draw "
            "from the key that it is given"
        )


def rows_and_columns_reach_clients_sealed(trial: Trial) -> Iterator[str]:
    """Yield what the server has of rows, columns or single clients, and does not declare."""
    assert isinstance(trial.plain.clients, Listening)
    sends = trial.algorithm.disclosure.needed(trial.options)
    for field in sorted(told_in_the_clear(trial.plain.clients, sends)):
        yield (
            f"{field} holds numbers in the clear; forward a sealed total, or declare by fl.opening "
            "that the server has them (fl.PUBLIC)"
        )
    yield from read_without_words(trial, trial.plain.clients, sends)


def read_without_words(trial: Trial, heard: Listening, sends: Sequence[Sends]) -> Iterator[str]:
    """Yield what the server reads of single clients and is not told in words.

    These are arrays, and what is a value of a client's table to the bit, or all its labels: in
    numbers, tuples, text and bytes.
    """
    quiet = {one.function.name for one in sends if one.call == "ask"}
    quiet -= {one.function.name for one in sends if one.tells(trial.options)}
    held = {
        client: (block, *values_of(block), *values_of(trial.plain.engine.block(client)))
        for client, block in (trial.federation.blocks.items() if quiet else ())
    }
    arrays, values = set(), set()
    for name, replies in heard.answers:
        if name not in quiet or not isinstance(replies, Mapping):
            continue
        for client, reply in replies.items():
            for field, value in vars(reply).items():
                called = f"{type(reply).__name__}.{field}"
                if isinstance(value, np.ndarray) and value.size > 1:
                    arrays.add(called)
                elif tells_values(value, *held[client]):
                    values.add(called)
    for field in sorted(values - arrays):
        yield (
            f"{field} is asked for and has values of a client's table, to the bit; send what is of "
            "all rows, or say what it tells in fl.asks(..., tells=)"
        )
    for field in sorted(arrays):
        yield (
            f"{field} is asked for, so that the server reads an array of each client; sum it, or "
            "say what it tells in fl.asks(..., tells=)"
        )


def a_round_can_be_counted(trial: Trial) -> Iterator[str]:
    """Yield functions that come again in a round undeclared: sites count rounds by the others."""
    sends = trial.algorithm.disclosure.needed(trial.options)
    repeated = {one.function.name for one in sends if one.repeats}
    assert isinstance(trial.plain.clients, Listening)
    again: set[str] = set()
    for called in trial.plain.clients.rounds[1:-1]:  # without set-up and conclusion
        once = [one for one in called if one not in repeated]
        again |= {one for one in once if once.count(one) > 1}
        if called and not once:
            again.add("")
    for name in sorted(again):
        if name:
            yield f"{name} comes again in a round; declare it by fl.each(..., repeats=True)"
        else:
            yield "in a round only functions come that are declared to repeat"


def the_order_of_clients_does_not_matter(trial: Trial) -> Iterator[str]:
    """Yield clients that come to another model where they are given in another order."""
    if trial.federation.away:
        return  # who is away goes by the order
    turned = dict(reversed([*trial.federation.blocks.items()]))
    found, engine = trial.trained(blocks=turned), trial.plain.engine
    here, there = trial.scores(trial.plain), trial.scores(found)
    for name in trial.schema.clients:
        one, other = engine.block(name), found.engine.block(name)
        if one.samples.tolist() != other.samples.tolist() or one.features != other.features:
            return  # what is drawn by the places of rows and columns is of others
    far = [name for name, one in here.items() if not _near(there[name], one)]
    if far:
        yield f"with the clients in another order {listed(far)} come to another model"


def sites_refuse_nothing(trial: Trial) -> Iterator[str]:
    """Yield what a site refuses of a training with masks: it holds each call to the declaration."""
    found = trial.masked
    if isinstance(found, str):
        yield f"over sites with masks one refuses: {found}"


def masks_change_rounding_alone(trial: Trial) -> Iterator[str]:
    """Yield whether a training over sites with masks comes to other weights."""
    found, own = trial.masked, trial.plain.conclusion.weights
    if any(one.releases for one in trial.algorithm.disclosure.functions):
        return  # its noise is of each run's own
    if own is None or isinstance(found, str):
        return
    if found.weights is None or not _near(found.weights, own):
        yield "over sites with masks it comes to other weights"


# causes before what follows from them
RULES: Final[Sequence[Rule]] = (
    functions_depend_on_their_arguments_alone,
    the_server_depends_on_what_it_is_given_alone,
    rows_and_columns_reach_clients_sealed,
    a_rerun_is_identical,
    everything_can_be_written,
    it_goes_on_from_bytes,
    processes_come_to_the_same,
    the_order_of_clients_does_not_matter,
    client_scores_add_up_to_the_models,
    a_round_can_be_counted,
    sites_refuse_nothing,
    masks_change_rounding_alone,
)
_MASKED = (sites_refuse_nothing, masks_change_rounding_alone)
_BYTES = (it_goes_on_from_bytes, processes_come_to_the_same, *_MASKED)
_BITS = (everything_can_be_written, the_order_of_clients_does_not_matter, *_BYTES)
_FOLLOWS: Final[Mapping[Callable[..., Iterator[str]], Sequence[Rule]]] = {
    what_crosses_is_what_is_declared: (rows_and_columns_reach_clients_sealed, *_MASKED),
    functions_depend_on_their_arguments_alone: (a_rerun_is_identical, *_BITS),
    the_server_depends_on_what_it_is_given_alone: (a_rerun_is_identical, *_BITS),
    rows_and_columns_reach_clients_sealed: _MASKED,
    a_rerun_is_identical: _BITS,
    everything_can_be_written: _BYTES,
    it_goes_on_from_bytes: (processes_come_to_the_same, *_MASKED),
    a_round_can_be_counted: _MASKED,
    sites_refuse_nothing: (masks_change_rounding_alone,),
}


def _differ(one: Trained, two: Trained, said: str) -> Iterator[str]:
    """Yield what two trainings do not have to the same bits."""
    here, there = one.bits(), two.bits()
    if odd := [name for name in here if there.get(name) != here[name]]:
        yield f"{said}: {', '.join(odd[:3])}"


def _near(one: NDArray[Any], two: NDArray[Any]) -> bool:
    """Return whether two arrays differ in rounding alone."""
    return bool(np.linalg.norm(one - two) <= NEAR * (1 + np.linalg.norm(two)))
