"""FeMAM: global, cluster and personal models whose scores add up, level by level.

Chen, Zhou, Long, Ma, Jiang and Zhang, "Multi-Level Additive Modeling for Structured Non-IID
Federated Learning", 2024. Client i has one model of each level l, that of its group C_l(i):

    min Σ_i n_i/n [ l(y, Σ_l f(x; Θ^l_{C_l(i)})) + λ/2 Σ_l ‖θ^l_i - Θ^l_{C_l(i)}‖² ]

Levels come one after the other (Algorithm 2): only the latest one trains, and the scores of those
before it are known at each client. A round, at the clients that are there:

1. `open_level`: a client opens the latest level's model of its group (Eq. 6)
2. `train_level`: some epochs on it (Eq. B.2, B.4, B.5)
3. the average over each group (Eq. 7): a sum that the server does not read where groups are known
   (`send_part`); at a level of clusters it reads the clients' models and finds the groups by
   K-means (`send_model`, Eq. 4); a personal level sends nothing

When a level's accuracy on the rows for validation is steady, or its rounds are over, a client that
it does not help drops it (`close_level`, Eq. 9), how sure the levels so far are is set right
(`calibrate`, `scale_levels`), and the next begins (`begin_level`).

A level "shares" has no training: in its one round each client gets a bias by its own shares of the
classes (`count_rows`, `compare_shares`, `try_offsets`, `take_offset`, see `class_priors`); the
paper has none.

Departures, each an argument: K-means anew in each round, from fresh starts (`clustering`), first in
round `first_clustering` of a level, until which each client trains for itself; a level starts as no
change, at level 1's hidden layers with a last layer of zeros (`start`), from which clients tell
models by how they differ, so that the server never reads level 1; a level stays where the rows for
validation of all clients say so (`prune`, `criterion`, see `validation`), by which "auto"
chooses a number of clusters (`compare_models`), and by which scores are calibrated before a level
begins (`calibrated`, see `validation`). Gradients are not scaled by n_i/n; level 1 trains
for all of `first_rounds`. The text is `clustering` = "nearest", `first_clustering` = 1, `start` =
"random", `prune` = "margin", `criterion` = "loss", `margin` = 0, `calibrated` = false; the authors'
code `calibrated` = false, `combination` = "mean", `start` = "level-1", `cluster_on` = "last",
`scaled`, `proximal` = 0.02 (its term is 0.01 ‖θ_i - Θ_k‖²) with `proximal_levels` = "all",
`embedding` = "residual-batch".

All of this is `level_schedule` = "paper". With "adaptive", the default, each level is a whole
network that starts from level 1's, or a client's own from its best, to which it is pulled
(`personal_pull`): it ends when the rows for validation are named no better (`gains_no_more`),
groups are found by how clients' networks change and which grouping their rows speak for
(`compare_groups`, `clustering.clearest`), their models have a part of the average of all where that
pays (`clustering.common_part`), a client takes the level alone, in the mean with others
or not at all (`validation.decided`), and levels that are kept train on for `final_rounds` on all
rows (`train_again`).

One level is federated averaging; "global" and "personal" is the residual model of two levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from intarsia import core as fl
from intarsia.algorithms.femam import class_priors, state
from intarsia.algorithms.femam import client as at_client
from intarsia.algorithms.femam.clustering import averages_of, clustered, models_of
from intarsia.algorithms.femam.hyperparameters import FeMAM, check_groups, given_clusters
from intarsia.algorithms.femam.state import Level, Server
from intarsia.algorithms.femam.validation import best_factor
from intarsia.algorithms.networks import client_network as networks
from intarsia.algorithms.networks.parameter_sharing import mean_loss
from intarsia.algorithms.networks.targets import output_count
from intarsia.core.block import Array, ClientId
from intarsia.core.schema import Schema
from intarsia.errors import FederationError, SiteError


def init_server(
    options: FeMAM, schema: Schema, rng: fl.RandomKey, *, name: str = "femam"
) -> Server:
    """Return the server's state before the set-up.

    Raises
    ------
    FederationError
        If clients have samples in common, or different features, one has no labels, labels are
        numbers to predict, or no client has a row for validation where there are to be such.
    ExperimentError
        If the clusters that are given do not fit the clients.
    """
    networks.check_clients(schema, name)
    check_groups(options, schema)
    if schema.labels.task == "regression":
        raise FederationError(
            f"The labels are numbers to predict (regression), and {name} learns classes; use "
            '"fedavg-ft" or "local", or set labels.task (from Python task=) for classes.'
        )
    count = {client: int(held.labelled.sum()) for client, held in schema.holdings.items()}
    if options.validation and max(count.values()) < 2:
        raise FederationError(
            f"validation of {name} is {options.validation:g}, and no client has two labelled rows, "
            'one to train on and one for validation; set validation = 0 and prune = "never".'
        )
    clients = tuple(schema.clients)
    server = Server(
        options=options,
        level_schedule=options.level_schedule,
        clients=clients,
        shares=at_client.weights_of(options, schema),
        features=networks.check_same_features(schema, name, options),
        outputs=output_count(schema),
        seed=rng.integer(),
        levels=(),
        begun=dict.fromkeys(clients, 0),
        closed=dict.fromkeys(clients, 0),
    )
    # the same as other algorithms on networks start from
    first = networks.drawn(server.features, server.outputs, options, rng.fold_in("shared"))
    return with_level(server, networks.part_vector(first, ("*",)))


def setup(server: Server, clients: fl.Clients) -> Server:
    """Return the server's state: clients begin a level when they are there first."""
    return server


