"""Who counts as one client, which connection has to go, and how many leave a process enough files."""

from __future__ import annotations

import resource

import pytest

from tandem.system.addresses import client_of, find_surplus, max_connections


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("@abstract", ""),
    ],
)
def test_a_client_has_all_of_its_network(address: str, client: str) -> None:
    assert client_of(address) == client


def test_a_crowd_pushes_out_itself() -> None:
    assert find_surplus({1: "a", 2: "b", 3: "b", 4: "c"}) == 2
    assert find_surplus({1: "a", 2: "b"}) == 1, "the oldest, where all have as many"


@pytest.mark.parametrize(
    ("limit", "most"), [(1024, 640), (4096, 3712), (256, 128), (resource.RLIM_INFINITY, None)]
)
def test_connections_leave_files(monkeypatch: pytest.MonkeyPatch, limit: int, most: int | None) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert max_connections() == most if most else max_connections() > 10**6
