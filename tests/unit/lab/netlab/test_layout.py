"""Names, addresses and the choice of a range."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.layout import Layout, choose_subnet, other, owner
from tests.unit.lab.netlab.machine import Machine


def test_each_host_has_its_half() -> None:
    layout = Layout("lab", IPv4Network("10.99.0.0/24"))
    assert [str(layout.address(host)) for host in ("device", "cloud")] == ["10.99.0.2", "10.99.0.130"]
    assert [str(layout.gateway(host)) for host in ("device", "cloud")] == ["10.99.0.1", "10.99.0.129"]
    assert layout.namespace("cloud") == "tandem-lab-cloud"
    assert (other("device"), other("cloud")) == ("cloud", "device")


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "x" * 21, "..", "ü"])
def test_a_bad_name_is_one_sentence(name: str) -> None:
    with pytest.raises(NetLabError, match="has 1 to 20 small letters"):
        Layout(name)


def test_a_mark_names_its_network() -> None:
    assert owner(Layout("a-b").mark("router")) == ("a-b", "router")
    assert [owner(mark) for mark in ("", "lab", "tandem-netlab:lab:printer", "other:lab:device")] == [
        None
    ] * 4


def test_the_first_free_range_is_chosen() -> None:
    machine = Machine()
    assert str(choose_subnet(None, machine)) == "198.18.0.0/24"
    machine.addresses = [("198.18.0.77", 32)]
    machine.routes = ["default", "198.18.1.0/25", "127.0.0.0/8"]
    assert str(choose_subnet(None, machine, [IPv4Network("198.18.2.0/24")])) == "198.18.3.0/24"


def test_a_range_in_use_is_one_sentence_with_the_remedy() -> None:
    machine = Machine()
    machine.routes = ["10.0.0.0/8"]
    with pytest.raises(NetLabError) as caught:
        choose_subnet(IPv4Network("10.99.0.0/24"), machine)
    assert str(caught.value) == (
        "A test network's addresses must be unused, but 10.99.0.0/24 overlaps 10.0.0.0/8, which this machine uses; "
        "give another range with --subnet, such as 172.31.99.0/24."
    )
