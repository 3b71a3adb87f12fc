"""A run's result, several runs beside each other, and an audit as tables and lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from intarsia.core.block import ClientId
from intarsia.core.text_tables import Part, new_table
from intarsia.errors import several
from intarsia.results import comparison as figures
from intarsia.results import figure_text
from intarsia.results.audit import Audit, AuditLine, sentences
from intarsia.results.comparison import FigureRow, Group, Row, Spread
from intarsia.results.result import Guarantee, Result, Score, one_class_each

_READ = {  # why a line of an audit could be read; contributions say it themselves
    "reply": "asked for",
    "revealed": "revealed by the algorithm",
    "message": "written by the server",
    "total": "opened by its owners",
    "refresh": "opened, to be sealed anew",
}
_OF_THE_SERVER = "what the server asks for, and numbers of its own"
_SCORES = {  # in a mean of clients each of them counts alike, in one of samples each row
    "stand-alone\nmean of clients": "standalone",
    "federated\nmean of clients": "clients",
    "federated\nall samples": "federated",
    "centralised\nall samples": "centralised",
    "rows\nall samples": "samples",
}
_COMPARED = {  # figures of classes and of numbers that runs are shown by
    "auc": "AUC",
    "average_precision": "average\nprecision",
    "ks": "KS",
    "brier": "Brier\nscore",
    "calibration_error": "calibration\nerror",
    "r2": "R²",
    "mae": "MAE",
    "rmse": "RMSE",
}
WHY = {
    "tolerance": "the tolerance is reached",
    "rounds": "the limit of rounds is reached",
    "algorithm": "the algorithm has nothing left to do",
    "stalled": "the gap stays as it is",
    "early_stopping": "no later round is better",
}


def result_parts(result: Result, folder: Path | None = None, most: int | None = None) -> list[Part]:
    """Return a finished run: the three-way comparison, the certificate, what it cost.

    Of very many clients the scores of the first `most` are there; None: of all.
    """
    every = result.metrics.server
    confusion = None if every is None or every.figures is None else every.figures.confusion
    lines = _of_the_rare(result)
    lines += [] if confusion is None else confusion_lines(confusion)
    lines += [
        f"{result.experiment}: {result.algorithm} stopped after {several(result.rounds, 'round')}: "
        f"{WHY[result.finished]}"
    ]
    if result.certificate is not None:
        found = result.certificate
        lines.append(
            f"certificate: the optimum lies between {found.dual:.8g} (dual) and "
            f"{found.primal:.8g} (primal): relative gap {figure_text.gap(found.gap_relative)}"
            if found.holds
            else f"certificate: none, as rounding puts the dual ({found.dual:.8g}) above the "
            f"primal ({found.primal:.8g})"
        )
    lines += structure_lines(result)
    if result.privacy.epsilon is not None:
        lines.append(f"privacy: {_protected(result.privacy)}")
    total = result.seconds.get("total")
    training = result.seconds.get("training")
    of_it = "" if training is None else f" ({figure_text.duration(training)} of it training)"
    up, down = (figure_text.size(result.bytes.get(way, 0)) for way in ("up", "down"))
    exchanges = f"{result.exchanges:,} exchanges"
    lines.append(f"cost: {figure_text.duration(total)}{of_it}, {up} up, {down} down, {exchanges}")
    notes = [*result.notes, *one_class_each(result.metrics, result.positive_class)]
    lines += [f"note: {note}" for note in notes]
    place = result.folder or folder
    return [*score_tables(result, most), *lines, *([f"folder: {place}"] if place else [])]


def _of_the_rare(result: Result) -> list[str]:
    """Return in a line why the AUC is shown, where it is in the place of the accuracy."""
    every = result.metrics.server
    if every is None or every.accuracy is None or figures.judged_by(result) != "AUC":
        return []
    right = figure_text.percent(every.accuracy)
    majority = figures.figure_of(every, "majority") or 0.0
    return [
        f"AUC, not accuracy: the commonest class has {figure_text.percent(majority)} of the rows, "
        f"and {right} are said right; an AUC of 0.5 is chance, 1 is perfect"
    ]


def structure_lines(result: Result) -> Iterator[str]:
    """Yield how like the groups of clients that were found are to those that were dealt out."""
    for true_name, row in result.structure.agreement.items():
        if not row:  # of one client
            continue
        level = max(row, key=lambda name: row[name])
        own = result.structure.agreement_of_members[true_name].get(level, row[level])
        learned = result.structure.learned
        said = level if learned is None else learned.said(level)
        members = f"; {own:.2f} of those with a part in it" if own != row[level] else ""
        yield (
            f"structure: {said} is most like {true_name} (adjusted Rand index {row[level]:.2f}"
            f"{members})"
        )


def score_tables(result: Result, most: int | None = None) -> list[Table]:
    """Return the three-way comparison of all clients or the first so many, and the figures."""
    rows = figures.three_way(result)
    scores = [score for row in rows for score in (row.standalone, row.federated, row.centralised)]
    found = []
    if any(score is not None for score in scores):
        shown = rows if most is None or len(rows) <= most + 2 else [*rows[:most], *rows[-2:]]
        found.append(three_way_table(result, shown, figures.judged_by(result)))
        if len(shown) < len(rows):
            found[0].caption = f"{len(rows) - len(shown):,} more clients are not listed"
    told = figures.figure_rows(result)
    return [*found, *([_figures_of(told, result.positive_class)] if told else [])]


def _of_class(positive: str | None) -> str:
    return "" if positive is None else f"of the class {positive!r} "


def _figures_of(rows: Sequence[FigureRow], positive: str | None) -> Table:
    """Return the figures of the models; a column without any is left out."""
    columns = {
        "stand-alone\nmean of clients": [_number(row.alone) for row in rows],
        "federated\nmean of clients": [_number(row.clients) for row in rows],
        "federated\nall samples": [_number(row.every) for row in rows],
        "95 % interval": [_range(row.interval) for row in rows],
        "centralised\nall samples": [_number(row.centralised) for row in rows],
    }
    columns = {name: some for name, some in columns.items() if any(some)}
    title = f"figures {_of_class(positive)}".rstrip()
    table = new_table(title, "", *columns)
    for place, row in enumerate(rows):
        table.add_row(Text(row.name), *(some[place] or "–" for some in columns.values()))
    return table


def score_parts(score: Score, positive: str | None = None) -> list[Part]:
    """Return how good a model is on the rows of a table that have a label."""
    title = f"figures {_of_class(positive)}on {score.samples:,} rows with a label"
    table = new_table(title, "", "", "95 % interval")
    known = {"accuracy": "accuracy", "r2": "R²", **figures.FIGURES}
    for key, name in known.items():
        value = figures.figure_of(score, key)
        if value is not None:
            ranges = {} if score.figures is None else score.figures.intervals
            table.add_row(name, figure_text.number(value), _range(ranges.get(key)) or "–")
    if score.figures is None or score.figures.confusion is None:
        return [table]
    return [table, *confusion_lines(score.figures.confusion)]


def _range(ends: tuple[float, float] | None) -> str | None:
    return None if ends is None else " – ".join(figure_text.number(one) for one in ends)


def _number(value: float | None) -> str | None:
    return None if value is None else figure_text.number(value)


def confusion_lines(counts: Sequence[Sequence[float]]) -> list[str]:
    """Return in a line how many samples of each class are taken for which."""
    if len(counts) == 2:
        (right, false), (missed, found) = counts
        said = ((found, "true positives"), (false, "false positives"), (missed, "false negatives"))
        each = [f"{count:,.6g} {name}" for count, name in (*said, (right, "true negatives"))]
        return [f"of all samples, at a score above 0: {', '.join(each)}"]
    right = sum(row[place] for place, row in enumerate(counts))
    return [f"of all samples {right:,.6g} of {sum(map(sum, counts)):,.6g} are said right"]


def _protected(found: Guarantee) -> str:
    return (
        f"ε {found.epsilon:g}, δ {found.delta:g} for each {found.unit}, of the released weights "
        f"(noise {figure_text.number(found.noise)}, sums {found.mode}); "
        f"{len(found.does_not_cover)} things are not covered: see privacy in result.json"
    )


def three_way_table(result: Result, rows: Sequence[Row], measure: str) -> Table:
    """Return the comparison; a column without a score, or without a count, is left out."""
    columns = {
        "rows": [None if row.samples is None else f"{row.samples:,}" for row in rows],
        "stand-alone": [_cell(row.standalone, measure) for row in rows],
        "federated": [_cell(row.federated, measure) for row in rows],
        "centralised": [_cell(row.centralised, measure) for row in rows],
    }
    columns = {name: some for name, some in columns.items() if any(some)}
    both = measure != "loss"
    table = new_table(
        f"{result.experiment}: {measure}" + (" and loss" if both else ""), "", *columns
    )
    for place, row in enumerate(rows):
        if row.name in ("mean of clients", "all samples"):
            table.add_section()
        table.add_row(Text(row.name), *(some[place] or "–" for some in columns.values()))
    return table


def _cell(score: Score | None, measure: str) -> str | None:
    value = figures.value_of(score, measure)
    if score is None or value is None:
        return None
    if measure == "loss":
        return figure_text.number(value)
    shown = figure_text.percent(value) if measure == "accuracy" else f"{value:.4f}"
    loss = f"{score.loss:.4f}" if abs(score.loss) < 1000 else figure_text.number(score.loss)
    return f"{shown}  {loss}"


def comparison_parts(groups: Sequence[Group]) -> list[Part]:
    """Return groups of runs beside each other: scores, then costs."""
    parts: list[Part] = []
    for measure in dict.fromkeys(group.measure for group in groups):
        alike = [group for group in groups if group.measure == measure]
        parts.append(_scores(alike, measure))
        if any(key in group.figures for group in alike for key in _COMPARED):
            parts.append(_compared_figures(alike))
    if any(group.worst or group.macro_f1 for group in groups):
        parts.append(_of_clients(groups))
    if any(group.published for group in groups):
        parts.append(_beside_published(groups))
    parts.append(_costs(groups))
    for group in groups:
        draws = [*zip(group.seeds, group.salts, strict=True)]
        seeds = sorted({draw[0] for draw in draws if draws.count(draw) > 1})
        if seeds:
            several = f"more than one run has the seed {', '.join(map(str, seeds))}"
            remedy = "each counts in the mean: give every run once"
            parts.append(f"note: {group.experiment}, {_method(group)}: {several}; {remedy}.")
        if len({*group.salts}) > 1:
            ways = f"the runs drew their test rows in {len({*group.salts})} ways (split.salt)"
            parts.append(f"note: {group.experiment}, {_method(group)}: {ways}.")
        elif len({*group.seeds}) > 1:
            parts.append(f"note: {group.experiment}, {_method(group)}: {_of_seeds(group)}.")
        if said := _of_some_runs(group):
            parts.append(f"note: {group.experiment}, {_method(group)}: {said}.")
    return parts


def _of_some_runs(group: Group) -> str:
    """Return of how many runs the reference models' figures are, where not all have them."""
    every = len(group.seeds)
    known = {"stand-alone": group.standalone, "centralised": group.centralised}
    told = [
        f"{name} figures are of {one.runs} of {every} runs"
        for name, one in known.items()
        if one is not None and one.runs is not None and one.runs < every
    ]
    if not told:
        return ""
    remedy = "the others have no such reference model: intarsia resume DIR --yardsticks trains it"
    return f"{' and '.join(told)}; {remedy}"


