"""Bytes by question: packets made by hand, cut after their headers."""

from __future__ import annotations

from pathlib import Path
from socket import inet_aton
from typing import Any

import pytest

from tandem.topology import Party
from tandem_lab.errors import NetLabError
from tandem_lab.netlab.packets import read_capture
from tandem_lab.netlab.traffic import HEADER_BYTES, LinkTraffic, Packet, read_packets

dpkt: Any = pytest.importorskip("dpkt")

DEVICE, CLOUD, PORT = "198.18.0.2", "198.18.0.130", 7700


def tcp(source: str, source_port: int, target_port: int, size: int) -> bytes:
    target = CLOUD if source == DEVICE else DEVICE
    part = dpkt.tcp.TCP(sport=source_port, dport=target_port, data=b"x" * size)
    return ip(source, target, dpkt.ip.IP_PROTO_TCP, part, 40 + size)


def ip(source: str, target: str, protocol: int, data: Any, length: int) -> bytes:
    whole = dpkt.ip.IP(src=inet_aton(source), dst=inet_aton(target), p=protocol, data=data, len=length)
    return bytes(dpkt.ethernet.Ethernet(src=b"\2" * 6, dst=b"\4" * 6, data=whole))


def captured(path: Path, packets: list[tuple[float, bytes]]) -> list[Packet]:
    with path.open("wb") as file:
        writer = dpkt.pcap.Writer(file)
        for at_s, packet in packets:
            writer.writepkt(packet[:HEADER_BYTES], ts=at_s)
    return read_packets(path, DEVICE, PORT)


def test_a_packet_counts_whole_though_it_was_cut(tmp_path: Path) -> None:
    arp = bytes(dpkt.ethernet.Ethernet(type=dpkt.ethernet.ETH_TYPE_ARP, data=dpkt.arp.ARP()))
    ping = ip(CLOUD, DEVICE, dpkt.ip.IP_PROTO_ICMP, dpkt.icmp.ICMP(data=b"x" * 8), 32)
    found = captured(
        tmp_path / "p",
        [
            (3.0, tcp(CLOUD, PORT, 40000, 700)),
            (1.0, tcp(DEVICE, 40000, PORT, 0)),
            (2.0, tcp(DEVICE, 6379, 50000, 1000)),
            (4.0, ping),
            (5.0, arp),
        ],
    )
    assert found == [
        Packet(1.0, Party.DEVICE, "data", 54),
        Packet(2.0, Party.DEVICE, "ray", 1054),
        Packet(3.0, Party.CLOUD, "data", 754),
        Packet(4.0, Party.CLOUD, "other", 46),
    ]


def test_a_question_has_what_was_sent_for_it() -> None:
    """The data plane's last frames count, what the measurement itself asks of Ray does not."""
    times = (0.9, 1.0, 1.5, 2.0, 2.5, 3.0, 3.1)
    seen = [Packet(at_s, Party.DEVICE, port, 10) for at_s in times for port in ("data", "ray")]
    found = LinkTraffic(seen).of(1.0, 2.0, 3.0)  # counted: data at 1, 1.5, 2, 2.5, 3; ray at 1, 1.5, 2
    assert found == {
        "device": {"data": 50, "ray": 30, "other": 0},
        "cloud": {"data": 0, "ray": 0, "other": 0},
    }
    assert LinkTraffic([]).of(1.0, 2.0, 3.0) == {}


def test_another_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"x" * 100)
    with pytest.raises(NetLabError, match="stand in a pcap file"):
        read_packets(tmp_path / "p", DEVICE, PORT)


def test_without_dpkt_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_lab.netlab.pcap.find_spec", lambda name: None)
    for read in (lambda path: read_packets(path, DEVICE, PORT), read_capture):
        with pytest.raises(NetLabError, match=r"needs dpkt, which is not installed; run `.*\[lab\]"):
            read(tmp_path / "p")
