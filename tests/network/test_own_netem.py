"""The link on a kernel with netem. Where this machine's lacks it, the test runs inside of a kernel that has it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tandem_lab.netlab import router
from tests.network.conftest import has_netem

pytestmark = pytest.mark.timed
ROOT = Path(__file__).parents[2]

SCRIPT = """
import re, statistics, subprocess
from tandem_lab.netlab import NetLab, Shape
lab = NetLab("own")
with lab.while_up() as state:
    for rtt_ms in (0, 100, 300):
        lab.shape(Shape(rtt_s=rtt_ms / 1e3))
        command = [*lab.enter("device"), "ping", "-n", "-c", "9", "-i", "0.05", lab.address("cloud")]
        output = subprocess.run(command, capture_output=True, text=True).stdout
        print("median", rtt_ms, statistics.median(map(float, re.findall("time=([0-9.]+)", output))), flush=True)
    lab.shape(Shape(loss=1))
    command = [*lab.enter("device"), "ping", "-c", "3", "-i", "0.05", "-W", "0.3", lab.address("cloud")]
    print("lost", "100% packet loss" in subprocess.run(command, capture_output=True, text=True).stdout, flush=True)
left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
print("kind", state.kind, "left", left)
"""


def test_the_hosts_own_netem_shapes_the_link(tmp_path: Path) -> None:
    said = in_this_kernel() if has_netem() else in_another_kernel(tmp_path)
    medians = [line.split()[1:] for line in said.splitlines() if line.startswith("median ")]
    assert [rtt for rtt, _ in medians] == ["0", "100", "300"], said
    assert all(abs(float(median) - float(rtt)) <= 0.03 * float(rtt) + 1 for rtt, median in medians)
    assert "lost True" in said
    assert "kind host left []" in said


def in_this_kernel() -> str:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    ).stdout


def in_another_kernel(folder: Path) -> str:
    """Boots User-Mode-Linux on this machine's files, read-only, for one script; in a namespace without a link."""
    netem = router.module()
    veth = netem.parents[2] / "drivers/net/veth.ko"
    script = [
        "#!/bin/sh",
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1",
        "mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run",
        f"insmod {netem}",
        f"insmod {veth}",
        f"cd {shlex.quote(str(ROOT))}",
        shlex.join([sys.executable, "-c", SCRIPT]),
        "echo o >/proc/sysrq-trigger",
        "sleep 5",
    ]
    init = folder / "init"
    init.write_text("\n".join([*script, ""]), "utf-8")
    init.chmod(0o700)
    kernel = [
        *router.kernel_command(),
        "mem=256M",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"init={init}",
    ]
    own = [
        f"umid={folder.name}",
        f"uml_dir={folder}/",
        "con=null",
        "con0=null,fd:1",
        "panic=-1",
        *router.kernel_arguments(),
    ]
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--kill-child", *kernel, *own],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.stdout.replace("\r", "")