def with_level(server: Server, first: Array | None = None) -> Server:
    """Return the server with a new level of models; `first` are the parameters of level 1's."""
    options, number = server.options, len(server.levels) + 1
    kind, word = options.kind(number), options.levels[number - 1]
    groups: dict[ClientId, int] = {}
    count = 1
    if kind == "clusters":
        most = options.candidates[-1] if word == "auto" else int(word)
        count = min(most, len(server.clients))
    elif kind == "given":
        names = options.groups[str(word)]
        places = {name: place for place, name in enumerate(dict.fromkeys(names.values()))}
        groups, count = {client: places[name] for client, name in names.items()}, len(places)
    absolute = number == 1 or options.start == "random"
    models: tuple[Any, ...] = (None,) * count
    if absolute:
        alike = options.equal_starts or count == 1
        models = tuple(
            _drawn(server, number, 0 if alike else group, first) for group in range(count)
        )
        if not alike and kind == "clusters":
            rng = fl.RandomKey((server.seed, number, "groups")).generator()
            groups = {client: int(rng.integers(count)) for client in server.clients}
    level = Level(kind, absolute, models, groups, {})
    return fl.evolve(server, levels=(*server.levels, level))


def _drawn(server: Server, number: int, group: int, first: Array | None) -> Array:
    """Return the parameters of a model that is drawn at random."""
    if first is not None and group == 0:
        return first
    key = fl.RandomKey((server.seed, number, "model", group))
    return networks.part_vector(
        networks.drawn(server.features, server.outputs, server.options, key), ("*",)
    )


def _latest(
    server: Server, number: int, clients: Iterable[ClientId]
) -> dict[ClientId, state.Latest]:
    """Return the message of a level's model to each client."""
    level = server.levels[number - 1]
    own_each = state.apart(server.options, number, level)
    messages = [state.Latest(None if own_each else model) for model in level.models]
    found = {client: messages[state.group_of(level, client)] for client in clients}
    if server.options.adaptive and level.kind == "clusters" and len(level.models) > 1:
        # who was not there when groups were found starts as they did, and so tells which is its own
        found |= {one: state.Latest(None) for one in found if one not in level.groups}
    return found


def _caught_up(server: Server, clients: fl.Clients, reached: int) -> Server:
    """Let the clients that are there close the levels that are over, and begin the next."""
    for number, level in enumerate(server.levels[:reached], 1):
        late = [one for one in clients.ids if server.begun[one] < number]
        if not late:
            continue
        if number > 1:
            server = _closed(server, clients, number - 1, late)
            server = _calibrated(server, clients, number - 1, late)
        own_each = state.apart(server.options, number, level)
        begins = [
            state.Begin(number, level.absolute, own if own_each else None) for own in level.models
        ]
        clients.ask(
            at_client.begin_level, {one: begins[state.group_of(level, one)] for one in late}
        )
        if level.offset is not None:
            class_priors.tell_offset(level.offset, clients, late)
        server = fl.evolve(server, begun={**server.begun, **dict.fromkeys(late, number)})
    return server


