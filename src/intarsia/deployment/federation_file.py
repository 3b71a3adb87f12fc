"""A federation of sites in a file, and the kits that are made of it: one folder for each process.

`EXAMPLE` shows every key of the file.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from intarsia.core.files.atomic_files import write_atomically
from intarsia.core.files.json_text import check_kind, parse_json
from intarsia.core.memory import reserve
from intarsia.core.settings import hyperparameters, read_toml
from intarsia.engines.remote.caller import RetryPolicy
from intarsia.errors import ExperimentError, lacks

_TABLES: Final = ["federation", "patience", "site"]
_SITES: Final = "federation.json"
_MOST_SITES: Final = 100
_ROOM: Final = 1 << 24  # bytes that a kit's disk is to have

# What `intarsia federation init` writes.
EXAMPLE: Final = """\
[federation]
name = "credit"
server = "localhost"   # the host that sites reach; they open the connections, it opens none
port = 8702            # of sites; the next one is the administrator's

[patience]             # what the server does when a site does not answer
deadline = 600         # seconds
absent = "wait"        # or "continue": the round begins again without it
quorum = 1             # sites without which no round is run

[[site]]
name = "bank"          # as experiments call the client

[[site]]
name = "telecom"

[[site]]
name = "retailer"
"""

_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = re.compile(rf"({_LABEL}\.)*{_LABEL}")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # as certificates have it

_SITE: Final = """\
# What this site takes part with. The server names no path and reads nothing of this.
[site]
name = "{name}"
plain = false            # false: refuse runs in which the server could read what it sends to sums
ids = false              # false: refuse runs in which the server could read the ids of its rows
scales = false           # true: it gets the columns' means and scales, so that its model predicts
# key = "shared.key"     # of the clients: intarsia keys; its identity and all cards lie beside it
# trust = "clients"      # take part where sums are sealed with one key that all clients have, too

# What its owner allows; no job overrides it. Take the # away from a line to set it.
[policy]
approve = "each"         # each job waits for `intarsia federation approve`; "listed", "all"
# algorithms = ["hyfdca"]    # that may run
# least_clients = 3          # of a job, and of its totals of what clients learned alone
# epsilon_most = 1.0         # a job must add noise, with an epsilon above 0 and at most this
# delta_most = 1e-5          # and with a delta of at most this
# epsilon_total = 4.0        # and the epsilons of all jobs that ever began add up to at most this
# models_readable = false    # whether the server may read a model of this site alone
# columns = ["age", "lab_*"] # that may take part
# least_rows = 100           # to train on
# least_changed = 20         # by which the training rows of two jobs differ, if they do
# most_rows = 1000000        # of the table
# jobs_a_day = 3
# jobs_total = 20            # that differ in more than their names, of all that ever began
# rounds_a_day = 500
# rounds_a_job = 200

"""

# How a site's file ends until it says what its table is.
NO_TABLE: Final = """\
# [table]                # as a [[client]] of an experiment: intarsia federation table writes it
# path = "table.csv"
# id = "customer"
# label = "default"
"""


@dataclass(frozen=True, kw_only=True)
class FederationFile:
    """What a federation's file says."""

    name: str
    sites: tuple[str, ...]
    server: str = "localhost"
    port: int = 8702
    patience: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if len(set(self.sites)) != len(self.sites) or not self.sites:
            raise ExperimentError(
                f"The sites are {list(self.sites)}; every federation needs one at least, and "
                "each a name of its own."
            )
        if len(self.sites) > _MOST_SITES:
            raise ExperimentError(
                f"The federation has {len(self.sites)} sites; one has {_MOST_SITES} at most, as "
                "many as a server of NVIDIA FLARE takes: make two of it."
            )
        for name in (self.name, *self.sites):
            check_name(name)
        if len({name.lower() for name in self.sites}) < len(self.sites) or not self.server:
            raise ExperimentError(
                f"The server is {self.server!r} and the sites are {list(self.sites)}; the server "
                "needs a name, and those of the sites must differ in more than case."
            )
        if not _HOST.fullmatch(self.server):
            raise ExperimentError(
                f"The server is {self.server[:80]!r}, and certificates of NVIDIA FLARE are for a "
                "name or an IPv4 address alone; give the server a name in DNS, or in the file of "
                'hosts of each machine, such as "server.example.org".'
            )
        if self.patience.quorum > len(self.sites):
            raise ExperimentError(
                f"quorum is {self.patience.quorum} of {len(self.sites)} sites; it can be that many "
                "at most."
            )
        if not 1 <= self.port < 65535:
            raise ExperimentError(f"port is {self.port}; it must be between 1 and 65534.")

    @property
    def ports(self) -> tuple[int, int]:
        """Return the server's ports: of sites, and the administrator's."""
        return self.port, self.port + 1

    @property
    def address(self) -> str:
        """Return where sites reach the server."""
        return f"{self.server}:{self.port}"


