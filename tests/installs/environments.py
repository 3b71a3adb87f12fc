"""Install wheel and sdist into fresh environments, and try the commands in each.

python tests/installs/environments.py [NAME...] [--folder .installs] [--jobs N] [--list]

As many are tried at once as there are processors. What passed with the same wheel is not tried
again, so that the command goes on after a stop. The exit status is 1 where an environment fails.
Environments:

lowest           the oldest Python, and of each requirement the lowest version that is declared
newest[-3.X]     the newest releases, with each Python that is there
sdist            the newest releases, installed from the sdist
EXTRA            an extra alone, for each of them
lowest-EXTRA     an extra alone, of whose requirements the lowest versions; torch is pinned
other-user       no home, another user (as root), an installation that cannot be written
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
PYTHONS = ("3.11", "3.12", "3.13")
NOBODY = 65534
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


def project() -> dict[str, Any]:
    """Return the table [project] of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def lowest(requirements: list[str]) -> list[str]:
    """Return requirements with their lower bounds as exact versions."""
    return [re.sub(r">=([\w.]+).*", r"==\1", one) for one in requirements]


def interpreter(version: str) -> str | None:
    """Return a Python of a version that starts, one for all users first."""
    for name in (f"/usr/bin/python{version}", f"python{version}"):
        found = shutil.which(name)
        if found and _output([found, "-c", "import venv"]) is not None:
            return found
    homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(homes[-1]) if homes else None


def _output(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def environments() -> dict[str, tuple[str, list[str], list[str]]]:
    """Return for each environment its Python, what is installed, and the extras in it.

    "{wheel}" and "{sdist}" stand for the built files.
    """
    own = project()
    first = PYTHONS[0]
    found = {
        "lowest": (first, ["{wheel}", *lowest(own["dependencies"])], []),
        "sdist": (first, ["{sdist}"], []),
        "other-user": (first, ["{wheel}"], []),
    }
    for version in PYTHONS:
        found["newest" if version == first else f"newest-{version}"] = (version, ["{wheel}"], [])
    extras = {**own["optional-dependencies"]}
    del extras["dev"]
    for extra in extras:
        found[extra] = (first, ["{wheel}[" + extra + "]"], [extra])
        if extra != "torch":
            requirements = ["{wheel}[" + extra + "]", *lowest(extras[extra])]
            found[f"lowest-{extra}"] = (first, requirements, [extra])
    return found


def pinned() -> str:
    """Return the build of torch that development uses: a bare one would bring all of CUDA."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return "".join(f"{one}\n" for one in lines if one.startswith("torch=="))


def built(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from what is unpacked of it; check that nothing is missing."""
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _build(ROOT, dist, "sdist")
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = _output(["git", "-C", str(ROOT), "ls-files"])
    files = {one for one in (listed or "").splitlines() if not one.startswith(".")}
    if missing := sorted(files - names):
        raise SystemExit(f"the sdist lacks {len(missing)} files, such as {missing[:3]}")
    _build(folder / "unpacked" / sdist.name.removesuffix(".tar.gz"), dist, "wheel")
    _build(ROOT, folder / "direct", "wheel")
    (wheel,), (direct,) = dist.glob("*.whl"), (folder / "direct").glob("*.whl")
    if _names(wheel) != _names(direct):
        raise SystemExit("the wheel of the sdist has other files than that of the checkout")
    for one in (folder / "unpacked", folder / "direct"):
        shutil.rmtree(one)
    return wheel, sdist


def _build(source: Path, target: Path, kind: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def content(wheel: Path) -> str:
    """Return a checksum of what is installed and of what is tried."""
    with zipfile.ZipFile(wheel) as archive:
        parts = [f"{one.filename} {one.CRC}" for one in archive.infolist()]
    return hashlib.sha256("\n".join([*parts, SMOKE.read_text("utf-8")]).encode()).hexdigest()


def tried(
    name: str, python: str, requirements: list[str], extras: list[str], folder: Path
) -> dict[str, Any]:
    """Make an environment, try the commands in it and remove it; return what was found."""
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
    own = str(place / "bin/python")
    # what another user runs later can be compiled now alone
    later = [] if name == "other-user" else ["--no-compile"]
    torch = ["-c", str(folder / "torch.txt")]
    install = [*PIP, "--python", own, "install", *later, *torch, *requirements]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        return {"failed": {"install": " ".join(said)[-2000:]}}
    script = place / "smoke.py"
    shutil.copy(SMOKE, script)
    how: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": "", "MPLBACKEND": "Agg"}}
    if name == "other-user":
        how["env"] = {
            key: value
            for key, value in how["env"].items()
            if key not in ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR")
        }
        how["cwd"] = "/"
        if os.getuid() == 0:
            how.update(user=NOBODY, group=NOBODY, extra_groups=[])
        else:
            for one in [place, *place.rglob("*")]:
                if one.is_dir() and not one.is_symlink():
                    one.chmod(0o555)
    done = subprocess.run(
        [own, str(script), *extras], capture_output=True, text=True, check=False, **how
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {"failed": {"smoke.py": done.stderr[-2000:]}}
    listed = _output([*PIP, "--python", own, "list", "--format", "json"]) or "[]"
    found["versions"] = {one["name"]: one["version"] for one in json.loads(listed)}
    for one in [place, *place.rglob("*")]:
        if one.is_dir() and not one.is_symlink():
            one.chmod(0o755)
    shutil.rmtree(place)
    return found


def main() -> int:
    """Try the environments that are named, or all."""
    known = environments()
    parser = argparse.ArgumentParser(description="Try the package in fresh environments.")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(known)}; all where none is named")
    parser.add_argument("--folder", type=Path, default=ROOT / ".installs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tried at once")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.name) - set(known):
        parser.error(f"there is no environment {min(unknown)!r}; --list names those that are there")
    if given.list:
        sys.stdout.write("\n".join(known) + "\n")
        return 0
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "torch.txt").write_text(pinned(), "utf-8")
    wheel, sdist = built(folder)
    digest = content(wheel)

    def one(name: str) -> bool:
        version, requirements, extras = known[name]
        kept = folder / f"{name}.json"
        passed = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}
        if passed.get("content") == digest and not passed["failed"]:
            return _say(f"{name}: passed before")
        python = interpreter(version)
        if python is None:
            return _say(f"{name}: skipped, no Python {version} is there")
        asked = [
            part.replace("{wheel}", str(wheel)).replace("{sdist}", str(sdist))
            for part in requirements
        ]
        found = tried(name, python, asked, extras, folder)
        kept.write_text(
            json.dumps({"content": digest, "python": version, **found}, indent=1), "utf-8"
        )
        if not found["failed"]:
            return _say(f"{name}: {found['commands']} commands as they should be")
        reasons = [f"  {command}: {why}" for command, why in found["failed"].items()]
        _say("\n".join([f"{name}: {len(reasons)} FAILED", *reasons]))
        return False

    with ThreadPoolExecutor(given.jobs) as pool:
        return int(not all(list(pool.map(one, given.name or known))))


def _say(text: str) -> bool:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return True


if __name__ == "__main__":
    sys.exit(main())
