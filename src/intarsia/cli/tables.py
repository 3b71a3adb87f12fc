"""The terminal: tables of who holds what and of results, and how far a run is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from intarsia.inspection.overlap import BlockClasses
from intarsia.inspection.recommend import Advice
from intarsia.results import comparison as figures
from intarsia.results.audit import sentences
from intarsia.results.comparison import FigureRow, Group, Row, Spread

if TYPE_CHECKING:
    from intarsia.core.block import ClientId, Labels
    from intarsia.core.schema import Schema
    from intarsia.deployment.site_log import SiteLog
    from intarsia.inspection.overlap import HoldingsRow, OverlapCounts
    from intarsia.models.coefficients import Summary
    from intarsia.results.audit import Audit, AuditLine
    from intarsia.results.result import Guarantee, Result, Score
    from intarsia.training import loop as training
    from intarsia.training.yardsticks import YardstickProgress
    from intarsia.tuning.study import Tuned


_MOST_LINES = 20
_MOST_REFUSED = 10  # calls of a site's log that are shown
_SECONDS_BETWEEN_LINES = 3.0
_READ = {  # why a line of an audit could be read; contributions say it themselves
    "reply": "asked for",
    "revealed": "revealed by the algorithm",
    "message": "written by the server",
    "total": "opened by its owners",
    "refresh": "opened, to be sealed anew",
}
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
_WHY = {
    "tolerance": "the tolerance is reached",
    "rounds": "the limit of rounds is reached",
    "algorithm": "the algorithm has nothing left to do",
    "stalled": "the gap stays as it is",
    "early_stopping": "no later round is better",
}


def show_holdings(
    console: Console,
    schema: Schema,
    rows: Sequence[HoldingsRow],
    overlaps: OverlapCounts,
    advice: Advice,
) -> None:
    """Show who holds what, what overlaps, and which algorithm fits."""
    table = _table(
        "Who holds what", "client", "rows", "columns", "labels", "shared rows", "shared columns"
    )
    with_missing = any(row.missing is not None for row in rows)
    if with_missing:
        table.add_column("missing", justify="right")
    for row in rows[:_MOST_LINES]:
        cells = [
            row.client,
            f"{row.samples:,}",
            f"{row.features:,}",
            f"{row.labelled:,}" if row.labelled else "–",
            f"{row.shared_samples:,}",
            f"{row.shared_features:,}",
        ]
        if with_missing:
            cells.append("–" if row.missing is None else f"{row.missing:.1f} %")
        table.add_row(*map(Text, cells))
    _more(table, len(rows))
    labelled = int((schema.label_holders > 0).sum())
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in (len(schema.samples), len(schema.features), labelled)))
    console.print(table)
    counts = overlaps.samples + overlaps.features
    if len(overlaps.clients) > 1 and counts.sum() > counts.trace():  # two have something in common
        console.print(_pairs(overlaps))
        console.print(_depths(schema))
    _print(console, *(f"note: {remark}" for remark in advice.remarks))
    fits = f"{advice.algorithm or 'nothing that is available'}: {advice.why}"
    if advice.obstacle:
        _print(console, f"a run would stop: {advice.obstacle}")
    _print(console, f"{'as far as the tables go, ' if advice.obstacle else ''}fits: {fits}")


def show_classes(console: Console, labels: Labels, counts: Mapping[str, int]) -> None:
    """Show how many samples have each class."""
    told = [f"{name} ({count:,})" for name, count in counts.items()]
    more = f" and {len(told) - _MOST_LINES} more" if len(told) > _MOST_LINES else ""
    shown = ", ".join(told[:_MOST_LINES]) + more
    _print(console, f"labels: {labels.name}: {shown or 'numbers to predict'}")


def show_blocks(console: Console, held: BlockClasses) -> None:
    """Show how many clients hold each feature block, and the classes of which nobody does."""
    columns = ("block", "holders of a class: fewest", "most", "classes of nobody")
    table = _table("Feature blocks", *columns)
    for name, counts in list(held.counts.items())[:_MOST_LINES]:
        few, most = min(counts.values()), max(counts.values())
        nobody = [one for one, count in counts.items() if not count]
        shown = ", ".join(nobody[:8]) + (f" and {len(nobody) - 8} more" if len(nobody) > 8 else "")
        table.add_row(*map(Text, (name, str(few), str(most), shown or "–")))
    _more(table, len(held.blocks))
    console.print(table)


def _pairs(overlaps: OverlapCounts) -> Table:
    table = _table("In common", "clients", "rows", "columns", "entries")
    counts = (overlaps.entries, overlaps.samples, overlaps.features)
    pairs = [
        (*(int(one[a, b]) for one in counts), a, b)
        for a, b in combinations(range(len(overlaps.clients)), 2)
    ]
    pairs.sort(key=lambda pair: (-pair[0], -pair[1], -pair[2], pair[3], pair[4]))
    for entries, samples, features, a, b in pairs[:_MOST_LINES]:
        names = f"{overlaps.clients[a]}, {overlaps.clients[b]}"
        table.add_row(Text(names), f"{samples:,}", f"{features:,}", f"{entries:,}")
    _more(table, len(pairs))
    return table


def _depths(schema: Schema) -> Table:
    """Return how many samples and features are held by how many clients."""
    table = _table("Held by", "clients", "rows", "columns")
    counts: dict[int, list[int]] = {}
    for position, index in enumerate((schema.samples, schema.features)):
        for cell in index.cells:
            counts.setdefault(len(cell.owners), [0, 0])[position] += cell.stop - cell.start
    for holders in sorted(counts)[:_MOST_LINES]:
        table.add_row(str(holders), *(f"{count:,}" for count in counts[holders]))
    _more(table, len(counts))
    return table


def show_result(console: Console, result: Result, folder: Path) -> None:
    """Show a finished run: the three-way comparison, the certificate, what it cost."""
    rows = figures.three_way(result)
    scores = [score for row in rows for score in (row.standalone, row.federated, row.centralised)]
    if any(score is not None for score in scores):
        console.print(_three_way(result, rows, figures.measure_of(scores)))
    told = figures.figure_rows(result)
    if told:
        console.print(_figures_of(told))
    every = result.metrics.server
    confusion = None if every is None or every.figures is None else every.figures.confusion
    lines = [] if confusion is None else _confusion(confusion)
    lines += [
        f"{result.experiment}: {result.algorithm} stopped after {result.rounds:,} rounds: "
        f"{_WHY[result.finished]}"
    ]
    if result.certificate is not None:
        found = result.certificate
        lines.append(
            f"certificate: the optimum lies between {found.dual:.8g} (dual) and "
            f"{found.primal:.8g} (primal): relative gap {figures.gap(found.gap_relative)}"
        )
    for true_name, row in result.structure.agreement.items():
        if not row:  # of one client
            continue
        level = max(row, key=lambda name: row[name])
        own = result.structure.agreement_of_members[true_name].get(level, row[level])
        learned = result.structure.learned
        said = level if learned is None else learned.said(level)
        members = f"; {own:.2f} of those with a part in it" if own != row[level] else ""
        lines.append(
            f"structure: {said} is most like {true_name} (adjusted Rand index {row[level]:.2f}"
            f"{members})"
        )
    if result.privacy.epsilon is not None:
        lines.append(f"privacy: {_protected(result.privacy)}")
    total = result.seconds.get("total")
    training = result.seconds.get("training")
    of_it = "" if training is None else f" ({figures.duration(training)} of it training)"
    up, down = (figures.size(result.bytes.get(way, 0)) for way in ("up", "down"))
    exchanges = f"{result.exchanges:,} exchanges"
    lines.append(f"cost: {figures.duration(total)}{of_it}, {up} up, {down} down, {exchanges}")
    lines += [f"note: {note}" for note in result.notes]
    _print(console, *lines, f"folder: {result.folder or folder}")


def _figures_of(rows: Sequence[FigureRow]) -> Table:
    """Return the figures of the models; a column without any is left out."""
    columns = {
        "stand-alone\nmean of clients": [_number(row.alone) for row in rows],
        "federated\nmean of clients": [_number(row.clients) for row in rows],
        "federated\nall samples": [_number(row.every) for row in rows],
        "95 % interval": [_range(row.interval) for row in rows],
        "centralised\nall samples": [_number(row.centralised) for row in rows],
    }
    columns = {name: some for name, some in columns.items() if any(some)}
    table = _table("figures (docs/figures.md)", "", *columns)
    for place, row in enumerate(rows):
        table.add_row(Text(row.name), *(some[place] or "–" for some in columns.values()))
    return table


def show_score(console: Console, score: Score) -> None:
    """Show how good a model is on the rows of a table that have a label."""
    table = _table(f"figures on {score.samples:,} rows with a label", "", "", "95 % interval")
    known = {"accuracy": "accuracy", "r2": "R²", **figures.FIGURES}
    for key, name in known.items():
        value = figures.figure_of(score, key)
        if value is not None:
            ranges = {} if score.figures is None else score.figures.intervals
            table.add_row(name, figures.number(value), _range(ranges.get(key)) or "–")
    console.print(table)
    if score.figures is not None and score.figures.confusion is not None:
        _print(console, *_confusion(score.figures.confusion))


def _range(ends: tuple[float, float] | None) -> str | None:
    return None if ends is None else " – ".join(figures.number(one) for one in ends)


def _number(value: float | None) -> str | None:
    return None if value is None else figures.number(value)


def _confusion(counts: Sequence[Sequence[float]]) -> list[str]:
    """Return in a line how many samples of each class are taken for which."""
    if len(counts) == 2:
        (right, false), (missed, found) = counts
        said = ((found, "true positives"), (false, "false positives"), (missed, "false negatives"))
        each = [f"{count:,.6g} {name}" for count, name in (*said, (right, "true negatives"))]
        return [f"of all samples, at a score above 0: {', '.join(each)}"]
    right = sum(row[place] for place, row in enumerate(counts))
    return [f"of all samples {right:,.6g} of {sum(map(sum, counts)):,.6g} are said right"]


def show_joined(console: Console, result: Result) -> None:
    """Show a client that joined a finished run, beside what it learns alone."""
    rows = figures.three_way(result)[:-1]  # it has no line for all samples
    scores = [score for row in rows for score in (row.standalone, row.federated)]
    console.print(_three_way(result, rows, figures.measure_of(scores)))
    epochs = result.hyperparameters.get("final_epochs")  # hyfem has none: a note says what it took
    if epochs is not None:
        name = result.experiment
        _print(console, f"{name}: {epochs:,} epochs on its own rows; what all share stays as it is")
    _print(console, *(f"note: {note}" for note in result.notes))
    if result.folder is not None:
        _print(console, f"folder: {result.folder}")


def _protected(found: Guarantee) -> str:
    return (
        f"ε {found.epsilon:g}, δ {found.delta:g} for each {found.unit}, of the released weights "
        f"(noise {figures.number(found.noise)}, sums {found.mode}); {len(found.does_not_cover)} "
        "things are not covered: see privacy in result.json"
    )


def _three_way(result: Result, rows: Sequence[Row], measure: str) -> Table:
    """Return the comparison; a column without a score, or without a count, is left out."""
    columns = {
        "rows": [None if row.samples is None else f"{row.samples:,}" for row in rows],
        "stand-alone": [_cell(row.standalone, measure) for row in rows],
        "federated": [_cell(row.federated, measure) for row in rows],
        "centralised": [_cell(row.centralised, measure) for row in rows],
    }
    columns = {name: some for name, some in columns.items() if any(some)}
    both = measure != "loss"
    table = _table(f"{result.experiment}: {measure}" + (" and loss" if both else ""), "", *columns)
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
        return figures.number(value)
    shown = figures.percent(value) if measure == "accuracy" else f"{value:.4f}"
    return f"{shown}  {score.loss:.4f}"


def show_comparison(console: Console, groups: Sequence[Group]) -> None:
    """Show groups of runs beside each other: scores, then costs."""
    for measure in dict.fromkeys(group.measure for group in groups):
        alike = [group for group in groups if group.measure == measure]
        console.print(_scores(alike, measure))
        if any(key in group.figures for group in alike for key in _COMPARED):
            console.print(_compared_figures(alike))
    if any(group.worst or group.macro_f1 for group in groups):
        console.print(_of_clients(groups))
    if any(group.published for group in groups):
        console.print(_beside_published(groups))
    console.print(_costs(groups))
    for group in groups:
        seeds = sorted({one for one in group.seeds if group.seeds.count(one) > 1})
        if seeds:
            several = f"more than one run has the seed {', '.join(map(str, seeds))}"
            remedy = "each counts in the mean: give every run once"
            _print(console, f"note: {group.experiment}, {_method(group)}: {several}; {remedy}.")


def show_tuned(console: Console, tuned: Tuned) -> None:
    """Show the trials of a search, the chosen one first, then as they were made."""
    keys = list(dict.fromkeys(key for one in tuned.trials for key in one.values))
    held = f"{tuned.folds} folds" if tuned.folds else "the validation part"
    title = f"{tuned.experiment}: {len(tuned.trials)} trials, mean over {held}"
    table = _table(title, "trial", *keys, *tuned.objectives)
    others = [one for one in tuned.trials if one.number != tuned.best]
    for one in (tuned.chosen, *others[: _MOST_LINES - 1]):
        name = f"{one.number + 1} (the file's)" if one.number == 0 else str(one.number + 1)
        table.add_row(
            f"{name}, chosen" if one.number == tuned.best else name,
            *(_valued(one.values.get(key)) for key in keys),
            *(_valued(one.scores.get(name, "diverged")) for name in tuned.objectives),
        )
    _more(table, len(tuned.trials))
    console.print(table)


def show_coefficients(console: Console, summary: Summary) -> None:
    """Show the coefficients of a model and what is to be known of them."""
    left_out = ("low", "high", "odds_low", "odds_high")  # an interval is one column
    names = [name for name in summary.header if name not in left_out]
    titles = [name.replace("_", " ") for name in names]
    interval = "low" in summary.header
    title = f"{len(summary.rows)} coefficients, loss {summary.loss}"
    table = _table(title, *titles, *(["95 % interval"] if interval else []))
    for row in summary.rows:
        reach = "–" if row.low is None else f"{row.low:.3g} to {row.high:.3g}"
        cells = [_valued(getattr(row, name)) for name in names]
        table.add_row(*cells, *([reach] if interval else []))
    console.print(table)
    for note in summary.notes:
        _print(console, f"note: {note}")


def _valued(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)


def _scores(groups: Sequence[Group], measure: str) -> Table:
    """Return the scores of groups with one measure; a column without any is left out."""
    columns = {
        title: [_spread(getattr(group, name), measure * (name != "samples")) for group in groups]
        for title, name in _SCORES.items()
        if any(getattr(group, name) for group in groups)
    }
    title = f"{measure}, mean ± standard deviation over runs"
    table = _table(title, "experiment", "algorithm", "runs", *columns)
    for place, group in enumerate(groups):
        table.add_row(
            *_names(group), str(len(group.seeds)), *(some[place] for some in columns.values())
        )
    return table


def _compared_figures(groups: Sequence[Group]) -> Table:
    """Return the figures of groups with their intervals; a column without any is left out."""
    there = {key for group in groups for key in group.figures}
    columns = {key: title for key, title in _COMPARED.items() if key in there}
    title = "figures over all samples, with 95 % intervals (docs/figures.md)"
    table = _table(title, "experiment", "algorithm", *columns.values())
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
    table = _table("loss and costs, mean over runs", "experiment", "algorithm", *columns)
    for group in groups:
        table.add_row(
            *_names(group),
            figures.number(_mean(group.loss)),
            figures.gap(_mean(group.gap_relative)),
            figures.number(_mean(group.rounds)),
            figures.number(_mean(group.exchanges)),
            "–" if group.bytes is None else figures.size(group.bytes.mean),
            figures.duration(_mean(group.seconds)),
        )
    return table


def _of_clients(groups: Sequence[Group]) -> Table:
    """Return what the mean of the clients' scores does not say."""
    columns = ("runs", "worst client", "macro-F1, mean of clients")
    table = _table("federated, by client", "experiment", "algorithm", *columns)
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
    table = _table(title, "experiment", "algorithm", *columns)
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


