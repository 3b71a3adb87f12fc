"""Encode labels: the task, its classes, and the number that stands for each class.

By default two distinct labels are a binary task, text or at most 20 whole numbers a multi-class
task, anything else regression. Of two classes the positive one is +1: which `positive` names, else
the second of `classes`, else which says yes or has a "no" beside it (`positive_last`), else the
last in ascending order. Multi-class labels are 0, 1, … in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core.block import (
    LEAST_WEIGHT,
    MOST_WEIGHT,
    Array,
    Block,
    ClientId,
    Labels,
    Task,
    distinct,
)
from intarsia.core.schema import Schema
from intarsia.data.parsing import (
    ascending,
    canonical,
    limit_of,
    negative_of,
    number,
    spellings_of,
    unit_of,
)
from intarsia.errors import (
    ExperimentError,
    FederationError,
    PolicyError,
    RefusedError,
    TableError,
    listed,
    nearest,
    several,
)

MOST_NUMBER_CLASSES = 20  # more distinct whole numbers than this are a regression target
MOST_CLASSES = 1000  # more distinct labels than this are a mistake, such as an id column
# how no and yes are written, or false and true as by spreadsheets of other languages; two clients
# with different ones mean the same classes
_NO_AND_YES = tuple(
    pair.split()
    for pair in (
        *("no yes", "n y", "false true", "f t", "off on", "nein ja", "n j", "nee ja", "non oui"),
        *("n o", "no si", "no sí", "n s", "não sim", "nao sim", "nie tak", "nej ja", "nei ja"),
        *("нет да", "не да", "ne da", "否 是"),
        *("neg pos", "negative positive", "negativ positiv", "négatif positif", "- +"),
        *("negativo positivo", "negatief positief"),
        *("falsch wahr", "faux vrai", "falso verdadero", "falso vero", "falso verdadeiro"),
        *("onwaar waar", "fałsz prawda", "falskt sant", "falsk sand", "usann sann", "ложь истина"),
    )
)
_TRUTHS = tuple(map(frozenset, _NO_AND_YES))
_SAYS_YES = {word: at == 1 for pair in _NO_AND_YES for at, word in enumerate(pair)}
# words for what is looked for, and for its absence, in several languages
_POSITIVE = {
    *("yes", "y", "true", "t", "on", "ja", "j", "oui", "si", "sí", "sim", "tak", "da", "да"),
    *("是", "positive", "positiv", "positif", "positivo", "pos", "sick", "ill", "diseased", "case"),
    *("krank", "malade", "enfermo", "malato", "dead", "died", "tot", "gestorben", "default", "bad"),
    *("defaulted", "ausfall", "ausgefallen", "impago", "churn", "churned", "gekündigt", "fraud"),
    *("betrug", "fraude", "event", "malignant", "bösartig", "maligno"),
    *("sann", "истина", "positief", "+"),
}
_NEGATIVE = {
    *("no", "n", "false", "f", "off", "nein", "non", "não", "nie", "nee", "нет", "否"),
    *("none", "negative", "negativ", "négatif", "negativo", "neg", "healthy", "control", "well"),
    *("gesund", "kontrolle", "sain", "sano", "alive", "lebt", "good", "paid", "bezahlt", "normal"),
    *("benign", "gutartig", "benigno", "negatief", "-"),
}
OTHER = "other"  # what the classes are called that positive does not name, where they are several


@dataclass(frozen=True, eq=False)
class LabelColumn:
    """One client's labels as its source says them."""

    name: str
    values: NDArray[Any]  # (samples,) float64 with NaN, or canonical text with "" for missing
    telling: str = ""  # why classes that nobody listed may tell single rows; "": no reason
    marked: int = 0  # rows without a label by what missing or label_map says of what is written
    # key of the source's label_map -> whether a label is written so, or it is missing anyway
    used: Mapping[str, bool] = field(default_factory=dict[str, bool])
    unit: str = ""  # that the source says; "": none

    @property
    def found(self) -> set[str]:
        """Return the different labels as canonical text."""
        given = self.values[_present(self.values)]
        return {canonical(str(one)) for one in np.unique(given).tolist()}

    @property
    def to_predict(self) -> bool:
        """Return whether labels are numbers to predict: many different ones, or not all whole.

        A few numbers among text, such as codes of diseases, may have decimals.
        """
        if self.values.dtype.kind != "f":
            return sum(number(one) is not None for one in self.found) > MOST_NUMBER_CLASSES
        found = np.unique(self.values[_present(self.values)])
        return len(found) > MOST_NUMBER_CLASSES or bool((found % 1 != 0).any())


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """What the experiment says about the labels of all clients.

    Raises
    ------
    ExperimentError
        If the settings contradict each other.
    """

    task: Task | None = None  # None: by the values
    positive: str | int | tuple[str | int, ...] | None = None  # these classes are +1
    classes: tuple[str | int, ...] = ()  # anything else in a label column is an error
    # "balanced": all classes count alike; a table: class -> the weight of its rows, 1 where it has
    # none; they multiply the weights that rows have
    class_weight: Literal["balanced"] | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.positive is not None and self.task in ("multiclass", "regression"):
            raise ExperimentError(
                f"[labels] positive is {self.positive!r} but task is {self.task!r}; positive "
                'belongs to a binary task: set task = "binary" or remove positive.'
            )
        if self.classes and self.task == "regression":
            raise ExperimentError(
                f"[labels] classes is {list(self.classes)} but task is 'regression', which has no "
                "classes; remove one of the two."
            )
        if len(self.named) == 1 or len(set(self.named)) < len(self.named):
            raise ExperimentError(
                f"[labels] classes is {list(self.classes)}; list at least two different classes."
            )
        if self.positive is not None and not self.positives:
            raise ExperimentError(
                "[labels] positive is an empty list; name at least one class that is +1."
            )
        if self.class_weight is not None and self.task == "regression":
            raise ExperimentError(
                "[labels] class_weight is set but task is 'regression', which has no classes; "
                "remove one of the two, or set weights at the clients with labels."
            )
        if isinstance(self.class_weight, Mapping):
            for name, one in self.class_weight.items():
                if not LEAST_WEIGHT <= one <= MOST_WEIGHT:
                    raise ExperimentError(
                        f"[labels] class_weight of {name!r} is {one:g}; set a number above 0, from "
                        f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}."
                    )
        wrong = [one for one in self.positives if self.named and one not in self.named]
        if wrong:
            raise ExperimentError(
                f"[labels] positive is {wrong[0]!r}, which is not in classes; "
                f"{nearest(wrong[0], self.named)}."
            )
        if self.task == "binary" and len(self.named) > 2 and not self.positives:
            raise ExperimentError(
                f"[labels] classes has {len(self.named)} classes ({listed(self.named)}) but the "
                "task is 'binary'; say which are +1 with positive."
            )

    @property
    def positives(self) -> tuple[str, ...]:
        """Return the positive classes as canonical text."""
        if self.positive is None:
            return ()
        some = self.positive if isinstance(self.positive, tuple) else (self.positive,)
        return tuple(canonical(str(one)) for one in some)

    @property
    def named(self) -> tuple[str, ...]:
        """Return the listed classes as canonical text."""
        return tuple(canonical(str(one)) for one in self.classes)


