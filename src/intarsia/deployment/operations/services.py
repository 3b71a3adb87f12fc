"""What starts a kit's process on a machine: a unit of systemd, a compose file, or a manifest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

import jinja2

from intarsia.core.files.atomic_files import write_atomically
from intarsia.deployment.federation_file import FederationFile

System = Literal["systemd", "docker", "kubernetes"]
_FOLDER: Final = "/srv/intarsia"  # where a unit expects kit and program
# by system: the template, and what ends the name of the file that is made of it
_FILES: Final[dict[System, tuple[str, str]]] = {
    "systemd": ("systemd.service", ".service"),
    "docker": ("compose.yaml", ".compose.yaml"),
    "kubernetes": ("kubernetes.yaml", ".kubernetes.yaml"),
}


def write_services(
    description: FederationFile,
    system: System,
    out: Path,
    *,
    folder: str = _FOLDER,
    program: str = f"{_FOLDER}/.venv/bin/intarsia",
) -> list[Path]:
    """Write for the server and each site what starts it; a file that is there is replaced.

    `folder` is where the kit will lie on its machine, and `program` the command there.
    """
    template, end = _FILES[system]
    loader = jinja2.PackageLoader("intarsia.deployment.operations", "templates")
    made = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # neither format is one of HTML, and names have letters alone
    ).get_template(template)
    written = []
    for name in ("server", *description.sites):
        unit = f"intarsia-{_plain(name)}"
        path = out / f"{unit if system == 'systemd' else name}{end}"
        server = name == "server"
        who = "server" if server else f"site {name}"
        text = made.render(
            name=name,
            kind="server" if server else "site",
            words=f"the {who} of the federation {description.name}",
            unit=unit,
            file=path.name,
            host=description.server,
            port=description.port,
            folder=folder,
            program=program,
        )
        write_atomically(path, text.encode())
        written.append(path)
    return written


def _plain(name: str) -> str:
    """Return a name of small letters, digits and dashes, as those of units and resources are."""
    plain = re.sub("[^a-z0-9-]", lambda one: f"x{ord(one[0]):x}", name.lower().replace("_", "-"))
    return plain.strip("-") or "x"
