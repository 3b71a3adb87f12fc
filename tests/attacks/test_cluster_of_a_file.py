"""An experiment file, or a run's folder, of somebody else names a Ray cluster that is theirs.

The cluster is sent the tables, the clients' states and their lasting secrets. So whoever runs or
resumes it names the cluster, and a file may say "local" alone.
"""

from __future__ import annotations

import contextlib
import json
import sys
import types

import pytest

import intarsia
from command_line import one_error
from intarsia.cli.main import main
from intarsia.errors import ExperimentError

THEIRS = "203.0.113.7:6379"
FILE = """
[experiment]
rounds = 3
tolerance = 0.0
yardsticks = false
{ray}
[algorithm]
name = "fedavg"
[privacy]
mode = "plain"
"""
CLIENT = '[[client]]\nname = "{name}"\npath = "{name}.csv"\nid = "i"\nlabel = "y"\n'


@pytest.fixture
def asked(monkeypatch):
    """Return the addresses that a cluster was looked for at; none is there."""
    found = []

    class Cluster:
        def __init__(self, address, *_):
            found.append(address)

        def connected(self):
            return contextlib.nullcontext()

    module = types.ModuleType("ray")
    module.RayCluster = Cluster
    monkeypatch.setitem(sys.modules, "intarsia.engines.transports.ray", module)
    return found


def write(folder, ray=""):
    """Write two clients' tables and an experiment over them; return its path."""
    named = ""
    for first, name in enumerate("ab"):
        lines = "".join(
            f"{row},{row % 7},{row % 2}\n" for row in range(100 * first, 100 * first + 60)
        )
        (folder / f"{name}.csv").write_text(f"i,x,y\n{lines}")
        named += CLIENT.format(name=name)
    (folder / "theirs.toml").write_text(FILE.format(ray=ray) + named)
    return folder / "theirs.toml"


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("run", THEIRS),
        ("run", "auto"),
        ("run", "ray://203.0.113.7:10001"),
        ("tune", THEIRS),
        ("contribution", THEIRS),
    ],
)
def test_no_cluster_is_taken_from_a_file(asked, tmp_path, capfd, command, address):
    file = write(tmp_path, f'ray = "{address}"')
    assert main([command, str(file)]) == 2
    said = one_error(capfd.readouterr().err)
    assert f"names the Ray cluster '{address}', which would be sent all tables" in said
    assert "-c experiment.ray=HOST:PORT" in said
    with pytest.raises(ExperimentError, match="names the Ray cluster"):
        intarsia.run(file)
    assert asked == []


def test_the_command_line_and_python_name_one(asked, tmp_path):
    file = write(tmp_path)
    own = ["-q", "-o", str(tmp_path / "out")]
    assert main(["run", str(file), *own, "-c", f"experiment.ray={THEIRS}"]) == 0
    intarsia.run(file, out=None, ray="auto")
    intarsia.run(write(tmp_path, 'ray = "local"'), out=None)
    assert asked == [THEIRS, "auto", "local"]


def test_no_cluster_is_taken_from_the_folder_of_a_run(asked, tmp_path, capfd):
    out = tmp_path / "out"
    assert main(["run", str(write(tmp_path)), "-q", "-o", str(out)]) == 0
    (out / "result.json").unlink()
    told = out / "experiment.json"
    tree = json.loads(told.read_text())
    tree["experiment"]["ray"] = THEIRS
    told.write_text(json.dumps(tree))
    before = told.read_bytes()
    for more in ([], ["-c", "experiment.workers=1"], ["-c", "experiment.yardsticks=false"]):
        assert main(["resume", str(out), "-q", *more]) == 2
        said = one_error(capfd.readouterr().err)
        assert f"names the Ray cluster '{THEIRS}', which would be sent all tables" in said
        assert "-c experiment.ray= for this machine" in said
    with pytest.raises(ExperimentError, match="names the Ray cluster"):
        intarsia.resume(out, workers=1)
    assert asked == []
    assert told.read_bytes() == before
    intarsia.resume(out, ray="")
    assert asked == []
    (out / "result.json").unlink()
    assert main(["resume", str(out), "-q", "-c", f"experiment.ray={THEIRS}"]) == 0
    assert asked == [THEIRS]