def notes_on_marked(columns: Mapping[ClientId, LabelColumn | None]) -> tuple[str, ...]:
    """Return a note of how many written labels count as missing, of all rows of a table."""
    found = [
        f"{one.marked:,} of {one.name!r} at {client}"
        for client, one in columns.items()
        if one is not None and one.marked
    ]
    if not found:
        return ()
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return (
        f"Labels that are written count as none: {', '.join(found[:5])}{more}. The client's "
        "missing or label_map says so; take the text out of it if it is a label.",
    )


def notes_on_label_maps(columns: Mapping[ClientId, LabelColumn]) -> tuple[str, ...]:
    """Return a note of what label_map names that is a label of no client."""
    clients: dict[str, list[ClientId]] = {}
    for client, one in columns.items():
        for key in one.used:
            clients.setdefault(key, []).append(client)
    unused = {
        key: own
        for key, own in clients.items()
        if not any(columns[client].used[key] for client in own)
    }
    if not unused:
        return ()
    named = "; ".join(f"{key!r} of {listed(own, 3)}" for key, own in [*unused.items()][:5])
    more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
    return (
        f"label_map does nothing where it names a label that no row has: {named}{more}. Write it "
        "as the table has it, or take it out.",
    )


def encode_labels(
    column: LabelColumn, client: ClientId, labels: Labels, codes: Mapping[str, float]
) -> Array:
    """Return labels as numbers (samples,), NaN where missing.

    Raises
    ------
    TableError
        If a label is not one of the classes, or is text where the task is regression.
    """
    kind = labels.task
    if kind == "regression":
        if column.values.dtype.kind == "f":
            return np.asarray(column.values, np.float64)
        text = next(t for t in column.values.tolist() if t and number(t) is None)
        raise TableError(
            f"Client {client!r}: label column {column.name!r} has the text {text!r} but the "
            f"task is 'regression'; correct it, add {text!r} to missing, or set another task."
        )
    y = np.full(len(column.values), np.nan)
    present = np.flatnonzero(_present(column.values))
    raw, inverse = distinct(column.values[present])
    stored = np.empty(len(raw))
    for at, one in enumerate(raw.tolist()):
        name = canonical(str(one))
        if name not in codes:
            row = present[np.flatnonzero(inverse == at)[0]] + 1
            raise TableError(
                f"Client {client!r}: label column {column.name!r} has {name!r} in row {row}, "
                f"which is not a class; {nearest(name, codes)}."
            )
        stored[at] = codes[name]
    y[present] = stored[inverse]
    return y


