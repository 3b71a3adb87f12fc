"""`intarsia doctor [KIT]`: say whether this installation, and a kit, are as they should be."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import platform
import socket
import ssl
import stat
import tempfile
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from intarsia import __version__
from intarsia.core.files.atomic_files import FULL, LONGER
from intarsia.errors import ExperimentError, UserError, listed

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_SOON = timedelta(days=30)  # a certificate that ends within it is to be renewed
_SECONDS = 3.0  # in which a server must answer
_MINUTE = 60.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "problem"]
    said: str
    remedy: str = ""

    def __str__(self) -> str:
        end = f"; {self.remedy}" if self.remedy else ""
        return f"{self.state:<8} {self.name}: {self.said}{end}"


def _ok(name: str, said: str) -> Finding:
    return Finding(name, "ok", said)


def _problem(name: str, said: str, remedy: str) -> Finding:
    return Finding(name, "problem", said, remedy)


def _refused(name: str, problem: UserError) -> Finding:
    """Return what an error says, whose sentence ends with what to do."""
    said, _, remedy = str(problem).rstrip(".").rpartition("; ")
    return _problem(name, said, remedy)


def of_installation(*, load_plugins: bool = False) -> list[Finding]:
    """Return what is to be said of this installation.

    `load_plugins` imports what other packages add, which runs their code.
    """
    looks: tuple[Callable[[], Finding | list[Finding]], ...] = (
        *(_python, _requirements, _extras, lambda: _plugins(load=load_plugins)),
        *(_cache, _locks, _threads, _accelerator),
    )
    return _told(looks)


def of_kit(kit: Path) -> list[Finding]:
    """Return what is to be said of the kit of a federation.

    ExperimentError if the folder is no kit.
    """
    from intarsia.deployment.federation_file import check_kit, is_of_server

    check_kit(kit)
    server = is_of_server(kit)
    looks: tuple[Callable[[], Finding | list[Finding]], ...] = (
        lambda: _ok("kit", f"{kit.name}, {'the server' if server else 'a site'}"),
        *(() if server else (lambda: _settings(kit),)),
        lambda: _permissions(kit),
        lambda: _disk(kit),
        lambda: certificates(kit),
        *((lambda: certificates_of_sites(kit),) if server else ()),
        lambda: _clock(kit),
        lambda: _server_ports(kit) if server else _way_to_server(kit),
    )
    return _told(looks)


def _told(looks: tuple[Callable[[], Finding | list[Finding]], ...]) -> list[Finding]:
    findings: list[Finding] = []
    for look in looks:
        found = look()
        findings += found if isinstance(found, list) else [found]
    return findings


# -- the installation


def _python() -> Finding:
    said = f"intarsia {__version__}, Python {platform.python_version()}, {platform.platform()}"
    if os.name != "posix":
        return _problem("python", said, "use a POSIX system, such as Linux, macOS or WSL")
    return _ok("python", said)


def _requirements() -> Finding:
    wrong = [said for one in _required("") if (said := _unmet(one))]
    if wrong:
        return _problem("versions", "; ".join(wrong), "run pip install --upgrade intarsia")
    names = ("numpy", "scipy", "numba", "pyarrow", "scikit-learn", "pydantic")
    shown = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return _ok("versions", shown)


def _extras() -> list[Finding]:
    """Return which extras are there; one that is absent is not broken, one that is too old is."""
    try:
        metadata = importlib.metadata.metadata("intarsia")
    except importlib.metadata.PackageNotFoundError:
        return []
    there, absent, broken = [], [], []
    for extra in metadata.get_all("Provides-Extra") or []:
        required = _required(extra)
        if extra == "dev" or not required:
            continue
        known = [one for one in required if _version(one.name) is not None]
        wrong = [said for one in known if (said := _unmet(one))]
        if wrong:
            advice = f'run pip install --upgrade "intarsia[{extra}]"'
            broken.append(_problem(f"extra {extra}", "; ".join(wrong), advice))
        elif len(known) == len(required):
            there.append(extra)
        else:
            absent.append(extra)
    more = f'; not installed: {", ".join(absent)} (pip install "intarsia[NAME]")' if absent else ""
    return [_ok("extras", f"{', '.join(there) or 'none'}{more}"), *broken]


def _required(extra: str) -> list[Requirement]:
    """Return what the package, or one of its extras, requires here."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("intarsia") or []
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return []
    every = [Requirement(line) for line in lines]
    if not extra:
        return [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [
        one
        for one in every
        if one.marker is not None
        and one.marker.evaluate({"extra": extra})
        and not one.marker.evaluate({"extra": ""})
    ]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unmet(required: Requirement) -> str:
    """Return in what a requirement is not met; "": in nothing."""
    found = _version(required.name)
    if found is None:
        return f"{required.name} is not installed"
    if required.specifier.contains(found, prereleases=True):
        return ""
    return f"{required.name} is {found}, where {required.specifier} is needed"


def _plugins(*, load: bool = False) -> list[Finding]:
    """Return what installed packages say that they add; to `load` it says if it can be used."""
    from intarsia.core import plugins
    from intarsia.datasets.registry import BUILT_IN, maker_of
    from intarsia.partition.registry import KINDS, function_of
    from intarsia.training.registry import algorithm_named, built_in

    look: dict[plugins.Kind, tuple[Collection[str], Callable[[str], Any]]] = {
        "algorithm": (built_in(), algorithm_named),
        "data set": (BUILT_IN, maker_of),
        "partition": (KINDS, function_of),
    }
    there, findings = [], []
    for kind, (own, used) in look.items():
        for one in plugins.installed(kind):
            try:
                plugins.named(kind, one.name, own)
                if load:
                    used(one.name)
            except UserError as problem:
                findings.append(_refused("plugins", problem))
            else:
                there.append(f"the {kind} {one.name} of {one.package}")
    advice = "mend or uninstall the package"
    findings += [_problem("plugins", said, advice) for said in plugins.unreadable()]
    if there or not findings:
        findings.insert(0, _ok("plugins", "; ".join(there) or "no package adds any"))
    return findings


def _cache() -> Finding:
    from intarsia.maths.jit import cache_folder

    folder = cache_folder()
    if folder is None:
        return _problem(
            "cache",
            "no folder can be written that keeps compiled kernels: every process compiles them",
            "set NUMBA_CACHE_DIR to a folder that you may write",
        )
    return _ok("cache", f"compiled kernels are kept in {folder}")


def warmed(told: Callable[[str], object]) -> Finding:
    """Let everything be compiled that runs use, and say so; `told` gets what is under way."""
    from intarsia.cli.warm import warm
    from intarsia.maths.jit import cache_folder

    folder = cache_folder()
    if folder is None:
        return _problem(
            "warm",
            "nothing was compiled, as no folder can be written that would keep it",
            "set NUMBA_CACHE_DIR to a folder that you may write",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the small tables
        count = warm(told)
    return _ok("warm", f"{count} small federations were trained; a first run compiles nothing")


def _locks() -> Finding:
    """Return whether a run could lock its folder, below this one."""
    from intarsia.results.lock import alone

    here = Path.cwd()
    try:
        with (
            tempfile.TemporaryDirectory(dir=here, prefix=".intarsia-") as folder,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            with alone(Path(folder) / "lock", "it is locked"):
                pass
    except OSError as problem:
        said = f"{here} cannot be written ({problem.strerror})"
        return _problem("locks", said, "work in a folder of your own, or give --out")
    if caught:
        said = f"the file system of {here} has no locks"
        return _problem("locks", said, "keep runs on a local disk, or one process to a folder")
    return _ok("locks", f"the file system of {here} has them")


def _threads() -> Finding:
    import numpy  # noqa: F401  # its library for linear algebra is asked about
    import scipy.linalg  # noqa: F401  # the same
    from threadpoolctl import threadpool_info

    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    libraries = dict.fromkeys(str(one["internal_api"]) for one in threadpool_info())
    processors = f"{count} processor{'' if count == 1 else 's'}"
    said = f"{processors}; {', '.join(libraries) or 'no library'} for linear algebra"
    return _ok("threads", f"{said}; a run takes experiment.threads of them")


def _accelerator() -> Finding:
    if _version("torch") is None:
        return _ok("accelerator", "torch is not installed; linear models need none")
    import torch

    if torch.cuda.is_available():
        return _ok("accelerator", f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    if torch.backends.mps.is_available():
        return _ok("accelerator", f"mps, torch {torch.__version__}")
    if Path("/dev/nvidia0").exists():
        said = f"this machine has one that torch {torch.__version__} does not see"
        return _problem("accelerator", said, "install the build of torch for it, and its driver")
    return _ok("accelerator", f"none; networks train on the processor, torch {torch.__version__}")


# -- a kit


def _settings(kit: Path) -> Finding:
    from intarsia.deployment.client_folder import check_files, check_log, read_settings

    try:
        settings = read_settings(kit / "local")
        check_files(settings)
    except UserError as problem:
        return _refused("settings", problem)
    if settings.name != kit.name:
        said = f"site.toml has the name {settings.name!r} in the kit of {kit.name!r}"
        return _problem("settings", said, "give both the name that experiments use")
    if broken := check_log(kit / "local"):
        return _problem("log", broken, f"see intarsia audit {kit}")
    return _ok("settings", "local/site.toml and the files that it names")


def _permissions(kit: Path) -> Finding:
    """Return whether nobody else can read the private files of a kit."""
    private = [kit, *kit.rglob("*.key"), kit / "local" / "site.toml"]
    found = [one for one in private if one.exists()]
    open_to = [one for one in found[1:] if stat.S_IMODE(one.stat().st_mode) & 0o077]
    if open_to and stat.S_IMODE(kit.stat().st_mode) & 0o077:
        names = [str(one.relative_to(kit)) for one in open_to]
        said = f"others may read {listed(names, 3)}"
        return _problem("permissions", said, f"run chmod -R go= {kit}")
    others = [one for one in found if one.stat().st_uid != os.getuid()]
    if others and os.getuid() != 0:
        said = f"{others[0].name} belongs to another user"
        return _problem("permissions", said, f"run chown -R $USER {kit}")
    return _ok("permissions", "private files are their owner's alone")


def _disk(kit: Path) -> Finding:
    """Return whether this user can write into a kit, as its process does."""
    from intarsia.deployment.federation_file import unwritable

    problem = unwritable(kit)
    if problem is None:
        return _ok("disk", "the kit's folder can be written")
    said = f"nothing can be written into the kit's folder ({problem.strerror})"
    remedy = "free some of its disk"
    if problem.errno == errno.EFBIG:
        remedy = LONGER
    elif problem.errno not in FULL:
        remedy = "give whoever runs it a folder of a disk that can be written"
    return _problem("disk", said, remedy)


def certificates(kit: Path) -> list[Finding]:
    """Return which certificates of a kit are not valid, or soon will not be."""
    from intarsia.engines.transports import validity

    findings, left = [], []
    now = datetime.now(UTC)
    for path in validity.certificate_files(kit):
        own = path.parent == kit / "startup"
        name, remedy = path.name if own else path.relative_to(kit), validity.renewal(kit, path)
        try:
            start, end = validity.valid_in(path)
        except ExperimentError:
            said = f"{name} is no certificate that can be read"
            findings.append(_problem("certificates", said, "get the kit again"))
            continue
        left.append(end - now)
        if now < start:
            said = (
                f"{name} is valid from {_time(start)} on, and this machine's clock is behind that"
            )
            findings.append(_problem("certificates", said, "set this machine's clock"))
        elif now > end:
            said = f"{name} ended on {_time(end)}"
            findings.append(_problem("certificates", said, remedy))
        elif end - now < _SOON:
            said = f"{name} ends on {end:%Y-%m-%d}, in {(end - now).days} days"
            findings.append(_problem("certificates", said, remedy))
    if not left and not findings:
        return [_problem("certificates", "startup has none", "get the kit again")]
    if findings:
        return findings
    return [_ok("certificates", f"valid for {min(left).days} days more")]


def certificates_of_sites(kit: Path) -> list[Finding]:
    """Return which sites of a server have certificates that ended, or soon will.

    It is known of those that have connected.
    """
    from intarsia.deployment.federation_file import sites_of
    from intarsia.engines.transports.revocation import ends_seen

    now, found = datetime.now(UTC), []
    try:
        seen = ends_seen(kit)
    except ExperimentError as problem:
        return [_problem("certificates", "it is not known when those of sites end", str(problem))]
    for name in sites_of(kit)[0]:
        if name in seen and (left := seen[name] - now) < _SOON:
            ends = "ended" if left < timedelta() else "ends"
            said = f"that of {name} {ends} on {seen[name]:%Y-%m-%d}"
            remedy = f"let {name} run intarsia federation join {name}, and sign its request"
            found.append(_problem("certificates", said, remedy))
    return found


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _clock(kit: Path) -> Finding:
    """Return whether this machine's clock is behind that of who wrote the kit's files."""
    now = datetime.now(UTC)
    newest = max(one.stat().st_mtime for one in kit.rglob("*") if one.is_file())
    ahead = newest - now.timestamp()
    if ahead > _MINUTE:
        said = f"it is {_time(now)}, and a file of the kit is {ahead / _MINUTE:,.0f} minutes ahead"
        return _problem("clock", said, "set this machine's clock, by NTP")
    return _ok("clock", f"{_time(now)}; calls do not depend on it, certificates do")


def _addresses(kit: Path, name: str) -> dict[str, Any]:
    """Return what a kit says of its server."""
    found: dict[str, Any] = json.loads((kit / "startup" / name).read_bytes())["servers"][0]
    return found


def _server_ports(kit: Path) -> Finding:
    try:
        from intarsia.deployment.process import is_running
        from intarsia.engines.transports import nvflare

        if is_running(kit):
            return _ok("ports", "the server runs and has them")
        nvflare.check_ports(kit)
    except ImportError:
        said = "the packages nvflare and psutil are not installed"
        return _problem("ports", said, 'run pip install "intarsia[nvflare]"')
    except UserError as problem:
        return _refused("ports", problem)
    known = _addresses(kit, "fed_server.json")
    port = str(known["service"]["target"]).rpartition(":")[2]
    return _ok("ports", f"{port} and {known['admin_port']} are free")


def _way_to_server(kit: Path) -> Finding:
    from intarsia.engines.transports.connection import is_of_time

    target = str(_addresses(kit, "fed_client.json")["service"]["target"])
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS) as line:
            why = _refusal_of_server(kit, line)
        if why is None:
            return _ok("ports", f"{target} answers")
        if is_of_time(why):
            said = f"the certificate of the server at {target} has ended, or has not begun, by "
            remedy = (
                "see to that clock, and if it is right, ask whoever runs the server to renew it"
            )
            return _problem(
                "ports", f"{said}this machine's clock ({_time(datetime.now(UTC))})", remedy
            )
        reason = why.reason or "no TLS"
        said = f"what answers at {target} is not this federation's server ({reason})"
        remedy = "see whether the kit is the newest that came from there, and its address right"
        return _problem("ports", said, f"{remedy}, and whether a proxy on the way opens TLS")
    except socket.gaierror:
        return _problem("ports", f"the server's host {host!r} is unknown here", "see to its name")
    except OSError as problem:
        said = problem.strerror or f"no answer in {_SECONDS:g} seconds"
        remedy = "start the server, or let this machine reach it through the firewall"
        return _problem("ports", f"{target} cannot be reached ({said})", remedy)


def _refusal_of_server(kit: Path, line: socket.socket) -> ssl.SSLError | None:
    """Return why whoever answers a site is not its server, by the certificate; None: it may be."""
    own = kit / "startup"
    with contextlib.suppress(OSError):  # of files that are damaged, or a line that breaks
        context = ssl.create_default_context(cafile=own / "rootCA.pem")
        context.check_hostname = False  # in a federation one has a certificate of a server
        context.load_cert_chain(own / "client.crt", own / "client.key")
        try:
            context.wrap_socket(line).close()
        except ssl.SSLError as problem:
            return problem
    return None
