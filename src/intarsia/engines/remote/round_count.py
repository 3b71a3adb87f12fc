"""A site's own count of rounds: the server numbers them as it likes.

A site counts by what it answers: a round is also begun where a function comes again that the
algorithm calls once in a round. It may come again after the site's state was marked anew, for the
evaluations of a round; there no function is the first twice, and the state is marked three times at
most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from intarsia.engines.remote.wire import Call

_MARKS: Final = 3  # of a state in a round: it begins, is certified, is evaluated


@dataclass(frozen=True)
class Rounds:
    """The rounds that a site counted, and what it answered in the last one."""

    count: int = 0
    last: tuple[str, int] = ("", 0)  # the run of the last call, and the round that it said
    anchor: int = 0  # of that call
    begun: tuple[str, ...] = ()  # functions that came first after a mark of the state
    called: tuple[str, ...] = ()  # since the last mark, but those that repeat
    sequence: int = 0  # of the last call that counts

    def after(self, call: Call, *, repeats: bool) -> Rounds:
        """Return the rounds with a call; the same, if it goes on with the last one.

        `repeats`: the algorithm calls the function several times in a round.
        """
        last = (call.run, call.round)
        same = self.last == last and (self.count > 0 or not call.round)
        if same and self.sequence == call.sequence:  # it comes again after a restart
            return self
        marked = not same or self.anchor != call.anchor
        if not marked and repeats:
            return self
        called = () if marked else self.called
        again = same and call.function in (self.begun if marked else called)
        again |= same and marked and call.round > 0 and len(self.begun) == _MARKS
        begun = () if again or not same else self.begun
        return Rounds(
            self.count + (again or (not same and call.round > 0)),
            last,
            call.anchor,
            (*begun, call.function) if marked or again else begun,
            (*(() if again else called), call.function),
            call.sequence,
        )


NO_ROUNDS: Final = Rounds()
