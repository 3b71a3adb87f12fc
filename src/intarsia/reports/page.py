"""Write one HTML page of a run, or of several beside each other; it loads nothing.

The page holds what result.json, the model, the audit and the counts of the run's folder hold, and
no value or id beyond these. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from intarsia import __version__
from intarsia.core.files.atomic_files import FULL, write_over
from intarsia.core.text_tables import as_html, html_table
from intarsia.errors import ExperimentError, printable
from intarsia.reports import sentences as said
from intarsia.reports.charts import (
    Line,
    Mark,
    figure_charts,
    intervals_chart,
    lines_chart,
    points_chart,
)
from intarsia.reports.contents import Contents
from intarsia.reports.drawing import colour
from intarsia.reports.holdings import holdings_drawing
from intarsia.reports.levels import groups_drawing, levels_of
from intarsia.results import comparison
from intarsia.results.audit import sentences as audit_sentences
from intarsia.results.comparison import Group, Spread, three_way, value_of
from intarsia.results.history import Course
from intarsia.results.result import Result, Score
from intarsia.results.tables import audit_tables, comparison_parts, score_tables, structure_lines

NAME: Final = "report.html"
_MODELS = ("federated", "stand-alone", "centralised")
_MOST_ROWS = 30  # of a chart or a table of clients
_MOST_WHOLE = 6  # runs beside each other of which a page has all
_MOST_PHASES = 100  # whose lines can be told apart
_MOST_SCORES = 200  # clients of the table of scores
# of charts of scores
_OF_NUMBERS: Final = "On the dashed line what is predicted is what was."
_OF_CLASSES: Final = (
    "Bars are 95 % intervals of each point. The dashed line is chance, or a perfect match."
)


def write_report(folders: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the page of a finished run, or of several; return its path.

    Parameters
    ----------
    folders
        Output folders of finished runs.
    out
        The file; None: report.html in the run's folder, or of several in the working folder.

    Raises
    ------
    CheckpointError
        If a folder holds no finished run, or a file in it cannot be read.
    ExperimentError
        If there is no folder, or the file cannot be an HTML page or cannot be written.
    """
    if not folders:
        raise ExperimentError("There are 0 runs to report; give the output folder of one at least.")
    runs = [Contents.of(folder) for folder in folders]
    if out is None:
        out = runs[0].folder / NAME if len(runs) == 1 else Path(NAME)
    target = writable(Path(out), (".html", ".htm"), "--out")
    page = page_of(runs).encode()
    try:
        write_over(target, page)
    except OSError as problem:
        if problem.errno in FULL:  # any other file would meet the same
            raise
        raise ExperimentError(
            f"{target} cannot be written ({problem.strerror}); name another file with --out."
        ) from None
    return target


def writable(path: Path, endings: Sequence[str], option: str) -> Path:
    """Return a path that can be written to; ExperimentError if it is a folder or ends otherwise."""
    problem = None
    if path.is_dir():
        problem = "is a folder; name a file in it"
    elif path.suffix.lower() not in endings:
        problem = f"does not end in {endings[0]}; name it so"
    elif not path.parent.is_dir():
        problem = f"is in {path.parent}, which is no folder; make it first, or name another file"
    if problem is not None:
        raise ExperimentError(f"{option} {str(path)!r} {problem}.")
    return path


