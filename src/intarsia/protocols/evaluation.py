"""Score models on the samples that the clients hold out.

`evaluate`: one model whose parts lie with the clients.

1. `partial_scores`: each client adds its part of the scores of its samples, each value once.
2. In training `sum_metrics`: clients with labels open the scores of their samples, and add up
   counts and losses. Which samples count, and by how much, each client tells from the schema, and
   one with fewer than `LEAST_ROWS` of them is not asked and does not answer: counts and sums of
   few rows, or of rows that the server chooses, would tell their labels. So would the difference
   of two clients' sums, see `protocols.evaluation_rows`.
3. `count_classes`, of networks: how many samples of each class are said to be of each, over all
   clients.
4. At the end of a run `send_metrics`: they send each its own counts and sums; and `measure`,
   `count_classes`, `sum_scores`, `count_scores` and `sum_errors`, see `protocols.figures`.

A loss is a sum over the rows, and so many losses of one client's rows, by as many models, would
tell the rows. So totals are of as many models as `evaluation_rows.times_evaluated` says, and those
of each client by itself are told of one, at the end.

`evaluate_own`: clients' own models, which nothing is added to. `send_metrics_own` and the others
of that ending are steps 2 to 4, each client's with the scores of its own model.

The loss of a linear model is its own, of several classes the sum of one against the rest for each.
That of networks is the cross-entropy of the class that a sample has, or half the squared error.

Score a server's network of all feature blocks, which no client has whole.

1. `partial_layer`: each client adds its blocks' terms of the first layer of the server's network,
   each block of a sample once; nobody but the sample's owners opens the sum.
2. `send_metrics_server`: clients with labels go on from there.

Samples count that somebody has the label of, and of which the clients together hold every block;
of others no term crosses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from intarsia import core as fl
from intarsia.core.block import Array, Block, ClientId, Labels
from intarsia.core.feature_blocks import feature_blocks
from intarsia.core.schema import Schema
from intarsia.errors import SiteError, TableError
from intarsia.maths import figures as judging
from intarsia.maths.figures import CROSS_ENTROPY, Figures
from intarsia.maths.linear import losses
from intarsia.protocols import figures as exchanged
from intarsia.protocols.evaluation_rows import (
    LEAST_ROWS,
    Mask,
    enough,
    evaluated_clients,
    labelled_samples,
    models_evaluated,
    rows_to_evaluate,
    samples_evaluated,
    whole_to_evaluate,
)
from intarsia.protocols.figures import (
    AskKey,
    Binned,
    ClientFigures,
    ErrorSums,
    HidingKey,
    Ranges,
    ScoreCounts,
    ScoredRows,
    ScoreSums,
)

_function = partial(fl.client_function, protocol="evaluation")
Part = fl.Part
Trained = Callable[[Any], NDArray[np.bool_]]  # state → classes in training, (classes,)

_AT_THE_END: Final = 1  # model by which a client tells its own metrics
# rows of a client that it tells the logarithms of labels of: with the sums of whole numbers and of
# their squares these tell each label of fewer
_LEAST_LOGARITHMS: Final = 50
_MOST_PARTS: Final = 10_000  # that a count of shared labels is a fraction of


@dataclass(frozen=True)
class Ask:
    """Ask for the client's part of the scores of its samples that are to be evaluated."""


@fl.describe("each evaluated row's score or terms of it")
class PartialScores:
    """A client's part of the scores."""

    z: fl.PerLabelledScore  # (outputs, samples) 0 of those that are not evaluated


@dataclass(frozen=True)
class Totals:
    """The scores over all owners, or what they come from."""

    z: fl.PerLabelledScore | None  # None: the client's own


@fl.describe(
    "counts and losses of evaluated rows and the F1 score",
    label="sums of labels and of their squares in regression",
    square="sums of labels and of their squares in regression",
    absolute="mean errors of evaluated rows in regression",
    term="sums of label terms that the loss needs in regression",
)
class Sums:
    """Sums over a client's labelled samples; the second row counts shared labels once."""

    count: Array  # (2,)
    loss: Array  # (2,) of all outputs
    correct: Array  # (2,)
    label: Array  # (2,) Σ y
    square: Array  # (2,) Σ y²
    error: Array  # (2,) Σ (y - z)²
    absolute: Array  # (2,) Σ |y - z|
    macro_f1: Array  # () of the client's own samples; NaN: withheld; 0 for regression
    # (2,) of one loss: Σ y log y (Poisson), Σ log y (Gamma), each NaN of few rows; samples with
    # y ≤ z (quantile)
    term: Array | None = None