def _of_seeds(group: Group) -> str:
    """Return whether the federated models of runs with several seeds differ."""
    known = [*dict.fromkeys(group.seeds)]
    seeds = ", ".join(map(str, known[:6])) + (" and more" if len(known) > 6 else "")
    score = group.federated or group.clients
    told = {name: one for name, one in ((group.measure, score), ("loss", group.loss)) if one}
    if not told:
        return f"whether the seeds ({seeds}) make a difference is not known without a score"
    if all(one.alike for one in told.values()):
        said = f"the seeds ({seeds}) make no difference: {' and '.join(told)}"
        return f"{said} of the federated model are the same in all {len(group.seeds)} runs"
    differing = [f"{name} {_spread(one, name)}" for name, one in told.items() if not one.alike]
    return f"the seeds ({seeds}) make a difference: {' and '.join(differing)}"


def _scores(groups: Sequence[Group], measure: str) -> Table:
    """Return the scores of groups with one measure; a column without any is left out."""
    columns = {
        title: [_spread(getattr(group, name), measure * (name != "samples")) for group in groups]
        for title, name in _SCORES.items()
        if any(getattr(group, name) for group in groups)
    }
    title = f"{measure}, mean ± standard deviation over runs"
    table = new_table(title, "experiment", "algorithm", "runs", *columns)
    for place, group in enumerate(groups):
        table.add_row(
            *_names(group), str(len(group.seeds)), *(some[place] for some in columns.values())
        )
    return table


