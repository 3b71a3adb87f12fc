"""How the server of `femam` finds clusters of clients from their models of a level."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.algorithms.femam.client import compare_groups, compare_models, send_model
from intarsia.algorithms.femam.hyperparameters import FeMAM
from intarsia.algorithms.femam.state import Ask, Candidates, Groupings, Level, Server
from intarsia.algorithms.networks.client_network import drawn, part_vector
from intarsia.core.block import Array, ClientId
from intarsia.core.client_functions import Clients, RandomKey, evolve
from intarsia.errors import ConvergenceError, FederationError, SiteError, listed
from intarsia.maths.matching import kmeans

Labels = NDArray[np.int64]


def clustered(server: Server, number: int, level: Level, clients: Clients, rng: RandomKey) -> Level:
    """Return the level with new clusters and their models.

    Raises
    ------
    ConvergenceError
        If a client's model has diverged.
    """
    options = server.options
    found = models_of(clients)
    there, told = list(found), np.stack(list(found.values()))
    columns = _columns(server)
    shares = np.array([server.shares[one] for one in there])
    draws = rng.fold_in("clusters").generator()
    if options.adaptive:
        return _settled(server, number, level, found, clients, draws)
    if options.levels[number - 1] == "auto" and not level.trials:
        level = _counted(server, number, level, clients, found, draws)
    former = np.array([level.groups.get(one, -1) for one in there])
    centres = [None if one is None else one[columns] for one in level.models]
    groups = _groups_of(options, told[:, columns], centres, former, draws)
    models = list(level.models)
    for group, average in averages_of(told, shares, groups).items():
        models[group] = average
    latest = {one: int(group) for one, group in zip(there, groups, strict=True)}
    return evolve(level, models=tuple(models), groups={**level.groups, **latest})


_LARGEST = 1e100  # number of a model, so that squares of distances are finite


def models_of(clients: Clients) -> dict[ClientId, Array]:
    """Return clients' models of the latest level, less what they started from.

    Raises
    ------
    ConvergenceError
        If one is not finite, or too large for distances.
    SiteError
        If one is of another size than the others'.
    """
    # the server reads how each client's model differs from what all started from
    replies = clients.ask(send_model, Ask())
    found = {one: reply.model for one, reply in replies.items()}
    shapes = Counter(np.shape(model) for model in found.values())
    usual = shapes.most_common(1)[0][0]
    strange = [one for one, model in found.items() if np.shape(model) != usual or not model.size]
    if strange:
        raise SiteError(
            f"{strange[0]!r} sends a model of the shape {np.shape(found[strange[0]])}, where "
            f"others send {usual}; install the same version of intarsia there, or see who runs the "
            "site."
        )
    odd = [one for one, model in found.items() if not np.abs(model).max() < _LARGEST]
    if odd:
        raise ConvergenceError(
            f"The model of {listed(odd)} is not finite, or beyond {_LARGEST:g}; lower "
            "algorithm.rate, or standardise the features."
        )
    return found


def _settled(
    server: Server,
    number: int,
    level: Level,
    models: Mapping[ClientId, Array],
    clients: Clients,
    draws: np.random.Generator,
) -> Level:
    """Return the level with its groups, found once, and their models.

    A client that was not there then joins the group whose average its model moves to.
    """
    options, told, columns = server.options, np.stack(list(models.values())), _columns(server)
    again = len(level.models) == 1
    found: dict[ClientId, int] = {} if again else dict(level.groups)
    if not found:
        common = 0.0
        word = options.levels[number - 1]
        points = told[:, columns]
        if word == "auto":
            tried = groupings(points, counts_tried(options.candidates, len(points)), draws)
            look = 2 * number - (not again)
            labels, clear = _proven(server, look, clients, models, tried, draws)
            if labels.any() and not again:  # the second look is not needed, and asks for this
                common = _common_part(server, look + 1, clients, models, labels)
        else:
            labels, clear = separated(points, (min(int(word), len(points)),), -1.0, draws)
        found = dict(zip(models, labels.tolist(), strict=True))
        count = int(labels.max()) + 1
        # what was gained so far says nothing of models of other groups
        gained = level.accuracies if count == 1 else ()
        level = evolve(
            level,
            models=(None,) * count,
            clear=clear,
            common=common,
            looked=again,
            accuracies=gained,
        )
    for one, model in models.items():
        if one not in found:
            centres = np.stack([average[columns] for average in level.models])
            found[one] = towards(model[columns], centres)
    groups = np.array([found[one] for one in models])
    shares = np.array([server.shares[one] for one in models])
    averages = list(level.models)
    for group, average in averages_of(told, shares, groups, level.common).items():
        averages[group] = average
    return evolve(level, models=tuple(averages), groups=found)


_FEW = 4  # clients of whom each may be by itself


def counts_tried(candidates: Sequence[int], clients: int) -> list[int]:
    """Return which numbers of groups are tried: as many as the clients only where these are few.

    Of more clients some are mostly alike, and few new rows of own networks do not tell.
    """
    return [one for one in candidates if one < clients or one == clients <= _FEW]


def towards(point: Array, centres: Array) -> int:
    """Return which of the centres a point is on the way to, seen from the mean of the centres."""
    away = centres - centres.mean(axis=0)
    lengths = np.linalg.norm(away, axis=1)
    return int(np.argmax(away @ point / np.where(lengths > 0, lengths, 1.0)))


def _proven(
    server: Server,
    look: int,
    clients: Clients,
    models: Mapping[ClientId, Array],
    found: Sequence[tuple[Labels, float]],
    draws: np.random.Generator,
) -> tuple[Labels, float]:
    """Return the groups of clients, of some groupings, that their rows speak for.

    Groupings come with their mean silhouettes, and go with it.
    """
    told = np.stack(list(models.values()))
    shares = np.array([server.shares[one] for one in models])
    tried = [(np.zeros(len(told), np.int64), 0.0), *found]
    if len(told) < 2:
        return tried[0]
    each = np.empty((len(told), len(tried), told.shape[1]))  # of many clients all of it is large
    for number, (groups, _) in enumerate(tried):
        each[:, number] = averages_of_others(told, shares, groups)
    alone = np.stack([np.bincount(groups)[groups] == 1 for groups, _ in tried], axis=1)
    messages = {
        one: Groupings(each[place], alone[place] + 0.0, look) for place, one in enumerate(models)
    }
    # discloses sums over the clients that are in groups, with each grouping: of their rows, and of
    # those that the others' averages name wrongly; over all, the errors of own networks on new rows
    total = _whole_counts(clients.reveal(clients.sum(compare_groups, messages).at))
    counts = [int(groups.max()) + 1 for groups, _ in tried]
    clear = [value for _, value in tried]
    points = told[:, _columns(server)]

    def stable(place: int) -> bool:
        return found_by_halves(points, tried[place][0], draws) >= _STABLE

    return tried[clearest(total, counts, clear, server.options.separation, stable)]


def _whole_counts(total: Array) -> Array:
    """Return whole counts of rows and of wrong ones among them; refuse what none add up to."""
    rows, wrong = np.split(total[2:], 2)
    rows, wrong = np.rint([total[0], *rows]), np.rint([total[1], *wrong])
    if not ((wrong >= 0) & (wrong <= rows)).all():
        raise FederationError(
            f"Clients count {wrong.tolist()} wrong ones of {rows.tolist()} rows, which no rows add "
            "up to; see who runs the sites, and leave out who sends other numbers than it counts."
        )
    return np.array([rows[0], wrong[0], *rows[1:], *wrong[1:]])


_COMMON = 0.3  # part of the average of all in a group's model, where groups have much in common
_TWICE = 1.1  # times the errors of groups that twice this part may have, for them to have so


def _common_part(
    server: Server,
    look: int,
    clients: Clients,
    models: Mapping[ClientId, Array],
    groups: Labels,
) -> float:
    """Return which part of a group's model is to be the average of all clients' models."""
    told = np.stack(list(models.values()))
    shares = np.array([server.shares[one] for one in models])
    of_group = averages_of_others(told, shares, groups)
    of_all = averages_of_others(told, shares, np.zeros_like(groups))
    parts = np.array([0.0, _COMMON, 2 * _COMMON])[:, None]
    alone = (np.bincount(groups)[groups] == 1) + 0.0
    messages = {
        one: Groupings(
            (1 - parts) * of_group[place] + parts * of_all[place],
            np.full(len(parts), alone[place]),
            look,
        )
        for place, one in enumerate(models)
    }
    # discloses sums over the clients that are in groups: of their rows, and of those that the
    # others' averages name wrongly with each part; over all, the errors of own networks on new rows
    total = _whole_counts(clients.reveal(clients.sum(compare_groups, messages).at))
    return common_part(total)


def common_part(total: Array) -> float:
    """Return which part of a group's model is to be the average of all clients' models.

    Some of it, where groups err less with it. With twice the part they may err a tenth more: with
    groups that name classes otherwise, or have their columns in another order, they err far more.
    Where groups err on most rows that does not show yet, and they have no such part.

    Parameters
    ----------
    total
        (8,): as in `clearest`, of the averages of a group's others with no such part, with the one
        that may be taken, and with twice that.
    """
    rows, errors = np.split(total[2:], 2)
    less = errors[1] < errors[0] <= _FAR * rows[0] and errors[2] <= _TWICE * errors[0]
    return _COMMON if less else 0.0


def averages_of_others(told: Array, shares: Array, groups: Labels) -> Array:
    """Return for each client the average of its group's models without its own, (clients, …).

    Of a client that is alone in its group it is 0.
    """
    member = np.zeros((int(groups.max()) + 1, len(groups)))
    member[groups, np.arange(len(groups))] = shares
    rest = member.sum(axis=1)[groups] - shares
    found: Array = (member @ told)[groups] - shares[:, None] * told
    found /= np.where(rest > 0, rest, 1.0)[:, None]
    found[rest <= 0] = 0.0
    return found


_APART = 0.1  # mean silhouette of groups that need to mend nothing
_AS_GOOD = 1.1  # times the least share of errors that is hardly more
_UNSURE = 2.0  # standard errors by which own networks may err less than groups that are apart
_FAR = 0.5  # share of errors above which a model has far to go, …
_NEARLY = 1.1  # … and times one model's errors that groups which are apart may have then
_FAINT = 0.05  # mean silhouette that groups must have there, if they are stable, …
_STABLE = 0.9  # … as the adjusted Rand index of groups of half of the parameters says


def clearest(
    total: Array,
    counts: Sequence[int],
    clear: Sequence[float],
    least: float,
    stable: Callable[[int], bool],
) -> int:
    """Return the place of the grouping that clients' rows speak for; 0: one group of all.

    A client's rows are named by the average of the others of its group: the more others are like
    it, the better. A client that is alone in its group counts with the share of errors that own
    networks make on new rows. Groups that are apart may be taken if their errors are not more than
    those of one group, nor than those of own networks beyond two standard errors. Of those it is
    the grouping whose mean silhouette less its share of errors is the largest: too few groups
    err more, and too many are less apart, though they err no more.

    Where there is none, and one model errs on most rows, models of few rows may not have learned
    yet what sets them apart: it is the stable grouping of the largest mean silhouette that errs no
    more than one group, nor than own networks.

    Where there is none either, it is of the groupings whose errors are hardly more than the least
    the one of the fewest groups, if it errs less than one group by the share `least` and a standard
    error, and not more than own networks beyond a standard error. Each client for itself is such a
    grouping, where one model errs on most rows.

    Parameters
    ----------
    total
        (2 + 2 groupings,): rows for validation, how many of them own networks name wrongly; for
        each grouping the rows of clients in groups, and how many of them are named wrongly.
    counts, clear
        How many groups each grouping has, and its mean silhouette; the first has one.
    stable
        Tells of a grouping's place whether either half of the parameters groups clients so.
    """
    (held, wrong), (rows, errors) = total[:2], np.split(total[2:], 2)
    if not rows[0] or len(clear) < 2:
        return 0
    own = (wrong + 1) / (held + 2)
    shares = (errors + own * (rows[0] - rows)) / rows[0]
    best = float(shares[1:].min())
    chance = math.sqrt(best * (1 - best) / rows[0])
    own_chance = math.sqrt(own * (1 - own) / (held + 2))
    apart = np.asarray(clear) > _APART
    unsure = np.where(apart, _UNSURE, 1.0) * own_chance
    most = np.where(apart, shares[0], (1 - least) * shares[0] - chance)
    if shares[0] > _FAR:
        most = np.where(apart, _NEARLY * most, most)
    # of each client by itself own networks' errors on few new rows must be clearly fewer
    by_itself = rows == 0
    clearly = (1 - least) * shares[0] - own_chance if shares[0] > _FAR else -1.0
    most = np.where(by_itself, clearly, most)
    allowed = shares <= np.minimum(most, np.where(by_itself, 1.0, own + unsure * rows / rows[0]))
    allowed[0] = False
    if (allowed & apart).any():
        worth = np.asarray(clear) - shares
        return int(np.where(allowed & apart, worth, -np.inf).argmax())
    if shares[0] > _FAR:
        no_worse = shares <= min(shares[0], own)
        for place in np.argsort(-np.asarray(clear), kind="stable").tolist():
            if place and clear[place] > _FAINT and no_worse[place] and stable(place):
                return int(place)
    good = shares <= max(_AS_GOOD * best, best + chance)
    places = [one for one in range(1, len(counts)) if good[one] and not apart[one]]
    place = min(places, key=lambda one: (counts[one], shares[one]), default=0)
    return place if allowed[place] else 0


def found_by_halves(points: Array, labels: Labels, draws: np.random.Generator) -> float:
    """Return how well K-means of half of the parameters finds some groups again, 1: the same.

    The mean adjusted Rand index over both halves of two random splits. Groups of what clients'
    models have by chance are seldom found again. Where there are more groups than half of the
    clients it says little, and is 0.
    """
    from sklearn.metrics import adjusted_rand_score  # here: it takes a second to import

    found, count = [], int(labels.max()) + 1
    if 2 * count > len(points):
        return 0.0
    for _ in range(_SPLITS):
        order = draws.permutation(points.shape[1])
        for half in np.array_split(order, 2):
            again = kmeans.k_means(points[:, half], count, draws)
            found.append(float(adjusted_rand_score(labels, again)))
    return float(np.mean(found))


_SPLITS = 2  # of the parameters into halves


def groupings(
    points: Array, counts: Sequence[int], draws: np.random.Generator
) -> list[tuple[Labels, float]]:
    """Return the groups of points by K-means, each grouping once, with its mean silhouette.

    Of some numbers of groups, and of the points as they are or each at one distance from their
    mean, so that how far clients move does not outweigh whereto. Where one of the numbers is that
    of the points, each point is a group of its own too.
    """
    found: dict[bytes, tuple[Labels, float]] = {}
    for scaled in _both_scales(points):
        products = kmeans.inner_products(scaled)
        for count in counts:
            if 1 < count < len(points):
                labels = kmeans.clusters_of(products, count, draws)
                known = found.get(labels.tobytes(), (labels, -1.0))
                found[labels.tobytes()] = labels, max(known[1], _silhouette(products, labels))
    if len(points) in counts:
        each = np.arange(len(points))
        found[each.tobytes()] = each, 0.0
    return list(found.values())


def _both_scales(points: Array) -> tuple[Array, Array]:
    centred = points - points.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred, centred / np.where(lengths > 0, lengths, 1.0)


def separated(
    points: Array, counts: Sequence[int], least: float, draws: np.random.Generator
) -> tuple[Labels, float]:
    """Return the groups of points that are the most apart, and their mean silhouette.

    Of some numbers of groups, and of the points as they are or each at one distance from their
    mean, so that how far clients move does not outweigh whereto; one group of all where no mean
    silhouette is above `least`.
    """
    none = np.zeros(len(points), np.int64), least
    return max((none, *groupings(points, counts, draws)), key=lambda one: one[1])


_ALONE = 0.25  # what a point alone in its group counts of the silhouette that it would have


def silhouette(points: Array, labels: Labels) -> float:
    """Return the mean silhouette of points (Rousseeuw, 1987), with points that are alone.

    By Rousseeuw a point alone in its group has 0, so that right groups of which many have one point
    look hardly apart. Here it counts a quarter of the silhouette that it would have if it were as
    far from others of its group as points of the other groups are on average from theirs.
    """
    return _silhouette(kmeans.inner_products(points), labels)


def _silhouette(products: Array, labels: Labels) -> float:
    """Return the mean silhouette of points with these inner products."""
    squares = np.diag(products)
    away = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0.0))
    np.fill_diagonal(away, 0.0)
    count = np.bincount(labels)
    sums = np.stack([away[:, labels == group].sum(axis=1) for group in range(len(count))], axis=1)
    at = np.arange(len(labels))
    own = sums[at, labels] / np.maximum(count[labels] - 1, 1)
    alone = count[labels] == 1
    if alone.all():
        return 0.0
    own[alone] = own[~alone].mean()
    others = sums / np.maximum(count, 1)
    others[at, labels] = np.inf
    others[:, count == 0] = np.inf
    next_best = others.min(axis=1)
    larger = np.maximum(own, next_best)
    with np.errstate(invalid="ignore"):
        each = np.where(larger > 0, (next_best - own) / larger, 0.0)
    return float(np.where(alone, _ALONE, 1.0) @ each / len(labels))


def _counted(
    server: Server,
    number: int,
    level: Level,
    clients: Clients,
    models: Mapping[ClientId, Array],
    draws: np.random.Generator,
) -> Level:
    """Return the level with the number of clusters that the rows for validation call for."""
    options, told, columns = server.options, np.stack(list(models.values())), _columns(server)
    shares = np.array([server.shares[one] for one in models])
    tried = [one for one in options.candidates if one <= len(told)] or [1]
    none = np.full(len(told), -1)
    each = []  # for each number, the model that each client would have
    for count in tried:
        groups = _groups_of(options, told[:, columns], [None] * count, none, draws)
        average = averages_of(told, shares, groups)
        each.append([average[group] for group in groups.tolist()])
    messages = {
        one: Candidates(np.stack(trials), number)
        for one, trials in zip(models, zip(*each, strict=True), strict=True)
    }
    # discloses sums over all rows for validation: of the loss with each number of clusters, and of
    # the products of each two
    total = clients.reveal(clients.sum(compare_models, messages).at)
    place, losses = fewest(total, len(tried), options.evidence)
    return evolve(level, models=level.models[: tried[place]], trials=losses)


def _columns(server: Server) -> Any:
    """Return which entries of a model are clustered; statistics of batches never are."""
    made = drawn(server.features, server.outputs, server.options, RandomKey(()))
    last = server.options.cluster_on == "last"
    wanted = {
        name: np.full(values.shape, "classifier" in name if last else "running_" not in name)
        for name, values in made.items()
    }
    found = part_vector(wanted, ("*",)) > 0
    return slice(None) if found.all() else found


def _groups_of(
    options: FeMAM, points: Array, models: Sequence[Any], former: Labels, draws: np.random.Generator
) -> Labels:
    """Return the cluster of each client, (clients,), from the parameters that are clustered.

    `models` and `former` are those of the round before, None and -1 where there are none.
    """
    if options.clustering == "nearest":
        zero = np.zeros(points.shape[1])
        centres = np.stack([zero if one is None else one for one in models])
        return kmeans.nearest(points, centres)
    if options.scaled:
        deviations = points.std(axis=0)
        points = points / np.where(deviations > 0, deviations, 1.0)
    found = kmeans.k_means(points, len(models), draws)
    return kmeans.renumbered(found, former)


def averages_of(
    told: Array, shares: Array, groups: Labels, common: float = 0.0
) -> dict[int, Array]:
    """Return the average of each cluster's models, (parameters,).

    Of it a part `common` is the average of all clients' models.
    """
    found: dict[int, Array] = {}
    for group in np.unique(groups).tolist():
        own = groups == group
        found[group] = shares[own] @ told[own] / shares[own].sum()
        if common:
            found[group] = (1 - common) * found[group] + common * (shares @ told / shares.sum())
    return found


def fewest(total: Array, trials: int, evidence: float) -> tuple[int, tuple[float, ...]]:
    """Return the first trial that is as good as the best, and the mean loss of each.

    As good: by no more than `evidence` standard errors of the paired difference worse. The trials
    come in the order of their numbers of clusters. Without rows the first is as good as any, and
    the losses are nan.

    Parameters
    ----------
    total
        (1 + trials + trials²,): the rows, the sums of the losses with each trial, and of the
        products of each two.

    Raises
    ------
    FederationError
        If they are no losses of rows.
    """
    rows = float(total[0])
    if not rows:
        return 0, (math.nan,) * trials
    if not (rows > 0 and np.isfinite(total).all()):
        raise FederationError(
            f"Clients' losses add up to {total[1 : 1 + trials].tolist()} over {rows:g} rows, which "
            "is none of rows; see who runs the sites, and leave out who sends other numbers."
        )
    mean = total[1 : 1 + trials] / rows
    products = total[1 + trials :].reshape(trials, trials) / rows
    best = int(mean.argmin())
    squares = np.diag(products) - 2 * products[best] + products[best, best]  # of the differences
    worse = mean - mean[best]
    error = np.sqrt(np.maximum(squares - worse**2, 0.0) / rows)
    good = worse <= evidence * error
    return int(np.flatnonzero(good)[0]), tuple(float(one) for one in mean)
