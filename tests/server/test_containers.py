"""The container files as far as they can be checked without a daemon: what they copy, start, and ask for health."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

import tandem
from tandem.joining.join_link import DeviceList, read_link
from tandem.plugins.server.access import load_key
from tests.server.running import Served

ROOT = Path(tandem.__file__).parents[1]
FILE = ROOT / "containers" / "Dockerfile"

pytestmark = pytest.mark.skipif(
    not FILE.exists(), reason="the container files are not part of this installation"
)


def targets() -> dict[str, str]:
    """The instructions of each stage, long lines joined."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text("utf-8"))
    return dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))


def command(target: str, instruction: str) -> list[str]:
    """The arguments of an instruction's CMD."""
    (found,) = re.findall(rf"^{instruction}(\[.*\])$", targets()[target], re.MULTILINE)
    arguments: list[str] = json.loads(found)
    return arguments


def probe(target: str, port: int) -> int:
    """How the health check of an image ends, with another port."""
    program, *arguments = command(target, "HEALTHCHECK .*CMD ")
    assert program == "python"
    own = {"cloud": "7800", "device": "8000"}[target]
    assert own in arguments[1]
    arguments[1] = arguments[1].replace(own, str(port))
    return subprocess.run([sys.executable, *arguments], stderr=subprocess.DEVNULL, check=False).returncode


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (FILE.parent / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", targets()["built"], re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_no_process_runs_as_root() -> None:
    assert re.search(r"^USER tandem$", targets()["base"], re.MULTILINE)
    assert not [name for name in ("cloud", "device") if "USER" in targets()[name]]


@pytest.mark.parametrize("target", ["cloud", "device"])
def test_the_health_check_tells_a_server_from_none(target: str, served: Served) -> None:
    port = urlsplit(served.url).port
    assert port is not None
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert probe(target, unused.getsockname()[1]) != 0
    assert probe(target, port) == 0


# ---- compose.yaml --------------------------------------------------------------------------------------------

COMPOSE = FILE.parent / "compose.yaml"
DOCUMENTED = {
    "": {"name", "services", "networks", "volumes", "configs", "secrets", "include", "models"},
    "services": {
        "build", "cap_drop", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "init",
        "network_mode", "networks", "ports", "read_only", "restart", "security_opt", "stop_grace_period", "tmpfs",
        "user", "volumes",
    },
    "networks": {"attachable", "driver", "driver_opts", "external", "internal", "ipam", "labels", "name"},
    "volumes": {"driver", "driver_opts", "external", "labels", "name"},
    "build": {"args", "context", "dockerfile", "target"},
    "healthcheck": {"disable", "interval", "retries", "start_period", "test", "timeout"},
}  # fmt: skip
"""Keys of the Compose Specification, as far as a file like ours would have them; others begin with `x-`."""


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    return loaded


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def test_compose_has_the_keys_of_the_specification() -> None:
    whole = compose()
    assert {key for key in whole if not key.startswith("x-")} <= DOCUMENTED[""]
    for kind in ("services", "networks", "volumes"):
        for name, part in whole[kind].items():
            assert set(part) <= DOCUMENTED[kind], name
    for name, service in services().items():
        assert set(service["build"]) <= DOCUMENTED["build"]
        assert set(service.get("healthcheck", {})) <= DOCUMENTED["healthcheck"]
        assert set(service.get("networks", [])) <= set(whole["networks"])
        assert {mount.split(":")[0] for mount in service["volumes"]} <= set(whole["volumes"])
        assert set(service.get("depends_on", {})) <= set(services()) - {name}


def test_compose_builds_what_the_container_file_has_and_runs_commands_that_exist() -> None:
    for name, service in services().items():
        build = COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]
        assert build.resolve() == FILE
        assert service["build"]["target"] in targets()
        if name != "handover":
            image = command(service["build"]["target"], "CMD ")
            verbs = [word for word in image if not word.startswith("-")][: 2 if name == "cloud" else 1]
            assert service["command"][: len(verbs)] == verbs
            assert not service.get("healthcheck")  # that of the image