def _present(labels: NDArray[Any]) -> NDArray[np.bool_]:
    missing = np.isnan(labels) if labels.dtype.kind == "f" else labels == ""
    return np.asarray(~missing, np.bool_)


def meaning(
    columns: Mapping[ClientId, LabelColumn], settings: LabelSettings, clients: Iterable[ClientId]
) -> tuple[Labels, dict[str, float]]:
    """Return what the labels mean, and the stored value of every class (none for regression)."""
    if not columns:
        raise FederationError(
            f"No client has a label column (clients: {listed(clients)}); at least one client needs "
            "labels: set label at that client."
        )
    first, name = next((client, column.name) for client, column in columns.items())
    raw = [column.values[_present(column.values)] for column in columns.values()]
    if not sum(map(len, raw)):
        raise FederationError(
            f"Every label is missing (label column {name!r} of client {first!r} and "
            f"{len(columns) - 1} more); at least one sample needs a label: check label and "
            "missing."
        )
    found = [distinct(part)[0] for part in raw]
    if settings.task == "regression" or _regression(found, settings):
        return Labels("regression", (), name), {}
    present = {canonical(str(one)) for part in found for one in part.tolist()}
    if len(present) > MOST_CLASSES:
        raise FederationError(
            f"Label column {name!r} has {len(present)} different values (first: "
            f"{ascending(present)[0]!r}), which is too many for classes; name the column that has "
            "the labels."
        )
    if not settings.named:
        _refuse_mixture(dict(zip(columns, found, strict=True)), name)
    classes = settings.named or ascending(present)
    if settings.positives:
        return _one_against_rest(classes, present, settings, name)
    if len(present) == 1 and not settings.named:
        raise FederationError(
            f"All {sum(map(len, raw))} labels are {next(iter(present))!r} (label column {name!r}); "
            "training needs two classes: check the label column."
        )
    return _coded(classes, settings, name)


def _coded(
    classes: tuple[str, ...], settings: LabelSettings, name: str
) -> tuple[Labels, dict[str, float]]:
    if len(classes) > MOST_CLASSES:
        raise FederationError(
            f"Label column {name!r} has {len(classes)} classes (first: {classes[0]!r}), and "
            f"{MOST_CLASSES} are the most: a model of so many tells single rows; join classes, or "
            "name the column that has the labels."
        )
    task = settings.task or ("binary" if len(classes) == 2 else "multiclass")
    if task == "binary" and len(classes) == 2 and not settings.named:
        classes = positive_last(classes)
    if task == "binary" and len(classes) != 2:
        raise FederationError(
            f"The task is 'binary' but label column {name!r} has "
            f"{several(len(classes), 'class', 'classes')} ({listed(classes)}); say which are +1 "
            "with positive in [labels]."
        )
    values = (-1.0, 1.0) if task == "binary" else map(float, range(len(classes)))
    return Labels(task, classes, name), dict(zip(classes, values, strict=True))


