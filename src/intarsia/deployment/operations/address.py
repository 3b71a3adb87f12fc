"""Where a federation's server is: its kits, and what was signed for sites, have that in them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from intarsia.core.block import ClientId
from intarsia.deployment.federation_file import FederationFile
from intarsia.deployment.operations.archive import unpacked
from intarsia.deployment.process import at_rest
from intarsia.engines.transports import kits
from intarsia.errors import ExperimentError


def change_address(description: FederationFile, folder: Path) -> Mapping[str, str]:
    """Write the address that the federation's file says into its kits that have another one.

    Returns
    -------
    The address that each of them had, by name.

    Raises
    ------
    BusyError
        If one of them is running.
    ExperimentError
        As `kits.renewed` does.
    """
    before: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name in ("server", *description.sites):
            if (old := _address_in(folder / name)) not in ("", description.address):
                stack.enter_context(at_rest(folder / name))
                before[name] = old
        given = description.name, description.server, description.ports
        # the server's last: as long as it has the other address, all is done again
        kits.readdressed(*given, folder, [*before][::-1])
    return before


def check_address(description: FederationFile, folder: Path) -> None:
    """Refuse to write for a federation whose server's kit has another address than its file."""
    if (old := _address_in(folder / "server")) not in ("", description.address):
        raise ExperimentError(
            f"The server is at {description.address} by the federation's file, and its kit in "
            f"{folder} says {old}; run the same `intarsia federation provision` as before first, "
            "which writes the address into the kit."
        )


def old_addresses(description: FederationFile, folder: Path, signed: str) -> Mapping[ClientId, str]:
    """Return another address in what was signed for sites whose kits are elsewhere, by site.

    `signed` is how the names of these files end.
    """
    found: dict[ClientId, str] = {}
    for name in description.sites:
        path = folder / f"{name}{signed}"
        if path.is_file() and not (folder / name / "startup").is_dir():
            with unpacked(path, path) as kit:
                if (old := kits.address_in(kit)) != description.address:
                    found[name] = old
    return found


def _address_in(kit: Path) -> str:
    """Return where the server is by a kit; "": it is not there."""
    return kits.address_in(kit) if (kit / "startup").is_dir() else ""