def show_audit(console: Console, audit: Audit, client: ClientId | None = None) -> None:
    """Show who could read what in a run: in sentences, then the server, all clients, or one."""
    _print_sentences(console, sentences(audit))
    _print_kinds(console, ((one.contents, one.what) for one in audit.lines))
    read, sealed = audit.read_by_server, audit.sealed_at_server
    opened = audit.read_by_clients if client is None else audit.read_by(client)
    who = "the clients" if client is None else client
    for title, lines in (
        ("What the server could read", read),
        ("What the server held and could not read", sealed),
        (f"What {who} could read", opened),
    ):
        if lines:
            console.print(_audited(title, lines, len(audit.clients)))
    if audit.mode == "plain":
        warning = "whoever runs the server could read every contribution of every client; "
        _print(console, f'mode: plain: {warning}set privacy = "masked" or "ckks" to seal them.')
    else:
        _print(console, f"mode: {audit.mode}")
    if audit.undeclared:
        _print(console, f"not declared by the algorithm: {', '.join(audit.undeclared)}.")
    if audit.checkpoint is not None:
        known = f"this is up to its checkpoint of round {audit.checkpoint}"
        _print(console, f"note: the run was stopped; {known}.")


def show_site_log(console: Console, log: SiteLog, said: Sequence[str]) -> None:
    """Show what left a site by its log: in sentences, then field by field."""
    _print_sentences(console, said)
    fields = [(words, field) for (function, field), words in log.contents.items() if function]
    totals = [(log.contents["", total], field) for field, total, _ in log.opened]
    _print_kinds(console, (*fields, *totals))
    title = f"What left {log.name}"
    table = _table(title, "field", "in", "layout", "protection", "opened by")
    table.add_column("times", justify="right")
    for column in table.columns[1:5]:
        column.justify = "left"
    for key, times in sorted(log.left.items()):
        table.add_row(*map(Text, key), f"{times:,}")
    opened = _table(f"What {log.name} opened", "in", "totals", "to", "times")
    for column in opened.columns[1:3]:
        column.justify = "left"
    for total, times in sorted(log.opened.items()):
        opened.add_row(*map(Text, total), f"{times:,}")
    for one in (table, opened):
        if one.row_count:
            console.print(one)
    for entry in log.of("refused")[-_MOST_REFUSED:]:
        _print(console, f"refused {entry['at'][:19]}: {entry['sentence'] or entry['error']}")
    _print(console, f"head: {log.chain.head} (note it: --noted proves later what was before it)")


