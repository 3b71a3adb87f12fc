"""The commands `intarsia keys ...`: how clients come to share keys that no server has.

What is forwarded (cards, wrapped keys) may go over any channel, the server's or e-mail. What must
not go over the same channel are the fingerprints: people read them to one another, by telephone,
and give what they heard with --confirm. A card that nobody confirmed is not used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.console import AsJson, Output, put, require_command, say
from intarsia.errors import KeyMaterialError, TamperedError

if TYPE_CHECKING:
    from intarsia.privacy.keys.key_exchange import Card
    from intarsia.privacy.keys.keyring import Drawn, KeyFolder


app = typer.Typer(
    help="Exchange the keys that the clients share and the server never has.",
    rich_markup_mode="rich",
    epilog="In this order: every client runs create and card and sends the card to the others; the "
    "first client by name runs share and sends each client its file; the others run accept; all "
    "compare what show prints.",
)

Folder = Annotated[
    Path, typer.Option("--folder", "-d", metavar="DIR", help="The client's own folder of keys.")
]
Cards = Annotated[list[Path], typer.Argument(metavar="CARD...")]
Confirmed = Annotated[
    list[str] | None,
    typer.Option(
        "--confirm",
        metavar="NAME=FINGERPRINT",
        help="What the client was heard to read as the fingerprint of its card; once per card.",
    ),
]
WithCkks = Annotated[bool, typer.Option("--ckks", help='Draw keys for the mode "ckks" as well.')]
Range = Annotated[
    float | None,
    typer.Option(
        "--range",
        help="Largest |total| of the CKKS keys, as privacy.range of the experiment; 2^22 if not "
        "given.",
    ),
]
Error = Annotated[
    float | None,
    typer.Option(
        "--error",
        help="Of a total under the CKKS keys, at most, as privacy.error of the experiment; as "
        "little as the range allows if not given. 2e-5 takes less work.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Write the wrapped keys into this folder."),
]

_KEYS = Path("keys")


app.callback(invoke_without_command=True)(require_command)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    federation: Annotated[
        str, typer.Option("--federation", "-f", metavar="NAME", help="The federation's name.")
    ],
    folder: Folder = _KEYS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an identity; all must confirm the new card.")
    ] = False,
) -> None:
    """Make this client's identity, once.

    NAME is the client's name in the experiment. The private half stays in the folder, readable by
    its owner only. For example: intarsia keys create bank --federation credit
    """
    from intarsia.privacy.keys.keyring import KeyFolder

    place = KeyFolder(folder)
    made = place.create(name, federation, replace=replace)
    say(f"identity of {made.name!r} in {made.federation!r}: {place.identity_file}")
    say(f"fingerprint of the card: {made.fingerprint}")


@app.command()
def card(
    folder: Folder = _KEYS,
    out: Output = None,
) -> None:
    """Print this client's card, to be forwarded, and its fingerprint, to be read out.

    The fingerprint goes to standard error: send the card, but say the fingerprint by telephone.
    """
    from intarsia.core.files.atomic_files import write_atomically
    from intarsia.privacy.keys.keyring import KeyFolder

    own = KeyFolder(folder).identity()
    if out is None:
        put(own.announce())
    else:
        write_atomically(out, f"{own.announce()}\n".encode())
        say(f"card of {own.name!r}: {out}")
    say(f"fingerprint, to be read to the other clients by telephone: {own.fingerprint}")


@app.command()
def share(
    cards: Cards,
    confirm: Confirmed = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Draw the next generation of the key in use.")
    ] = False,
    ckks: WithCkks = False,
    range: Range = None,
    error: Error = None,
    folder: Folder = _KEYS,
    out: Out = None,
) -> None:
    """Draw the shared key and wrap it for the other clients.

    CARD... are the cards of all other clients. The client that comes first by name does this. Each
    client gets a file that only it can open.
    """
    from intarsia.core.files.atomic_files import write_atomically
    from intarsia.privacy.keys.keyring import KeyFolder
    from intarsia.privacy.settings import Privacy

    for option, value in (("range", range), ("error", error)):
        if value is not None and not ckks:
            raise KeyMaterialError(
                f"--{option} {value:g} is that of CKKS keys; add --ckks to draw them."
            )
    place = KeyFolder(folder)
    confirmed = _confirmed(cards, confirm, place.identity().card)
    if ckks and range is None:
        range = Privacy().range
    drawn = place.draw(confirmed, rotate=rotate, range=range, error=error)
    target = folder / "wrapped" if out is None else out
    target.mkdir(parents=True, exist_ok=True)
    # Handed out first: a key is in use only when everyone can get it.
    for name, bundle in drawn.bundles.items():
        write_atomically(target / f"{_file_name(name)}.wrapped", bundle)
    place.keep(drawn)
    for name in drawn.bundles:
        say(f"for {name!r}, to be forwarded: {target / _file_name(name)}.wrapped")
    _say_keys(place, drawn)


@app.command()
def rotate(
    cards: Cards,
    confirm: Confirmed = None,
    ckks: WithCkks = False,
    range: Range = None,
    error: Error = None,
    folder: Folder = _KEYS,
    out: Out = None,
) -> None:
    """Draw the next generation of the shared key: the same as share --rotate.

    CARD... are the cards of those who are to have it. CKKS keys are replaced too, for the same
    range; an error beyond the usual one is to be given again.
    """
    share(cards, confirm, True, ckks, range, error, folder, out)


@app.command()
def accept(
    wrapped: Annotated[Path, typer.Argument(metavar="WRAPPED")],
    sender: Annotated[
        Path, typer.Option("--from", metavar="CARD", help="The card of the client that wrapped it.")
    ],
    confirm: Confirmed = None,
    folder: Folder = _KEYS,
) -> None:
    """Open the file that was wrapped for this client, and keep the shared key in it.

    WRAPPED is the file. A generation that is not newer than the one in use is refused.
    """
    from intarsia.privacy.keys.keyring import KeyFolder

    place = KeyFolder(folder)
    me = place.identity()
    known = _confirmed([sender], confirm, me.card)
    if not known or known[0] == me.card:
        raise KeyMaterialError(
            f"{sender} is this client's own card; give that of the client that wrapped the key."
        )
    try:
        found = place.accept(wrapped.read_bytes(), known[0])
    except TamperedError as problem:
        raise KeyMaterialError(
            f"{wrapped} cannot be opened: it was altered on its way, or is not from "
            f"{known[0].name!r} to this identity of {me.name!r}; ask for it again and compare the "
            f"fingerprints of both cards ({problem})"
        ) from None
    _say_keys(place, found)


@app.command()
def show(folder: Folder = _KEYS, as_json: AsJson = False) -> None:
    """Show what this client has: fingerprints, generation, files; never a secret."""
    from intarsia.privacy.keys.key_exchange import cards_fingerprint
    from intarsia.privacy.keys.keyring import KeyFolder

    place = KeyFolder(folder)
    own, shared, ckks, cards = place.identity(), place.shared(), place.ckks(), place.cards()
    content: dict[str, Any] = {
        "name": own.name,
        "federation": own.federation,
        "card": _show(place.identity_file, own),
        "shared": _show(place.shared_file, shared, "generation"),
        "ckks": _show(place.ckks_file, ckks, "generation", "range", "error"),
        "cards": None,
    }
    if cards is not None:
        names = [card.name for card in cards]
        prints = cards_fingerprint(cards)
        content["cards"] = {"file": str(place.cards_file), "fingerprint": prints, "clients": names}
    if as_json:
        put(json.dumps(content, ensure_ascii=False))
        return
    say(f"{own.name!r} in the federation {own.federation!r}")
    say(f"card:       {own.fingerprint}  {place.identity_file}")
    for key, label in (("shared", "shared key"), ("ckks", "CKKS keys")):
        one = content[key]
        if one is None:
            say(f"{label}: none")
            continue
        more = f", range {one['range']:g}, error {one['error']:.2g}" if "range" in one else ""
        known = f"{one['fingerprint']}  {one['file']} (generation {one['generation']}{more})"
        say(f"{label}: {known}")
    if cards is None:
        say('cards of all: none, as privacy.trust = "pairs" needs them (intarsia keys rotate)')
    else:
        one = content["cards"]
        say(f"cards of all: {one['fingerprint']}  {one['file']} ({len(cards)} clients)")


def _show(file: Path, key: Any, *more: str) -> dict[str, Any] | None:
    """Return what is said of a key; None: there is none."""
    if key is None:
        return None
    public = {name: getattr(key, name) for name in ("fingerprint", *more)}
    return {"file": str(file), **public}


def _say_keys(place: KeyFolder, drawn: Drawn) -> None:
    """Say what is in use now, for the clients to compare."""
    from intarsia.privacy.keys.key_exchange import cards_fingerprint

    say(f"shared key, generation {drawn.shared.generation}: {place.shared_file}")
    say(f"fingerprint, the same at all clients: {drawn.shared.fingerprint}")
    say(f"cards of {len(drawn.cards)} clients: {place.cards_file}")
    say(f"fingerprint, the same at all clients: {cards_fingerprint(drawn.cards)}")
    if drawn.ckks is not None:
        say(f"CKKS keys for totals up to {drawn.ckks.range:g}: {place.ckks_file}")
        say(f"fingerprint, the same at all clients: {drawn.ckks.fingerprint}")


def _confirmed(files: Sequence[Path], heard: Sequence[str] | None, own: Card) -> list[Card]:
    """Return the cards in files, each of which was confirmed.

    Raises
    ------
    KeyMaterialError
        If a name is used twice, a card was not confirmed, or was replaced.
    """
    said = _heard(heard or ())
    cards: dict[str, Card] = {}
    for file in files:
        found = _card(file)
        if found.name in cards:
            raise KeyMaterialError(
                f"Two cards bear the name {found.name!r} ({file} is the second); a client has one "
                "card and a name of its own: find out which is whose."
            )
        cards[found.name] = found
    unknown = sorted(set(said) - set(cards))
    if unknown:
        raise KeyMaterialError(
            f"--confirm names {', '.join(map(repr, unknown))}, but the cards are those of "
            f"{', '.join(map(repr, sorted(cards)))}; confirm each card under the name in it."
        )
    # The sentence does not give the fingerprint that would do: it must come from the client.
    missing = [card.name for card in cards.values() if card != own and card.name not in said]
    if missing:
        names = ", ".join(map(repr, missing))
        raise KeyMaterialError(
            f"Nobody has confirmed the card of {names}, so that whoever forwarded it may have "
            "replaced it; let somebody at the client read its fingerprint to you by telephone "
            f"and add --confirm '{missing[0]}=FINGERPRINT'."
        )
    return [one.confirm(said[one.name]) if one != own else one for one in cards.values()]


def _heard(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, heard = text.rpartition("=")
        if not equals or not name or not heard.strip():
            raise KeyMaterialError(
                f"--confirm {text!r} is not of the form NAME=FINGERPRINT; put the fingerprint that "
                "was read at the client behind its name, in quotes."
            )
        if name in found:
            raise KeyMaterialError(f"--confirm gives {name!r} twice; give what was heard, once.")
        found[name] = heard
    return found


def _card(file: Path) -> Card:
    from intarsia.privacy.keys.key_exchange import Card

    try:
        return Card.read(file.read_bytes().decode())
    except (KeyMaterialError, UnicodeDecodeError) as problem:
        raise KeyMaterialError(f"{file} is no card: {problem}") from None


def _file_name(name: str) -> str:
    """Return a name as one of a file: a card that was forwarded must not choose a path."""
    return "".join(one if one.isalnum() or one in "-_" else f"%{ord(one):02x}" for one in name)
