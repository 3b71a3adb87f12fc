"""Write a model card (Markdown): what the model is, of which data, how good, and its limits.

The headings are those of Mitchell et al. (2019), "Model Cards for Model Reporting".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from intarsia.core.files.atomic_files import write_over
from intarsia.errors import printable
from intarsia.reports import sentences as said
from intarsia.reports.contents import Contents
from intarsia.reports.page import writable
from intarsia.results.audit import sentences as audit_sentences
from intarsia.results.comparison import FIGURES, figure_of, three_way, value_of
from intarsia.results.figure_text import number
from intarsia.training.key_meanings import SAID

# and what pages make a link or mathematics of without marks
_SPECIAL = re.compile(r"([\\`*_\[\]#|<>~&$]|:(?=//)|(?<=www)\.)")
_MOST = 50  # clients


def write_card(folder: Path | str, out: Path | str) -> Path:
    """Write the model card of a finished run; return its path.

    Raises
    ------
    CheckpointError
        If the folder holds no finished run, or a file in it cannot be read.
    ExperimentError
        If the file cannot be a page of Markdown.
    """
    target = writable(Path(out), (".md", ".markdown"), "--card")
    text = "\n".join(_lines(Contents.of(folder)))
    write_over(target, f"{text}\n".encode())
    return target


def _lines(contents: Contents) -> Iterator[str]:
    result = contents.result
    yield f"# Model card: {_safe(result.experiment)}"
    yield ""
    yield _safe(said.summary(contents))
    yield from _heading("Model")
    what, method = said.TRAINED.get(result.algorithm, ("a model", result.algorithm))
    yield f"- Kind: {_safe(what)}"
    yield f"- Algorithm: {_safe(method)} ({_safe(result.algorithm)}), seed {result.seed}"
    for key in ("package", "version", "commit", "started"):
        if result.environment.get(key) is not None:
            yield f"- {key.capitalize()}: {_safe(result.environment[key])}"
    if result.hyperparameters:
        yield "- Settings of the training, and what each is:"
    for key, value in result.hyperparameters.items():
        meaning = SAID.get(f"{result.algorithm}.{key}") or SAID.get(key)
        yield f"  - {_safe(key)} = {_safe(value)}" + (f": {_safe(meaning[0])}" if meaning else "")
    yield from _heading("Intended use")
    aim = f"It predicts “{_safe(contents.label)}”" if contents.label else "It predicts its labels"
    named = ", ".join(f"“{_safe(one)}”" for one in contents.classes[:20])
    classes = f", one of the classes {named}" if named else ""
    yield f"{aim}{classes}, for rows like those of the clients below. Other uses were not tried."
    yield from _heading("Training data")
    if contents.held is None:
        yield f"Clients: {_safe(', '.join(contents.clients[:_MOST]))}."
    else:
        yield "| client | rows | columns | labels |"
        yield "|---|---:|---:|---:|"
        for name, rows, columns, labels in contents.held.counts()[:_MOST]:
            yield f"| {_safe(name)} | {rows:,} | {columns:,} | {labels:,} |"
    yield from _heading("Evaluation")
    yield from _evaluation(contents)
    yield from _heading("Certificate")
    yield _safe(said.certificate_sentence(result))
    yield from _heading("Privacy")
    for one in said.protection_sentences(result):
        yield f"- {_safe(one)}"
    for one in () if contents.audit is None else audit_sentences(contents.audit):
        yield f"- {_safe(one)}"
    yield from _heading("Limits")
    yield _safe(" ".join(said.verdict_sentences(result)))
    for note in result.notes:
        yield f"- {_safe(note)}"
    yield from _heading("Cost")
    yield _safe(said.cost_sentence(result))


def _heading(text: str) -> Iterator[str]:
    yield ""
    yield f"## {text}"
    yield ""


def _evaluation(contents: Contents) -> Iterator[str]:
    result = contents.result
    measure, score, _ = said.headline(result)
    yield f"| {measure} | stand-alone | federated | 95 % interval | centralised |"
    yield "|---|---:|---:|---:|---:|"
    for row in three_way(result)[-_MOST:]:
        ends = said.interval_of(row.federated, measure)
        reach = "–" if ends is None else " to ".join(said.shown(one, measure) for one in ends)
        alone, joined, pooled = (
            said.shown(value_of(one, measure), measure)
            for one in (row.standalone, row.federated, row.centralised)
        )
        yield f"| {_safe(row.name)} | {alone} | {joined} | {reach} | {pooled} |"
    if score is not None:
        yield ""
        if contents.positive:
            yield f"- Positive class: “{_safe(contents.positive)}”; its figures are these"
        for key, name in FIGURES.items():
            value = figure_of(score, key)
            if value is not None:
                yield f"- {_safe(name)}: {number(value)}"


def _safe(text: object) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(printable(str(text)).split()))
