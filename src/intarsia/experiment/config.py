"""The experiment file as a validated `Experiment`, with keys set from the command line.

Each table of the file is a frozen dataclass; `hyperparameters` builds one from a mapping with an
error that names the key, its table, the actual value and the nearest valid key. The tables
`[algorithm]`, `[partition]` and a named `[dataset]` keep their own keys as a mapping, since they
belong to the algorithm, the partition and the data set.
A key is set from the command line by `-c table.key=value`.
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from intarsia.core import settings
from intarsia.core.algorithm import Algorithm
from intarsia.core.memory import free_memory
from intarsia.core.side_by_side import cores
from intarsia.data.labels import LabelSettings
from intarsia.data.reader import ENDINGS, WORKBOOKS, ending_of, located
from intarsia.data.source import Source
from intarsia.errors import ExperimentError, listed, nearest
from intarsia.experiment import search
from intarsia.experiment.published import Published, of_tables
from intarsia.privacy.entity_matching.normalisation import Rule
from intarsia.privacy.settings import Privacy

_OF_STATES = 16  # part of the memory that clients' states may take
_MOST_THREADS = 8  # tables at once: more would wait for memory, and take more of it
OF_FILES = ("", "local")  # what a file may say of a Ray cluster


def overridden(tree: Mapping[str, Any], override: str, tables: Sequence[str]) -> dict[str, Any]:
    """Return the tables of a file with one `key=value` set; `tables` are those that it may have."""
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if parts == ["privacy"]:
        parts = ["privacy", "mode"]
    if not equals or len(parts) < 2 or not all(parts):
        # the nearest key, whichever table it is in
        known = {"experiment": experiment_keys()}
        for table, cls in _SETTINGS.items():
            known[table] = [one.name for one in fields(cls)]
        keys = {key: table for table, own in known.items() for key in own}
        near = difflib.get_close_matches(key.strip(), keys, n=1, cutoff=0.8) if equals else []
        example = f"{keys[near[0]]}.{near[0]}={text}" if near else "experiment.rounds=50"
        if equals and parts == ["algorithm"]:
            example = f"algorithm.name={text}"
        if equals and parts == ["name"]:  # more often that of an algorithm
            example = f"algorithm.name={text}, or -c experiment.name={text} for the run's own name"
        raise ExperimentError(
            f"-c {override!r} is not of the form table.key=value; write e.g. -c {example}."
        )
    if parts[0] not in tables:
        raise ExperimentError(
            f"-c {override!r}: {parts[0]!r} is not a table; {nearest(parts[0], tables)}."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (RecursionError, ValueError):  # too deep; a number of more digits than int() reads
        raise ExperimentError(
            f"-c {override[:40]!r}… has a value of {len(text):,} characters that is too deep or "
            "too long a number to be read; write a shorter one."
        ) from None
    if parts[0] == "privacy" and isinstance(tree.get("privacy"), str):
        tree = {**tree, "privacy": {"mode": tree["privacy"]}}
    if parts[0] != "client":
        return {**tree, parts[0]: _set(tree.get(parts[0], {}), parts[1:], value, override)}
    clients = list(tree.get("client", []))
    names = [str(client.get("name")) for client in clients]
    if parts[1] in names:
        position = names.index(parts[1])
    elif parts[1].isdecimal() and int(parts[1]) < len(clients):
        position = int(parts[1])
    else:
        raise ExperimentError(
            f"-c {override!r}: there is no client {parts[1]!r}; {nearest(parts[1], names)}."
        )
    if len(parts) < 3:
        raise ExperimentError(
            f"-c {override!r} names a client but no key; write e.g. -c "
            f"client.{parts[1]}.path=x.csv."
        )
    clients[position] = _set(clients[position], parts[2:], value, override)
    return {**tree, "client": clients}


WHERE = ("workers", "ray", "memory")  # keys that say where a run computes, and change no result


def changed_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what a run that goes on changes: `yardsticks` and where it computes, no other key.

    Raises
    ------
    ExperimentError
        If another key is named, or another value.
    """
    tree: Mapping[str, Any] = {}
    for override in overrides:
        key = override.partition("=")[0].strip()
        text = override if "." in key or key == "privacy" else f"experiment.{override}"
        other = key.partition(".")[0].strip() in _ORDER[1:]  # than [experiment]
        tree = tree if other else overridden(tree, text, ("experiment",))
        if other or not set(tree["experiment"]) <= {"yardsticks", *WHERE}:
            raise ExperimentError(
                f"-c {override!r} changes what the run was begun with. intarsia resume sets keys "
                f"of [experiment] alone: yardsticks, {', '.join(WHERE[:-1])} and {WHERE[-1]}; for "
                "another value begin a new run: intarsia run FILE -c "
                f"{shlex.quote(text)} --out DIR."
            )
    found = dict(tree.get("experiment", {}))
    if not isinstance(found.get("yardsticks", True), bool):
        raise settings.wrong_value(
            "[experiment]", "yardsticks", found["yardsticks"], "true or false"
        )
    count = found.get("workers", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise settings.wrong_value("[experiment]", "workers", count, "a whole number of at least 0")
    _check_ray(found.get("ray", ""))
    _check_memory(found.get("memory", ""))
    return found


def _check_memory(size: Any) -> None:
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if size != "" and (found is None or not float(found[1])):
        what = 'a size above 0 with its unit, MB, GB or TB, such as "4GB", or "" for what is free'
        raise settings.wrong_value("[experiment]", "memory", size, what)


def _check_ray(address: Any) -> None:
    known = isinstance(address, str) and (
        address in ("", "auto", "local") or re.fullmatch(r"[^\s/]+:[0-9]{1,5}", address)
    )
    if not known:
        what = '"HOST:PORT" of a cluster, "auto" for that of this machine, "local", or ""'
        raise settings.wrong_value("[experiment]", "ray", address, what)


def check_own_cluster(address: Any, where: str, remedy: str) -> None:
    """Refuse a Ray cluster that a file names: it would be sent tables, states and secrets.

    A file may come from somebody else. So whoever runs the experiment names the cluster; a file may
    say "local", which begins one on this machine.

    Raises
    ------
    ExperimentError
        If the file names one. `remedy` says how to begin, or to go on, without it.
    """
    if isinstance(address, str) and address not in OF_FILES:
        raise ExperimentError(
            f"{where} names the Ray cluster {address[:80]!r}, which would be sent all tables, and "
            f"none is taken from a file; {remedy}."
        )


def _set(table: Any, parts: Sequence[str], value: Any, override: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ExperimentError(
            f"-c {override!r} sets a key of {settings.toml_text(table)}, which is not a table; "
            "shorten the key."
        )
    if len(parts) == 1:
        return {**table, parts[0]: value}
    return {**table, parts[0]: _set(table.get(parts[0], {}), parts[1:], value, override)}


Tracker = Literal["mlflow", "tensorboard", "wandb"]
_FILE = "the experiment file"
_TABLES = (
    "experiment",
    "split",
    "preprocessing",
    "algorithm",
    "dataset",
    "partition",
    "client",
    "labels",
    "alignment",
    "privacy",
    "published",
    "tune",
)
_APART = ("algorithm", "hyperparameters", "own_algorithm", "clients")  # no keys of [experiment]
_ORDER = (*(name for name in _TABLES if name != "client"), "client")  # as advice names them


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which samples are held out for evaluation, by a hash of their ids."""

    test: settings.FractionBelowOne = 0.2  # 0 = no test part
    # fraction of the training samples by which early stopping chooses a round
    stopping: settings.FractionBelowOne = 0.0
    # fraction of the training samples on which models are evaluated instead of on the test part,
    # which is then not used: to choose hyperparameters
    validation: settings.FractionBelowOne = 0.0
    # or: the training samples are cut into so many parts, and models are evaluated on the one with
    # the number `fold`, from 0; 0: they are not cut
    folds: settings.CountOrZero = 0
    fold: settings.CountOrZero = 0
    salt: str = ""

    def __post_init__(self) -> None:
        settings.check_ranges(self, "[split] ")
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise ExperimentError(
                f"[split] folds is {self.folds} and fold is {self.fold}; set folds to 0 or at "
                "least 2, and fold to a number from 0 that is below it."
            )
        if self.folds and self.validation:
            raise ExperimentError(
                f"[split] has folds = {self.folds} and validation = {self.validation}; remove one."
            )

    @property
    def evaluated(self) -> tuple[float, float]:
        """Return between which fractions of the training samples those are that evaluate models."""
        if self.folds:
            return self.fold / self.folds, (self.fold + 1) / self.folds
        return 0.0, self.validation

    @property
    def stopping_salt(self) -> str:
        """Return the salt by which samples are held out for early stopping."""
        return f"stopping {self.salt}"

    @property
    def validation_salt(self) -> str:
        """Return the salt by which samples are held out for validation: not the test part's."""
        return f"validation {self.salt}"


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """What happens to the features before training."""

    standardise: bool = True  # federated, through sums
    # a constant feature at every client with labels: 1, or this value; the larger it is, the less
    # the penalty holds for the intercept
    intercept: bool | float = True

    def __post_init__(self) -> None:
        if not isinstance(self.intercept, bool) and not 1 <= self.intercept <= LARGEST_CONSTANT:
            raise ExperimentError(
                f"[preprocessing] intercept is {self.intercept:g}; expected true (a constant "
                "column of 1), false (none), or the value of that column, from 1 to "
                f"{LARGEST_CONSTANT}."
            )

    @property
    def constant(self) -> float:
        """Return the value of the constant feature, 0 where there is none."""
        return float(self.intercept)


LARGEST_CONSTANT = 1000


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How the clients find out which samples and features they share."""

    ids: Literal["plain", "pseudonyms", "psi"] = "plain"
    normalise: tuple[Rule, ...] = ()  # in this order, to text ids
    key: str | None = None  # file of the clients' shared key; None: privacy.key, else drawn
    dictionary: str | None = None  # file: the clients' columns as features, their units and types

    def __post_init__(self) -> None:
        if self.key is not None and self.ids == "plain":
            raise ExperimentError(
                f'[alignment] key is {settings.toml_text(self.key)} but ids is "plain", which uses '
                'none; set ids = "pseudonyms", or remove key.'
            )


@dataclass(frozen=True, kw_only=True)
class NamedDataset:
    """A named data set, with its own keys; or several, each dealt to clients of its own."""

    name: str | tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of each

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the data sets."""
        return (self.name,) if isinstance(self.name, str) else self.name


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How a data set is dealt out to simulated clients; the kind has its own keys."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


_SIZE = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([MGT]B)\s*", re.IGNORECASE)
_UNITS = {"MB": 2, "GB": 3, "TB": 4}  # powers of 1,000
_SETTINGS = {"split": Split, "preprocessing": Preprocessing, "alignment": Alignment}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that a run is made from.

    Either `dataset` and `partition` (a simulation) or `clients` (real clients).

    Raises
    ------
    ExperimentError
        If a value is outside its range, or both or neither kind of data are described.
    """

    name: str
    algorithm: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict[str, Any])  # not yet validated
    own_algorithm: Algorithm | None = None  # itself; None: it is found by its name. No file has it
    out: str = ""  # folder; "" = runs/<name> beside the file
    seed: settings.CountOrZero = 0
    rounds: settings.Count = 200  # upper limit
    # stop when gap/primal falls below, where there is a certificate
    tolerance: Annotated[float, Ge(0)] = 1e-6
    participation: settings.PositiveFraction = 1.0  # fraction of clients in a round
    participation_pattern: Literal["random", "cyclic"] = "random"
    checkpoint_seconds: Annotated[float, Ge(0)] = 1.0
    # what a run may take, such as "4GB": tables for which that is too little lie on disk; "": what
    # the machine, or the container, has free
    memory: str = ""
    # of the clients' states in memory, and at most a sixteenth of what a run may take; the others
    # are mapped from disk
    state_megabytes: settings.CountOrZero = 1536
    evaluate_every: settings.CountOrZero = 10  # rounds; 0 = only at the end
    # rounds without a better one after which training stops, with the best; 0: it does not
    early_stopping: settings.CountOrZero = 0
    stop_by: Literal["loss", "accuracy"] = "loss"  # which round is best; of numbers R²
    # who is told how a run in this process goes, see docs/how-to/trackers.md
    trackers: tuple[Tracker, ...] | Tracker = ()
    # of the libraries for linear algebra and for networks, which end the process for too many
    threads: Annotated[int, Ge(1), Le(256)] = 1
    # processes that compute for simulated clients; 0: as many as there are cores, if that pays
    workers: settings.CountOrZero = 0
    # the Ray cluster whose processes compute for simulated clients, "local" for one that begins on
    # this machine; an address is taken from the command line alone; "": this machine's processes
    ray: str = ""
    yardsticks: bool = True  # centralised and stand-alone beside the result, simulations only
    split: Split = Split()
    preprocessing: Preprocessing = Preprocessing()
    labels: LabelSettings = field(default_factory=LabelSettings)
    alignment: Alignment = Alignment()
    privacy: Privacy = field(default_factory=Privacy)
    dataset: NamedDataset | Source | None = None
    partition: Partition | None = None
    clients: tuple[Source, ...] = ()
    published: tuple[Published, ...] = ()  # for comparisons; nothing of a run depends on them
    tune: search.Search | None = None  # what `intarsia tune` tries; nor on this

    def __post_init__(self) -> None:
        settings.check_ranges(self, "[experiment] ")
        if isinstance(self.trackers, str):
            object.__setattr__(self, "trackers", (self.trackers,))
        _check_memory(self.memory)
        turns = 1 / self.participation
        if self.participation_pattern == "cyclic" and abs(turns - round(turns)) > 0.05:
            raise ExperimentError(
                f"[experiment] participation is {self.participation} with the cyclic pattern, in "
                "which the clients take turns; expected a fraction like 1/2, 1/3 or 1/4: set e.g. "
                f"participation = {1 / round(turns):.3g}."
            )
        if self.threads > 1 and self.workers > 1:
            raise ExperimentError(
                f"[experiment] threads is {self.threads} and workers is {self.workers}, and a "
                "library's threads do not go on in other processes; set threads = 1, or workers = "
                "1."
            )
        _check_ray(self.ray)
        if self.threads > 1 and self.ray:
            raise ExperimentError(
                f"[experiment] threads is {self.threads} and ray is {self.ray!r}, each of whose "
                "processes computes in one thread; set threads = 1."
            )
        self._check_stopping()
        if self.dataset is not None and self.clients:
            raise ExperimentError(
                f"The experiment has [dataset] and {len(self.clients)} [[client]] tables; describe "
                "a simulation ([dataset] and [partition]) or real clients ([[client]]), not both."
            )
        if self.dataset is None and not self.clients:
            raise ExperimentError(
                "The experiment has no [dataset] and 0 [[client]] tables; describe a simulation "
                "([dataset] and [partition]) or real clients ([[client]])."
            )
        if self.clients and self.partition is not None:
            raise ExperimentError(
                f"The experiment has [partition] and {len(self.clients)} [[client]] tables, which "
                "are parts already; remove [partition]."
            )
        for name, count in Counter(client.name for client in self.clients).items():
            if count > 1:
                raise ExperimentError(
                    f"{count} [[client]] tables have the name {name!r}; rename all but one."
                )

    @property
    def memory_bytes(self) -> int | None:
        """Return what a run may take of memory, in bytes; None: what is free."""
        found = _SIZE.fullmatch(self.memory)
        return None if found is None else int(float(found[1]) * 1000 ** _UNITS[found[2].upper()])

    @property
    def states_bytes(self) -> int:
        """Return how much of the clients' states may stay in memory, in bytes."""
        most = self.state_megabytes * 1_000_000
        memory = free_memory() if self.memory_bytes is None else self.memory_bytes
        return most if memory is None else min(most, memory // _OF_STATES)

    @property
    def side_by_side(self) -> int:
        """Return how many clients' tables are worked on at once, in threads of this process.

        One where a library computes with several threads.
        """
        most = min(cores(), _MOST_THREADS)
        return 1 if self.threads > 1 else min(self.workers or most, most)

    def _check_stopping(self) -> None:
        rounds, share = self.early_stopping, self.split.stopping
        if rounds and not share:
            raise ExperimentError(
                f"[experiment] early_stopping is {rounds} and [split] stopping is 0, which leaves "
                "no rows to compare rounds by; set stopping = 0.1 in [split]."
            )
        if share and not rounds:
            raise ExperimentError(
                f"[split] stopping is {share:g} and [experiment] early_stopping is 0, so that rows "
                "are held out for nothing; set early_stopping to a number of rounds, or stopping "
                "to 0."
            )
        if rounds and not self.evaluate_every:
            raise ExperimentError(
                f"[experiment] early_stopping is {rounds} and evaluate_every is 0, which compares "
                "no rounds; set evaluate_every = 1, or a few rounds."
            )
        if rounds and self.privacy.epsilon:
            raise ExperimentError(
                f"[experiment] early_stopping is {rounds} with privacy.epsilon, whose noise does "
                "not cover which round is best on the rows held out for it; set early_stopping = "
                "0 and stopping = 0, or epsilon = 0."
            )


_PLAIN = {"split": Split, "preprocessing": Preprocessing, "labels": LabelSettings}


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    parties: Sequence[str] = (),
    algorithm: str = "",
    keys_of: Callable[[str], Collection[str]] | None = None,
) -> Experiment:
    """Return the experiment that a TOML file describes.

    `overrides` are `key=value` texts such as "experiment.rounds=50" or "client.bank.path=x.csv" (a
    client by its name or its number from 0); a value is read as TOML, else as text. `parties` are
    those of a federation whose tables lie elsewhere: a file without data means all of them.
    `algorithm` is that of a file that names none. `keys_of` returns the hyperparameters of an
    algorithm by its name: where an override names another one, those of the file's that it does not
    have are left out, with a warning.

    Raises
    ------
    ExperimentError
        If the file cannot be read, is not TOML, or a key or a value is wrong.
    """
    path = Path(path)
    if ending_of(path) in ENDINGS and path.is_file():
        raise ExperimentError(
            f"{path} is a table, and {_FILE} is TOML that names tables; let intarsia init {path} "
            "write one."
        )
    if ending_of(path) in WORKBOOKS and path.is_file():
        raise ExperimentError(
            f"{path} is a workbook or an archive, and {_FILE} is TOML that names tables; save each "
            "client's sheet as CSV (UTF-8), and let intarsia init write one: intarsia init a.csv "
            "b.csv."
        )
    if path.is_dir():
        begun = (path / "experiment.json").is_file()
        what = "the output folder of a run" if begun else "a folder"
        more = f", or go on with that run: intarsia resume {path}" if begun else ""
        raise ExperimentError(f"{path} is {what}; name {_FILE}, such as mine.toml{more}.")
    tree: Mapping[str, Any] = settings.read_toml(path, _FILE)
    if tree and tree.keys() <= {"feature", "client"} and not isinstance(tree.get("client"), list):
        raise ExperimentError(
            f"{path} is a dictionary, which says what columns are one feature, and no experiment; "
            f"name {_FILE} whose [alignment] has it: dictionary = {settings.toml_text(path.name)}."
        )
    named = tree
    if isinstance(own := tree.get("experiment"), Mapping):
        check_own_cluster(
            own.get("ray", ""),
            f"{path}: [experiment] ray",
            "leave the key out there, and name it as you run it: -c experiment.ray=HOST:PORT (from "
            "Python ray=)",
        )
    for override in overrides:
        tree = overridden(tree, override, _ORDER)
    if keys_of is not None and overrides:
        tree = _without_others_keys(tree, named, overrides, keys_of)
    own = tree.get("algorithm", {})
    if algorithm and isinstance(own, Mapping) and "name" not in own:
        tree = {**tree, "algorithm": {"name": algorithm, **own}}
    if parties and not tree.keys() & {"client", "dataset"}:
        tree = {**tree, "client": [{"name": name} for name in parties]}
    return from_dict(tree, path.parent, path.stem)


def _without_others_keys(
    tree: Mapping[str, Any],
    before: Mapping[str, Any],
    overrides: Sequence[str],
    keys_of: Callable[[str], Collection[str]],
) -> Mapping[str, Any]:
    """Return a file's tables without the hyperparameters of an algorithm that is replaced."""
    given, was = tree.get("algorithm"), before.get("algorithm")
    if not isinstance(given, Mapping) or not isinstance(was, Mapping):
        return tree
    name, other = given.get("name"), was.get("name")
    if not isinstance(name, str) or not isinstance(other, str) or name == other:
        return tree
    asked = {one.partition("=")[0].strip().removeprefix("algorithm.") for one in overrides}
    foreign = {*keys_of(other)} - {*keys_of(name)} - asked
    left = [key for key in given if key in foreign and key != "name"]
    if left:
        warnings.warn(
            f"-c names the algorithm {name!r}, and {listed(left)} in {_FILE} "
            f"{'is' if len(left) == 1 else 'are'} of {other!r}: left out.",
            stacklevel=3,
        )
    return {**tree, "algorithm": {key: one for key, one in given.items() if key not in left}}


def from_dict(
    tree: Mapping[str, Any], folder: str | Path = ".", name: str = "experiment"
) -> Experiment:
    """Return the experiment that nested tables describe; paths are relative to `folder`.

    Raises
    ------
    ExperimentError
        If a key or a value is wrong.
    """
    folder = Path(folder).resolve()
    if "party" in tree:
        raise ExperimentError(f"[[party]] is not a table of {_FILE}; use [[client]].")
    settings.check_tables(tree, _FILE, _ORDER, ("client", "privacy", "published"))
    algorithm = dict(tree.get("algorithm", {}))
    chosen = algorithm.pop("name", None)
    if not isinstance(chosen, str) or not chosen:
        raise settings.wrong_value(
            "[algorithm]", "name", chosen, 'the name of an algorithm, such as "hyfdca"'
        )
    given = dict(tree.get("experiment", {}))
    for key in (*_APART, *_TABLES[1:]):
        if key in given:  # a field of Experiment, but not a key of [experiment]
            raise ExperimentError(
                f"[experiment] has the unknown key {key!r}; {nearest(key, experiment_keys())}."
            )
    _check_memory(given.get("memory", ""))  # a number has no unit, however it is written
    given.setdefault("name", name)
    own = given["name"]
    if "out" not in given and isinstance(own, str) and (own == ".." or own != Path(own).name):
        raise settings.wrong_value(
            "[experiment]", "name", own, "a name without slashes, as it names the output folder"
        )
    out = given.setdefault("out", f"runs/{own}")
    if out == "":
        raise settings.wrong_value("[experiment]", "out", out, 'a folder, such as "runs/mine"')
    if isinstance(out, str):
        given["out"] = settings.absolute_path(out, folder)
    privacy = _privacy(tree.get("privacy", {}), folder)
    return settings.hyperparameters(
        Experiment,
        {
            **given,
            "algorithm": chosen,
            "hyperparameters": algorithm,
            **{
                key: settings.hyperparameters(
                    cls, tree.get(key, {}), f"[{key}]", elsewhere=keys_elsewhere()
                )
                for key, cls in _PLAIN.items()
            },
            "alignment": _alignment(tree.get("alignment", {}), folder, privacy),
            "privacy": privacy,
            "dataset": _dataset(tree.get("dataset"), folder),
            "partition": _partition(tree.get("partition")),
            "clients": _clients(tree.get("client", []), folder),
            "published": of_tables(tree.get("published", [])),
            "tune": search.of_table(tree.get("tune")),
        },
        "[experiment]",
        experiment_keys(),
        keys_elsewhere(),
    )


def to_dict(experiment: Experiment) -> dict[str, Any]:
    """Return nested tables from which `from_dict` makes the same experiment; JSON can hold them."""
    tree: dict[str, Any] = {
        "experiment": {key: getattr(experiment, key) for key in experiment_keys() if key != "out"},
        "split": _table(experiment.split),
        "preprocessing": _table(experiment.preprocessing),
        "algorithm": {"name": experiment.algorithm, **_plain(experiment.hyperparameters)},
        "labels": _table(experiment.labels),
        "alignment": _table(experiment.alignment),
        "privacy": _table(experiment.privacy),
    }
    if experiment.out:
        tree["experiment"]["out"] = experiment.out
    if isinstance(experiment.dataset, NamedDataset):
        named = experiment.dataset
        tree["dataset"] = {"name": _plain(named.name), **_plain(named.options)}
    elif experiment.dataset is not None:
        tree["dataset"] = _table(experiment.dataset)
        del tree["dataset"]["name"]  # the name would make it a named data set
    if experiment.partition is not None:
        options = _plain(experiment.partition.options)
        tree["partition"] = {"kind": experiment.partition.kind, **options}
    if experiment.clients:
        tree["client"] = [_table(client) for client in experiment.clients]
    if experiment.published:
        tree["published"] = [_table(one) for one in experiment.published]
    if experiment.tune is not None:
        tree["tune"] = search.to_table(experiment.tune)
    return tree


def to_toml(experiment: Experiment) -> str:
    """Return the text of a file that describes the experiment, without keys at their defaults.

    Needs the library tomli-w, of the extra `intarsia[tune]`.
    """
    import tomli_w

    plain = to_dict(Experiment(name="", algorithm="", clients=(Source(name="x", path=""),)))
    tree = to_dict(experiment)
    default = {**plain, "client": plain["client"][0]}
    kept = {
        table: [_without(one, default["client"]) for one in own]
        if table == "client"
        else _without(own, default.get(table, {}))
        if isinstance(own, Mapping)
        else own
        for table, own in tree.items()
    }
    return tomli_w.dumps({table: own for table, own in kept.items() if own})


def _without(table: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a table that are not as in another."""
    return {key: own for key, own in table.items() if key not in default or default[key] != own}


def _plain(value: Any) -> Any:
    """Return a value with lists in place of tuples, and without keys that are None."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    return value


def _table(one: Any) -> dict[str, Any]:
    return dict(_plain({field.name: getattr(one, field.name) for field in fields(one)}))


def experiment_keys() -> list[str]:
    """Return the keys of the table [experiment]."""
    apart = {*_APART, *_TABLES}
    return [one.name for one in fields(Experiment) if one.name not in apart]


def keys_elsewhere() -> dict[str, str]:
    """Return the keys of the tables whose keys are always the same, and the table of each.

    An error about a key that is in the wrong table names the right one by it.
    """
    plain = {**_PLAIN, "alignment": Alignment, "privacy": Privacy}
    tables = {key: [one.name for one in fields(cls)] for key, cls in plain.items()}
    tables["experiment"] = experiment_keys()
    return {key: f"[{table}]" for table, keys in tables.items() for key in keys}


def _dataset(table: Mapping[str, Any] | None, folder: Path) -> NamedDataset | Source | None:
    if table is None:
        return None
    if "name" not in table and ("path" in table or "url" in table):
        source = settings.hyperparameters(Source, {"name": "dataset", **table}, "[dataset]")
        return located(source, folder)
    options = dict(table)
    name = options.pop("name", None)
    several = isinstance(name, list | tuple) and bool(name)
    names = list(name) if several else [name]
    if not all(isinstance(one, str) and one for one in names) or len(set(names)) < len(names):
        expected = 'the name of a data set such as "a9a" (or different ones), or path for a file'
        raise settings.wrong_value("[dataset]", "name", name, expected)
    if isinstance(options.get("path"), str):
        options["path"] = settings.absolute_path(options["path"], folder)
    return NamedDataset(name=settings.frozen(name), options=settings.frozen(options))


def _alignment(table: Mapping[str, Any], folder: Path, privacy: Privacy) -> Alignment:
    found = settings.hyperparameters(Alignment, table, "[alignment]", elsewhere=keys_elsewhere())
    if found.key is None and found.ids != "plain" and privacy.key:
        found = replace(found, key=privacy.key)  # the clients have one key for both
    key, dictionary = (
        None if path is None else settings.absolute_path(path, folder)
        for path in (found.key, found.dictionary)
    )
    return replace(found, key=key, dictionary=dictionary)


def _privacy(table: Any, folder: Path) -> Privacy:
    if isinstance(table, str):  # privacy = "masked" is short for a table with that mode
        table = {"mode": table}
    if not isinstance(table, Mapping):
        raise settings.wrong_value(
            "The file's", "privacy", table, 'a mode such as "masked", or a table'
        )
    found = settings.hyperparameters(Privacy, table, "[privacy]", elsewhere=keys_elsewhere())
    if not found.key:
        return found
    return replace(found, key=settings.absolute_path(found.key, folder))


def _partition(table: Mapping[str, Any] | None) -> Partition | None:
    if table is None:
        return None
    options = dict(table)
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or not kind:
        raise settings.wrong_value(
            "[partition]", "kind", kind, 'the kind of partition, such as "grid"'
        )
    return Partition(kind=kind, options=settings.frozen(options))


def _clients(tables: Any, folder: Path) -> tuple[Source, ...]:
    sources = []
    for position, table in enumerate(settings.table_list("client", tables)):
        name = table.get("name")
        where = f"[[client]] {name!r}" if isinstance(name, str) else f"[[client]] {position}"
        sources.append(located(settings.hyperparameters(Source, table, where), folder))
    return tuple(sources)