def test_compose_gives_no_service_more_than_it_needs() -> None:
    for service in services().values():
        assert service["user"] == "1000:1000"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert not re.search(r"tandem://|KEY|TOKEN|SECRET", json.dumps(service.get("environment", {})))
    assert services()["cloud"]["networks"] == ["link"]
    assert compose()["networks"]["link"] == {"internal": True}
    readers = [name for name, service in services().items() if "handover" in "".join(service["volumes"])]
    assert readers == ["handover", "device"]
    assert "handover:/handover:ro" in services()["device"]["volumes"]


def test_the_secrets_are_handed_over_once_and_privately(tmp_path: Path) -> None:
    """The very script, with other folders."""
    programs, folder = tmp_path / "bin", tmp_path / "handover"
    programs.mkdir()
    folder.mkdir()
    (programs / "tandem").write_text(f'#!/bin/sh\nexec {sys.executable} -m tandem "$@"\n')
    (programs / "tandem").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    environment = os.environ | {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    service = services()["handover"]
    assert service["entrypoint"] == ["sh", "-ceu"]
    script = service["command"][0].replace("$$", "$").replace("/handover", str(folder))

    def hand_over() -> dict[str, str]:
        done = subprocess.run(
            [*service["entrypoint"], script], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
        return {path.name: path.read_text("utf-8") for path in folder.iterdir()}

    first = hand_over()
    assert set(first) == {"api-key", "link"}
    where = services()["device"]["environment"]["TANDEM_JOIN_LINK"].replace("/handover", str(folder))
    link = read_link(where)
    assert f"{link.host}:{link.port}" == services()["cloud"]["command"][-1]
    assert load_key(folder / "api-key") == first["api-key"].strip()
    known = DeviceList(tmp_path / "data" / "tandem" / "keys")
    assert known.recognise(link.secret) is not None
    assert hand_over() == first
    (folder / "link").unlink()
    again = hand_over()
    assert again["api-key"] == first["api-key"]
    assert again["link"] != first["link"]
    assert [device.is_welcome for device in known.all()].count(True) == 1


# ---- raycluster.yaml -----------------------------------------------------------------------------------------

RAYCLUSTER = FILE.parent / "raycluster.yaml"
OF_GROUPS = {
    "head": {"rayStartParams", "template", "serviceType", "enableIngress"},
    "worker": {
        "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "numOfHosts",
    },
}  # fmt: skip
"""Keys of the groups of a RayCluster (ray.io/v1)."""
OF_CONTAINERS = {
    *("name", "image", "command", "args", "env", "ports", "volumeMounts", "resources", "securityContext"),
    *("readinessProbe", "livenessProbe", "startupProbe"),
}


def test_the_ray_cluster_has_a_node_of_each_party_and_a_token() -> None:
    cluster, policy = yaml.safe_load_all(RAYCLUSTER.read_text("utf-8"))
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    spec = cluster["spec"]
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    assert f"\nray=={spec['rayVersion']}\n" in constraints
    assert set(spec["headGroupSpec"]) <= OF_GROUPS["head"]
    assert all(set(group) <= OF_GROUPS["worker"] for group in spec["workerGroupSpecs"])
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        # the API takes nothing else
        assert all(type(value) is str for value in group["rayStartParams"].values())
    offered = {  # JSON as a quoted word of a shell
        group["groupName"]: json.loads(*shlex.split(group["rayStartParams"]["resources"]))
        for group in spec["workerGroupSpecs"]
    }
    assert offered == {"cloud": {"tandem_cloud": 1000}, "device": {"tandem_device": 1000}}
    selector = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    assert policy["spec"]["podSelector"] == selector
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": selector}]}]


def test_every_pod_of_the_ray_cluster_is_hardened_and_has_what_it_mounts() -> None:
    cluster, _ = yaml.safe_load_all(RAYCLUSTER.read_text("utf-8"))
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for pod in (group["template"]["spec"] for group in groups):
        (container,) = pod["containers"]
        assert set(container) <= OF_CONTAINERS
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["volumes"]}
        assert {"/tmp", "/data", "/dev/shm"} == {mount["mountPath"] for mount in container["volumeMounts"]}
        variables = {each["name"]: each for each in container["env"]}
        assert variables["RAY_AUTH_MODE"]["value"] == "token"
        secret = {"secretKeyRef": {"name": "tandem-token", "key": "auth_token"}}
        assert variables["RAY_AUTH_TOKEN"] == {"name": "RAY_AUTH_TOKEN", "valueFrom": secret}
        assert {"readinessProbe", "livenessProbe"} <= set(container)
