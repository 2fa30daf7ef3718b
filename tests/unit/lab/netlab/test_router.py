"""The router's script and what is said to it; a shell stands for the machine."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import router
from tandem_lab.netlab.layout import Layout
from tandem_lab.netlab.shape import Shape

LAYOUT = Layout("lab")


def test_the_script_is_one_that_a_shell_can_read() -> None:
    script = router.init_script(LAYOUT, Path("/own modules/sch_netem.ko"))
    subprocess.run(["sh", "-n", "-c", script], check=True)
    assert "insmod '/own modules/sch_netem.ko'" in script
    assert "insmod '/own modules/cls_u32.ko'" in script
    assert "ip address add 198.18.0.129/25 dev vec1" in script
    assert script.index("tandem-router-ready") > script.index("tc qdisc replace dev vec1")
    assert script.endswith("exec tc -force -batch -\n")


@contextmanager
def console(folder: Path, *complaints: str) -> Iterator[list[str]]:
    """Something that reads the console as `tc -batch` does: it knows `qdisc`, and complains as it is told."""
    os.mkfifo(folder / "console")
    (folder / "log").write_text("tandem-router-ready\n", "utf-8")
    handle = os.open(folder / "console", os.O_RDWR)
    heard: list[str] = []

    def answer() -> None:
        with os.fdopen(os.dup(handle), "r", encoding="utf-8") as lines:
            for line in iter(lines.readline, "stop\n"):
                heard.append(line.strip())
                if line.startswith("qdisc"):
                    continue
                # `tc` writes them one by one; what reads the log may see the first without the second.
                unknown = f'Object "{line.strip()}" is unknown, try "tc help".\n'
                for text in (*complaints, unknown, f"Command failed -:{len(heard)}\n"):
                    with open(folder / "log", "a", encoding="utf-8") as log:
                        log.write(text)
                    time.sleep(0.02)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        os.write(handle, b"stop\n")
        thread.join(timeout=5)
        os.close(handle)


def the_router(folder: Path) -> router.Router:
    return router.Router(LAYOUT, folder, time.monotonic, time.sleep)


def test_a_shape_is_done_when_the_router_has_said_so(tmp_path: Path) -> None:
    with console(tmp_path) as heard:
        for rtt_s in (0.1, 0.2):
            the_router(tmp_path).shape(os.getpid(), Shape(rtt_s=rtt_s))
        assert [line for line in heard if line.startswith("qdisc")] == [
            *router.commands(Shape(rtt_s=0.1)),
            *router.commands(Shape(rtt_s=0.2)),
        ]


def test_a_router_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(
        NetLabError, match="The router of 'lab' must be running, but it is not; restart the network"
    ):
        the_router(tmp_path).shape(gone.pid, Shape())