def templates() -> Environment:
    """Return what fills templates in: all text is escaped, and nothing controls a terminal."""
    return Environment(
        autoescape=True,
        loader=PackageLoader("intarsia.reports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda one: one if isinstance(one, Markup) else printable(str(one)),
    )


def page_of(runs: Sequence[Contents]) -> str:
    """Return the page of a finished run, or of several, as HTML."""
    template = templates().get_template("report.html")
    names = list(dict.fromkeys(one.result.experiment for one in runs))
    several = len(runs) > 1
    title = f"{len(runs)} runs compared: {', '.join(names)}" if several else names[0]
    return template.render(
        title=title,
        runs=[_parts(one) for one in runs],
        names=_names(runs),
        comparison=_comparison(runs) if several else None,
        whole=len(runs) <= _MOST_WHOLE,
        version=__version__,
        said=said,
    )


def _parts(contents: Contents) -> dict[str, Any]:
    """Return what the template shows of a run."""
    result, held = contents.result, contents.held
    measure, gains = said.headline(result)[0], said.gains(result)
    score = result.metrics.server
    figures = [] if score is None or score.figures is None else figure_charts(
        score.figures, contents.classes, contents.positive
    )  # fmt: skip
    drawn = "" if held is None else holdings_drawing(held)
    return {
        "contents": contents,
        "result": result,
        "summary": said.summary(contents),
        "tiles": _tiles(contents),
        "holdings": Markup(drawn),
        "clients": _clients(contents),
        "scores": Markup(_scores(contents)),
        "tables": [Markup(html_table(one)) for one in score_tables(result, _MOST_SCORES)],
        "measure": measure,
        "meanings": said.meanings(result),
        "gains": gains[:_MOST_ROWS],
        "gains_left": max(0, len(gains) - _MOST_ROWS),
        "verdict": " ".join(said.verdict_sentences(result)),
        "structure": list(structure_lines(result)),
        "figures": [(heading, Markup(chart)) for heading, chart in figures],
        "figures_remark": _OF_NUMBERS
        if score is not None and score.figures is not None and score.figures.predictions
        else _OF_CLASSES,
        "rounds": rounds_charts(contents.course),
        "groups": Markup(groups_drawing(result.structure)),
        "levels": levels_of(result.structure, contents.course),
        "spread": [(heading, Markup(chart)) for heading, chart in _spread(result, measure)],
        "coefficients": [
            (name, len(one.rows), Markup(as_html(one.parts()))) for name, one in contents.by_holders
        ],
        "audit": [] if contents.audit is None else list(audit_sentences(contents.audit)),
        "audit_tables": []
        if contents.audit is None
        else [Markup(html_table(one)) for one in audit_tables(contents.audit)],
        "messages": sorted(
            dict(result.bytes.get("by_message", {})).items(),
            key=lambda one: -(one[1]["up"] + one[1]["down"]),
        ),
    }


def _tiles(contents: Contents) -> list[tuple[str, float | None, str, str]]:
    """Return the figures at the head of a page: name, value, as text, and a remark."""
    result = contents.result
    measure, score, _ = said.headline(result)
    metrics = result.metrics
    ends = said.interval_of(score, measure)
    reach = "" if ends is None else " to ".join(said.shown(one, measure) for one in ends)
    of_all = "all rows" if metrics.server is not None else "mean of clients"
    first, *others = metrics.clients or ("",)
    mean = "mean of clients" if others or not first else f"rows of {first}"
    found = [
        (
            f"{measure}, federated",
            value_of(score, measure),
            f"{of_all}, 95 % interval {reach}" if reach else of_all,
        ),
        (f"{measure}, all data pooled", value_of(metrics.centralised, measure), "all rows"),
        (
            f"{measure}, federated",
            value_of(metrics.clients_mean, measure)
            if metrics.server is not None and metrics.standalone_mean is not None
            else None,
            mean,
        ),
        (
            f"{measure}, each alone",
            value_of(metrics.standalone_mean, measure),
            mean,
        ),
    ]
    return [(name, value, said.shown(value, measure), remark) for name, value, remark in found
            if value is not None]  # fmt: skip


def _clients(contents: Contents) -> list[tuple[str, str, int, int, int]]:
    """Return each client's colour, name, rows, columns and labels in counts."""
    found = [] if contents.held is None else contents.held.counts()
    return [(colour(at, len(found)), *one) for at, one in enumerate(found)]


def _scores(contents: Contents) -> str:
    """Return the chart of the scores and their intervals; "" without any."""
    result = contents.result
    measure, _, _ = said.headline(result)
    rows: dict[str, list[Mark]] = {}
    lines = three_way(result)
    if len(lines) > _MOST_ROWS:
        lines = lines[-2:]  # the mean, and all samples
    for row in lines:
        marks = []
        for series, score in enumerate((row.federated, row.standalone, row.centralised)):
            value = value_of(score, measure)
            if value is not None:
                ends = said.interval_of(score, measure)
                reach = "" if ends is None else " ({} to {})".format(
                    *(said.shown(one, measure) for one in ends)
                )  # fmt: skip
                text = f"{row.name}, {_MODELS[series]}: {said.shown(value, measure)}{reach}"
                marks.append(Mark(series, value, ends, text))
        if marks:
            rows[row.name] = marks
    return intervals_chart(rows, _MODELS, measure, "95 % intervals") if rows else ""


def _spread(result: Result, measure: str) -> list[tuple[str, str]]:
    """Return charts of clients that are too many to be drawn one by one."""
    metrics = result.metrics
    if len(metrics.clients) <= _MOST_ROWS - 2:
        return []
    found = []
    pairs = _pairs(metrics.standalone, metrics.clients, measure)
    if len(pairs) > 1:
        heading = f"{measure} of each client: federated against alone"
        found.append((heading, points_chart(pairs, "alone", "federated", measure, heading)))
    values = sorted(one for own in metrics.clients.values()
                    if (one := value_of(own, measure)) is not None)  # fmt: skip
    if len(values) > 1:
        heading = f"{measure} of the clients, from the lowest"
        line = Line(heading, list(enumerate(values, 1)), marked=True)
        across = "clients"
        percent = (False, measure == "accuracy")
        found.append((heading, lines_chart([line], across=across, up="", said=heading,
                                           percent=percent)))  # fmt: skip
    return found


def _pairs(
    across: Mapping[str, Score], up: Mapping[str, Score], measure: str
) -> dict[str, tuple[float, float]]:
    """Return the figures of those clients that have both."""
    both = {name: (value_of(across.get(name), measure), value_of(up[name], measure)) for name in up}
    return {name: (a, b) for name, (a, b) in both.items() if a is not None and b is not None}


def rounds_charts(course: Course | None) -> list[tuple[str, Markup]]:
    """Return headings and charts of the rounds, of what their history has."""
    if course is None:
        return []
    begun = course.begun if 1 < len(course.begun) <= _MOST_PHASES else {}
    earliest = min(begun.values(), default=0)
    phases = {name: first for name, first in begun.items() if first > earliest}
    found = []
    positive = {round_: value for round_, value in course.gap.items() if _by_powers(value)}
    for heading, values, settings in (
        ("Relative duality gap", positive, {"logarithmic": True}),
        ("Objective of training", course.loss, {}),
        ("Accuracy", course.accuracy, {"percent": (False, True)}),
    ):
        if len(values) > 1:
            line = Line(heading, sorted(values.items()), marked=len(values) < 30)
            text = f"{heading} by round"
            chart = lines_chart([line], across="round", up="", said=text, phases=phases, **settings)
            found.append((text, Markup(chart)))
    return found


def _by_powers(value: float) -> bool:
    """Return whether an axis by powers of ten can have a value: others are a damaged file's."""
    return 1e-30 <= value <= 1e30


def _comparison(runs: Sequence[Contents]) -> dict[str, Any]:
    """Return what the template shows of several runs beside each other."""
    groups = comparison.compare([one.result for one in runs])
    courses = [(name, one.course) for name, one in zip(_names(runs), runs, strict=True)]
    charts = []
    for heading, key, settings in (
        ("Relative duality gap by round", "gap", {"logarithmic": True}),
        ("Accuracy by round", "accuracy", {"percent": (False, True)}),
    ):
        lines = []
        for name, course in courses:
            values = {} if course is None else getattr(course, key)
            points = sorted(
                (a, b) for a, b in values.items() if (_by_powers(b) if key == "gap" else b > 0)
            )
            lines += [Line(name, points, marked=len(points) < 30)] if points else []
        if len(lines) > 1:
            chart = lines_chart(lines[:8], across="round", up="", said=heading, **settings)
            charts.append((heading, Markup(chart)))
    charts += [(heading, Markup(chart)) for heading, chart in _by_client(runs)]
    return {
        "parts": Markup(as_html(comparison_parts(groups))),
        "charts": charts,
        "groups": [Markup(_groups(measure, some)) for measure, some in _by_measure(groups).items()],
    }


def _by_client(runs: Sequence[Contents]) -> list[tuple[str, str]]:
    """Return charts of other algorithms against the first run's, a point for each client."""
    first, *others = runs
    measure = said.headline(first.result)[0]
    found: list[tuple[str, str]] = []
    its_name, *names = _names(runs)
    for name, one in zip(names, others, strict=True):
        if one.result.algorithm == first.result.algorithm or len(found) == _MOST_WHOLE:
            continue
        pairs = _pairs(one.result.metrics.clients, first.result.metrics.clients, measure)
        if len(pairs) > 1:
            heading = f"{measure} of each client: {its_name} against {name}"
            chart = points_chart(pairs, name, its_name, measure, heading)
            found.append((heading, chart))
    return found


def _names(runs: Sequence[Contents]) -> list[str]:
    """Return what tells runs from each other; those that are alike have numbers."""
    found = [
        f"{one.experiment}, {one.algorithm}, seed {one.seed}" for one in (r.result for r in runs)
    ]
    return [
        name if found.count(name) == 1 else f"{name}, run {found[: at + 1].count(name)}"
        for at, name in enumerate(found)
    ]


def _by_measure(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.measure, []).append(group)
    return found


def _groups(measure: str, groups: Sequence[Group]) -> str:
    """Return the chart of groups of runs: the mean over clients, with deviations over seeds."""
    names = ("federated", "stand-alone", "centralised", "published")
    rows: dict[str, list[Mark]] = {}
    for group in groups[:_MOST_ROWS]:
        settings = ", ".join(f"{key}={value}" for key, value in group.settings.items())
        name = f"{group.experiment}, {group.algorithm}" + (f" ({settings})" if settings else "")
        theirs = group.published
        published = None if theirs is None or measure != "accuracy" else Spread(
            theirs.accuracy, theirs.deviation
        )  # fmt: skip
        spreads = (group.clients or group.federated, group.standalone, group.centralised, published)
        for series, spread in enumerate(spreads):
            if spread is not None:
                wide = spread.deviation or 0.0
                ends = (spread.mean - wide, spread.mean + wide) if wide else None
                text = f"{name}, {names[series]}: {said.shown(spread.mean, measure)}"
                rows.setdefault(name, []).append(Mark(series, spread.mean, ends, text))
    return intervals_chart(rows, names, measure, "standard deviations") if rows else ""