def positive_last(classes: Iterable[str]) -> tuple[str, ...]:
    """Return two classes with the positive one last, where nobody says which it is.

    It is the one whose word says yes or names what is looked for, or the other of one that says no,
    in several languages; else the last in ascending order. It depends on the names alone, as a
    site must be able to check it.
    """
    first, last = ascending(classes)
    words = first.casefold(), last.casefold()
    yes, no = ([one in known for one in words] for known in (_POSITIVE, _NEGATIVE))
    turned = yes == [True, False] or (yes == [False, False] and no == [False, True])
    return (last, first) if turned else (first, last)


def positive_class(labels: Labels) -> str | None:
    """Return the class that scores and coefficients speak for; None: there are not two."""
    return labels.classes[-1] if labels.task == "binary" else None


def check_meaning(labels: Labels, codes: Mapping[str, float], settings: LabelSettings) -> None:
    """Refuse labels that mean something else than the settings say of their classes.

    A site is told them by the server. Which rows have a label is public, so that a class which is
    stored as NaN would tell who has it.

    Raises
    ------
    RefusedError
        If they do, or classes weigh otherwise.
    FederationError
        If the classes do not fit the settings.
    """
    numbers = settings.task in (None, "regression") and not (settings.positives or settings.named)
    if numbers and labels.task == "regression":
        known, stored = Labels("regression", (), labels.name), dict[str, float]()
    elif settings.positives:
        classes = settings.named or tuple(codes)
        known, stored = _one_against_rest(classes, set(classes), settings, labels.name)
    else:
        known, stored = _coded(settings.named or labels.classes, settings, labels.name)
    known = with_weights(known, settings, weighted=labels.weighted)
    if labels != known or dict(codes) != stored:
        raise RefusedError(
            "The labels were to be stored, or their classes weighed, otherwise than the experiment "
            "has it; run the algorithm as it is at the server."
        )


def check_classes_at(column: LabelColumn | None, labels: Labels) -> None:
    """Refuse to make classes of a site's numbers to predict, whatever the server lists.

    Most rows would be a class of their own, and the weights of a class are its rows.

    Raises
    ------
    PolicyError
        If the task is another than regression; how many numbers there are is not said outside.
    """
    if column is not None and column.to_predict and labels.task != "regression":
        error = PolicyError(
            "the site's labels are numbers to predict, of which the job makes classes; set task = "
            '"regression" in [labels], or let the owner give each class a word (label_map in '
            "site.toml)."
        )
        error.add_note(
            f"Label column {column.name!r} has {len(column.found)} different labels, and of "
            f"numbers {MOST_NUMBER_CLASSES} whole ones are the most that are classes"
        )
        raise error


def with_weights(labels: Labels, settings: LabelSettings, *, weighted: bool) -> Labels:
    """Return the labels with what is public about their weights.

    Raises
    ------
    ExperimentError
        If classes are weighted and there are none, or there is no such class.
    """
    given = settings.class_weight
    if given is None:
        return replace(labels, weighted=weighted)
    if labels.task == "regression":
        raise ExperimentError(
            f"[labels] class_weight is set but the labels of column {labels.name!r} are numbers to "
            "predict; remove it, or set weights at the clients with labels."
        )
    if isinstance(given, str):
        return replace(labels, weighted=True, class_weights="balanced")
    own = {canonical(name): float(one) for name, one in given.items()}
    for name in own:
        if name not in labels.classes:
            raise ExperimentError(
                f"[labels] class_weight names {name!r}, which is not a class; "
                f"{nearest(name, labels.classes)}."
            )
    weights = tuple(own.get(name, 1.0) for name in labels.classes)
    return replace(labels, weighted=True, class_weights=weights)


