"""A server of real sites in folders that departs from the algorithm: calls that it makes up.

The run is begun as it is, through the whole set-up, and ended when a function is first called. What
the sites have is then what they have in a deployment, their declarations and refusals too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import four_sites
import sites
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import site_in
from intarsia.engines import codec
from intarsia.engines.communication_log import RECORDS
from intarsia.engines.remote import wire
from intarsia.engines.remote.wire import Answer, Call, Opened, ToOpen
from intarsia.engines.sums.plain import EVERYONE
from intarsia.engines.sums.secure import PieceRecord
from intarsia.experiment import config as experiment

NAMES = four_sites.NAMES


class Enough(Exception):  # noqa: N818 - not an error of anybody
    """The run has come to where the server departs."""


@dataclass
class Departed:
    """Sites in the middle of a run, and all calls so far with their answers."""

    folder: Path
    sites: dict[str, Any]
    calls: list[tuple[str, Call, Answer]] = field(default_factory=list)
    sequence: int = 0

    def of(self, function: str, client: str | None = None) -> list[tuple[str, Call, Answer]]:
        """Return the calls of a function, first to last."""
        return [
            one for one in self.calls if one[1].function == function and client in (None, one[0])
        ]

    def last(self, client: str) -> Call:
        """Return the last call that a client answered."""
        return [call for name, call, answer in self.calls if name == client and not answer.error][
            -1
        ]

    def ask(
        self,
        client: str,
        function: str,
        body: Any,
        *,
        kind: str = "sum",
        asked: tuple[str, ...] | None = None,
        part: str = "train",
        sequence: int | None = None,
    ) -> Answer:
        """Call a function at a client; `asked` are all that are said to be, None: it alone."""
        last = self.last(client)
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        # what is opened is of no round
        round = max(call.round for name, call, _ in self.calls if name == client)
        # before the first round there is one beginning, that of the set-up's end
        anchor = last.sequence if last.round else last.anchor
        call = Call(
            *(last.run, sequence, last.sequence, anchor, round, last.exchange + 1),
            *(kind, function, part, (client,) if asked is None else asked),
            body if isinstance(body, bytes) else codec.encode(body),
        )
        answer = codec.decode(self.sites[client].handle(codec.encode(call)), Answer)
        self.calls.append((client, call, answer))
        return answer

    def ask_all(self, function: str, body: Any, **given: Any) -> dict[str, Answer]:
        """Call a function at all clients in one exchange."""
        self.sequence += 1
        return {
            name: self.ask(name, function, body, asked=NAMES, sequence=self.sequence, **given)
            for name in NAMES
        }

    def opened(self, client: str, answer: Answer, name: str, cell: int = EVERYONE) -> Any:
        """Let a client open a cell of what one sealed; return the answer, or the value."""
        record = sealed_field(answer, name)
        found = self.ask(client, "open", ToOpen(record, (cell,)), kind="open")
        if found.error:
            return found
        return codec.decode(found.body, Opened, PieceRecord).values[0]


def sealed_field(answer: Answer, name: str) -> Any:
    """Return the record of a field that a client sealed."""
    return codec.decode(answer.body, wire.SealedReply, *RECORDS).fields[name].value


def begin(
    folder: Path, algorithm: str, until: str, /, mode: str = "masked", count: int = 1, **tree: Any
) -> Departed:
    """Begin a run over four sites; stop before the call number `count` of the function `until`.

    `tree` are further tables of the experiment.
    """
    described = four_sites.write_tables(algorithm, folder)
    for name, text in described.items():
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(four_sites.site_toml(name, text, folder))
    found = {name: site_in(folder / name) for name in described}
    whole = four_sites.tree(algorithm, described, folder, mode=mode)
    for table, changes in tree.items():
        whole[table] = {**whole.get(table, {}), **changes}
    made, seen = Departed(folder, found), set()

    def line(client, number, data, deliver):
        if not data:
            return deliver(data)
        call = codec.decode(data, Call)
        if call.function == until:
            seen.add(call.sequence)
            if len(seen) >= count:
                raise Enough
        answer = deliver(data)
        made.calls.append((client, call, codec.decode(answer, Answer)))
        made.sequence = max(made.sequence, call.sequence)
        return answer

    try:
        remote_running.run_over(
            *(experiment.from_dict(whole, folder), sites.Lines(found, line), NAMES),
            folder / "server",
            patience=sites.HASTY,
        )
    except Enough:
        return made
    raise AssertionError(
        f"{until} was never called; {sorted({c.function for _, c, _ in made.calls})}"
    )
