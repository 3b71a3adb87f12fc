"""Units, compose files and manifests say which process runs, and hold for names of any kind."""

from __future__ import annotations

import configparser
import shutil
import subprocess

import jsonschema
import pytest

from intarsia.deployment.federation_file import FederationFile
from intarsia.deployment.operations.services import write_services

yaml = pytest.importorskip("yaml", reason="pyyaml comes with nvflare")

SITES = ("no", "1e5", "Bank_2")  # which YAML would read as a truth value and a number
FEDERATION = FederationFile(name="credit", sites=SITES, server="fed.example.org", port=8710)
TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}


def closed(required, **more):
    """Return the schema of an object that has nothing but what is named."""
    named = {"properties": required | more, "required": list(required)}
    return {"type": "object", "additionalProperties": False, **named}


SERVICE = closed(
    {
        "image": TEXT,
        "command": TEXTS,
        "user": {"const": "1000:1000"},
        "volumes": TEXTS,
        "restart": {"const": "unless-stopped"},
        "init": {"const": True},
        "stop_grace_period": {"const": "60s"},
        "cap_drop": {"const": ["ALL"]},
        "security_opt": {"const": ["no-new-privileges:true"]},
    },
    ports=TEXTS,
    extra_hosts=TEXTS,
)
CONTAINER = {
    "type": "object",
    "required": ["name", "image", "securityContext", "volumeMounts"],
    "properties": {
        "securityContext": closed(
            {
                "allowPrivilegeEscalation": {"const": False},
                "readOnlyRootFilesystem": {"const": True},
                "capabilities": {"const": {"drop": ["ALL"]}},
            }
        )
    },
}


def written(system, tmp_path, **more):
    paths = write_services(FEDERATION, system, tmp_path, **more)
    return dict(zip(("server", *SITES), paths, strict=True))


@pytest.mark.parametrize("system", ["systemd", "docker", "kubernetes"])
def test_files_of_the_server_name_metrics_and_no_table_and_those_of_sites_the_reverse(
    system, tmp_path
):
    for name, path in written(system, tmp_path).items():
        server, text = name == "server", path.read_text()
        assert ("its table" in text) != server
        assert ("nvflare,privacy,metrics" in text) == (server and system != "systemd")


def test_a_compose_file_runs_the_kit_beside_it(tmp_path):
    for name, path in written("docker", tmp_path).items():
        kind = "server" if name == "server" else "site"
        found = yaml.safe_load(path.read_text())
        jsonschema.validate(found, closed({"services": closed({kind: SERVICE})}))
        service = found["services"][kind]
        assert service["command"] == ["federation", kind, f"/data/{name}"]
        assert service.get("ports", []) == (["8710:8710"] if name == "server" else [])
        at_home = ["fed.example.org:127.0.0.1"] if name == "server" else []
        assert service.get("extra_hosts", []) == at_home  # the administrator's session


def test_a_manifest_has_one_process_for_a_kit_on_a_volume(tmp_path):
    for name, path in written("kubernetes", tmp_path).items():
        kind = "server" if name == "server" else "site"
        service, workload = yaml.safe_load_all(path.read_text())
        spec = workload["spec"]
        pod = spec["template"]["spec"]
        assert (service["kind"], workload["kind"], spec["replicas"]) == (
            "Service",
            "StatefulSet",
            1,
        )
        unit = {"server": "intarsia-server", "Bank_2": "intarsia-bank-2"}.get(
            name, f"intarsia-{name}"
        )
        for one in (service["metadata"]["name"], spec["serviceName"], workload["metadata"]["name"]):
            assert one == unit
        labels = [service["spec"]["selector"], spec["selector"]["matchLabels"]]
        assert [*labels, spec["template"]["metadata"]["labels"]] == [{"app": unit}] * 3
        for container in (*pod["initContainers"], *pod["containers"]):
            jsonschema.validate(container, CONTAINER)
            mounted = {one["name"] for one in container["volumeMounts"]}
            held = {one["name"] for one in pod["volumes"]}
            claimed = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
            assert mounted == held | claimed
        (container,) = pod["containers"]
        assert container["args"] == ["federation", kind, f"/data/{name}"]
        ports = [one["port"] for one in service["spec"].get("ports", [])]
        assert ports == ([8710] if name == "server" else [])
        assert [one["containerPort"] for one in container.get("ports", [])] == ports


def test_a_unit_is_one_that_systemd_takes(tmp_path):
    program = shutil.which("true")
    for name, path in written("systemd", tmp_path, program=program).items():
        kind = "server" if name == "server" else "site"
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str
        unit.read(path)
        expected = f"{program} federation {kind} /srv/intarsia/{name}"
        assert unit["Service"]["ExecStart"] == expected
        assert unit["Service"]["ReadWritePaths"] == f"/srv/intarsia/{name}"
        if shutil.which("systemd-analyze"):
            command = ["systemd-analyze", "verify", "--man=no", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said = [line for line in done.stderr.splitlines() if path.name in line]
            assert (done.returncode, said) == (0, [])
