"""Names, addresses and the choice of a range."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.layout import Layout, choose_subnet
from tests.unit.lab.netlab.machine import Machine


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "x" * 21, "..", "ü"])
def test_a_bad_name_is_one_sentence(name: str) -> None:
    with pytest.raises(NetLabError, match="has 1 to 20 small letters"):
        Layout(name)


def test_a_range_in_use_is_one_sentence_with_the_remedy() -> None:
    machine = Machine()
    machine.routes = ["10.0.0.0/8"]
    with pytest.raises(NetLabError) as caught:
        choose_subnet(IPv4Network("10.99.0.0/24"), machine)
    assert str(caught.value) == (
        "A test network's addresses must be unused, but 10.99.0.0/24 overlaps 10.0.0.0/8, which this machine uses; "
        "give another range with --subnet, such as 172.31.99.0/24."
    )
