"""Those commands `intarsia federation ...` that write kits, their keys and certificates."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from intarsia.cli.console import Output, put, say
from intarsia.errors import ExperimentError, listed, nearest

File = Annotated[Path, typer.Argument(metavar="FILE")]
Kit = Annotated[
    Path,
    typer.Argument(
        metavar="KIT", help="The folder that provision or install wrote.", resolve_path=True
    ),
]
Kits = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Where provision writes the kits.")
]
Here = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Where the site's kit lies, or will.")
]
Heard = Annotated[
    str,
    typer.Option("--confirm", metavar="FINGERPRINT", help="What was read out there, by telephone."),
]

_KITS = Path("kits")


def init(file: File = Path("federation.toml")) -> None:
    """Write an example of a federation's FILE, to be changed."""
    from intarsia.core.files.atomic_files import write_atomically
    from intarsia.deployment.federation_file import EXAMPLE

    if file.exists():
        raise ExperimentError(f"{file} is there already; name another file.")
    write_atomically(file, EXAMPLE.encode())
    say(f"wrote {file}; change it, then run intarsia federation provision {file}")


def provision(
    file: File,
    out: Kits = _KITS,
    keys_at_sites: Annotated[
        bool,
        typer.Option("--keys-at-sites", help="Write no kits of sites: they make their own keys."),
    ] = False,
    system: Annotated[
        Literal["systemd", "docker", "kubernetes"] | None,
        typer.Option("--for", help="Write what starts each kit's process there, too."),
    ] = None,
) -> None:
    """Write a kit with keys and certificates for the server and each site of FILE.

    A kit that is there already keeps its keys, so that sites can be added later. It gets the
    server's address where FILE has another one.
    """
    from intarsia.deployment.federation_file import finish_kits, is_of_server, load, sites_of

    over = over_nvflare("kits")
    from intarsia.deployment.operations.address import change_address, old_addresses
    from intarsia.deployment.operations.joining import SIGNED, check_keys
    from intarsia.deployment.process import check_user
    from intarsia.results.lock import alone

    description = load(file)
    out = out.resolve()
    if not keys_at_sites:
        check_keys(out, description.sites)
    server = out / "server"
    check_user(server)
    out.mkdir(parents=True, exist_ok=True)
    busy = f"Another command writes kits to {out}; give this one again when that is done."
    with alone(out / ".kits.lock", busy):
        former = sites_of(server)[0] if is_of_server(server) else description.sites
        before = change_address(description, out)
        known = [name for name in ("server", *description.sites) if (out / name).exists()]
        given = description.name, description.server, description.ports, description.sites, out
        written = over.provisioned(*given, keys=not keys_at_sites)
        finish_kits(description, written)
    new = [name for name in written if name not in known]
    say(f"wrote {len(new)} kit{'' if len(new) == 1 else 's'} to {out}")
    if known:
        say(f"  there before, with the keys that they had: {', '.join(known)}")
    for name, old in before.items():
        say(f"  {name}: has the server at {description.address} now, before at {old}")
    come, gone = (
        [one for one in these if one not in those]
        for these, those in ((description.sites, former), (former, description.sites))
    )
    if come:
        say(f"  runs submitted from now on wait until {listed(come)} answers, as patience says")
    if come or gone:
        say("  server: start it again; then the sites exchange their key anew, by keys rotate")
    for name in gone:
        say(f"  {name}: has left; run intarsia federation revoke {server} {name} --former, too")
    elsewhere = old_addresses(description, out, SIGNED)
    for name in description.sites:
        if name in known:
            continue
        if name in elsewhere:
            say(
                f"  {name}: its kit has the server at {elsewhere[name]}; join there, sign, and "
                "install there give it the new address"
            )
            continue
        if keys_at_sites and (out / f"{name}.signed").exists():
            say(f"  {name}: its request was signed before")
        elif keys_at_sites:
            say(
                f"  {name}: run intarsia federation join {name} there, and sign {name}.request here"
            )
        else:
            say(f"  {out / name}: give it to {name} over a safe way, and fill in local/site.toml")
    if system is not None:
        from intarsia.deployment.operations.services import write_services

        paths = write_services(description, system, out)
        say(f"for {system}: {', '.join(path.name for path in paths)}")
    if not keys_at_sites and set(new) - {"server"}:
        say("for trials: private keys of sites were on this machine; --keys-at-sites avoids that")


def join(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
    out: Here = Path(),
    again: Annotated[
        bool, typer.Option("--again", help="Replace a key whose request is not signed yet.")
    ] = False,
) -> None:
    """Make the key of the site NAME, and a request for its certificate; also to renew both."""
    over_nvflare("kits")
    from intarsia.deployment.operations.joining import join as make_request

    request, heard = make_request(name, out, again=again)
    say(f"made a key in {out / name}, which stays there")
    say(f"  {request}: send it to whoever runs the server, for intarsia federation sign")
    say(f"  fingerprint, to be read to them by telephone: {heard}")


def sign(
    file: File,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What the site sent.")],
    confirm: Heard = "",
    out: Kits = _KITS,
) -> None:
    """Sign the REQUEST of a site of FILE, whose private key stays at the site."""
    over_nvflare("kits")
    from intarsia.deployment.federation_file import load
    from intarsia.deployment.operations.joining import sign as sign_request

    signed, heard, end = sign_request(load(file), request, confirm, out.resolve())
    say(f"signed until {end:%Y-%m-%d}: {signed}")
    say("  send it to the site, for intarsia federation install; nothing in it is secret")
    say(f"  fingerprint of the authority, to be read to them by telephone: {heard}")


