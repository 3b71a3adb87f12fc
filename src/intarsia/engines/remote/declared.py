"""What a site may be asked in a run: the exchanges and the totals that the algorithm declares.

The server of a run may depart from the algorithm. A site takes nothing of what it opens from the
server: function, field, layout and contributors of a total come from the declaration and from the
schema, and which exchange it is of from the site's own count.

* A client function is called the way that is declared: one that is added up sends nothing in the
  clear.
* A field of a message that is to hold a total holds a declared one, and no numbers instead. It is
  the last one, as it is, or a combination that is declared as such, with factors up to `MOST`, or
  one as it is of those since the site began anew.
* A total is of all clients that the site was told of in that exchange and that own the cell; where
  a client may have nothing to send, of some of them, the site among them if it sent something.
* What the server may only have drawn from the seed is that: no model of its own choice.
* All clients are asked together, but where the declaration says that some are, or not all take part
  in each round: the total of fewer would tell more of each.
* A site opens cells that it owns; of scores those alone of which it is the reader among the clients
  that are asked. To the server it opens fields that are declared as read by it.
* Where all take part in each round, what a site seals is bound to all that it was told as all
  clients were: a total is of clients that came from the same models by the same steps.
* Once it opened a field that tells the model, it trains no more in this run; what is declared to be
  asked for once is answered for one message alone, and what has a number of different replies sends
  no more of them. An answer that could not be made, as a value was beyond the range, ends the run
  there. None of this goes back with its state.

What a site cannot tell: what is in a total of an exchange that it was not in, but for its name and
contributors, which the keys vouch for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from intarsia.core.block import ClientId
from intarsia.core.client_functions import ClientFunction, Layout
from intarsia.core.disclosure import AS_IT_IS, PUBLIC, Origin, Sends, contents
from intarsia.engines import codec
from intarsia.engines.remote.replies import is_optional
from intarsia.engines.remote.round_count import NO_ROUNDS, Rounds
from intarsia.engines.remote.wire import Call, function_name
from intarsia.engines.sums.plain import EVERYONE, FIRST_BLOCK, Geometry
from intarsia.engines.sums.sealed import SealedField, SealedRecord, layouts
from intarsia.engines.sums.secure import REFRESH, Combination, SecureCells, told_alike
from intarsia.errors import RefusedError, StaleError
from intarsia.privacy.secure_aggregation.protocol import Piece

NOTHING: Final[Mapping[str, Sequence[Any]]] = MappingProxyType({})
MOST: Final = 8.0  # factor of a total in a combination
_KEPT: Final = 8  # exchanges of a function that are remembered
_AT_THE_END: Final = 2  # objectives of a run beside those of its rounds: rounding tells two apart
_RESTORED: Final = " after the best round"  # of what is asked for once


@dataclass(frozen=True)
class Summed:
    """A sum that the site was in."""

    sequence: int
    round: int
    part: str
    asked: tuple[ClientId, ...]
    sent: frozenset[str]  # fields that it had something for


@dataclass(frozen=True)
class Sums:
    """The sums that a site was in, by function: the site's own count of exchanges."""

    known: Mapping[str, tuple[Summed, ...]]
    forgotten: Mapping[str, int]
    ended: bool = False  # whether the server opened the model
    # what was asked for with one message alone, by function and field: what tells that message from
    # others, and who was asked; by function and part how many replies there were, and the last one
    once: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    begun: tuple[int, ...] = ()  # exchanges at which the site began anew
    kept: tuple[int, ...] = ()  # the last ones at which it kept what it goes back to
    # by exchange, the first ones first: checksums of all that it was told as all clients were
    told: tuple[tuple[int, str], ...] = ()
    failed: str = ""  # checksum of what an answer could not be made to, which tells of the values
    rounds: Rounds = NO_ROUNDS  # that the site counted in this run; they do not go back

    def add(self, function: str, one: Summed) -> Sums:
        """Return the sums with one more."""
        before = self.known.get(function, ())
        forgotten = self.forgotten
        if len(before) == _KEPT:
            forgotten = {**forgotten, function: before[0].sequence}
            before = before[1:]
        known = {**self.known, function: (*before, one)}
        return replace(self, known=known, forgotten=forgotten)

    def back_to(self, sequence: int) -> Sums:
        """Return the sums without those after an exchange, to whose state the site goes back."""
        if max((0, *self.begun, *self.kept, *(one for one, _ in self.told))) > sequence:
            marks = self.begun, self.kept
            begun, states = (tuple(one for one in some if one <= sequence) for some in marks)
            told = tuple(one for one in self.told if one[0] <= sequence)
            return replace(self, begun=begun, kept=states, told=told).back_to(sequence)
        if all(some[-1].sequence <= sequence for some in self.known.values() if some):
            return self
        kept = {
            name: tuple(one for one in some if one.sequence <= sequence)
            for name, some in self.known.items()
        }
        forgotten = {name: min(one, sequence) for name, one in self.forgotten.items()}
        return replace(self, known=kept, forgotten=forgotten)

    def told_at(self, sequence: int) -> str:
        """Return the checksum of what it was told up to an exchange; "": nothing."""
        return next((digest for one, digest in reversed(self.told) if one <= sequence), "")

    def tell(self, digest: str, sequence: int, anchor: int) -> Sums:
        """Return the sums with another checksum, and those of where the site may go back to."""
        marks = anchor, *self.kept
        last = {sum(one <= mark for one, _ in self.told) - 1 for mark in marks}
        before = (pair for at, pair in enumerate(self.told) if at in last)
        return replace(self, told=(*before, (sequence, digest)))

    def find(self, function: str, sequence: int) -> Summed | None:
        """Return the sum of an exchange, None if the site was not in it, or has forgotten."""
        some = self.known.get(function, ())
        return next((one for one in reversed(some) if one.sequence == sequence), None)

    def is_forgotten(self, function: str, sequence: int) -> bool:
        """Return whether the site cannot know any more whether it was in an exchange."""
        return sequence <= self.forgotten.get(function, 0)

    def last(self, functions: Iterable[str]) -> int:
        """Return the last exchange that was one of some functions; 0: none was."""
        ends = (some[-1].sequence for name in functions if (some := self.known.get(name)))
        return max(ends, default=0)

    def to_text(self) -> str:
        """Return what the shelf keeps: JSON, which is written in a few microseconds."""
        asked: dict[tuple[str, ...], int] = {}
        known = {
            name: [
                (
                    *(one.sequence, one.round, one.part),
                    *(asked.setdefault(one.asked, len(asked)), sorted(one.sent)),
                )
                for one in some
            ]
            for name, some in self.known.items()
        }
        rest = self.ended, dict(self.once), self.begun, self.kept, self.told, self.failed
        rounds = dataclasses.astuple(self.rounds)
        return json.dumps([known, list(asked), self.forgotten, *rest, rounds])

    @classmethod
    def of(cls, text: str) -> Sums:
        """Return the sums that a text was made of."""
        # earlier versions: no rest, or not all of it
        known, asked, forgotten, *rest = json.loads(text)
        rest[2:4] = map(tuple, rest[2:4])
        for told in rest[4:5]:  # earlier versions: the last checksum alone
            rest[4] = ((0, told),) if isinstance(told, str) else tuple(map(tuple, told))
        for count, last, anchor, begun, called, number in rest[6:7]:
            rest[6] = Rounds(count, tuple(last), anchor, tuple(begun), tuple(called), number)
        found = {
            name: tuple(
                Summed(sequence, round, part, tuple(asked[at]), frozenset(sent))
                for sequence, round, part, at, sent in some
            )
            for name, some in known.items()
        }
        return cls(found, forgotten, *rest)


