"""The package of the tutorial on an own algorithm: built, installed, and run by name."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import intarsia
import own_algorithm
import sites
from intarsia.cli.main import main
from intarsia.deployment import client_folder, client_setup
from intarsia.deployment import run as remote_running
from intarsia.deployment.client_setup import READ, site_in
from intarsia.deployment.policy import Policy, check_experiment
from intarsia.engines import codec
from intarsia.engines.remote.wire import PROTOCOL, Call
from intarsia.errors import AbsentError, IntarsiaError, PolicyError
from intarsia.experiment import config as experiment
from intarsia.testing import rules
from intarsia.training import run as running
from key_folders import exchanged
from killed_runs import run_killed
from own_algorithm import EXAMPLE, NAMES, closed_form, least_objective, site_toml
from site_processes import SiteProcesses, Sockets
from tests.training.test_resume import lines_of, rounds_done, stopped

SAME = ("rounds", "finished", "bytes", "exchanges", "metrics", "certificate")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return own_algorithm.install(tmp_path_factory.mktemp("target"))


@pytest.fixture
def installed(target, monkeypatch):
    """Return the folder, where this process and those that it starts find the package."""
    monkeypatch.setenv("PYTHONPATH", f"{target}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(target)
    monkeypatch.delitem(sys.modules, "intarsia_ridge", raising=False)
    return target


def test_the_tutorial_shows_the_example_as_it_is_and_each_rule():
    page = EXAMPLE.parents[1] / "docs" / "tutorials" / "own-algorithm.md"
    text = page.read_text(encoding="utf-8")
    shown = [one for one in re.findall(r"```python\n(.+?)```", text, re.DOTALL) if "fl." in one]
    source = (EXAMPLE / "intarsia_ridge.py").read_text(encoding="utf-8")
    assert len(shown) == 6
    assert [one for one in shown if one not in source] == []
    table = text.partition("| rule | finds |")[2].partition("\n\n")[0]
    named = {one.replace(" ", "_") for one in re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE)}
    known = {rule.__name__ for rule in rules.RULES}
    assert named == {*known, "ends_as_it_should", "what_crosses_is_what_is_declared"}


def test_the_example_is_sixty_lines_of_code_as_the_tutorial_says():
    tree = ast.parse((EXAMPLE / "intarsia_ridge.py").read_text(encoding="utf-8"))
    text = [one for one in ast.walk(tree) if isinstance(one, ast.Expr)]  # docstrings
    said = {line for one in text for line in range(one.lineno, one.end_lineno + 1)}
    source = (EXAMPLE / "intarsia_ridge.py").read_text(encoding="utf-8").splitlines()
    code = [
        line
        for number, line in enumerate(source, 1)
        if number not in said and line.strip() and not line.strip().startswith("#")
    ]
    assert len(code) == 60


def test_a_masked_run_by_name_is_ridge_regression_on_the_joined_table(installed, tmp_path, capfd):
    out = tmp_path / "whole"
    cut = ["-c", "split.test=0", "-c", "experiment.yardsticks=false", "--quiet"]
    assert main(["run", str(EXAMPLE / "ridge.toml"), "--out", str(out), *cut]) == 0
    found = intarsia.load(out)
    x, expected = closed_form()
    assert len(x) == 120
    np.testing.assert_allclose(found.model.predict(x), expected, rtol=1e-6)
    least = least_objective()
    assert found.certificate.dual <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= found.certificate.primal <= least * (1 + 1e-6)
    assert found.finished == "tolerance"
    assert main(["audit", str(out)]) == 0
    said = capfd.readouterr().out
    assert "sums over all rows, for each feature and for the labels" in said
    assert "additive masks" in said

    killed = tmp_path / "killed"
    often = ["-c", "experiment.checkpoint_seconds=0"]
    given = "run", EXAMPLE / "ridge.toml", "--out", killed, *cut[:-1], *often
    status, text = stopped("SIGKILL", killed, 4.5, *given)
    assert status == -signal.SIGKILL, text
    assert rounds_done(killed) == 4
    assert main(["resume", str(killed), "--quiet"]) == 0
    assert lines_of(out) == lines_of(killed)
    one, other = (json.loads((place / "result.json").read_text()) for place in (out, killed))
    assert {key: one[key] for key in SAME} == {key: other[key] for key in SAME}
    written = [(place / "model/linear.json").read_bytes() for place in (out, killed)]
    assert written[0] == written[1]


# -- over sites


def set_up(folder, modules='"intarsia_ridge:RIDGE"'):
    """Write a folder for each site; return the experiment with all tables in one place."""
    exchanged(folder, NAMES, "ridge")
    tree = tomllib.loads((EXAMPLE / "ridge.toml").read_text())
    for one in tree["client"]:
        own = folder / one["name"]
        own.mkdir()
        one["path"] = str(EXAMPLE / one["path"])
        (own / "site.toml").write_text(site_toml(one, folder, modules))
    tree["experiment"] |= {"yardsticks": False, "checkpoint_seconds": 0.0}
    tree["split"] = {"test": 0.0}
    tree["privacy"]["key"] = str(folder / "shared.key")
    return experiment.from_dict(tree, folder)


def check_same_as_in_one_process(description, found, folder):
    """Check that a run over sites came to the bits of one in this process, and the closed form."""
    secrets = sites.in_run_of(folder / "out", {name: folder / name for name in NAMES})
    one = running.run(description, out=folder / "one", secrets=secrets)
    assert found.certificate == one.certificate
    assert found.metrics == one.metrics
    assert found.bytes == one.bytes
    assert lines_of(folder / "out") == lines_of(folder / "one")
    x, expected = closed_form()
    np.testing.assert_allclose(one.model.predict(x), expected, rtol=1e-6)
    w = codec.decode((folder / "out" / "conclusion.state").read_bytes())["weights"]
    means, scales = x.mean(), x.std(ddof=0)
    assert w.shape == (1, 9)
    assert np.abs(w).max() > 1
    assert set(one.model.feature_names_in_) == {*means.index, *scales.index}


def test_sites_that_allow_it_run_it_and_may_be_killed_with_the_server(installed, tmp_path):
    description = set_up(tmp_path)
    found = {name: site_in(tmp_path / name) for name in NAMES}
    result, processes = run_killed(
        found, tmp_path, NAMES, description, tmp_path / "out", patience=sites.HASTY, every=61
    )
    assert processes > 2
    check_same_as_in_one_process(description, result, tmp_path)
    entries = (tmp_path / "telecom" / "log" / "site.log").read_text()
    assert "Vector.v" in entries
    assert "each row's label, or its score by a direction or the model" in entries


IMPORTS = """
import sys, json
from pathlib import Path
from intarsia.deployment import client_folder, policy
from intarsia.errors import PolicyError
settings = client_folder.read_settings(Path(sys.argv[1]))
for modules in [(), ("intarsia_ridge",), ("intarsia_ridge:ridge", "ridge")]:
    try:
        tree = json.loads(sys.argv[2])
        policy.check_experiment(settings.policy, tree, modules, own_table=False)
    except PolicyError as refusal:
        print(refusal)