def _print_sentences(console: Console, said: Sequence[str]) -> None:
    for number, one in enumerate(said, 1):
        _print(console, f"{number}. {one}")


def _print_kinds(console: Console, fields: Iterable[tuple[str, str]]) -> None:
    """Show by which names the tables have what the sentences are of; `fields` by their words."""
    kinds: dict[str, set[str]] = {}
    for words, field in fields:
        if words and field:
            kinds.setdefault(words, set()).add(field)
    table = _table("Kinds of values, and their names in the tables below", "kind", "fields")
    table.columns[1].justify = "left"
    for words, names in sorted(kinds.items()):
        table.add_row(Text(words), Text(", ".join(sorted(names))))
    if kinds:
        console.print(table)


def _audited(title: str, lines: Sequence[AuditLine], clients: int) -> Table:
    table = _table(title, "what", "values", "in", "how", "clients", "times")
    for column in table.columns[1:4]:
        column.justify = "left"
    for line in lines:
        how = line.protection if line.readable else f"sealed: {line.protection}"
        parts = "all" if len(line.clients) == clients else str(len(line.clients))
        table.add_row(
            *map(Text, (line.what, line.values, line.function or "–")),
            Text(_READ.get(line.how, how) if line.readable else how),
            "–" if not line.clients else parts,
            f"{line.times:,}",
        )
    return table


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
        return figures.percent(spread.mean)
    return f"{100 * spread.mean:.2f} ± {100 * spread.deviation:.2f} %"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_edge=False)
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position == 0 else "right", overflow="fold")
    return table


