"""Cuts of a network's link, as the trials of reliability make them: nothing gets through, in either way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tandem.topology import PARTIES, Party
from tandem_lab.netlab import NetLab
from tandem_lab.reliability.cluster import NetworkLink
from tests.network.conftest import run_in, unique

DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=2).close()
except OSError as error:
    print(type(error).__name__)
"""
HELD = """
import socket, sys
with socket.create_connection((sys.argv[1], 7), timeout=5) as held:
    print("open", flush=True)
    sys.stdin.readline()
    try:
        held.sendall(b"x")
        print(held.recv(1))
    except OSError as error:
        print(type(error).__name__)
"""
ECHO = """
import socket
with socket.create_server(("", 7)) as server:
    print("ready", flush=True)
    accepted, _ = server.accept()
    while data := accepted.recv(1):
        accepted.sendall(data)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[NetLab]:
    network = NetLab(unique("cuts"))
    with network.while_up():
        yield network


def dial(lab: NetLab, party: str) -> str:
    """What a host hears that dials a port of the other one where nobody listens."""
    (there,) = set(PARTIES) - {party}
    return run_in(lab, party, sys.executable, "-c", DIAL, lab.address(there)).strip()


def test_a_stalled_link_loses_everything_until_it_heals(lab: NetLab) -> None:
    link = NetworkLink(lab)
    link.cut("stall")
    assert [dial(lab, party) for party in PARTIES] == ["TimeoutError"] * 2
    link.heal()
    assert [dial(lab, party) for party in PARTIES] == ["ConnectionRefusedError"] * 2


def test_a_reset_link_ends_connections_and_heals(lab: NetLab) -> None:
    link = NetworkLink(lab)
    enter, pipe = [lab.enter(party) for party in PARTIES], subprocess.PIPE
    run = [sys.executable, "-c"]
    with subprocess.Popen([*enter[1], *run, ECHO], stdout=pipe, text=True) as echo:
        assert echo.stdout is not None
        assert echo.stdout.readline() == "ready\n"
        held = [*enter[0], *run, HELD, lab.address(Party.CLOUD)]
        with subprocess.Popen(held, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            link.cut("reset")
            said, _ = process.communicate("now\n", timeout=20)
        assert said == "ConnectionResetError\n"
        link.heal()
        echo.kill()
    assert [dial(lab, party) for party in PARTIES] == ["ConnectionRefusedError"] * 2