def _compared_figures(groups: Sequence[Group]) -> Table:
    """Return the figures of groups with their intervals; a column without any is left out."""
    there = {key for group in groups for key in group.figures}
    columns = {key: title for key, title in _COMPARED.items() if key in there}
    title = "figures over all samples, with 95 % intervals"
    table = new_table(title, "experiment", "algorithm", *columns.values())
    for group in groups:
        cells = []
        for key in columns:
            found = group.figures.get(key)
            reach = None if found is None else _range(found.interval)
            cells.append("–" if found is None else f"{found.value}\n{reach or ''}".rstrip())
        table.add_row(*_names(group), *cells)
    return table


def _costs(groups: Sequence[Group]) -> Table:
    """Return what the runs of each group cost, and the loss that they came to."""
    columns = ("loss", "gap", "rounds", "exchanges", "bytes", "training")
    table = new_table("loss and costs, mean over runs", "experiment", "algorithm", *columns)
    for group in groups:
        table.add_row(
            *_names(group),
            figure_text.number(_mean(group.loss)),
            figure_text.gap(_mean(group.gap_relative)),
            figure_text.number(_mean(group.rounds)),
            figure_text.number(_mean(group.exchanges)),
            "–" if group.bytes is None else figure_text.size(group.bytes.mean),
            figure_text.duration(_mean(group.seconds)),
        )
    return table