def _regression(found: list[NDArray[Any]], settings: LabelSettings) -> bool:
    if settings.task is not None or settings.positives or settings.classes:
        return False
    if any(part.dtype.kind != "f" and len(part) for part in found):
        return False
    values = np.unique(np.concatenate([part for part in found if len(part)]))
    whole = bool((values == np.round(values)).all())
    return len(values) > 2 and not (whole and len(values) <= MOST_NUMBER_CLASSES)


def _refuse_mixture(found: Mapping[ClientId, NDArray[Any]], name: str) -> None:
    said = sorted(
        (canonical(str(one)), client) for client, part in found.items() for one in part.tolist()
    )
    figures = [(one, client) for one, client in said if number(one) is not None]
    text = [(one, client) for one, client in said if number(one) is None]
    of_numbers, of_text = spelled_apart(
        {client: {canonical(str(one)) for one in part.tolist()} for client, part in found.items()}
    )
    if of_numbers and of_text:
        classes = ascending({one for one, client in said if client == of_numbers})
        words = ascending({one for one, client in said if client == of_text})
        example = _as_mapped(words, classes)
        advice = (
            f"say at {of_text!r} which class each is, as in label_map = {{ {example} }}, or list "
            "all classes in [labels] if they are different."
        )
        if len(classes) > MOST_NUMBER_CLASSES:  # an amount rather than classes
            advice = f"name the same label at both: label = ... at {of_numbers!r} or {of_text!r}."
        raise FederationError(
            f"Label column {name!r} has {listed(classes, 3)} at {of_numbers!r} but "
            f"{listed(words, 3)} at {of_text!r}; {advice}"
        )
    if text and figures:
        word, client = text[0]
        advice = (
            f"say at {client!r} by label_map which class {word!r} is, add it to missing, correct "
            "it, or list all classes in [labels]"
        )
        if len({one for one, _ in figures}) > MOST_NUMBER_CLASSES:  # amounts rather than classes
            advice = _as_amounts([one for one, _ in text], client) or advice
        raise FederationError(
            f"Label column {name!r} has numbers (such as {figures[0][0]!r} at {figures[0][1]!r}) "
            f"and text (such as {word!r} at {client!r}); {advice}."
        )


def _as_mapped(words: Sequence[str], classes: Sequence[str]) -> str:
    """Return what a label_map may say of words of one client, by the classes of another.

    Two words are told by what they say, and numbers by their order. Of other words the order of
    letters would tell a wrong class, such as "low" for the middle one: all are offered.
    """
    ordered: list[Sequence[str]] = []
    for some in (words, classes):
        if len(some) == 1 or all(number(one) is not None for one in some):
            ordered.append(some)
        elif len(some) == 2 and {one.casefold() for one in some} & (_POSITIVE | _NEGATIVE):
            ordered.append(positive_last(some))
    if len(words) == len(classes) and len(ordered) == 2:
        return ", ".join(f'"{one}" = "{to}"' for one, to in [*zip(*ordered, strict=True)][:3])
    offered = " or ".join(f'"{one}"' for one in classes[:3]) + " or …" * (len(classes) > 3)
    return f'"{words[0]}" = {offered}' + ", …" * (len(words) > 1)


def _as_amounts(texts: Sequence[str], client: ClientId) -> str:
    """Return what makes amounts of texts that are all written in one way; "": they are no such."""
    if spellings_of([limit_of(one) for one in texts]):
        return f"list the column in limits at {client!r}, so that the limit itself counts"
    if spellings_of([negative_of(one) for one in texts]):
        return f"write them with a minus in front, as in {negative_of(texts[0])!r}"
    unit = unit_of(texts, 0)
    return f"if all are in {unit!r}, name it in units at {client!r}; else convert them" * bool(unit)


def no_and_yes(words: Iterable[str]) -> tuple[str, str] | None:
    """Return two words that say no and yes, in this order; None: these words do not."""
    ordered = sorted(words, key=lambda one: says_yes(one) is True)
    said = frozenset(one.casefold() for one in ordered)
    return (ordered[0], ordered[1]) if len(ordered) == 2 and said in _TRUTHS else None