NO_SUMS: Final = Sums({}, {})


class _Total:
    """What is declared of a field of the reply to a sum."""

    __slots__ = ("layout", "name", "optional", "sends")

    def __init__(self, sends: Sends, field: str, layout: Layout | None) -> None:
        self.sends, self.layout = sends, layout
        self.name = f"{sends.reply.__name__}.{field}"
        self.optional = is_optional(sends.reply, field)


class Declared:
    """The exchanges of a run as its algorithm declares them, at one client.

    Parameters
    ----------
    client
        Its name.
    geometry
        Where entries lie.
    clients
        All of them.
    sends
        What may cross.
    algorithm
        By whose name calls name its functions.
    options
        Its hyperparameters.
    least_clients
        So many contribute at least to totals of what clients came to alone.
    complete
        Whether all clients take part in each round.
    rounds
        How many the run has at most; 0: objectives on training rows are not counted.
    allowed
        What fields of messages may hold in the clear, by "Message.field"; others: anything.
    """

    def __init__(
        self,
        client: ClientId,
        geometry: Geometry,
        clients: Sequence[ClientId],
        sends: Iterable[Sends],
        algorithm: str,
        options: Any,
        least_clients: int = 1,
        *,
        complete: bool = False,
        rounds: int = 0,
        allowed: Mapping[str, Sequence[Any]] = NOTHING,
    ) -> None:
        self.geometry = geometry
        self._client, self._clients = client, frozenset(clients)
        self.complete, self._least, self._rounds = complete, least_clients, rounds
        self._options = options
        self._allowed = {
            place: frozenset(_digest(one) for one in values) for place, values in allowed.items()
        }
        self._calls: dict[tuple[str, str, str], Sends] = {}
        self._totals: dict[tuple[str, str], _Total] = {}
        self._functions: dict[str, list[str]] = {}  # by what they are totals of
        self._reveals: set[str] = set()
        self._model: set[str] = set()  # fields of these that tell the model
        self._combined: set[frozenset[str]] = set()
        self._pooled: set[str] = set()
        self._renews = False  # whether all are told the same model by one of the calls
        self._expected: dict[tuple[Any, ...], tuple[ClientId, ...]] = {}
        self._own: dict[tuple[Any, ...], tuple[int, ...]] = {}
        for one in sends:
            fn = one.function
            self._calls[function_name(fn, algorithm), fn.part, one.call] = one
            self._renews |= one.renews
            for _, origin in one.takes:
                if isinstance(origin, tuple) and AS_IT_IS not in origin:
                    self._combined.add(frozenset(origin))
            if one.call == "ask":
                continue
            if one.pooled(options):
                self._pooled.add(fn.name)
            for field, layout in layouts(one.reply):
                found = self._totals[fn.name, field] = _Total(one, field, layout)
                self._functions.setdefault(found.name, []).append(fn.name)
                if field in one.reveals:
                    self._reveals.add(found.name)
                if field in one.model:
                    self._model.add(found.name)

    def words_of(self, function: str, field: str) -> str:
        """Return what a total is of in plain words, or one that was sealed anew; "": not known."""
        names = [(function, field)]
        if function == REFRESH:  # "Reply.field and Reply.field"
            names = [
                (fn, one.split(".")[1])
                for one in field.split(" and ")
                for fn in self._functions.get(one, [])[:1]
            ]
        found = [
            contents(self._totals[one].sends.reply).get(one[1], "")
            for one in names
            if one in self._totals
        ]
        return " and ".join(dict.fromkeys(filter(None, found)))

    def sends(self, call: Call) -> Sends:
        """Return what is declared of the function that a call names.

        Raises
        ------
        StaleError
            If the run has no such function.
        RefusedError
            If it is not to be called that way, or with these clients.
        """
        found = self._calls.get((call.function, call.part, call.kind))
        if found is None:
            others = [kind for name, part, kind in self._calls if name == call.function]
            if others and call.part in {p for name, p, _ in self._calls if name == call.function}:
                raise RefusedError(
                    f"{call.function!r} was called by {call.kind!r}, and is declared for "
                    f"{others[0]!r} alone; run the algorithm as it is at the server."
                )
            raise StaleError(
                f"The function {call.function[:80]!r} on the {call.part[:80]!r} part is none of "
                "this run's."
            )
        asked = call.asked
        known = self._client in asked and self._clients.issuperset(asked)
        if not known or len(set(asked)) != len(asked):
            raise RefusedError(
                f"{call.function!r} was asked of {list(asked)}, and must be of clients of the "
                f"federation, each once, {self._client!r} among them; run the algorithm as it is."
            )
        if call.kind == "sum" and found.function.name in self._pooled and len(asked) < self._least:
            raise RefusedError(
                f"{call.function!r} was asked of {len(asked)} clients, of which each opens the "
                f"total, and privacy.least_clients is {self._least}; let more take part."
            )
        return found

    def check_ended(
        self, one: Sends, message: Any, call: Call, sums: Sums, state: Callable[[], bytes]
    ) -> Sums:
        """Refuse to train on, or to answer another message; return the sums that know this one.

        What is asked for once for a value of a field is asked of one `state`, too: a client that
        goes back, and is trained otherwise, would give another answer to the same message. A round
        that begins again without a client may tell the others anew: what sums came to is another
        one then. So it is, once, where clients went back to the best round of the run.
        """
        fn = one.function
        if sums.ended and not fn.protocol and (one.trains or not one.model):
            raise RefusedError(
                f"{fn.name} was asked for after the server read the model, which ends the training;"
                " run the algorithm as it is at the server, or begin another run."
            )
        if one.restores:
            best = max(sums.kept, default=0)
            begun = tuple(number for number in sums.begun if number <= best)
            return replace(sums, once={**sums.once, _RESTORED: ()}, begun=begun)
        if one.keeps:
            # the one before, too, if it may go back to the round's beginning
            before = [one for one in sums.kept if one <= call.anchor][-1:]
            sums = replace(sums, kept=(*before, call.sequence))
        if one.begins:
            sums = replace(sums, begun=(*sums.begun, call.sequence))
        if not one.once and not one.once_for:
            return sums
        key, digest = fn.name, hashlib.blake2b(call.body, digest_size=16)
        if one.once_for:
            value = getattr(message, one.once_for)
            if type(value) is not int:  # 2.0 and [2] are as good as 2, and other keys
                raise RefusedError(
                    f"{type(message).__name__}.{one.once_for} of {key} is {repr(value)[:80]}, and "
                    "is to be a whole number; run the algorithm as it is at the server."
                )
            key = f"{key} {value}{_RESTORED if _RESTORED in sums.once else ''}"
            digest.update(state())
        told = digest.hexdigest()
        known, *asked = sums.once.get(key, (told, *call.asked))
        fewer = one.once_for and not self.complete and set(call.asked) < set(asked)
        if known != told and not fewer:
            raise RefusedError(
                f"{key} was asked for with a second message, or in another state, and a run asks "
                "for it once; run the algorithm as it is at the server, or begin another run."
            )
        return replace(sums, once={**sums.once, key: [told, *call.asked]})

    def check_number(self, one: Sends, reply: Any, model: Any, call: Call, sums: Sums) -> Sums:
        """Refuse one more reply, or model, than a run may have; return the sums that know this one.

        A run has as many of each function as the rounds have that the site counted, and the job
        may have. The one that was sent last tells nothing new. Where clients are away since, there
        may be one more without them.
        """
        most = one.most
        if one.each_round and self._rounds:
            each = one.each_round
            if one.each_round_times:
                each *= int(getattr(self._options, one.each_round_times))
            # where steps are within a round, one that begins again takes others
            again = 2 if each > 1 and not self.complete else 1
            most = again * each * min(self._rounds, max(1, sums.rounds.count)) + _AT_THE_END
        if not most:
            return sums
        part, counted = one.function.part, [(one.function.name, most, reply)]
        if one.models:
            counted.append(("a metric", one.models, model))
        for what, most, value in counted:
            key, digest = f"{what} of {part}", _digest(value).hex()
            number, last, *asked = sums.once.get(key, (0, ""))
            if digest == last:
                continue
            fewer = not self.complete and set(call.asked) < set(asked)
            if number >= most + fewer:
                raise RefusedError(
                    f"{key} was asked for with another model, and {number} of a run are answered: "
                    "more would tell rows. Run the algorithm as it is at the server, or begin "
                    "another run."
                )
            sums = replace(sums, once={**sums.once, key: [number + 1, digest, *call.asked]})
        return sums

    def with_told(self, one: Sends, message: Any, call: Call, sums: Sums) -> Sums:
        """Return the sums that know what all clients are told, and what they are asked for.

        A client that was told another model, or trained when others did not, has another checksum,
        and its parts of totals add up with no others: they would be what it alone came to. One that
        goes back has that of where it goes back to.

        Where not all take part in each round a client's checksum is of all that it was told since
        all were told the same model, if the algorithm has a call for that, and of the best round
        once it goes back there.
        """
        fn, everyone = one.function, self._clients == frozenset(call.asked)
        counts = everyone
        if not self.complete:
            counts = one.restores or (fn.alike and self._renews and not fn.protocol)
        if not counts:
            return sums
        before, best = sums.told_at(call.sequence), max(sums.kept, default=0)
        if one.restores:
            before = f"{sums.told_at(best)} {best}"
        elif one.renews and everyone and not self.complete:
            before = ""
        told = (before, fn.name, told_alike(fn, vars(message)))
        return sums.tell(_digest(told).hex(), call.sequence, call.anchor)

    def told_before(self, fn: ClientFunction, call: Call, sums: Sums) -> str:
        """Return what clients are to have been told alike to add up; "": anything.

        Where not all take part in each round, only metrics are of clients that have the same model.
        """
        return sums.told_at(call.sequence) if self.complete or fn.protocol else ""

    def ends(self, total: Combination) -> bool:
        """Return whether a total tells the model."""
        return not self._model.isdisjoint(
            name
            for _, cells in total.terms
            for name in (
                cells.name[3].split(" and ")
                if cells.name[2] == REFRESH
                else [self._totals[cells.name[2], cells.name[3]].name]
            )
        )

    def check_asked(self, one: Sends, message: Any, call: Call) -> None:
        """Refuse a sum over fewer clients than are declared, or a message that says others."""
        name = one.function.name
        if one.present:
            said: Any = getattr(message, one.present)
            there: Any = len(call.asked) if type(said) is int else tuple(call.asked)
            if said != there:
                raise RefusedError(
                    f"{type(message).__name__}.{one.present} of {name} says {said}, and "
                    f"{list(call.asked)} are asked; run the algorithm as it is at the server."
                )
        if one.number and getattr(message, one.number) != call.round:
            raise RefusedError(
                f"{type(message).__name__}.{one.number} of {name} is "
                f"{getattr(message, one.number)!r}, and the call is of round {call.round}; run the "
                "algorithm as it is at the server."
            )
        # of what is asked, too, where it brings scores: one alone would read those of others
        model = one.function.alike and not one.function.protocol  # what all go on from
        if one.together == "some" or (call.kind != "sum" and one.parties is None and not model):
            return
        if one.together == "present" and not self.complete:
            return
        schema, wanted = self.geometry.schemas["train"], self._clients
        if one.parties is not None:
            wanted = frozenset(one.parties(schema, message))
        others = wanted.symmetric_difference if one.together == "all" else wanted.difference
        if others(call.asked):
            raise RefusedError(
                f"{name} was asked of {list(call.asked)}, and is of {sorted(wanted)} together; run "
                "the algorithm as it is at the server."
            )

    def check_clear(self, message: Any) -> None:
        """Refuse what the server chose, such as a model, where it may only have drawn it."""
        kind = type(message).__name__
        for field, value in vars(message).items():
            allowed = self._allowed.get(f"{kind}.{field}")
            if allowed is None or (isinstance(value, SealedRecord | Mapping) and sealed_in(value)):
                continue
            if _digest(value) not in allowed:
                raise RefusedError(
                    f"{kind}.{field} holds what the algorithm does not tell in the clear; run the "
                    "algorithm as it is at the server."
                )

    def check_readable(self, one: Sends, message: Any) -> None:
        """Refuse numbers, or nothing, where a message is to hold a total."""
        for field, origin in one.takes:
            value = getattr(message, field)
            if isinstance(value, SealedRecord):
                continue
            if value is None and is_optional(type(message), field):
                continue
            if value is None or PUBLIC not in _names(origin):
                raise RefusedError(
                    f"{type(message).__name__}.{field} of {one.function.name} holds "
                    f"{type(value).__name__} in the clear, and is to hold the sealed total of "
                    f"{' and '.join(_names(origin))}; run the algorithm as it is at the server."
                )

    def check_message(
        self, one: Sends, field: str, total: SealedField, sums: Sums, call: Call
    ) -> None:
        """Refuse a total in a message that the algorithm does not declare there."""
        place = f"{one.function.message.__name__}.{field} of {one.function.name}"
        origin = one.origin(field)
        if origin is None:
            raise RefusedError(
                f"{place} holds a sealed total, and no total is declared there; run the algorithm "
                "as it is at the server."
            )
        if total.part != one.function.part:
            raise RefusedError(
                f"{place} holds a total over the {total.part!r} part, and the function is of the "
                f"{one.function.part!r} part; run the algorithm as it is at the server."
            )
        exact, single = isinstance(origin, str), AS_IT_IS in _names(origin)
        terms = total.content.terms
        if (exact or single) and (len(terms) != 1 or terms[0][0] != 1.0):
            raise RefusedError(
                f"{place} holds {len(terms)} totals with factors {[w for w, _ in terms][:4]}, and "
                f"is to hold that of {_names(origin)[0]} as it is; run the algorithm as it is."
            )
        own = self._own_cells(total.part, total.layout, call.asked)
        for cells in self._checked(place, total.content, frozenset(_names(origin)), call):
            found = self._check_term(place, cells, total.part, sums)
            if found is None:
                if single:
                    raise RefusedError(
                        f"{place} holds a total that was sealed anew, and is to hold that of "
                        f"{_names(origin)[0]} as it is; run the algorithm as it is at the server."
                    )
                continue  # sealed anew by another owner
            known, summed = found
            if known.layout is not total.layout:
                raise RefusedError(
                    f"{place} is laid out by {total.layout}, and {known.name} is by "
                    f"{known.layout}; run the algorithm as it is at the server."
                )
            left = set() if summed is None else {*summed.asked} - {*call.asked}
            if exact and left and known.layout is Layout.SELECTED:
                # what one client multiplies of others' rows, without theirs, would tell them
                raise RefusedError(
                    f"{place} holds rows of clients that were asked together in exchange "
                    f"{cells.name[1]}, and is asked without {sorted(left)[:4]}; run the algorithm "
                    "as it is at the server."
                )
            if exact and one.together == "all" and summed is None and own:
                raise RefusedError(
                    f"{place} holds {known.name} of exchange {cells.name[1]}, in which this client "
                    "was not asked, and metrics are of scores of all; run the algorithm as it is "
                    "at the server."
                )
            if exact and cells.name[1] < sums.last(self._functions[known.name]):
                raise RefusedError(
                    f"{place} holds {known.name} of exchange {cells.name[1]}, and the last one is "
                    f"of exchange {sums.last(self._functions[known.name])}; run the algorithm as "
                    "it is at the server."
                )
            began, number = max(sums.begun, default=0), cells.name[1]
            mine = summed is not None or sums.is_forgotten(cells.name[2], number)
            # where some are away, others may have come further before this site began
            if single and number < began and (self.complete or mine):
                raise RefusedError(
                    f"{place} holds {known.name} of exchange {number}, and the client began anew "
                    f"with exchange {began}; run the algorithm as it is at the server."
                )
            if summed is not None and known.layout is not Layout.BLOCKS:
                field_sent = cells.name[3] in summed.sent
                missing = [cell for cell in own if cell not in cells.pieces] if field_sent else ()
                if missing:
                    raise RefusedError(
                        f"{place} lacks the cells {missing[:4]} of {known.name}, to which this "
                        "client contributed; run the algorithm as it is at the server."
                    )
        if any(cell not in own for _, cells in terms for cell in cells.pieces):
            raise RefusedError(
                f"{place} holds cells that are not this client's to open; run the algorithm as it "
                "is at the server."
            )

    def check_opening(
        self, total: Combination, cells: Sequence[int], sums: Sums, call: Call, name: str = ""
    ) -> None:
        """Refuse to open cells of a total to the server, or to seal them anew under a name.

        `name` is that of the fields; "": they are opened to the server.
        """
        place = f"a total to be sealed anew as {name!r}" if name else "a total to be opened"
        names = frozenset(name.split(" and ")) if name else frozenset(self._reveals)
        if name and not any(names <= some for some in self._combined):
            raise RefusedError(
                f"{name!r} was to be sealed anew, and no message is declared to hold such a "
                "combination; run the algorithm as it is at the server."
            )
        for one in self._checked(place, total, names, call):
            if not one.pieces:
                continue
            function, field = one.name[2], one.name[3]
            found = self._totals.get((function, field))
            if found is None:  # sealed anew before: of the layout of what it is a combination of
                first = field.split(" and ")[0]
                found = self._totals[self._functions[first][0], first.split(".")[1]]
            summed = sums.find(function, one.name[1])
            part = found.sends.function.part if summed is None else summed.part
            self._check_term(place, one, part, sums)
            own = self._own_cells(part, found.layout, call.asked)
            others = [cell for cell in {*cells, *one.pieces} if cell not in own]
            if others:
                raise RefusedError(
                    f"The cells {sorted(others)[:4]} of {place} are not this client's; ask their "
                    "owners."
                )

    def _checked(
        self, place: str, total: Combination, names: Collection[str], call: Call
    ) -> Iterable[SecureCells]:
        """Yield the terms of a combination whose names and factors are declared."""
        for weight, cells in total.terms:
            session, number, function, field = cells.name
            if session != call.run:
                raise RefusedError(
                    f"{place} is of run {session[:40]!r}, and the call is of run {call.run!r}; "
                    "resume the run."
                )
            if not abs(weight) <= MOST:  # nor for nan
                raise RefusedError(
                    f"{place} has the factor {weight:g}, and {MOST:g} is the most; run the "
                    "algorithm as it is at the server."
                )
            if not 0 < number < call.sequence:
                raise RefusedError(
                    f"{place} is of exchange {number}, and the call is exchange {call.sequence}; "
                    "run the algorithm as it is at the server."
                )
            if function == REFRESH:
                known = field.split(" and ")
            else:
                found = self._totals.get((function, field))
                known = [f"{function}.{field}"] if found is None else [found.name]
            if not set(known) <= set(names) or any(one not in self._functions for one in known):
                raise RefusedError(
                    f"{place} holds {' and '.join(known)[:120]}, and only "
                    f"{', '.join(sorted(names))[:200]} may stand there; run the algorithm as it "
                    "is at the server."
                )
            yield cells

    def _check_term(
        self, place: str, cells: SecureCells, part: str, sums: Sums
    ) -> tuple[_Total, Summed | None] | None:
        """Refuse a total of other contributors; return what is declared, and the sum it is of."""
        _, number, function, field = cells.name
        if function == REFRESH:
            first = field.split(" and ")[0]
            known = self._totals[self._functions[first][0], first.split(".")[1]]
            for cell, piece in cells.pieces.items():
                owners = self._owners(part, known.layout, cell, None)
                self._check_owners(place, piece, owners, owners)
                if len(piece.contributors) != 1:
                    raise _not_of(place, piece, ("one owner",))
            return None
        known = self._totals[function, field]
        summed = sums.find(function, number)
        if summed is not None and summed.part != part:
            raise RefusedError(
                f"{place} is over the {part!r} part, and exchange {number} was over the "
                f"{summed.part!r} part; run the algorithm as it is at the server."
            )
        whole = summed is not None and not known.optional and known.layout is not Layout.BLOCKS
        absent = summed is None and not sums.is_forgotten(function, number)
        asked = None if summed is None else summed.asked
        for cell, piece in cells.pieces.items():
            expected = self._owners(part, known.layout, cell, asked)
            self._check_owners(place, piece, expected, self._owners(part, known.layout, cell, None))
            names = piece.contributors
            mine = self._client in names
            if whole and names != expected:
                raise _not_of(place, piece, expected)
            if absent and mine:
                raise RefusedError(
                    f"{place} is of exchange {number} with this client, which was in no such "
                    "exchange; run the algorithm as it is at the server."
                )
            sent = summed is not None and field in summed.sent
            if sent and known.layout is not Layout.BLOCKS and not mine and self._client in expected:
                raise _not_of(place, piece, expected)
            if summed is not None and piece.stream.round != summed.round:
                raise RefusedError(
                    f"{place} is of round {piece.stream.round}, and exchange {number} was of round "
                    f"{summed.round}; run the algorithm as it is at the server."
                )
            if function in self._pooled and len(names) < self._least:
                raise RefusedError(
                    f"{place} is a total over {len(names)} clients, and privacy.least_clients is "
                    f"{self._least}; let more take part."
                )
        return known, summed

    def _check_owners(
        self,
        place: str,
        piece: Piece,
        expected: tuple[ClientId, ...],
        owners: tuple[ClientId, ...],
    ) -> None:
        names = piece.contributors
        if not names or (names != expected and not set(names) <= set(expected)):
            raise _not_of(place, piece, expected)
        if piece.owners not in ((), owners):  # (): under one key, which all clients have
            raise RefusedError(
                f"{place} is cell {piece.stream.cell} of {piece.stream.function}."
                f"{piece.stream.field} for {list(piece.owners)}, and {list(owners)} own the cell; "
                "run the algorithm as it is at the server."
            )

    def _owners(
        self, part: str, layout: Layout | None, cell: int, asked: tuple[ClientId, ...] | None
    ) -> tuple[ClientId, ...]:
        """Return who may contribute to a cell in an exchange of some clients (None: of any)."""
        key = part, layout, cell, asked
        found = self._expected.get(key)
        if found is None:
            owners = self._clients
            if layout is not None:
                right = cell <= FIRST_BLOCK if layout is Layout.BLOCKS else cell >= 0
                try:
                    owners = frozenset(self.geometry.owners(part, layout, cell) if right else ())
                except (IndexError, KeyError):
                    owners = frozenset()
            elif cell != EVERYONE:
                owners = frozenset()
            kept = owners if asked is None else owners & set(asked)
            if len(self._expected) > _CACHED:
                self._expected.clear()
            found = self._expected[key] = tuple(sorted(kept))
        return found

    def _own_cells(
        self, part: str, layout: Layout | None, asked: tuple[ClientId, ...]
    ) -> tuple[int, ...]:
        key = part, layout, asked if layout is not None and layout.is_scores else ()
        if key not in self._own:
            if len(self._own) > _CACHED:
                self._own.clear()
            cells = self.geometry.own_cells(self._client, part, layout, asked)
            self._own[key] = tuple(cell for cell, *_ in cells)
        return self._own[key]


_CACHED: Final = 1 << 16


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(codec.encode(value), digest_size=16).digest()


def sealed_in(value: Any) -> bool:
    """Return whether something is a sealed total, or holds nothing but such by block."""
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(one, SealedRecord) for one in value.values())
    return isinstance(value, SealedRecord)


def _names(origin: Origin) -> tuple[str, ...]:
    return (origin,) if isinstance(origin, str) else origin


def _not_of(place: str, piece: Piece, expected: Sequence[str]) -> RefusedError:
    return RefusedError(
        f"{place} is cell {piece.stream.cell} of {piece.stream.function}.{piece.stream.field} by "
        f"{list(piece.contributors)}, and its total is one by {list(expected)}; run the algorithm "
        "as it is at the server."
    )