def _more(table: Table, lines: int) -> None:
    if lines > _MOST_LINES:
        table.add_row(f"… {lines - _MOST_LINES} more")


def _print(console: Console, *lines: str) -> None:
    # Not wrapped at the width of a pipe: a path or a sentence must stay whole for who reads it.
    for line in lines:
        console.print(Text(line), soft_wrap=True)


class Watch:
    """Show a run's progress: a bar on a terminal, else a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[phase]}", markup=False),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[figures]}", markup=False),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, phase="reading tables", figures="")

    def __enter__(self) -> Watch:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: training.Progress) -> None:
        """Show how far the run is."""
        figures = _figures(progress)
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=progress.rounds or None,
                completed=progress.round,
                phase=progress.phase or "training",
                figures=figures,
            )
            return
        self._line(f"{progress.phase or 'training'}: {figures}")

    def beside(self, progress: YardstickProgress) -> None:
        """Show how far a reference model is; the run itself is done."""
        if not progress.step:
            said = f"the model is written; now a reference model, {progress.trained_on}"
            _print(self._console, f"{said} (Ctrl-C stops it, intarsia resume goes on)")
        step = f"{progress.step} {progress.done}/{progress.most}" if progress.step else ""
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=progress.most or None,
                completed=progress.done,
                phase=progress.trained_on,
                figures=step,
            )
        elif step:
            self._line(f"{progress.trained_on}: {step}")

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self._console.print(Text(text), soft_wrap=True)


def _figures(progress: training.Progress) -> str:
    parts = [f"round {progress.round}/{progress.rounds}"]
    if progress.loss is not None:
        parts.append(f"loss {figures.number(progress.loss)}")
    if progress.gap_relative is not None:
        parts.append(f"gap {figures.gap(progress.gap_relative)}")
    if progress.accuracy is not None:
        parts.append(f"accuracy {figures.percent(progress.accuracy)}")
    parts.append(figures.size(progress.bytes))
    if progress.seconds_left is not None:
        parts.append(f"{figures.duration(progress.seconds_left)} left")
    return "  ".join(parts)
