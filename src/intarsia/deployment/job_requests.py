"""Jobs that ask to run at a site, and what its owner decided about them.

A request is a file of the site's: what a job asks for, and the digest of that. A decision is a file
of the owner's, for one run and one digest, so that a job which was changed asks again. Both
outlive every process.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from intarsia.core.algorithm import Algorithm
from intarsia.core.disclosure import Sends, contents
from intarsia.core.files.atomic_files import write_atomically
from intarsia.deployment.client_folder import PutBack
from intarsia.deployment.policy import (
    Policy,
    check_different,
    check_jobs,
    check_set_ups,
    check_spent,
    today,
)
from intarsia.engines.remote.wire import shown
from intarsia.errors import CheckpointError, ExperimentError, PendingError, PolicyError
from intarsia.experiment.config import Experiment

_FOLDER: Final = "requests"
_DECISION: Final = ".decision"
_SHORT: Final = 12  # digits of a digest that are shown in sentences

State = Literal["waiting", "approved", "denied", "let in"]


@dataclass(frozen=True)
class Asked:
    """What a job asks for, as its owner reads it."""

    name: str
    algorithm: str
    mode: str  # of sums
    ids: str  # what the server gets for the ids of rows
    rounds: int  # at most
    epsilon: float  # 0: no noise
    delta: float
    least_clients: int
    clients: tuple[str, ...]  # who takes part
    columns: tuple[str, ...]  # of the site's table
    server_reads: tuple[str, ...]  # totals, and what it asks of each client
    server_reads_models: str  # of this site alone, in words; "": none
    clients_open: tuple[str, ...]  # totals, each client its own entries
    experiment: Mapping[str, Any]  # all of it


def asked_of(
    job: Experiment,
    algorithm: Algorithm,
    options: Any,
    tree: Mapping[str, Any],
    clients: Sequence[str],
    columns: Sequence[str],
) -> Asked:
    """Return what a job asks for; what is read and opened is told by the site's own code."""
    sends, privacy = algorithm.disclosure.needed(options), job.privacy
    return Asked(
        *(job.name, job.algorithm, privacy.mode, job.alignment.ids, job.rounds),
        *(privacy.epsilon, privacy.delta, privacy.least_clients),
        tuple(sorted(clients)),
        tuple(columns),
        tuple(sorted({one for sent in sends for one in _read(sent, privacy.mode)})),
        algorithm.disclosure.server_reads(options),
        tuple(sorted({_in_words(one.reply, name) for one in sends for name in one.opens})),
        tree,
    )


def _read(one: Sends, mode: str) -> Iterator[str]:
    """Yield what the server reads of a client function's replies in a mode of sums."""
    if one.call == "ask" or mode == "plain":  # sums that are not sealed are read part by part
        words = " and ".join(dict.fromkeys(contents(one.reply).values()))
        yield f"{words or 'that it is done'}, of each client ({one.reply.__name__})"
        return
    yield from (_in_words(one.reply, name) for name in one.reveals)


def _in_words(reply: type, name: str) -> str:
    """Return what a field of a reply holds, and its name."""
    field, words = f"{reply.__name__}.{name}", contents(reply).get(name, "")
    return f"{words} ({field})" if words else field


def without_names(said: Sequence[str]) -> tuple[str, ...]:
    """Return what the fields of replies hold, in words alone, each once."""
    return tuple(sorted({re.sub(r" \(\w+(\.\w+)?\)$", "", one) for one in said}))


@dataclass(frozen=True)
class JobRequest:
    """A job that asks to run at a site."""

    run: str  # its id
    asked: Asked
    digest: str
    since: str  # when it asked first
    let_in: str = ""  # when; "": it was not
    why: str = ""  # it was let in
    begun: str = ""  # when it was set up, as no site had refused it; "": it was not
    state: State = "waiting"  # by the decision about it
    reason: str = field(default="", compare=False)  # of a denial

    @property
    def short(self) -> str:
        """Return the start of the digest."""
        return self.digest[:_SHORT]