def says_yes(word: str) -> bool | None:
    """Return whether a word says yes, as 1 does, or no, in one of several languages; None: neither.

    Alone it may say something else, as `n` does of north.
    """
    return {"0": False, "1": True, **_SAYS_YES}.get(word.casefold())


def are_no_and_yes(words: Collection[str]) -> bool:
    """Return whether words are no and yes of one language, or 0 and 1, or one of the two."""
    own = {one.casefold() for one in words}
    return any(own <= pair for pair in (*_TRUTHS, {"0", "1"}))


def spelled_apart(found: Mapping[ClientId, Collection[str]]) -> tuple[ClientId, ClientId]:
    """Return two clients that write classes in two ways, the one with numbers first; or none.

    One has numbers alone and the other text alone, or both have yes and no in other words. `found`
    are the classes at each client, as canonical text.
    """
    classes = {client: {one.casefold() for one in some} for client, some in found.items() if some}
    figures = {client: [number(one) is not None for one in own] for client, own in classes.items()}
    of_numbers = next((client for client, own in figures.items() if all(own)), "")
    of_text = next((client for client, own in figures.items() if not any(own)), "")
    if of_numbers and of_text:
        return of_numbers, of_text
    words = {client: {pair for pair in _TRUTHS if own <= pair} for client, own in classes.items()}
    told = combinations([client for client, pairs in words.items() if pairs], 2)
    return next((both for both in told if words[both[0]].isdisjoint(words[both[1]])), ("", ""))


def _one_against_rest(
    classes: tuple[str, ...], present: set[str], settings: LabelSettings, name: str
) -> tuple[Labels, dict[str, float]]:
    positives = settings.positives
    if not settings.named and not present & set(positives):
        raise FederationError(
            f"[labels] positive is {listed(positives)} but no label in column {name!r} is; "
            f"{nearest(positives[0], ascending(present))}."
        )
    rest = tuple(one for one in classes if one not in positives)
    if not (rest if settings.named else present & set(rest)):
        raise FederationError(
            f"Every label in column {name!r} is positive ({listed(ascending(present))}); training "
            "needs two classes: leave one out of positive in [labels]."
        )
    names = (rest[0] if len(rest) == 1 else OTHER, " or ".join(positives))
    codes = {one: 1.0 if one in positives else -1.0 for one in (*classes, *positives)}
    return Labels("binary", names, name), codes


def as_in_tables(classes: Iterable[str]) -> list[Any]:
    """Return class names as the numbers or truth values that the tables had, where all are such."""
    classes = list(classes)
    if set(classes) <= {"false", "true"}:
        return [name == "true" for name in classes]
    kinds: tuple[Callable[[str], Any], ...] = (int, float)
    for kind in kinds:
        try:
            return [kind(name) for name in classes]
        except ValueError:
            continue
    return classes


def classes_at(blocks: Mapping[ClientId, Block], labels: Labels) -> dict[ClientId, set[str]]:
    """Return which of several classes each client's labels have.

    It reads labels, and is for those who see all tables anyway.
    """
    if labels.task != "multiclass":
        return {}
    return {
        name: {labels.classes[int(code)] for code in np.unique(block.y[~np.isnan(block.y)])}
        for name, block in blocks.items()
        if block.y is not None
    }


def notes_on_codes(
    found: Mapping[ClientId, Collection[str]], labels: Labels, settings: LabelSettings
) -> tuple[str, ...]:
    """Return a note where two clients have as many classes, and not the same: in two codes, maybe.

    `found` are the classes at each client.
    """
    if labels.task != "multiclass" or settings.classes:
        return ()
    known = {client: set(some) for client, some in found.items() if len(set(some)) > 1}
    for second, others in known.items():
        first = next((c for c, own in known.items() if len(own) == len(others)), second)
        own = known[first]
        if own == others:
            continue
        alike = own & others
        beside = ""
        # one code, of which each lacks some: only those may be meant
        if 2 * len(alike) > len(own) and not _is_shifted(own, others):
            own, others = own - alike, others - alike
            beside = f" beside {len(alike)} that both have"
        example = _as_mapped(ascending(others), ascending(own))
        return (
            f"Label column {labels.name!r} has the classes {listed(ascending(own), 5)} at "
            f"{first!r} but {listed(ascending(others), 5)} at {second!r}{beside}, which count as "
            f"{len(own | others)} different classes; if they mean the same, say so at {second!r}, "
            f"as in label_map = {{ {example} }}, and if not, list all in [labels] classes.",
        )
    return ()