print("intarsia_ridge" in sys.modules)
"""


def test_a_site_whose_owner_does_not_list_it_imports_nothing_of_it(installed, tmp_path):
    description = set_up(tmp_path, "")
    # in another process: this one imports it for the server, to run the algorithm
    tree = json.dumps(experiment.to_dict(description))
    given = [sys.executable, "-c", IMPORTS, str(tmp_path / "bank"), tree]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    *refusals, imported = done.stdout.splitlines()
    assert imported == "False"
    assert refusals == 3 * [
        "the site runs only functions that it names, and the run's algorithm 'ridge' is "
        "'intarsia_ridge:RIDGE' of the installed package intarsia-ridge 1.0 ([site] modules in "
        "site.toml); set it to a list with that function if you know what it does."
    ]
    found = {name: site_in(tmp_path / name) for name in NAMES}
    with pytest.raises(AbsentError, match=r"bank.*\[site\] modules"):
        remote_running.run_over(
            *(description, sites.Lines(found), NAMES, tmp_path / "out"), patience=sites.HASTY
        )


def test_a_forbidden_algorithm_is_refused_by_its_name_and_nothing_of_it_imported(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    lines = {"intarsia.algorithms": ["theirs = their_trap:TRAP"]}
    own_algorithm.add_package(tmp_path, "their-things", lines, {"their_trap": "assert False"})
    row = {"name": "bank", "path": str(EXAMPLE / "bank.csv"), "id": "customer", "label": "spend"}
    for name, allowed in (("a", '["hyfdca"]'), ("b", '["hyfdca", "theirs"]')):
        (tmp_path / name).mkdir()
        text = site_toml(row, tmp_path, '"their_trap:TRAP"', more="plain = true\n")
        policy = f"[policy]\nalgorithms = {allowed}\n"
        (tmp_path / name / "site.toml").write_text(f"{text}\n{policy}")
    call = Call("ab", 1, 0, 0, 0, 0, "stage", READ, "train", ("bank",), b"")
    tree = {"protocol": PROTOCOL, "algorithm": {"name": "theirs", "loss": 1}}
    said = {}
    for name in "ab":
        work = client_setup.Work(client_folder.read_settings(tmp_path / name), tmp_path / name)
        work.enter(call)
        with pytest.raises(IntarsiaError) as refusal:
            work.stage(READ, None, json.dumps(tree).encode())
        said[name] = str(refusal.value)
    assert said["a"] == (
        "the owner allows hyfdca, and the job is theirs ([policy] algorithms in site.toml)."
    )
    assert "from their_trap:TRAP (their_trap.py:1: AssertionError" in said["b"]


@pytest.mark.parametrize(
    "tree",
    [
        {"dataset": {"name": "theirs"}, "partition": {"kind": "grid"}},
        {"dataset": {"name": ["digits", "theirs"]}, "partition": {"kind": "grid"}},
        {"dataset": {"name": "digits"}, "partition": {"kind": "theirs"}},
    ],
)
def test_a_site_deals_no_data_set_by_what_its_owner_does_not_list(tmp_path, monkeypatch, tree):
    monkeypatch.syspath_prepend(tmp_path)
    lines = ["theirs = no_such_module:theirs"]
    groups = dict.fromkeys(["intarsia.datasets", "intarsia.partitions"], lines)
    own_algorithm.add_package(tmp_path, "their-things", groups, {})
    with pytest.raises(PolicyError, match=r"'theirs' is 'no_such_module:theirs' of .*their-things"):
        check_experiment(Policy(), tree, (), own_table=False)
    check_experiment(Policy(), tree, ("no_such_module:theirs",), own_table=False)


SERVER = """
import sys
from pathlib import Path
import sites
from intarsia.deployment import run as remote_running
from intarsia.experiment import config as experiment
from site_processes import Sockets
from stopped_run import stop_at
import json, signal
folder = Path(sys.argv[1])
description = experiment.from_dict(json.loads((folder / "tree.json").read_text()), folder)
stop_at(signal.SIGKILL, folder / "out", 4, 3)
names = tuple(one.name for one in description.clients)
remote_running.run_over(
    description, Sockets(folder), names, folder / "out", patience=sites.HASTY
)
"""


@pytest.mark.slow
def test_four_sites_as_processes_and_a_server_that_is_killed_come_to_the_same_bits(
    installed, tmp_path, monkeypatch
):
    support = Path(own_algorithm.__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{support}{os.pathsep}{os.environ['PYTHONPATH']}")
    description = set_up(tmp_path)
    (tmp_path / "tree.json").write_text(json.dumps(experiment.to_dict(description)))
    with SiteProcesses(tmp_path, NAMES) as running_sites:
        done = subprocess.run([sys.executable, "-c", SERVER, str(tmp_path)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert rounds_done(tmp_path / "out") == 4
        for name in ("bank", "telecom"):
            running_sites.kill(name)
            running_sites.start(name)
        result = remote_running.resume_over(
            tmp_path / "out", Sockets(tmp_path), patience=sites.HASTY
        )
    check_same_as_in_one_process(description, result, tmp_path)