def _of_clients(groups: Sequence[Group]) -> Table:
    """Return what the mean of the clients' scores does not say."""
    columns = ("runs", "worst client", "macro-F1, mean of clients")
    table = new_table("federated, by client", "experiment", "algorithm", *columns)
    for group in groups:
        if group.worst or group.macro_f1:
            table.add_row(
                *_names(group),
                str(len(group.seeds)),
                _spread(group.worst, group.measure),
                _spread(group.macro_f1, "accuracy"),
            )
    return table


def _beside_published(groups: Sequence[Group]) -> Table:
    """Return the accuracies, as means over clients, beside those that others published."""
    title = "accuracy as the mean over clients, beside published figures"
    columns = ("runs", "here", "published", "difference", "source")
    table = new_table(title, "experiment", "algorithm", *columns)
    table.columns[-1].justify = "left"
    for group in groups:
        theirs, ours = group.published, group.clients
        if theirs is None or ours is None or group.measure != "accuracy":
            continue
        table.add_row(
            *_names(group),
            str(len(group.seeds)),
            _spread(ours, "accuracy"),
            _spread(Spread(theirs.accuracy, theirs.deviation), "accuracy"),
            f"{100 * (ours.mean - theirs.accuracy):+.2f} %",
            Text(theirs.source),
        )
    return table


def audit_parts(
    audit: Audit, client: ClientId | None = None, *, fields: bool = False
) -> list[Part]:
    """Return who could read what in a run: in sentences, then the server, all clients, or one.

    The tables are in plain words, or name all `fields` as the code does.
    """
    return [
        *numbered(sentences(audit)),
        *audit_tables(audit, client, fields=fields),
        _mode(audit),
        *_limits(audit),
    ]


def numbered(said: Sequence[str]) -> Iterator[str]:
    """Yield sentences with their numbers."""
    for number, one in enumerate(said, 1):
        yield f"{number}. {one}"