@fl.describe("counts and mean losses of evaluated rows of all clients")
class MetricTotals:
    """A client's part of the metrics over all samples, shared labels once, or the total."""

    counts: Array  # (2,) samples, and those that are right
    means: Array  # (1,) or (4,) Σ / N of losses, in regression also of y, y² and (y - z)²


@fl.describe("numbers of evaluated rows by true and predicted class")
class ClassCounts:
    """How many samples there are by true and by predicted class, shared ones once."""

    counts: Array  # (classes, classes)


@dataclass(frozen=True)
class Evaluation:
    """Loss, and accuracy or R², of one model on one set of samples."""

    loss: float
    accuracy: float | None
    r2: float | None
    macro_f1: float | None = None  # mean over the classes that are there or are said
    samples: int = 0  # that were evaluated; shared ones once where they are all clients'
    figures: Figures | None = None  # where they were asked for


def evaluation_loss(name: str) -> int:
    """Return the code of the loss that an algorithm's scores are evaluated by.

    Raises
    ------
    ExperimentError
        If no loss has that name.
    """
    return CROSS_ENTROPY if name == "cross_entropy" else losses.loss_code(name)


def evaluate(
    clients: fl.Clients,
    schema: Schema,
    predict: Callable[[Any, Block], Array],
    loss: int,
    *,
    part: Part,
    shape: float = 0.0,
    with_figures: bool = False,
    totals_only: bool = False,
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the metrics of an additive model over all samples of a part, and over each client's.

    `shape` is that of the loss, as `losses.shape_of` gives it. With `totals_only` no client tells
    how the model does on its own samples.

    Every sample that somebody has the label of is scored by all clients that hold a part of it; of
    the others no score crosses.
    """
    score = _partial_scores(predict, schema, part)
    holding = [name for name in clients.ids if len(schema.holdings[name].samples)]
    if not holding:
        return None, {}
    total = clients.sum(score, dict.fromkeys(holding, Ask()))
    # discloses how well the model does on each client's own labelled samples, and how many they
    # are; for regression also Σy and Σy²
    scored = (clients, schema, _given_scores, Totals(z=total.z), loss, rows_to_evaluate(schema))
    how: Any = {"part": part, "shape": shape}
    if totals_only:
        return _totals(*scored, **how), {}
    return _evaluated(*scored, **how, with_figures=with_figures)


def evaluate_own(
    clients: fl.Clients,
    schema: Schema,
    predict: Callable[[Any, Block], Array],
    loss: int,
    *,
    part: Part,
    with_figures: bool = False,
    totals_only: bool = False,
    server: Sequence[str] | None = None,
    trained: Trained | None = None,
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the metrics of the clients' own models over all samples of a part, and of each client.

    Each model says the client's own samples, whoever else has these. Over all samples one that
    several clients have the label of counts once: as the mean over them. `server` are the feature
    blocks of a server's network that is evaluated, too. With `trained` the figures tell the classes
    that a client has in training from those that it has not. With `totals_only` no client tells
    how its model does.
    """
    # discloses how well each client's model does on its own labelled samples, and how many they
    # are; for regression also Σy and Σy²
    wanted = rows_to_evaluate(schema, server)
    scored = (clients, schema, _own_scores(predict), Totals(None), loss, wanted)
    how: Any = {"part": part, "suffix": "_own", "trained": trained}
    if totals_only:
        return _totals(*scored, **how), {}
    return _evaluated(*scored, **how, with_figures=with_figures)


def sends(
    predict: Callable[[Any, Block], Array],
    loss: int,
    schema: Schema,
    *,
    part: Part,
    additive: bool,
    shape: float = 0.0,
    server: Sequence[str] | None = None,
    trained: Trained | None = None,
) -> tuple[fl.Sends, ...]:
    """Return what crosses in `evaluate` of an additive model, else in `evaluate_own`."""
    wanted = rows_to_evaluate(schema, server)
    if not additive:
        given = _own_scores(predict), loss, schema, wanted, part, "_own"
        own = _functions(*given, trained=trained)
        # the server's network is evaluated in its stead
        served = server is not None and evaluated_clients(schema, whole_to_evaluate(schema, server))
        return _metrics_sent(own, schema, wanted, in_training=not served)
    score = fl.sums(_partial_scores(predict, schema, part))
    functions = _functions(_given_scores, loss, schema, wanted, part, "", shape=shape)
    sent = _metrics_sent(functions, schema, wanted)
    return *fl.each(score, parties=lambda *_: _holding(schema)), *sent


def _metrics_sent(
    functions: _Functions, schema: Schema, wanted: Mask, *, in_training: bool = True
) -> tuple[fl.Sends, ...]:
    """Return what crosses where a model is evaluated, in training or at the end alone."""
    totals = [functions.count_scores, functions.sum_errors]
    if schema.labels.task != "regression":
        totals = [functions.count_classes, functions.sum_scores, functions.count_scores]
    models = models_evaluated(schema, wanted) if in_training else 0
    found = [*fl.each(fl.asks(functions.send_metrics, functions.measure), most=_AT_THE_END)]
    found += fl.asks(functions.draw_key)
    for one in [functions.sum_metrics, *totals][not in_training :]:
        names = tuple(field.name for field in fields(one.reply))
        most = {
            functions.sum_metrics: models,
            functions.count_classes: models + _AT_THE_END,
        }
        found += fl.each(
            fl.sums(one, reveals=names),
            together="all",
            parties=lambda *_: evaluated_clients(schema, wanted),
            most=most.get(one, _AT_THE_END),
        )
    if functions.send_metrics.name == "send_metrics_own":
        return tuple(found)
    taken = ("Totals.z", "Binned.z", "Ranges.z")
    return fl.opening(dict.fromkeys(taken, "PartialScores.z"), found)


def _given_scores(state: Any, block: Block, z: Array) -> Array:
    return z


def _own_scores(predict: Callable[[Any, Block], Array]) -> Callable[[Any, Block, Any], Array]:
    return lambda state, block, _: predict(state, block)


def _totals(
    clients: fl.Clients,
    schema: Schema,
    scores: Callable[[Any, Block, Any], Array],
    message: Totals,
    loss: int,
    wanted: Mask,
    *,
    part: Part,
    suffix: str = "",
    shape: float = 0.0,
    trained: Trained | None = None,
) -> Evaluation | None:
    """Return the metrics of `scores(state, block, z)` over all samples, as in `_evaluated`."""
    given = scores, loss, schema, wanted, part, suffix
    functions = _functions(*given, shape=shape, trained=trained)
    messages = dict.fromkeys(evaluated_clients(schema, wanted, clients.ids), message)
    if not messages or len(messages) < len(evaluated_clients(schema, wanted)):
        return None
    # discloses how well the model does on the labelled samples of all clients together
    found = clients.reveal(clients.sum(functions.sum_metrics, messages))
    count, correct = (float(one) for one in _whole(schema, np.asarray(found.counts)))
    of_all = np.asarray(found.means) * (labelled_samples(schema, wanted) / count)
    if schema.labels.task == "regression":
        value, label, square, error = (float(one) for one in of_all)
        spread = square - label**2
        r2 = 1 - error / spread if spread > 0 else None
        return Evaluation(value, None, r2, samples=round(count))
    f1 = None
    if len(messages) > 1 and loss == CROSS_ENTROPY:
        # discloses how many samples of each class all clients hold, and the model sees, together
        told = clients.reveal(clients.sum(functions.count_classes, messages))
        f1 = float(judging.macro_f1(_whole(schema, np.asarray(told.counts))))
    return Evaluation(float(of_all[0]), correct / count, None, f1, round(count))


def _evaluated(
    clients: fl.Clients,
    schema: Schema,
    scores: Callable[[Any, Block, Any], Array],
    message: Totals,
    loss: int,
    wanted: Mask,
    *,
    part: Part,
    suffix: str = "",
    shape: float = 0.0,
    with_figures: bool = False,
    trained: Trained | None = None,
) -> tuple[Evaluation | None, dict[ClientId, Evaluation]]:
    """Return the metrics of `scores(state, block, z)` over all samples, and over each client's own.

    `wanted` samples count, (samples,). `suffix` ends the names of the client functions, where there
    is more than one model.
    """
    given = scores, loss, schema, wanted, part, suffix
    functions = _functions(*given, shape=shape, trained=trained)
    messages = dict.fromkeys(evaluated_clients(schema, wanted, clients.ids), message)
    if not messages:
        return None, {}
    replies = clients.ask(functions.send_metrics, messages)
    for name, told in replies.items():
        _check_told(schema, wanted, name, told)
    own = {name: _metrics(sums, 0, schema.labels) for name, sums in replies.items()}
    one = next(iter(replies.values()))
    there = [name for name in Sums.__annotations__ if getattr(one, name) is not None]
    every = Sums(**{name: sum(getattr(s, name) for s in replies.values()) for name in there})
    metrics = replace(_metrics(every, 1, schema.labels), macro_f1=None)
    several, counts = len(own) > 1, None
    # some are away: a total would tell more of each of the others, and sites tell none
    left = len(own) < len(evaluated_clients(schema, wanted))
    classes = schema.labels.task != "regression" and not left
    if classes and (with_figures or (several and loss == CROSS_ENTROPY)):
        # discloses how many samples of each class all clients hold, and the model sees, together
        found = clients.reveal(clients.sum(functions.count_classes, messages))
        counts = _whole(schema, np.asarray(found.counts))
    if not several:
        metrics = replace(metrics, macro_f1=next(iter(own.values())).macro_f1)
    elif counts is not None:
        metrics = replace(metrics, macro_f1=float(judging.macro_f1(counts)))
    finite = all(math.isfinite(one.loss) for one in (metrics, *own.values()))
    if not with_figures or not finite:  # of a training that diverged there are no figures
        return metrics, own
    # discloses how well the model ranks each client's own labelled samples
    told = clients.ask(functions.measure, messages)
    each = {name: exchanged.figures_of_one(name, one) for name, one in told.items()}
    each = {name: _with_loss(each[name], replies[name], 0, loss) for name in each}
    own = {name: replace(one, figures=each[name]) for name, one in own.items()}
    if left:
        return replace(metrics, figures=None if several else next(iter(each.values()))), own
    if counts is None:
        figures = _figures_of_numbers(clients, functions, messages, every, each, loss)
    else:
        figures = _figures_of_classes(clients, functions, messages, counts, each, schema)
    return replace(metrics, figures=exchanged.means_over_clients(figures, each.values())), own


def _figures_of_numbers(
    clients: fl.Clients,
    functions: _Functions,
    messages: Mapping[ClientId, Totals],
    every: Sums,
    each: Mapping[ClientId, Figures],
    loss: int,
) -> Figures:
    """Return how far predictions of numbers are off, over all samples."""
    several, z = len(messages) > 1, next(iter(messages.values())).z
    figures = Figures(
        mae=float(every.absolute[1] / every.count[1]),
        rmse=math.sqrt(every.error[1] / every.count[1]),
        intervals={} if several else next(iter(each.values())).intervals,
    )
    figures = _with_loss(figures, every, 1, loss)
    label = (float(one[1]) for one in (every.label, every.square, every.error))
    lie = exchanged.where_numbers_lie(float(every.count[1]), *label)
    edges = np.zeros(0)
    if several:
        bins = dict.fromkeys(messages, Binned(z, *lie))
        total = exchanged.count_by_score(clients, functions.draw_key, functions.count_scores, bins)
        # wide enough that clients seldom have few rows in one: these go with a neighbouring one
        edges = exchanged.ranges_of_predictions(total, 2 * LEAST_ROWS * len(messages))
    ranges = Ranges(z, *lie, float(every.count[1]), edges)
    # discloses how far predictions of all samples together are off, and mean and deviation of
    # the labels in up to ten ranges of the prediction, with LEAST_ROWS samples or more of each
    # client that has some there
    wrong = clients.reveal(clients.sum(functions.sum_errors, dict.fromkeys(messages, ranges)))
    return exchanged.errors_of_all(figures, ranges, wrong)


def _figures_of_classes(
    clients: fl.Clients,
    functions: _Functions,
    messages: Mapping[ClientId, Totals],
    counts: Array,
    each: Mapping[ClientId, Figures],
    schema: Schema,
) -> Figures:
    """Return how well a model ranks all samples of classes, and how its probabilities hold."""
    # discloses the mean and the deviation of all scores together, and how many samples there
    # are, and how many the model is right of, in ten ranges of the probability
    sums = clients.reveal(clients.sum(functions.sum_scores, messages))
    if len(messages) == 1:
        return exchanged.figures_of_the_one(next(iter(each.values())), counts, sums)
    z = next(iter(messages.values())).z
    bins = dict.fromkeys(messages, Binned(z, *exchanged.bins_of(sums)))
    total = exchanged.count_by_score(clients, functions.draw_key, functions.count_scores, bins)
    by_score = ScoreCounts(
        *(_whole(schema, np.asarray(one)) for one in (total.counts, total.places))
    )
    return exchanged.figures_of_all(counts, sums, by_score, LEAST_ROWS)


def _check_told(schema: Schema, wanted: Mask, client: ClientId, told: Sums) -> None:
    """Raise SiteError where a client's sums are of other rows than it has, whose number is public.

    One that is not finite is told as it is: the model's loss may be so large, and the client's own
    metric shows whose it is.
    """
    rows = int((wanted[schema.samples.own(client)] & schema.labelled_at(client)).sum())
    there = {name: np.shape(value) for name, value in vars(told).items() if value is not None}
    there["macro_f1"] += (2,)
    odd = [name for name, shape in there.items() if shape != (2,)]
    if not odd:
        least = ("correct", "square", "error", "absolute")
        odd = [name for name in least if (getattr(told, name) < 0).any()]
        if (told.correct > told.count * (1 + 1e-9)).any():
            odd = ["correct"]
    if odd or told.count[0] != rows or not 0 < told.count[1] <= rows * (1 + 1e-9):
        raise SiteError(
            f"{client!r} evaluates its {rows} rows with sums that are of others "
            f"({', '.join(odd or ['count'])}); install the same version of intarsia there, or see "
            "who runs the site."
        )


def _whole(schema: Schema, counts: Array) -> Array:
    """Return counts without the rounding of a sealed sum: fractions of labels' holders."""
    holders = schema.label_holders
    parts = math.lcm(*(int(k) for k in np.unique(holders[holders > 0])))
    if parts > _MOST_PARTS:
        return np.where(np.abs(counts) < 1 / (2 * _MOST_PARTS), 0.0, counts)
    return np.round(counts * parts) / parts


def _holding(schema: Schema) -> list[ClientId]:
    return [name for name in schema.clients if len(schema.holdings[name].samples)]


def evaluate_scores(
    block: Block,
    z: Array,
    loss: int,
    labels: Labels,
    *,
    shape: float = 0.0,
    least: int = LEAST_ROWS,
) -> Evaluation | None:
    """Return the metrics and figures of given scores (outputs, samples) on the labelled samples.

    Figures that rest on both sides of a class are there with `least` rows on each.
    """
    if block.y is None or np.isnan(block.y).all():
        return None
    share = (~np.isnan(block.y)).astype(np.float64)
    scored = _of_rows(block, z, share, loss, labels, least)
    sums = _sums(scored, counts=True, shape=shape)
    figures = _with_loss(exchanged.own_figures(scored), sums, 0, loss)
    return replace(_metrics(sums, 0, labels), figures=figures)


def _of_rows(
    block: Block,
    z: Array,
    share: Array,
    loss: int,
    labels: Labels,
    least: int,
    alone: bool = False,
    trained: NDArray[np.bool_] | None = None,
) -> ScoredRows:
    """Return the samples of a block that count, by their share."""
    held = share > 0
    truth = np.zeros(0) if block.y is None else block.y[held]
    return ScoredRows(z[:, held], truth, share[held], labels, loss, max(1, least), alone, trained)


def _own_places(block: Block) -> NDArray[np.intp]:
    """Return where a client's samples stand in the schema."""
    assert block.places is not None  # engines have aligned it
    return block.places


def _label_share(schema: Schema, block: Block, wanted: Mask) -> Array:
    """Return how often each label of a client counts, (samples,).

    It is 1 / holders of the label; 0 without a label, and of samples that are not evaluated.

    Raises
    ------
    TableError
        If fewer than `LEAST_ROWS` count.
    """
    places = _own_places(block)
    count = len(places)
    labelled = np.zeros(count, bool) if block.y is None else ~np.isnan(block.y)
    held = labelled & wanted[places]
    if not enough(held):
        raise TableError(
            f"Metrics over {int(held.sum())} of {count} rows were asked for, and of fewer than "
            f"{LEAST_ROWS} they would tell the labels; ask clients with more labelled rows."
        )
    return np.where(held, 1 / np.maximum(schema.label_holders[places], 1), 0.0)


def _only(wanted: Mask, z: Array) -> Array:
    """Return scores, (outputs, samples), with 0 for samples that are not evaluated."""
    return z if wanted.all() else np.where(wanted, z, 0.0)


def _partial_scores(
    predict: Callable[[Any, Block], Array], schema: Schema, part: Part
) -> fl.ClientFunction:
    wanted = rows_to_evaluate(schema)

    def partial_scores(
        state: Any, block: Block, message: Ask, rng: fl.RandomKey
    ) -> tuple[Any, PartialScores]:
        own = wanted[_own_places(block)]
        return state, PartialScores(_only(own, predict(state, block.counted_once())))

    return _function(partial_scores, part=part)


def _functions(
    scores: Callable[[Any, Block, Any], Array],
    loss: int,
    schema: Schema,
    wanted: Mask,
    part: Part,
    suffix: str,
    *,
    shape: float = 0.0,
    trained: Trained | None = None,
) -> _Functions:
    """Return the client functions of `_evaluated`."""
    # those that may be evaluated, whoever is there: a total of one alone is its own
    alone = len(evaluated_clients(schema, wanted)) == 1

    def scored(state: Any, block: Block, z: Any) -> ScoredRows:
        share = _label_share(schema, block, wanted)
        known = None if trained is None else trained(state)
        taken = block, scores(state, block, z), share
        return _of_rows(*taken, loss, schema.labels, LEAST_ROWS, alone, known)

    def send_metrics(
        state: Any, block: Block, message: Totals, rng: fl.RandomKey
    ) -> tuple[Any, Sums]:
        return state, _sums(scored(state, block, message.z), counts=False, shape=shape)

    def sum_metrics(
        state: Any, block: Block, message: Totals, rng: fl.RandomKey
    ) -> tuple[Any, MetricTotals]:
        found = _sums(scored(state, block, message.z), counts=False, shape=shape)
        terms = [found.loss]
        if schema.labels.task == "regression":
            terms += [found.label, found.square, found.error]
        # the means keep within the range of sealed sums
        means = np.array([one[1] for one in terms]) / labelled_samples(schema, wanted)
        return state, MetricTotals(np.array([found.count[1], found.correct[1]]), means)

    def count_classes(
        state: Any, block: Block, message: Totals, rng: fl.RandomKey
    ) -> tuple[Any, ClassCounts]:
        found = scored(state, block, message.z)
        kept = 0.0 if alone and found.few else 1.0
        return state, ClassCounts(kept * found.confusion)

    def measure(
        state: Any, block: Block, message: Totals, rng: fl.RandomKey
    ) -> tuple[Any, ClientFigures]:
        return state, exchanged.measured(scored(state, block, message.z))

    def sum_scores(
        state: Any, block: Block, message: Totals, rng: fl.RandomKey
    ) -> tuple[Any, ScoreSums]:
        return state, exchanged.summed(scored(state, block, message.z))

    def count_scores(
        state: Any, block: Block, message: Binned, rng: fl.RandomKey
    ) -> tuple[Any, ScoreCounts]:
        found = scored(state, block, message.z)
        return state, exchanged.counted(found, message)

    def sum_errors(
        state: Any, block: Block, message: Ranges, rng: fl.RandomKey
    ) -> tuple[Any, ErrorSums]:
        found = scored(state, block, message.z)
        return state, exchanged.errors_summed(found, message, *samples_evaluated(schema, wanted))

    def draw_key(
        state: Any, block: Block, message: AskKey, key: fl.SecretKey
    ) -> tuple[Any, HidingKey]:
        return state, HidingKey(key.words(4).copy())

    calls = (
        sum_metrics,
        send_metrics,
        count_classes,
        measure,
        sum_scores,
        count_scores,
        sum_errors,
    )
    named = [_function(fn, name=f"{fn.__name__}{suffix}", part=part) for fn in calls]
    # bins and ranges of one client's own would tell its scores and labels
    apart = {fn.name: ("key",) if fn.message is Binned else () for fn in named}
    drawn = replace(_function(draw_key, name=f"draw_key{suffix}", part=part), secret=True)
    alike = [fl.told_the_same(fn, *apart[fn.name]) for fn in named]
    return _Functions(*[*alike, drawn])


@dataclass(frozen=True)
class _Functions:
    """What clients do to evaluate a model."""

    sum_metrics: fl.ClientFunction
    send_metrics: fl.ClientFunction
    count_classes: fl.ClientFunction
    measure: fl.ClientFunction
    sum_scores: fl.ClientFunction
    count_scores: fl.ClientFunction
    sum_errors: fl.ClientFunction
    draw_key: fl.ClientFunction


def _sums(scored: ScoredRows, *, counts: bool, shape: float = 0.0) -> Sums:
    """Return the sums of samples; `counts`: with a macro-F1 that tells how few are of a class."""
    z, raw, labels, loss = scored.scores, scored.truth, scored.labels, scored.loss
    losses.check_labels(loss, raw, "the evaluated rows")
    if loss == CROSS_ENTROPY and labels.task == "regression":
        loss = losses.SQUARED
    if loss == CROSS_ENTROPY:
        each = _cross_entropy(z, raw)
    else:
        signs = raw[None, :] if len(z) == 1 else np.where(scored.sides > 0, 1.0, -1.0)
        each = losses.value(loss, z, signs, shape=shape).sum(axis=0)
    weights = np.stack([np.ones(len(raw)), scored.weights])
    correct, f1 = np.zeros(len(raw)), 0.0
    error = raw - losses.mean_of(loss, z[0])
    term = _term(loss, z[0], raw)
    if labels.task != "regression":  # only R² needs them: else they would tell the label counts
        correct = scored.said == raw
        confusion = replace(scored, weights=weights[0]).confusion
        f1 = float(judging.macro_f1(confusion)) if counts or not scored.withheld else math.nan
        raw, error = 0.0 * raw, 0.0 * error
    terms = (np.ones(len(raw)), each, correct, raw, raw**2, error**2, np.abs(error))
    found = Sums(*[*(weights @ one for one in terms), np.array(f1)])
    if term is None:
        return found
    withheld = not counts and loss in losses.LOG_LINK and len(raw) < _LEAST_LOGARITHMS
    return replace(found, term=np.full(2, np.nan) if withheld else weights @ term)


def _term(loss: int, z: Array, y: Array) -> Array | None:
    """Return what a loss of numbers adds up beside the others, (samples,)."""
    if loss == losses.POISSON:
        return -np.asarray(entr(y))
    if loss == losses.GAMMA:
        return np.asarray(np.log(y), np.float64)
    return np.asarray(y <= z, np.float64) if loss == losses.QUANTILE else None


def _with_loss(known: Figures, sums: Sums, row: int, loss: int) -> Figures:
    """Return figures with those that a loss of numbers has of its own."""
    found = _of_loss(sums, row, loss)
    ranges = dict(known.intervals)
    if "coverage" in found:
        ranges["coverage"] = judging.share_interval(found["coverage"], float(sums.count[row]))
    return replace(known, **found, intervals=ranges)


def _of_loss(sums: Sums, row: int, loss: int) -> dict[str, Any]:
    """Return the figures that a loss of numbers has of its own."""
    if sums.term is None:
        return {}
    count, label, term = (float(one[row]) for one in (sums.count, sums.label, sums.term))
    if loss == losses.QUANTILE:
        return {"coverage": term / count}
    found = {"deviance": 2 * float(sums.loss[row]) / count}
    if label > 0:  # half the deviance of the mean label
        level = math.log(label / count)
        constant = term - label * level if loss == losses.POISSON else count * level - term
        if constant > 0:
            found["d2"] = 1 - float(sums.loss[row]) / constant
    return found


def _cross_entropy(z: Array, y: Array) -> Array:
    """Return -log p of each sample's class, (samples,), from log p/(1-p), (outputs, samples)."""
    own = y * z[0] if len(z) == 1 else z[y.astype(np.int64), np.arange(len(y))]
    found: Array = np.logaddexp(0.0, -own)
    return found


def _metrics(sums: Sums, row: int, labels: Labels) -> Evaluation:
    count = float(sums.count[row])
    loss = float(sums.loss[row]) / count
    if labels.task == "regression":
        spread = float(sums.square[row] - sums.label[row] ** 2 / count)
        r2 = 1 - float(sums.error[row]) / spread if spread > 0 else None
        return Evaluation(loss, None, r2, samples=round(count))
    accuracy = float(sums.correct[row]) / count
    f1 = None if np.isnan(sums.macro_f1) else float(sums.macro_f1)
    return Evaluation(loss, accuracy, None, f1, round(count))


def server_sends(
    server: fl.ServerModel,
    schema: Schema,
    blocks: Sequence[str],
    loss: int,
    *,
    part: Part,
    trained: Trained | None = None,
) -> tuple[fl.Sends, ...]:
    """Return what crosses in `evaluate_server`."""
    scores, wanted = _server_scores(server), whole_to_evaluate(schema, blocks)
    given = scores, loss, schema, wanted, part, "_server"
    functions = _functions(*given, trained=trained)
    layer = fl.sums(_partial_layer(server, schema, blocks, part))
    return (
        *_metrics_sent(functions, schema, wanted),
        *fl.each(layer, parties=lambda *_: _holding(schema)),
    )


def _server_scores(server: fl.ServerModel) -> Callable[[Any, Block, Any], Array]:
    return lambda state, _, z: server.scores(state, z)


def evaluate_server(
    clients: fl.Clients,
    schema: Schema,
    server: fl.ServerModel,
    blocks: Sequence[str],
    loss: int,
    *,
    part: Part,
    with_figures: bool = False,
    totals_only: bool = False,
    trained: Trained | None = None,
) -> Evaluation | None:
    """Return the metrics of a server's network over all samples; `blocks` are those that it takes.

    With `trained` its figures say how it does on the classes that each client has in training, and
    on those that the client has not, as means over clients.

    None if the clients together hold all blocks of no labelled sample.
    """
    wanted = whole_to_evaluate(schema, blocks)
    if not wanted.any():
        return None
    holding = [name for name in clients.ids if len(schema.holdings[name].samples)]
    layer = _partial_layer(server, schema, blocks, part)
    total = clients.sum(layer, dict.fromkeys(holding, Ask()))
    scored = (clients, schema, _server_scores(server), Totals(total.z), loss, wanted)
    how: Any = {"part": part, "suffix": "_server", "trained": trained}
    if totals_only:
        return _totals(*scored, **how)
    # discloses how well the server's network does on each client's labelled samples
    return _evaluated(*scored, **how, with_figures=with_figures)[0]


def server_blocks(model: fl.Model, options: Any, schema: Schema) -> tuple[str, ...] | None:
    """Return the feature blocks of the server's network, None where the server has none."""
    if model.server_model is None:
        return None
    made_of = model.architecture(options, schema, None)
    return None if made_of is None else tuple(made_of.blocks)


def _partial_layer(
    server: fl.ServerModel, schema: Schema, blocks: Sequence[str], part: Part
) -> fl.ClientFunction:
    known, wanted = feature_blocks(schema), whole_to_evaluate(schema, blocks)

    def partial_layer(
        state: Any, block: Block, message: Ask, rng: fl.RandomKey
    ) -> tuple[Any, PartialScores]:
        total: Any = 0.0
        for name, term in server.part(state, block).items():
            total = total + term / holders_of(block, known[name].features[0])
        own = wanted[_own_places(block)]
        return state, PartialScores(_only(own, np.asarray(total, np.float64)))

    return _function(partial_layer, part=part)


def holders_of(block: Block, feature: str) -> Array | float:
    """Return how many clients hold each value of a feature, (samples,)."""
    copies = block.copies
    if copies is None:
        return 1.0
    column = block.features.index(feature)
    held: Array = copies.counts[copies.rows, copies.columns[column]]
    return held