def install(
    signed: Annotated[Path, typer.Argument(metavar="SIGNED", help="What came back signed.")],
    confirm: Heard = "",
    out: Here = Path(),
) -> None:
    """Put what was SIGNED into the site's kit, beside the key that join made."""
    over_nvflare("kits")
    from intarsia.deployment.operations.joining import install as put_in_place

    kit, end = put_in_place(signed, confirm, out)
    say(f"{kit} has a certificate until {end:%Y-%m-%d}")
    say(f"  fill in {kit / 'local' / 'site.toml'}, and run intarsia federation site {kit}")


def renew(
    file: File,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Sites whose kits are in DIR, or server; default: all."
        ),
    ] = None,
    out: Kits = _KITS,
) -> None:
    """Write new keys and certificates for kits of FILE, by the same authority; the others go on.

    A server keeps its key. A site that makes its key itself renews by join, sign and install.
    """
    from intarsia.deployment.federation_file import load

    over = over_nvflare("kits")
    from intarsia.deployment.operations.address import check_address
    from intarsia.engines.transports.revocation import check_taken

    description = load(file)
    check_address(description, out)
    known = ("server", *description.sites)
    here = [name for name in known if name == "server" or (out / name / "startup").is_dir()]
    for name in names or ():
        if name not in known:
            raise ExperimentError(f"The federation has no {name!r}; {nearest(name, known)}.")
        if name not in here:
            raise ExperimentError(
                f"The kit of {name!r} is not in {out}, so that its key is the site's alone; let "
                f"the site run `intarsia federation join {name}`, and sign its request."
            )
    for name in names or here:
        check_taken(out / "server", name)
    given = description.name, description.server, out.resolve()
    written, end = over.renewed(*given, names or here, known)
    say(f"wrote keys and certificates to {written}, valid until {end:%Y-%m-%d}")
    for name in names or here:
        say(f"  {written / name}: copy it over the kit (cp -r {name}/. KIT), and start that again")


def revoke(
    kit: Kit,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name.")],
    former: Annotated[
        bool, typer.Option("--former", help="NAME is of a site that has left the federation.")
    ] = False,
) -> None:
    """Let the server of KIT refuse all certificates that the site NAME has so far, at once.

    The site comes back with a certificate that is signed afterwards.
    """
    from intarsia.deployment.federation_file import check_name, sites_of
    from intarsia.deployment.process import check_user
    from intarsia.engines.transports import revocation

    sites, _ = sites_of(kit)
    check_user(kit)
    check_name(name)
    if name not in sites and not former:
        raise ExperimentError(
            f"The federation has no {name!r}; {nearest(name, sites)}, or add --former if it has "
            "left."
        )
    over_nvflare("kits")
    from intarsia.deployment.operations.joining import newest_begin

    moment = revocation.revoke(kit, name, newest_begin(kit.resolve().parent, name))
    say(f"refuses all certificates of {name} of before {moment:%Y-%m-%d %H:%M:%S} UTC")
    if moment > datetime.now(UTC):
        say("  one was signed by a clock that was ahead; sign for it after that moment")
    if not former:
        say(f"  it comes back with a new one: join at {name}, sign, and install at {name}")


def backup(
    kit: Kit,
    file: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to be written.")
    ],
) -> None:
    """Write KIT, which must be stopped, into one file: settings, keys, runs, models, logs."""
    over_nvflare("kits")
    from intarsia.deployment.operations.backup import backup as write

    missing = write(kit, file)
    say(f"wrote {file}; it has private keys: keep it as safe as the kit")
    for what, path in missing.items():
        say(f"  not in it, as it lies beside the kit: {what}, {path}")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What backup wrote.")],
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="Where it goes; must not be there.")],
    spent: Annotated[
        float | None,
        typer.Option(
            "--spent-since",
            metavar="EPSILON",
            min=0,
            help="Of a site: the epsilons of the jobs with noise since then, added up.",
        ),
    ] = None,
) -> None:
    """Put KIT back from a FILE that backup wrote.

    A site's file does not count what the site released with noise since then; say it.
    """
    over_nvflare("kits")
    from intarsia.deployment.operations.backup import restore as put_back

    found = put_back(file, kit.resolve(), spent)
    what = "the server" if found.server else f"the site {found.name}"
    say(f"{kit} is {what} as of {found.written}, of intarsia {found.version}")
    if spent:
        say(f"  epsilon {spent:g} counts as spent; runs with noise of before do not go on here")
    if found.server:
        say("  certificates that were revoked since then are valid again: `revoke` them once more")
    else:
        say("  rows that jobs trained on since then are not known here: see `least_changed`")


def dashboard(out: Output = None) -> None:
    """Print a dashboard of Grafana for what `server --metrics` serves: import it there."""
    from importlib.resources import files

    from intarsia.core.files.atomic_files import write_over

    there = files("intarsia.deployment.operations") / "templates" / "grafana.json"
    if out is None:
        put(there.read_text(encoding="utf-8").rstrip())
    else:
        write_over(out, there.read_bytes())
        say(f"wrote {out}")


def over_nvflare(module: str) -> Any:
    """Return a module of `engines.transports` that needs NVIDIA FLARE."""
    try:
        return importlib.import_module(f"intarsia.engines.transports.{module}")
    except ModuleNotFoundError as problem:
        if (problem.name or "").split(".")[0] not in (
            "aiohttp",
            "cryptography",
            "nvflare",
            "psutil",
            "yaml",
        ):
            raise
        raise ExperimentError(
            'The library nvflare is not installed; run pip install "intarsia[nvflare]".'
        ) from None