def load(path: Path) -> FederationFile:
    """Return what a federation's file says.

    Raises
    ------
    ExperimentError
        If it is wrong.
    """
    tree = read_toml(path, "the federation's file", _TABLES, lists=("site",))
    sites = tree.get("site", [])
    if not isinstance(sites, list) or not all(
        isinstance(one, dict) and set(one) == {"name"} and isinstance(one["name"], str)
        for one in sites
    ):
        raise ExperimentError(f"{path}: each [[site]] has a name and nothing else.")
    patience = hyperparameters(RetryPolicy, tree.get("patience", {}), f"{path}: [patience]")
    own: dict[str, Any] = {"sites": tuple(one["name"] for one in sites), "patience": patience}
    for key, table in (("sites", "[[site]] for each site"), ("patience", "[patience]")):
        if key in tree.get("federation", {}):
            raise ExperimentError(
                f"{path}: {key} is no key of [federation]; write a table {table} of its own."
            )
    given = {**tree.get("federation", {}), **own}
    return hyperparameters(FederationFile, given, f"{path}: [federation]")


def check_name(name: str) -> None:
    """Refuse a name of a federation or a site that cannot be a folder's and a certificate's."""
    if not _NAME.fullmatch(name) or name in ("server", "admin"):
        raise ExperimentError(
            f"The name {name[:80]!r} cannot be that of a folder and a certificate; take at most 64 "
            'unaccented letters, digits, "-" and "_", and neither "server" nor "admin".'
        )


def finish_kits(description: FederationFile, kits: Mapping[str, Path]) -> None:
    """Write what is ours into new kits: the server's sites, and a site.toml to be filled in."""
    for name, kit in kits.items():
        if name == "server":
            known = {"sites": list(description.sites), "patience": vars(description.patience)}
            write_atomically(kit / "local" / _SITES, json.dumps(known, indent=1).encode())
        elif not (path := kit / "local" / "site.toml").exists():
            own = _SITE.format(name=name) + NO_TABLE
            write_atomically(path, own.encode(), private=True)


def check_kit(kit: Path) -> None:
    """Refuse a folder that is absent, or neither the server's kit nor a site's."""
    if not is_of_server(kit) and not (kit / "local" / "site.toml").is_file():
        what = "is no kit" if kit.exists() else "does not exist"
        raise ExperimentError(
            f"{kit} {what}; give a folder that `intarsia federation provision` or `install` wrote."
        )


def is_of_server(kit: Path) -> bool:
    """Return whether a kit is the server's."""
    return (kit / "local" / _SITES).is_file()


def sites_of(kit: Path) -> tuple[tuple[str, ...], RetryPolicy]:
    """Return a server's sites and how long it waits.

    Raises
    ------
    ExperimentError
        If it is no server's kit, or the file with them is damaged.
    """
    path = kit / "local" / _SITES
    if not is_of_server(kit):
        raise ExperimentError(
            f"{lacks(kit, 'is no kit of a server')}; give the folder server that `intarsia "
            "federation provision` wrote."
        )
    try:
        found = parse_json(path.read_bytes())
        sites, patience = found["sites"], found["patience"]
        check_kind(sites, list[str])
        check_kind(patience, dict[str, Any])
    except (ValueError, LookupError, TypeError) as problem:
        raise ExperimentError(
            f"{path} is damaged ({type(problem).__name__}: {str(problem)[:200]}); put back a copy, "
            "or remove it and run the same `intarsia federation provision` again, which writes it."
        ) from None
    return tuple(sites), hyperparameters(RetryPolicy, patience, f"{path}: patience")


def unwritable(kit: Path) -> OSError | None:
    """Return what keeps this process from writing into a kit; None: it can, and there is room."""
    for folder in (kit, kit / "local"):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                if folder != kit:
                    reserve(file.fileno(), 0, _ROOM)
        except OSError as problem:
            return problem
    return None