def audit_tables(
    audit: Audit, client: ClientId | None = None, *, fields: bool = True
) -> list[Table]:
    """Return what is behind the sentences of an audit: of the server, and of all clients or one."""
    kinds = kinds_table((one.contents, one.what) for one in audit.lines) if fields else None
    read, sealed = audit.read_by_server, audit.sealed_at_server
    opened = audit.read_by_clients if client is None else audit.read_by(client)
    who = "the clients" if client is None else client
    found = [] if kinds is None else [kinds]
    for title, lines in (
        ("What the server could read", read),
        ("What the server held and could not read", sealed),
        (f"What {who} could read", opened),
    ):
        if lines:
            shown = _audited if fields else _in_words
            found.append(shown(title, lines, len(audit.clients)))
    return found


def _mode(audit: Audit) -> str:
    if audit.mode == "plain":
        warning = "whoever runs the server could read every contribution of every client; "
        return f'mode: plain: {warning}set privacy = "masked" or "ckks" to seal them.'
    return f"mode: {audit.mode}"


def _limits(audit: Audit) -> Iterator[str]:
    if audit.undeclared:
        yield f"not declared by the algorithm: {', '.join(audit.undeclared)}."
    if audit.checkpoint is not None:
        known = f"this is up to its checkpoint of round {audit.checkpoint}"
        yield f"note: the run was stopped; {known}."


def kinds_table(fields: Iterable[tuple[str, str]]) -> Table | None:
    """Return by which names the tables have what the sentences are of; None: nothing is described.

    `fields` are what they hold in words, and their names.
    """
    kinds: dict[str, set[str]] = {}
    for words, field in fields:
        if words and field:
            kinds.setdefault(words, set()).add(field)
    table = new_table("Kinds of values, and their names in the tables below", "kind", "fields")
    table.columns[1].justify = "left"
    for words, names in sorted(kinds.items()):
        table.add_row(Text(words), Text(", ".join(sorted(names))))
    return table if kinds else None


def _audited(title: str, lines: Sequence[AuditLine], clients: int) -> Table:
    table = new_table(title, "what", "values", "in", "how", "clients", "times")
    for column in table.columns[1:4]:
        column.justify = "left"
    for line in lines:
        parts = "all" if len(line.clients) == clients else str(len(line.clients))
        table.add_row(
            *map(Text, (line.what, line.values, line.function or "–")),
            Text(_how(line)),
            "–" if not line.clients else parts,
            f"{line.times:,}",
        )
    return table


def _in_words(title: str, lines: Sequence[AuditLine], clients: int) -> Table:
    """Return a table of what some lines are of, the most frequent first; fields of one are one."""
    table = new_table(title, "what", "how", "clients", "times")
    table.columns[1].justify = "left"
    times: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    parties: dict[tuple[str, str], set[ClientId]] = {}
    for line in lines:
        what = line.contents or (_OF_THE_SERVER if line.how == "message" else line.what)
        key = what, _how(line)
        message = line.function, line.what.partition(".")[0]
        own = times.setdefault(key, {})
        own[message] = max(line.times, own.get(message, 0))
        parties.setdefault(key, set()).update(line.clients)
    for key, own in sorted(times.items(), key=lambda one: -sum(one[1].values())):
        took = len(parties[key])
        part = "–" if not took else "all" if took == clients else str(took)
        table.add_row(*map(Text, key), part, f"{sum(own.values()):,}")
    return table


def _how(line: AuditLine) -> str:
    """Return why a line of an audit could be read, or what kept it from being."""
    if not line.readable:
        return f"sealed: {line.protection}"
    return _READ.get(line.how, line.protection)


def _method(group: Group) -> str:
    """Return the algorithm, and what tells it from other groups of its name."""
    settings = ", ".join(f"{key}={value}" for key, value in group.settings.items())
    return f"{group.algorithm} ({settings})" if settings else group.algorithm


def _names(group: Group) -> tuple[Text, Text]:
    return Text(group.experiment), Text(_method(group))


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _spread(spread: Spread | None, measure: str) -> str:
    if spread is None:
        return "–"
    if measure != "accuracy":
        return str(spread)
    if spread.deviation is None:
        return figure_text.percent(spread.mean)
    return f"{100 * spread.mean:.2f} ± {100 * spread.deviation:.2f} %"