def _closed(
    server: Server,
    clients: fl.Clients,
    number: int,
    asked: Iterable[ClientId],
    *,
    tuned: bool = False,
) -> Server:
    """Let clients close a level, if they have not yet; those that tuned it have their own model."""
    options, level = server.options, server.levels[number - 1]
    pooled = options.adaptive or options.prune == "pooled"
    late = [one for one in asked if server.closed[one] < number]
    if not late:
        return server
    messages = dict.fromkeys(late, state.Latest(None)) if tuned else _latest(server, number, late)
    worth = level.worth
    if number > 1 and pooled and worth is None:
        # discloses what the level is worth to all clients that close it now, and how much that
        # differs among them; those that come later get what these came to, if they have rows
        weigh = {one: state.Weigh(said.model, number) for one, said in messages.items()}
        worth = clients.reveal(clients.sum(at_client.weigh_level, weigh).at)
        level = fl.evolve(level, worth=worth if worth[1] else None)
    # discloses to the server which clients keep the level: what the structure of levels is
    replies = clients.ask(
        at_client.close_level,
        {one: state.Closing(said.model, number, worth) for one, said in messages.items()},
    )
    if options.adaptive:
        server = _without(server, {one: reply.levels for one, reply in replies.items()})
    own_each = state.apart(options, number, level)
    kept = {
        one: server.clients.index(one) if own_each else state.group_of(level, one)
        for one, reply in replies.items()
        if reply.kept
    }
    return fl.evolve(
        server,
        levels=_replaced(server.levels, number, fl.evolve(level, kept={**level.kept, **kept})),
        closed={**server.closed, **dict.fromkeys(late, number)},
    )


def _without(server: Server, chosen: Mapping[ClientId, Sequence[int]]) -> Server:
    """Return the server without what clients keep no longer."""
    levels = [
        fl.evolve(
            level,
            kept={
                one: group
                for one, group in level.kept.items()
                if number in chosen.get(one, (number,))
            },
        )
        for number, level in enumerate(server.levels, 1)
    ]
    return fl.evolve(server, levels=tuple(levels))


def _calibrated(
    server: Server, clients: fl.Clients, number: int, asked: Sequence[ClientId]
) -> Server:
    """Let clients that closed a level set right how sure the levels so far are."""
    options = server.options
    if not options.calibrated or not options.validation or options.adaptive:
        return server
    level = server.levels[number - 1]
    factor = level.factor
    if factor is None:
        # discloses the losses of all rows for validation with each factor; those that come later
        # get what these came to
        factor = best_factor(
            clients.reveal(clients.sum(at_client.calibrate, dict.fromkeys(asked, state.Ask())).at)
        )
        level = fl.evolve(level, factor=factor)
    clients.ask(at_client.scale_levels, dict.fromkeys(asked, state.Scale(factor)))
    return fl.evolve(server, levels=_replaced(server.levels, number, level))


def _replaced(levels: tuple[Level, ...], number: int, level: Level) -> tuple[Level, ...]:
    return (*levels[: number - 1], level, *levels[number:])


def _converged(options: FeMAM, level: Level, number: int) -> bool:
    """Return whether a level is done: its rounds are over, or its accuracy is steady."""
    if level.rounds >= options.rounds(number):
        return True
    if level.kind == "clusters" and state.apart(options, number, level):
        return False
    if options.adaptive:
        following = options.kind(number + 1) if number < len(options.levels) else None
        if number == 1 and following == "clusters":
            return level.rounds >= options.warm_up
        return _settled(options, level) and not _to_look(options, number, level)
    if number == 1 or not options.window or len(level.accuracies) < options.window:
        return False
    return float(np.var(level.accuracies)) < options.steadiness


def _to_look(options: FeMAM, number: int, level: Level) -> bool:
    """Return whether a level of one model is to look for groups before it ends."""
    found_by_itself = options.levels[number - 1] == "auto"
    return found_by_itself and len(level.models) == 1 and not level.looked


def _needless(server: Server) -> bool:
    """Return whether the latest level has nothing to train: one before it is already of all."""
    number, level = len(server.levels), server.levels[-1]
    options = server.options
    if not options.adaptive or number == 1 or level.kind != "global":
        return False
    return number < len(options.levels) and any(
        one.kind == "clusters" and len(one.models) == 1 for one in server.levels
    )


