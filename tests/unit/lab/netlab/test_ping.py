"""What ping writes."""

from __future__ import annotations

import pytest

from tandem_lab.netlab.ping import replies_in

SAID = """PING 198.18.0.130 (198.18.0.130) 56(84) bytes of data.
[1700000000.300000] 64 bytes from 198.18.0.130: icmp_seq=1 ttl=63 time=300 ms
[1700000000.900000] 64 bytes from 198.18.0.130: icmp_seq=3 ttl=63 time=100 ms
[1700000000.950000] 64 bytes from 198.18.0.130: icmp_seq=2 ttl=63 time=450.5 ms
[1700000000.960000] 64 bytes from 198.18.0.130: icmp_seq=2 ttl=63 time=460 ms (DUP!)
[1700000001.000000] no answer yet for icmp_seq=4

--- 198.18.0.130 ping statistics ---
4 packets transmitted, 3 received, 25% packet loss, time 601ms
"""


def test_replies_in_the_order_of_the_questions() -> None:
    found = replies_in(SAID)
    assert [reply.number for reply in found] == [1, 2, 3]
    assert [reply.rtt_s for reply in found] == pytest.approx([0.3, 0.4505, 0.1])
    assert found[0].sent_s == pytest.approx(1.7e9, abs=1e-3)