def digest_of(asked: Asked) -> str:
    """Return the digest of what a job asks for: SHA-256 of it as JSON."""
    text = json.dumps(asdict(asked), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _kind_of(asked: Asked) -> str:
    """Return the digest of a job but for its name: that of each night's run is another one.

    The version of the calls is left out, too: an upgrade makes no other job.
    """
    tree = {key: one for key, one in asked.experiment.items() if key != "protocol"}
    own = dict(tree.get("experiment") or {})
    tree["experiment"] = {key: one for key, one in own.items() if key not in ("name", "out")}
    return digest_of(replace(asked, name="", experiment=tree))


class Requests:
    """The requests at a site, and the decisions about them.

    Parameters
    ----------
    folder
        The site's own.
    record
        Writes into the site's log that a job asked, was let in, began or was denied.
    """

    def __init__(
        self, folder: Path, record: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> None:
        self._folder, self._record = folder / _FOLDER, record

    def admit(self, run: str, asked: Asked, policy: Policy) -> JobRequest:
        """Let a job in, or say why not; what it asked for is written down either way.

        Raises
        ------
        PolicyError
            If its owner denied it, so many jobs or set-ups have begun today, so many that differ
            ever began, or their epsilons are used up.
        PendingError
            If its owner is to decide.
        """
        digest = digest_of(asked)
        known = self._load(self._path(run, digest))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        one = known or JobRequest(run, asked, digest, now)
        self.check_goes_on(run, digest)
        if one.let_in:
            return one
        why = self._why(one, policy)
        if why:
            self._check_before(one, policy)
            check_set_ups(policy, sum(other.let_in[:10] == today() for other in self.all()))
            one = replace(one, let_in=now, why=why)
        if known is None or why:
            told: dict[str, Any] = {
                "job": asked.name,
                "algorithm": asked.algorithm,
                "mode": asked.mode,
                "trust": asked.experiment.get("privacy", {}).get("trust", "pairs"),
            }
            told |= {"ids": asked.ids, "epsilon": asked.epsilon, "digest": digest, "why": why}
            self._record({"event": "let in" if why else "asked", "run": run, **told})
            self._write(one)
        if not why:
            raise PendingError(
                f"the owner has not decided about the job {asked.name[:80]!r} (digest "
                f"{one.short}), which waits: see `intarsia federation requests` at the site."
            )
        return one

    def begin(
        self,
        run: str,
        digest: str,
        policy: Policy,
        agreed: str = "",
        rows: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Count a job that was let in and that no site refused; it counts once.

        `agreed` tells what all sites are to be told alike, so that their logs can be compared;
        `rows` how many of the site's take part, by what for.

        Raises
        ------
        PolicyError
            If so many jobs have begun today, so many that differ ever began, or their epsilons are
            used up.
        """
        one = self._load(self._path(run, digest))
        if one is not None and not one.begun:
            self._check_before(one, policy)
            told = {"run": run, "job": one.asked.name, "digest": digest, "agreed": agreed}
            self._record({"event": "began", **told, **({"rows": {**rows}} if rows else {})})
            self._write(replace(one, begun=datetime.now(UTC).isoformat(timespec="seconds")))

    def hindrance(self, one: JobRequest, policy: Policy) -> str:
        """Return why a job would not begin now, whatever is decided about it; "": it would."""
        try:
            if not one.begun:
                self._check_before(one, policy)
        except PolicyError as problem:
            return str(problem)
        return ""

    def _check_before(self, one: JobRequest, policy: Policy) -> None:
        """Refuse a job after those that began: of another digest too, each has spent its own."""
        before = [other for other in self.all() if other.begun]
        begun = {other.run for other in before if other.begun[:10] == today()}
        if one.run not in begun:
            check_jobs(policy, len(begun))
        if policy.jobs_total and _kind_of(one.asked) not in (kinds := self.kinds()):
            check_different(policy, len(kinds))
        spent = [other.asked.epsilon for other in before]
        unseen = PutBack.of(self._folder.parent).epsilon
        check_spent(policy, math.fsum((*spent, unseen)), one.asked.epsilon)

    def _write(self, one: JobRequest) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        content = json.dumps({**asdict(one), "state": "", "reason": ""}, indent=1)
        write_atomically(self._path(one.run, one.digest), f"{content}\n".encode(), private=True)

    def _why(self, one: JobRequest, policy: Policy) -> str:
        """Return why a job need not wait for its owner; "": it must."""
        if policy.approve == "all":
            return 'approve = "all"'
        if self._decision(self._path(one.run, one.digest)).get("approved"):
            return "the owner approved it"
        if policy.approve == "listed":
            for word in (one.asked.algorithm, one.digest):
                if word in policy.listed:
                    return f"{word[:_SHORT]} is listed"
            before = self._folder.glob(f"*-{one.digest}{_DECISION}")
            if any(self._decision(path.with_suffix(".json")).get("approved") for path in before):
                return "the owner approved the same job before"
        return ""

    def check_goes_on(self, run: str, digest: str) -> None:
        """Refuse a job that the owner denied, one that has begun too."""
        decision = self._decision(self._path(run, digest))
        if decision and not decision["approved"]:
            reason = f": {decision['reason']}" if decision["reason"] else ""
            raise PolicyError(f"the owner denied the job (digest {digest[:_SHORT]}){reason}.")

    def all(self) -> list[JobRequest]:
        """Return all requests, the oldest first."""
        found = (self._load(path) for path in self._folder.glob("*.json"))
        return sorted((one for one in found if one is not None), key=lambda one: one.since)

    def kinds(self) -> set[str]:
        """Return the digests of the jobs that have begun but for their names."""
        return {_kind_of(one.asked) for one in self.all() if one.begun}

    def with_noise(self) -> list[str]:
        """Return the ids of the runs with noise that have begun."""
        return [one.run for one in self.all() if one.begun and one.asked.epsilon > 0]

    def find(self, which: str) -> JobRequest:
        """Return the request that the start of a digest, or a job's name, tells; "": the only one.

        Raises
        ------
        ExperimentError
            If none does, or several do.
        """
        some = self.all()
        waiting = [one for one in some if one.state == "waiting"]
        found = waiting
        if which:
            found = [one for one in some if one.digest.startswith(which)]
            found = found or [one for one in some if one.asked.name == which]
            found = [one for one in found if one.state == "waiting"] or found
        if len(found) == 1:
            return found[0]
        if not which and not waiting:
            raise ExperimentError(
                "No job waits for the owner's decision; to change one, give the digest or the name "
                "that `intarsia federation requests` shows."
            )
        named = ", ".join(f"{one.short} ({one.asked.name})" for one in (found or waiting)[:8])
        asked = f"{which[:80]!r} tells" if which else "the jobs that wait are"
        raise ExperimentError(
            f"{asked} {len(found)} requests, and one is needed; give the start of a digest of: "
            f"{named or 'none waits'}."
        )

    def decide(self, one: JobRequest, *, approved: bool, reason: str = "") -> None:
        """Write down what the owner decided about a request."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"approved": approved, "reason": reason, "at": at, "digest": one.digest}
        path = self._path(one.run, one.digest).with_suffix(_DECISION)
        write_atomically(path, f"{json.dumps(content)}\n".encode(), private=True)
        if not approved:  # of an approval the log says when the job is let in by it
            told = {
                "run": one.run,
                "job": one.asked.name,
                "digest": one.digest,
                "reason": shown(reason),
            }
            self._record({"event": "denied", **told})

    def _path(self, run: str, digest: str) -> Path:
        return self._folder / f"{run}-{digest}.json"

    def _decision(self, path: Path) -> Mapping[str, Any]:
        """Return the decision about the request in a file; nothing if there is none."""
        try:
            found = json.loads(path.with_suffix(_DECISION).read_bytes())
            if type(found["approved"]) is bool and path.stem.endswith(f"-{found['digest']}"):
                return {"reason": "", **found}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError):
            pass
        raise CheckpointError(
            f"{path.with_suffix(_DECISION)} is damaged; decide again with `intarsia federation "
            "approve` or deny."
        )

    def _load(self, path: Path) -> JobRequest | None:
        """Return the request in a file; one that says another digest than its own is refused."""
        try:
            found = json.loads(path.read_bytes())
            lists = ("clients", "columns", "server_reads", "clients_open")
            asked: dict[str, Any] = {
                k: tuple(v) if k in lists else v for k, v in found.pop("asked").items()
            }
            found.setdefault("begun", found.get("let_in", ""))  # of an older version
            one = JobRequest(**{**found, "asked": Asked(**asked)})
            if one.digest != digest_of(one.asked) or path.stem != f"{one.run}-{one.digest}":
                raise ValueError("its digest is another")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CheckpointError(
                f"{path} is damaged ({problem}); remove it, and the job asks again."
            ) from None
        decision = self._decision(path)
        state: State = "let in" if one.let_in else "waiting"
        if decision:
            state = ("let in" if one.let_in else "approved") if decision["approved"] else "denied"
        return replace(one, state=state, reason=str(decision.get("reason", "")))