def _is_shifted(own: Collection[str], others: Collection[str]) -> bool:
    """Return whether classes are numbers that begin elsewhere, as 1, 2, 3 and 0, 1, 2."""
    both = zip(ascending(own), ascending(others), strict=True)
    pairs = [(number(one), number(other)) for one, other in both]
    steps = {None if a is None or b is None else b - a for a, b in pairs}
    return len(steps) == 1 and None not in steps


def check_classes(schema: Schema, settings: LabelSettings) -> None:
    """Refuse as many classes as labelled samples, which are no classes, unless they are listed."""
    classes, labelled = len(schema.labels.classes), int((schema.label_holders > 0).sum())
    if not settings.classes and MOST_NUMBER_CLASSES < classes >= labelled:
        raise FederationError(
            f"Label column {schema.labels.name!r} has {classes} classes (such as "
            f"{listed(schema.labels.classes, 3)}) but {labelled} training samples have a label; "
            "nothing can be learned from a class of one sample: name the column that has the "
            "labels, or list all classes in [labels]."
        )


def notes_on_labels(schema: Schema, settings: LabelSettings) -> tuple[str, ...]:
    """Return notes about classes that may not be meant, and about labels among the features.

    Classes and names are public, so that every engine can say it. Of classes that are listed, as
    those of a federation that a client joins, it is not noted how many they are.
    """
    labels = schema.labels
    notes = []
    alike: dict[str, list[str]] = {}
    for one in labels.classes:
        alike.setdefault(_folded(one), []).append(one)
    same = [" and ".join(map(repr, some)) for some in alike.values() if len(some) > 1]
    if same:
        shown = "; ".join(same[:5]) + (f"; {len(same) - 5} more" if len(same) > 5 else "")
        notes.append(
            f"Label column {labels.name!r} has classes that differ in case or blanks only "
            f"({shown}) and count as different; write them alike, unless they are."
        )
    classes, labelled = len(labels.classes), int((schema.label_holders > 0).sum())
    if not settings.classes and classes > MOST_NUMBER_CLASSES and labelled < 2 * classes:
        notes.append(
            f"Label column {labels.name!r} has {classes} classes and {labelled} "
            "samples with a label, fewer than two for each; check that it is the column to predict."
        )
    name, there = labels.name, dict[str, list[ClientId]]()
    for client, holding in schema.holdings.items():
        for own in (*holding.features, *holding.levels):
            if _folded(own) == _folded(name):
                there.setdefault(own, []).append(client)
    for own, holders in there.items():  # whether the values agree nobody may see
        known = [client for client, holding in schema.holdings.items() if holding.labelled.any()]
        as_called = "" if own == name else f"{own!r} "
        notes.append(
            f"Column {name!r} has the labels of {listed(known)} and {as_called}is a feature at "
            f"{listed(holders)}: a model that reads it predicts the label from itself. Unless it "
            f"means something else there, set label to {own!r} at {listed(holders)}, or list it "
            "in exclude."
        )
    return tuple(notes)


def notes_on_label_columns(labelled: Mapping[ClientId, LabelColumn]) -> tuple[str, ...]:
    """Return a note where clients' labels are columns of different names."""
    names: dict[str, list[ClientId]] = {}
    for client, column in labelled.items():
        names.setdefault(_folded(column.name), []).append(client)
    if len(names) < 2:
        return ()
    told = [f"{labelled[some[0]].name!r} at {listed(some, 4)}" for some in names.values()]
    more = f" and {len(told) - 4} more" if len(told) > 4 else ""
    return (
        f"The labels are the column {', '.join(told[:4])}{more}; one model learns all of them as "
        "the answer to one question: choose another label where they answer different ones.",
    )


def _folded(name: str) -> str:
    """Return a name without blanks and in small letters."""
    return "".join(name.split()).casefold()
