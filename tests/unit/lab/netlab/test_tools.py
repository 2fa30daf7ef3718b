"""What is missing on a machine is one sentence with the package to install."""

from __future__ import annotations

import os

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab import tools


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for call in (tools.require, lambda: tools.run(["ip", "link"])):
        with pytest.raises(NetLabError, match="belongs to user 1000; run it with sudo"):
            call()


@pytest.mark.parametrize(
    ("program", "package"),
    [("ip", "iproute2"), ("tc", "iproute2"), ("linux.uml", "user-mode-linux"), ("insmod", "kmod")],
)
def test_a_missing_program_names_its_package(
    monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    monkeypatch.setattr(tools, "find", lambda _program: None)
    with pytest.raises(NetLabError, match=f"`{program}`, but it was not found; .*apt-get install {package}`"):
        tools.which(program)