def _settled(options: FeMAM, level: Level) -> bool:
    """Return whether the accuracy of a level gets no better."""
    return gains_no_more(level.accuracies, options.patience)


def gains_no_more(accuracies: Sequence[float], patience: int) -> bool:
    """Return whether the last rounds have no better accuracy than those before them."""
    before, latest = accuracies[:-patience], accuracies[-patience:]
    return bool(before) and max(latest) <= max(before)


def round(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> tuple[Server, fl.RoundMetrics]:
    """Let the clients that are there train the latest level; average it over each group."""
    server = _caught_up(fl.evolve(server, rounds=server.rounds + 1), clients, len(server.levels))
    number, level = len(server.levels), server.levels[-1]
    if level.kind == "shares":
        level = class_priors.with_offset(level, clients)
    else:
        level = _trained(server, number, level, clients, rng)
    server = fl.evolve(server, levels=_replaced(server.levels, number, level))
    counted = f", {len(level.models)} clusters" if level.trials else ""
    info = fl.RoundMetrics(phase=f"level {number}{counted}", finished=_finished(server))
    if info.finished or not _converged(server.options, level, number):
        return server, info
    server = with_level(server)
    return with_level(server) if _needless(server) else server, info


def _trained(
    server: Server, number: int, level: Level, clients: fl.Clients, rng: fl.RandomKey
) -> Level:
    """Return the level after a round of training."""
    options = server.options
    # step 1: the groups' models
    messages = _latest(server, number, clients.ids)
    if level.kind == "clusters" and server.options.clustering == "loss":
        level = _chosen(level, clients)
        messages = dict.fromkeys(clients.ids, state.Latest(None))  # they have it
    right = clients.sum(at_client.open_level, messages)
    level = fl.evolve(level, rounds=level.rounds + 1)
    # step 2: local training
    if server.options.schedule == "constant":
        clients.ask(at_client.train_level, state.Ask())
    else:
        turn = state.Turn(server.rounds)
        clients.ask(at_client.train_level_on_schedule, turn)
    # step 3: groups and averages
    if not state.apart(server.options, number, level):
        found = level.kind == "clusters" and server.options.clustering != "loss"
        if options.adaptive and len(level.models) == 1:
            # no groups: an average of all that the server does not read, until it gains no more
            half = (options.patience + 1) // 2
            found = _to_look(options, number, level) and gains_no_more(level.accuracies, half)
        one = clustered(server, number, level, clients, rng) if found else None
        level = one or _averaged(server, level, clients)
    # last: where a client does not answer while it trains, nothing of the round was opened
    if options.adaptive or (number > 1 and options.window and options.validation):
        level = _measured(options, level, clients, right)
    return level


def _finished(server: Server) -> bool:
    """Return whether the last level is done."""
    number = len(server.levels)
    last = number == len(server.options.levels)
    return last and _converged(server.options, server.levels[-1], number)


def _measured(options: FeMAM, level: Level, clients: fl.Clients, right: Any) -> Level:
    """Return the level with its accuracy on the rows for validation."""
    # discloses how many of all clients' rows for validation are named rightly
    hits, rows = clients.reveal(right.at).tolist()
    if not rows:  # of clients with one labelled row each: they say nothing
        return level
    accuracy = 100.0 * hits / rows
    if options.adaptive:
        return fl.evolve(level, accuracies=(*level.accuracies, accuracy))
    return fl.evolve(level, accuracies=(*level.accuracies, accuracy)[-options.window :])


def _chosen(level: Level, clients: fl.Clients) -> Level:
    """Return the level with the groups that clients choose, each by the loss on its own rows."""
    for number, model in enumerate(level.models):
        clients.ask(at_client.try_model, state.Candidate(model, number))
    # discloses which model suits a client best, and no loss
    replies = clients.ask(at_client.choose_model, state.Ask())
    chosen = {one: reply.number for one, reply in replies.items()}
    for one, number in chosen.items():
        if not 0 <= number < len(level.models):
            raise SiteError(
                f"{one!r} chooses the model {number} of {len(level.models)}, counted from 0; "
                "install the same version of intarsia there, or see who runs the site."
            )
    return fl.evolve(level, groups={**level.groups, **chosen})


def _averaged(server: Server, level: Level, clients: fl.Clients) -> Level:
    """Return the level with the average of each group's models, which the server does not read."""
    models = list(level.models)
    for group in range(len(models)):
        members = [one for one in clients.ids if state.group_of(level, one) == group]
        if members:
            asked = dict.fromkeys(members, state.Share(tuple(members)))
            models[group] = clients.sum(at_client.send_part, asked).model
    return fl.evolve(level, models=tuple(models))


def certify(server: Server, clients: fl.Clients) -> tuple[Server, fl.RoundMetrics]:
    """Return the cross-entropy over all clients' samples with the levels as they are now."""
    reached = state.reached_of(server)
    server = _caught_up(server, clients, reached)
    open_ones = [one for one in clients.ids if server.closed[one] < reached]
    if open_ones:
        clients.sum(at_client.open_level, _latest(server, reached, open_ones))
    loss = mean_loss(clients, at_client.part_of_loss, state.Ask(), server.rounds)
    return server, fl.RoundMetrics(loss=loss, finished=_finished(server))


def conclude(server: Server, clients: fl.Clients, rng: fl.RandomKey) -> fl.FinalResult:
    """Let every client close the last level; the networks stay at the clients."""
    reached = state.reached_of(server)
    server = _caught_up(server, clients, reached)
    if server.options.final_epochs:
        clients.sum(at_client.open_level, _latest(server, reached, clients.ids))
        clients.ask(at_client.fine_tune, state.Ask())
    tuned = server.options.final_epochs > 0  # from here on each client's model is its own
    if server.options.adaptive:
        server, tuned = _ended(server, clients), False
        reached = len(server.levels)
    server = _closed(server, clients, reached, clients.ids, tuned=tuned)
    if server.options.adaptive:
        _train_again(server, clients)
    _, info = certify(server, clients)
    structure = tuple(level.kept for level in server.levels)
    return fl.FinalResult(
        info, structure=structure, level_words=state.words_of(server), notes=state.notes_of(server)
    )


def _ended(server: Server, clients: fl.Clients) -> Server:
    """Return the server at the last level.

    Of levels that the rounds did not come to, or only began, a personal one is trained once, as
    each client trains after the last round of federated averaging; clusters are none.
    """
    wanted = len(server.options.levels)
    reached = len(server.levels)
    for number in range(reached, wanted + 1):
        if number > reached:
            server = _caught_up(with_level(server), clients, number)
        level = server.levels[-1]
        if level.kind == "personal" and not level.rounds:
            clients.sum(at_client.open_level, _latest(server, number, clients.ids))
            clients.ask(at_client.fine_tune, state.Ask())
    return server


def _train_again(server: Server, clients: fl.Clients) -> None:
    """Let the levels that somebody keeps train on, with the rows for validation too."""
    for number, level in [*enumerate(server.levels, 1)] * server.options.final_rounds:
        if not level.kept:
            continue
        clients.ask(at_client.train_again, state.Again(number))
        models: dict[ClientId, Any] = dict.fromkeys(clients.ids)
        if level.kind == "clusters" and len(level.models) > 1:
            # as in the level's rounds, the server reads by how much each client's model changed
            changed = models_of(clients)
            told = np.stack([changed[one] for one in clients.ids])
            groups = np.array([state.group_of(level, one) for one in clients.ids])
            shares = np.array([server.shares[one] for one in clients.ids])
            averages = averages_of(told, shares, groups, level.common)
            models = {
                one: averages[group]
                for one, group in zip(clients.ids, groups.tolist(), strict=True)
            }
        elif level.kind != "personal":
            averaged = _averaged(server, level, clients)
            models = {one: averaged.models[state.group_of(level, one)] for one in clients.ids}
        clients.ask(
            at_client.keep_again,
            {one: state.Trained(model, number) for one, model in models.items()},
        )


def allowed(server: Server, client: ClientId) -> Mapping[str, Sequence[Any]]:
    """Return what the server may tell in the clear: what it drew, unless it reads models."""
    if server.options.read_of_clients:
        return {}
    found: list[Any] = [None, *server.levels[0].models]
    while len(server.levels) < len(server.options.levels):
        server = with_level(server)
        found += server.levels[-1].models
    return dict.fromkeys(["Begin.own", *_MODELS], tuple(found))


# fields of messages that hold a model of the latest level
_MODELS = tuple(
    f"{message}.model" for message in ("Candidate", "Closing", "Latest", "Trained", "Weigh")
)


def opening_models(sends: Iterable[fl.Sends]) -> tuple[fl.Sends, ...]:
    """Declare that messages hold the models of clusters: totals, or what these start from.

    A model is one total as it is, of the level's own: less another, or times a factor, it would
    tell single rows by losses, and a total of level 1 is for clients alone. What a level of shares
    tells are sums as they are: with numbers of its own in their place the server would undo what is
    rounded.
    """
    origin = ("Model.model", fl.PUBLIC, fl.AS_IT_IS)
    takes: dict[str, fl.Origin] = dict.fromkeys(_MODELS, origin)
    takes |= dict.fromkeys(["Common.counts", "Prior.counts", "Weighed.counts"], "Counted.at")
    takes |= dict.fromkeys(["Prior.compared", "Weighed.compared"], "Differences.at")
    return fl.opening(takes, sends)


FEMAM = fl.Algorithm(
    name="femam",
    hyperparameters=FeMAM,
    init_server=init_server,
    init_client=at_client.init_client,
    setup=setup,
    round=round,
    certify=certify,
    conclude=conclude,
    absences=True,
    states=(Server, at_client.Client, FeMAM, Level, state.Offset, state.Prior),
    model=fl.Model(
        predict=at_client.predict,
        network=at_client.network,
        local_baseline=fl.LocalBaseline("local"),
    ),
    disclosure=fl.Disclosure(
        sends=opening_models(
            (
                *fl.each(fl.asks(at_client.begin_level), begins=True),
                *fl.asks(
                    at_client.train_level,
                    at_client.fine_tune,
                    at_client.scale_levels,
                ),
                *fl.each(fl.asks(at_client.close_level), once_for="level"),
                *fl.each(
                    fl.asks(at_client.train_level_on_schedule),
                    needed=lambda options: options.schedule != "constant",
                ),
                *fl.each(
                    fl.asks(at_client.try_model, at_client.choose_model),
                    needed=lambda options: options.clustering == "loss",
                    repeats=True,  # for each model
                ),
                *fl.each(
                    fl.asks(at_client.send_model, tells=lambda options: options.read_of_clients),
                    needed=lambda options: bool(options.read_of_clients),
                    repeats=True,  # for each level that trains on
                ),
                *fl.each(
                    fl.sums(
                        at_client.send_part,
                        pooled=lambda options: options.pools,
                        chosen=lambda options: options.chooses,
                    ),
                    present="members",
                    together="some",  # those of a group
                    repeats=True,
                ),
                *fl.sums(at_client.open_level, reveals=("at",)),
                *fl.each(fl.sums(at_client.part_of_loss, reveals=("at",)), each_round=1),
                *fl.each(
                    fl.sums(at_client.compare_models, reveals=("at",)),
                    needed=lambda options: "auto" in options.levels and not options.adaptive,
                    once_for="level",
                ),
                *fl.each(
                    fl.sums(at_client.compare_groups, reveals=("at",)),
                    needed=lambda options: options.adaptive and "auto" in options.levels,
                    once_for="look",
                    repeats=True,  # for groups, and for what they have in common
                ),
                *fl.each(
                    fl.sums(at_client.weigh_level, reveals=("at",)),
                    needed=lambda options: options.adaptive or options.prune == "pooled",
                    once_for="level",  # for a sum of what it is worth
                ),
                *fl.each(
                    fl.sums(at_client.calibrate, reveals=("at",)),
                    needed=lambda options: options.calibrated,
                ),
                *fl.each(
                    (
                        *fl.asks(class_priors.take_offset),
                        *fl.sums(class_priors.try_offsets, reveals=("at",)),
                        *fl.sums(
                            class_priors.count_rows,
                            class_priors.compare_shares,
                            reveals=("at",),
                            opens=("at",),
                        ),
                    ),
                    needed=lambda options: "shares" in options.levels,
                ),
                *fl.each(
                    (
                        *fl.each(fl.asks(at_client.train_again), begins=True),
                        *fl.asks(at_client.keep_again),
                    ),
                    needed=lambda options: options.adaptive and options.final_rounds > 0,
                    repeats=True,  # for each level
                ),
            )
        ),
        groups=given_clusters,
        allowed=allowed,
    ),
)
